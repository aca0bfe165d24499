"""The loop and what belongs to it. `RecursiveLoop` is the contract's name for the session."""

from sonde.runtime.actions import SandboxGuard
from sonde.runtime.delegate import SubcallResult
from sonde.runtime.session import Session as RecursiveLoop
from sonde.tools import ToolRegistry

__all__ = ["RecursiveLoop", "SandboxGuard", "SubcallResult", "ToolRegistry"]
