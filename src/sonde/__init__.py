"""Sonde: lower a language model into data that does not fit in a prompt."""
