"""Readers of every trace format that people have; all of them give canonical spans and say what they could not read."""
