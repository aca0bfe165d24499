"""The process behind `local:`: llama.cpp's own OpenAI-compatible server, as the package xllamacpp carries it.

    python -I local_server.py WEIGHTS.gguf --threads 1 --context 8192

Prints its address as one line and ends when standard input does, so it never outlives whoever started it. Needs
xllamacpp and the standard library only. Listens on loopback.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any


def parameters(weights: str, *, threads: int, context: int) -> Any:
    """Polling off: threads that spin while they wait make a busy machine a hundred times slower."""
    params = importlib.import_module("xllamacpp").CommonParams()
    params.model.path = weights
    params.n_ctx = context
    params.n_parallel = 1
    params.port = 0
    params.warmup = False
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
        cpu.poll = 0
    if hasattr(params, "hostnames"):  # its name since 2026
        params.hostnames = ["127.0.0.1"]
    else:
        params.hostname = "127.0.0.1"
    return params


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=8192)
    chosen = parser.parse_args()
    address = os.dup(1)
    os.dup2(2, 1)  # llama.cpp logs where it likes; the address goes out alone
    params = parameters(chosen.weights, threads=chosen.threads, context=chosen.context)
    try:
        server = importlib.import_module("xllamacpp").Server(params)
    except RuntimeError as error:
        sys.exit(
            f"llama.cpp cannot use {chosen.weights} ({error}); is it a whole GGUF file, and is there memory for it?"
        )
    os.write(address, f"{server.listening_address}\n".encode())
    sys.stdin.buffer.read()
    os._exit(0)  # the server's threads do not end by themselves


if __name__ == "__main__":
    main()
