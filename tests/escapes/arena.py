"""The arena: secrets laid out, listeners waiting, and a judge who looks from outside.

Promises that a success is seen whatever the payload says about itself: a secret in its output, a marker file, a hit on a listener, a dead
victim, a changed file. Does not promise that a payload is live; the control run shows that.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import secrets
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

from corpus import Payload

SIZE = 48_211
_EVIL_C = "#include <sys/stat.h>\nint run(const char *path) { return mkdir(path, 0755); }\n"


@dataclass(slots=True)
class Arena:
    """One layout of secrets. Payloads get their own tokens, markers and victims in it."""

    folder: Path
    tag: str = field(default_factory=lambda: secrets.token_hex(6))
    heard: list[bytes] = field(default_factory=list[bytes])
    ports: dict[str, int] = field(default_factory=dict[str, int])
    victims: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict[str, "subprocess.Popen[bytes]"])
    victim_uid: int | None = None

    def secret(self, kind: str) -> str:
        return f"SECRET-{kind}-{self.tag}"

    @property
    def env_name(self) -> str:
        return f"SONDE_ESCAPE_{self.tag}"

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, self.env_name: self.secret("environment")}

    @property
    def inherited(self) -> Path:
        return self.folder / "inherited.txt"

    def token(self, payload: Payload) -> str:
        return f"TOKEN-{self.tag}-{payload.id}"

    def marker(self, payload: Payload) -> Path:
        return self.folder / "markers" / payload.id

    def fill(self, payload: Payload) -> str:
        """The payload's code with the things of this arena put in."""
        code = payload.code
        for word, value in self._words(payload).items():
            code = code.replace(f"@{word}@", value)
        return code

    def _words(self, payload: Payload) -> dict[str, str]:
        victim = str(self._victim(payload)) if "@VICTIM@" in payload.code else ""
        return {
            "SECRET": str(self.folder / "secret.txt"),
            "MODULE": str(self.folder / "secretmodule.py"),
            "DIR": str(self.folder),
            "NAME": self._victim_file(payload) if "@NAME@" in payload.code else "",
            "MARKER": str(self.marker(payload)),
            "ENV": self.env_name,
            "PORT": str(self.ports["tcp"]),
            "UDP": str(self.ports["udp"]),
            "UNIX": str(self.folder / "unix"),
            "ABSTRACT": f"sonde-{self.tag}",
            "SHM": f"sonde-{self.tag}",
            "SHMKEY": str(int(self.tag[:7], 16)),
            "VICTIM": victim,
            "TOKEN": self.token(payload),
            "NEKOT": self.token(payload)[::-1],
        }

    def _victim_file(self, payload: Payload) -> str:
        path = self.folder / "renames" / payload.id
        path.write_text("to be moved")
        path.chmod(0o666)
        return path.name

    def _victim(self, payload: Payload) -> int:
        """A process of the same user that waits for the end of its input, in a group of its own."""
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, start_new_session=True, user=self.victim_uid)
        self.victims[payload.id] = process
        return process.pid

    def judge(self, payload: Payload, output: str) -> list[str]:
        """What the payload achieved, as seen from outside; empty when it was stopped."""
        won = [f"saw the {kind}" for kind in _KINDS if self.secret(kind) in output]
        won += ["reached it"] * (self.token(payload) in output)
        won += ["saw a size"] * (f"size {SIZE}" in output)
        won += ["left a marker"] * (os.path.lexists(self.marker(payload)))
        won += ["reached a listener"] * any(self.token(payload).encode() in data for data in list(self.heard))
        won += ["wrote to a descriptor"] * (self.token(payload) in self.inherited.read_text())
        victim = self.victims.pop(payload.id, None)
        if victim is not None:
            won += ["killed a victim"] * _died(victim)
        return won


_KINDS = ("file", "environment", "name", "stdin", "module", "archive", "memory")


def _died(victim: subprocess.Popen[bytes]) -> bool:
    """Whether a signal ended it; one that is still under way comes before the end of its input."""
    assert victim.stdin is not None
    victim.stdin.close()
    return victim.wait(60) != 0


