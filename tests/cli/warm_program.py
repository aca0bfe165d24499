"""A `sonde` for shell scripts that has imported everything already: each command is a fork of one process that waits.

The word `sonde` is a small client: it hands its three streams, its folder and its environment over a socket and ends with the command's
exit code. Signals to it do not reach the command; use it where none are sent.
"""

from __future__ import annotations

import array
import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

from sonde.cli.main import main

CLIENT = """\
#!{python} -IS
import array, json, os, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    order = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
    line.sendmsg([len(order).to_bytes(4)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
    line.sendall(order)
    sys.exit(line.recv(1)[0])
"""
HEAVY = (
    "sonde.api.ask_run",
    "sonde.api.investigations",
    "sonde.cli.foreground_run",
    "sonde.cli.program",
    "sonde.models.chat",
)


@contextlib.contextmanager
def warm_sonde(folder: Path) -> Generator[Path]:
    """A folder for the PATH with this `sonde` in it."""
    address = str(folder / "socket")
    client = folder / "sonde"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    ready, started = os.pipe()
    command = [sys.executable, __file__, address, str(started)]
    with subprocess.Popen(command, pass_fds=[started], start_new_session=True) as server:
        os.close(started)
        assert os.read(ready, 1), "it did not start"
        os.close(ready)
        yield folder
        server.terminate()


def serve(address: str, started: int) -> None:
    for name in HEAVY:
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(20)
        os.write(started, b"!")
        os.close(started)
        while True:
            line, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                _answer(line)
            line.close()
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass


def _answer(line: socket.socket) -> None:
    """Run the command in a child, as main program of its own, and tell how it ended."""
    size, ancillary, _, _ = line.recvmsg(4, socket.CMSG_SPACE(12))
    streams = array.array("i")
    streams.frombytes(ancillary[0][2])
    with line.makefile("rb") as stream:
        words, cwd, environ = json.loads(stream.read(int.from_bytes(size)))
    if child := os.fork():
        for each in streams:
            os.close(each)
        line.send(bytes([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255]))
        os._exit(0)
    line.close()
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        os.dup2(streams[number], number)
        os.close(streams[number])
        stream = os.fdopen(number, mode, encoding="utf-8", closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environ)
    sys.exit(main(words))


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
