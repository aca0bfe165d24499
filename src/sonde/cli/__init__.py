"""The command line: one file per command in `commands/`, found by its name. Nothing heavy is imported before a command runs."""
