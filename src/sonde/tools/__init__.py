"""Typed functions that code may call, and the registry that is their only door."""

from sonde.tools.registry import ToolRegistry, ToolResult
from sonde.tools.spec import Parameter, Tool, tool

__all__ = ["Parameter", "Tool", "ToolRegistry", "ToolResult", "tool"]
