"""The worker process: a request as JSON on standard input, a result as JSON on standard output, remarks on standard error."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback

from sonde.rlms.request import Request
from sonde.rlms.result import failure
from sonde.rlms.worker import work
from sonde.sandbox.worker.tables import PR_SET_PDEATHSIG


def main() -> None:
    """One invocation."""
    answer = os.dup(1)
    os.dup2(2, 1)  # a stray print must not end up in the result
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, it ends its programs first
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)  # and also when the wrapper is gone
    order = json.loads(sys.stdin.buffer.read())
    request = Request.from_wire(order["request"])
    try:
        result = work(request, os.environ, used_s=max(0.0, time.monotonic() - order["started"]))
    except Exception as error:  # noqa: BLE001  # the top of a worker: a fault of ours must become a result
        traceback.print_exc()
        result = failure(request, "worker_failure", f"{type(error).__name__}: {error}")
    with os.fdopen(answer, "wb") as out:
        out.write(json.dumps(result).encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
