"""Typed functions that code may call, and the registry that is their only door."""

from sonde.tools.registry import CallResult, ToolRegistry
from sonde.tools.spec import Parameter, Tool, tool

__all__ = ["CallResult", "Parameter", "Tool", "ToolRegistry", "tool"]
