"""Running untrusted Python behind a kernel boundary, with state that survives a killed turn."""

from __future__ import annotations

from sonde.sandbox.base import (
    Args,
    CodeClock,
    ExecFault,
    ExecResult,
    ExecUsage,
    Final,
    Host,
    Limits,
    Variable,
)
from sonde.sandbox.box import BACKENDS, Box, open_box
from sonde.sandbox.forkserver import ForkServer, shared_server
from sonde.sandbox.kernel_box import Sandbox
from sonde.sandbox.share import Shareable

__all__ = [
    "BACKENDS",
    "Args",
    "Box",
    "CodeClock",
    "ExecFault",
    "ExecResult",
    "ExecUsage",
    "Final",
    "ForkServer",
    "Host",
    "Limits",
    "Sandbox",
    "Shareable",
    "Variable",
    "open_box",
    "shared_server",
]

INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this package waits (cli/interrupt.py)
