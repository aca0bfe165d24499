"""The command line: one file a command in `commands/`, found by its name; nothing heavy is imported before a command runs."""
