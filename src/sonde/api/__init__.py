"""The library: ask questions, run investigations, look at runs. Everything that reads the environment is here or in cli/."""

from sonde.api.asking import Answer, aask, ask
from sonde.api.settings import Settings, load_settings
from sonde.core.budget import Budget

__all__ = ["Answer", "Budget", "Settings", "aask", "ask", "load_settings"]
