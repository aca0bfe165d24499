"""The portable second backend: pydantic-monty, an interpreter of a subset of Python in a process of its own."""

from __future__ import annotations
