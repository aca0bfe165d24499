"""Fixed addresses, where the kernel allows it: `repr(object())` and the order of a set of objects repeat in a replay."""

from __future__ import annotations

import os
import sys

from . import kernel

ASK = 0xFFFFFFFF
NO_RANDOM_ADDRESSES = 0x0040000


def fix() -> None:
    """Start this program again without address randomisation; a kernel that refuses costs only that."""
    try:
        now = kernel.call("personality", ASK)
        if now & NO_RANDOM_ADDRESSES:
            return
        kernel.call("personality", now | NO_RANDOM_ADDRESSES)
    except (OSError, KeyError):
        return
    # Ourselves again, with the same environment: CPython has added LC_CTYPE to ours.
    os.execve(sys.orig_argv[0], sys.orig_argv, {"PYTHONHASHSEED": "0"})  # noqa: S606 - no shell, no other program
