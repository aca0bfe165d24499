"""A program that tries to get out, first in plain Python, then in the sandbox, and what stopped it there.

    python examples/escape_demo.py

Everything happens in a temporary folder with a secret of its own; nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sonde.sandbox import ExecResult, Limits, Sandbox


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is tried, and code that prints or does it. {secret} and {marker} are paths, {name} is a variable of the environment."""

    what: str
    code: str


WALK = """
for kind in ().__class__.__base__.__subclasses__():
    if kind.__name__ == "_wrap_close":
        kind.__init__.__globals__["system"]("cp {secret} {marker}")
"""
RAW_OPEN = """
import ctypes
call, text = ctypes.CDLL(None).syscall, ctypes.create_string_buffer(99)
call(0, call(2, b"{secret}", 0), text, 98)
print(text.value.decode())
"""
RAW_FORK = """
import ctypes, os
if ctypes.PyDLL(None).syscall(57) == 0:
    os.mkdir("{marker}")
    os._exit(0)
os.wait()
"""
MACHINE_CODE = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=7)
page[:6] = bytes.fromhex("b82a000000c3")  # return 42
answer = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))
if answer() == 42: open("{marker}", "w")
"""
THREAD = """
import threading
thread = threading.Thread(target=lambda: open("{marker}", "w"))
thread.start()
thread.join()
"""
ATTEMPTS = [
    Attempt("read a secret file", "print(open('{secret}').read())"),
    Attempt("read a key from the environment", "import os; print(os.environ['{name}'])"),
    Attempt("go round by /proc", "print(open('/proc/self/root{secret}').read())"),
    Attempt("walk from () to os.system", WALK),
    Attempt("start a program", "import subprocess; subprocess.run(['cp', '{secret}', '{marker}'])"),
    Attempt("write a file", "open('{marker}', 'w').write('here I was')"),
    Attempt("open the file by raw system call", RAW_OPEN),
    Attempt("fork by raw system call", RAW_FORK),
    Attempt("start a thread", THREAD),
    Attempt("run machine code", MACHINE_CODE),
    Attempt("open a network socket", "import socket; socket.socket().bind(('127.0.0.1', 0)); open('{marker}', 'w')"),
]
HARM = [
    Attempt("loop for ever", "while True: pass"),
    Attempt("eat all memory", "x = []\nwhile True: x.append(bytearray(10 ** 6))"),
    Attempt("crash the interpreter", "import ctypes; ctypes.string_at(0)"),
    Attempt("forge a message to the supervisor", "import os; os.write(3, b'FINAL: all is well')"),
]
LIMITS = Limits(wall_s=1.0, memory="128MiB")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, Sandbox(profile="open", limits=LIMITS) as box:
        Path(folder).chmod(0o777)
        place = Place(Path(folder))
        print("Language rules: none (profile `open`). Kernel layers:", ", ".join(box.layers))
        box.execute("kept = 41")
        print(f"\n{'The code tries to':38} {'plain Python':14} sandbox")
        for attempt in ATTEMPTS:
            plain = "succeeds" if place.shows(place.run_plainly(attempt)) else "fails"
            result = box.execute(place.fill(attempt))
            confined = "SUCCEEDS" if place.shows(result.stdout) else f"stopped: {reason(result)}"
            print(f"{attempt.what:38} {plain:14} {confined}")
        print("\nThe code tries to harm its own turn:")
        for attempt in HARM:
            print(f"{attempt.what:38} {'':14} stopped: {reason(box.execute(attempt.code))}")
        print(f"\nAfter all that, `kept + 1` in the same sandbox: {box.execute('print(kept + 1)').stdout.strip()}")


class Place:
    """A folder with a secret in it, and a judge who looks at the folder and the output."""

    def __init__(self, folder: Path) -> None:
        self.secret = "the-secret-of-this-demo"
        self.name = "SONDE_DEMO_KEY"
        self.marker = folder / "marker"
        self.file = folder / "secret.txt"
        self.file.write_text(self.secret)
        os.environ[self.name] = self.secret

    def fill(self, attempt: Attempt) -> str:
        return attempt.code.format(secret=self.file, marker=self.marker, name=self.name)

    def run_plainly(self, attempt: Attempt) -> str:
        done = subprocess.run(
            [sys.executable, "-c", self.fill(attempt)], capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout

    def shows(self, output: str) -> bool:
        """Is the secret in the output, or a marker in the folder? The marker is taken away again."""
        found = self.marker.exists()
        if self.marker.is_dir():
            self.marker.rmdir()
        else:
            self.marker.unlink(missing_ok=True)
        return found or self.secret in output


def reason(result: ExecResult) -> str:
    """What ended the turn, in one line."""
    if result.fault is None:
        return "it found nothing there"
    return f"{result.fault.kind}: {result.fault.message.splitlines()[0][:90]}"


if __name__ == "__main__":
    main()
