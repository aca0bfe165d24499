"""The loop and what belongs to it. `RecursiveLoop` is the session under the name that the runtime contract gives it."""

from sonde.runtime.actions import SandboxGuard
from sonde.runtime.delegate import SubcallResult
from sonde.runtime.session import Session as RecursiveLoop
from sonde.tools.registry import ToolRegistry

__all__ = ["RecursiveLoop", "SandboxGuard", "SubcallResult", "ToolRegistry"]
