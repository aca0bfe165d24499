"""The kinds of job: data and a few pure functions for the one loop in `sonde.runtime`. No engine has its own loop."""