@contextlib.contextmanager
def open_arena(victim_uid: int | None = None) -> Generator[Arena]:
    """An arena that any user of the machine could read: only the sandbox stands between it and the payloads."""
    folder = Path(tempfile.mkdtemp(prefix="sonde-escape-"))
    arena = Arena(folder, victim_uid=victim_uid)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        _lay_out_files(arena)
        stack.enter_context(_shared_memory(arena))
        for listener in _listeners(arena):
            stack.callback(listener.close)
        yield arena


def _lay_out_files(arena: Arena) -> None:
    folder = arena.folder
    folder.chmod(0o755)
    for name in ("markers", "renames"):
        (folder / name).mkdir()
        (folder / name).chmod(0o777)
    (folder / "secret.txt").write_text(arena.secret("file") + "\n")
    (folder / "stdin.txt").write_text(arena.secret("stdin") + "\n")
    (folder / "secretmodule.py").write_text(f'value = "{arena.secret("module")}"\n')
    (folder / arena.secret("name")).touch()
    (folder / "link").symlink_to(arena.secret("name"))
    (folder / "sized").write_bytes(b"x" * SIZE)
    (folder / "secret.xml").write_text(f"<a>{arena.secret('file')}</a>")
    (folder / "secret.ini").write_text(f"[s]\nvalue = {arena.secret('file')}\n")
    arena.inherited.touch()
    arena.inherited.chmod(0o666)
    _lay_out_archives(arena)
    (folder / "evil.so").write_bytes(_evil())
    (folder / "evil.so").chmod(0o755)


@functools.cache
def _evil() -> bytes:
    """A library that makes a folder."""
    with tempfile.TemporaryDirectory() as name:
        built = Path(name, "evil.so")
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-o", built, "-"]
        subprocess.run(command, input=_EVIL_C, text=True, check=True)
        return built.read_bytes()


def _lay_out_archives(arena: Arena) -> None:
    with zipfile.ZipFile(arena.folder / "secret.zip", "w") as archive:
        archive.writestr("secret.txt", arena.secret("archive"))
        archive.writestr("zipsecret.py", f'value = "{arena.secret("archive")}"\n')
    with contextlib.closing(sqlite3.connect(arena.folder / "secret.db")) as database, database:
        database.execute("create table secrets (value)")
        database.execute("insert into secrets values (?)", [arena.secret("archive")])
    (arena.folder / "secret.db").chmod(0o666)


@contextlib.contextmanager
def _shared_memory(arena: Arena) -> Generator[None]:
    path = Path("/dev/shm", f"sonde-{arena.tag}")
    path.write_text(arena.secret("memory"))
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(int(arena.tag[:7], 16), 4096, 0o1666)
    ctypes.memmove(libc.shmat(segment, None, 0), arena.secret("memory").encode(), len(arena.secret("memory")))
    try:
        yield
    finally:
        libc.shmctl(segment, 0, None)
        path.unlink(missing_ok=True)


def _listeners(arena: Arena) -> list[socket.socket]:
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", 0))
    arena.ports |= {"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}
    unix, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    unix.bind(str(arena.folder / "unix"))
    abstract.bind(f"\0sonde-{arena.tag}")
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagram.bind(str(arena.folder / "unix.dgram"))
    for path in ("unix", "unix.dgram"):
        (arena.folder / path).chmod(0o777)
    for listener in (tcp, unix, abstract):
        listener.listen()
        threading.Thread(target=_accept, args=(listener, arena.heard), daemon=True).start()
    for listener in (udp, datagram):
        threading.Thread(target=_receive, args=(listener, arena.heard), daemon=True).start()
    return [tcp, udp, unix, abstract, datagram]


def _accept(listener: socket.socket, heard: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # closed at the end
        while True:
            connection, _ = listener.accept()
            connection.settimeout(1)
            with connection, contextlib.suppress(OSError):
                heard.append(b"connected")
                heard.append(connection.recv(500))


def _receive(listener: socket.socket, heard: list[bytes]) -> None:
    with contextlib.suppress(OSError):
        while True:
            heard.append(listener.recv(500))
