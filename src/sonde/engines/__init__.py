"""The kinds of job: data and a few pure functions that the one loop of `sonde.runtime` uses. No engine has a loop of its own."""
