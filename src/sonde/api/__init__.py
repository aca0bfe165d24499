"""The library behind `sonde.ask` and its siblings. Everything that reads the environment is here or in cli/."""
