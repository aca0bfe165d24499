"""The boundary: what a worker has on, what it does not have, and the refusal to run without it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from watching import kind, run

from sonde.errors import SandboxUnavailable
from sonde.sandbox import ForkServer, Limits, Sandbox
from sonde.sandbox.doctor import examine
from sonde.sandbox.forkserver import check_machine
from sonde.sandbox.policy import PROFILES
from sonde.sandbox.worker import seccomp
from sonde.sandbox.worker.tables import ALLOWED, NUMBERS, SOFT

MINIMUM = {"rlimits", "pdeathsig", "no_new_privs", "landlock", "fork-gate", "seccomp"}


def test_every_result_names_the_layers() -> None:
    with Sandbox() as box:
        layers = box.execute("1").layers

    names = {layer.partition(" ")[0] for layer in layers}
    assert names == MINIMUM | ({"uid"} if os.geteuid() == 0 else set())
    assert "UNSAFE" not in layers


@pytest.mark.requirement("O10")
def test_the_environment_is_exactly_the_hash_seed_and_nothing_is_inherited() -> None:
    secret = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(secret, True)
    os.environ["SONDE_TEST_SECRET"] = "do-not-tell"
    try:
        server = ForkServer(PROFILES["open"].preload)
        with Sandbox("open", server=server) as box:
            code = (
                "import os, ctypes\nprint(dict(os.environ))\nopen_fds = []\nfor fd in range(200):\n"
                "    try: os.lseek(fd, 0, 1)\n    except OSError as e:\n        if e.errno == 9: continue\n    open_fds.append(fd)\n"
                "print(open_fds)"
            )
            environment, descriptors = run(box, code).splitlines()
        server.close()
    finally:
        del os.environ["SONDE_TEST_SECRET"]
        os.close(secret)

    assert environment == "{'PYTHONHASHSEED': '0'}"
    assert descriptors == "[0, 1, 2, 3]"


def test_c_code_sees_no_other_environment_either() -> None:
    with Sandbox("open") as box:
        code = "import ctypes\nenv = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), 'environ')\n"
        code += "i = 0\nwhile env[i]:\n    print(env[i])\n    i += 1"

        assert run(box, code) == "b'PYTHONHASHSEED=0'\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another uid")
def test_root_drops_to_an_unprivileged_uid() -> None:
    with Sandbox("open") as box:
        assert (
            run(box, "import os\nprint(os.getuid(), os.geteuid(), os.getgid(), os.getegid())")
            == "65534 65534 65534 65534\n"
        )


@pytest.mark.requirement(83, 118)
@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd')",
        "open('/tmp/sonde-test', 'w')",
        "import os\nos.listdir('/')",
        "import os\nos.stat('/')",
        "import os\nos.unlink('/tmp/x')",
        "import os\nos.getcwd()",
        "import sqlite3\nsqlite3.connect('/tmp/x.db').execute('create table t (a)')",
    ],
)
def test_files_are_out_of_reach(code: str) -> None:
    with Sandbox("open") as box:
        assert kind(box.execute(code)) == "error"


@pytest.mark.requirement(83, 118)
@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.socket()",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:1')",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.kill(os.getppid(), 9)",
    ],
)
def test_network_and_processes_are_violations(code: str) -> None:
    with Sandbox("open") as box:
        assert kind(box.execute(code)) == "violation"


def test_the_memory_limit_holds_for_raw_mappings() -> None:
    with Sandbox("open", limits=Limits(memory="64MiB", shared_bytes=1 << 20)) as box:
        assert kind(
            box.execute("import mmap\nmmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)")
        ) in {
            "error",
            "memory",
        }


def test_a_cpu_limit_ends_a_turn_that_waits_for_nobody() -> None:
    with Sandbox(limits=Limits(cpu_s=1, wall_s=1)) as box:
        run(box, "x = 1")
        assert kind(box.execute("while True: pass")) == "timeout"


@pytest.mark.parametrize("layer", sorted(MINIMUM))
def test_a_missing_layer_is_named_with_its_remedy(layer: str) -> None:
    server = ForkServer(without=(layer,))
    with pytest.raises(SandboxUnavailable) as refusal:
        Sandbox(server=server)
    server.close()

    assert layer in refusal.value.message and "doctor" in refusal.value.message


def test_a_refused_start_leaves_no_descriptor_open() -> None:
    server = ForkServer(without=("landlock",))
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(SandboxUnavailable):
            Sandbox(server=server)

    assert len(list(Path("/proc/self/fd").iterdir())) == before
    server.close()


@pytest.mark.parametrize("layer", ["landlock", "rlimits", "seccomp", "fork-gate"])
def test_unsafe_must_be_explicit_and_shows_in_every_result(layer: str) -> None:
    server = ForkServer(without=(layer,))
    with Sandbox(server=server, unsafe=True) as box:
        result = box.execute("x = 1\nprint(x)")
        killed = box.execute("while True: pass", wall_s=0.2)

        assert result.stdout == "1\n" and kind(killed) == "timeout"
        assert "UNSAFE" in result.layers and f"missing: {layer}" in result.layers
        assert run(box, "print(x)") == "1\n"
        with box.branch() as twin:
            run(twin, "x = 2")
            assert run(twin, "print(x)") == "2\n"
        box.rollback(1)
        assert run(box, "print(x)") == "1\n"
    server.close()


def test_unsafe_on_a_whole_machine_is_still_marked() -> None:
    with Sandbox(unsafe=True) as box:
        assert "UNSAFE" in box.execute("1").layers


def test_a_python_that_cannot_serve_is_refused() -> None:
    with pytest.raises(SandboxUnavailable, match="status 1"):
        ForkServer(python="/bin/false")


def test_a_python_that_fails_is_quoted_with_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text(
        "#!/bin/sh\necho 'Traceback:' >&2\necho \"ModuleNotFoundError: No module named '_ctypes'\" >&2\nexit 1\n"
    )
    broken.chmod(0o755)
    before = len(list(Path("/proc/self/fd").iterdir()))

    with pytest.raises(SandboxUnavailable) as refusal:
        ForkServer(python=str(broken))

    words = refusal.value.message
    assert "No module named '_ctypes'" in words and str(broken) in words and "doctor" in words
    assert "fix_addresses" not in words, "our own code is not quoted"
    assert len(list(Path("/proc/self/fd").iterdir())) <= before


def test_only_a_proved_architecture_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    check_machine()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        check_machine()
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxUnavailable, match="riscv64"):
        check_machine()


UNPROVED_BUILDS = {
    "free-threaded": {"Py_GIL_DISABLED": 1},
    "musl": {"HOST_GNU_TYPE": "x86_64-alpine-linux-musl", "SOABI": "cpython-313-x86_64-linux-musl"},
    "built for musl": {"HOST_GNU_TYPE": None, "SOABI": "cpython-313-x86_64-linux-musl"},
}


@pytest.mark.parametrize("build", UNPROVED_BUILDS)
def test_a_build_of_python_on_which_nothing_is_proved_is_refused_by_name(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = sysconfig.get_config_var

    def said(name: str) -> object:
        return UNPROVED_BUILDS[build].get(name, usual(name))

    monkeypatch.setattr(sysconfig, "get_config_var", said)

    with pytest.raises(SandboxUnavailable, match=build):
        check_machine()


def test_gvisor_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "version", lambda: "#1 SMP Sun Jan 10 15:06:54 PST 2016")

    with pytest.raises(SandboxUnavailable, match="gVisor"):
        check_machine()


IN_A_NAMESPACE = """
import ctypes, os, sys
from pathlib import Path
outside = os.geteuid()
assert ctypes.CDLL(None).unshare(0x10000000) == 0, "no user namespace"
Path("/proc/self/setgroups").write_text("deny")
Path("/proc/self/uid_map").write_text(f"{sys.argv[1]} {outside} 1")
from sonde.sandbox.doctor import examine
found = examine()
print(found.safe, found.problem)
"""


@pytest.mark.long
@pytest.mark.parametrize(("inside", "said"), [(0, "False"), (1000, "True")])
def test_root_of_a_user_namespace_is_refused_by_name_and_an_ordinary_user_of_it_is_not(inside: int, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IN_A_NAMESPACE, str(inside)], capture_output=True, text=True, timeout=100, check=False
    )
    if "no user namespace" in done.stderr:
        pytest.skip("this machine permits no user namespaces")

    assert done.stdout.startswith(said), done.stdout + done.stderr
    assert ("user namespace that has no uid" in done.stdout) == (inside == 0)


WITHOUT_KILL = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(24, 5, 0, 0, 0) == 0  # PR_CAPBSET_DROP
os.execv(sys.executable, [sys.executable, "-m", "sonde", "doctor", "--json"])
"""


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user of a worker")
def test_root_that_could_not_end_a_worker_is_refused_by_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_KILL], capture_output=True, text=True, timeout=100, check=False
    )

    assert done.returncode == 1, done.stderr
    assert "CAP_KILL" in done.stdout


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filters_of_both_architectures_assemble(machine: str) -> None:
    for code in (seccomp.gate(machine), seccomp.allowlist(machine)):
        assert len(code) < 4096
        jumps = [(at, jump) for at, (_, yes, no, _) in enumerate(code) for jump in (yes, no) if jump]
        assert all(at + 1 + jump < len(code) for at, jump in jumps)
    assert not set(ALLOWED) & set(SOFT)
    assert len(set(NUMBERS[machine].values())) == len(NUMBERS[machine])


def test_the_doctor_tries_it_for_real() -> None:
    diagnosis = examine()

    assert diagnosis.safe and not diagnosis.problem
    assert all(check.ok for check in diagnosis.checks) and len(diagnosis.checks) >= 5
    assert diagnosis.versions["sonde"] and platform.release() in diagnosis.kernel
    assert str(sys.version_info.minor) in diagnosis.python


def test_the_fork_server_itself_is_started_with_exactly_the_hash_seed() -> None:
    server = ForkServer()
    try:
        assert Path(f"/proc/{server.pid}/environ").read_bytes() == b"PYTHONHASHSEED=0\0"
    finally:
        server.close()


@pytest.mark.requirement(84)
def test_a_violation_and_a_fault_carry_the_codes_of_the_record() -> None:
    with Sandbox("open") as box:
        crossed, failed = box.execute("import os\nos.fork()").fault, box.execute("1 / 0").fault

        assert crossed is not None and crossed.code == "SANDBOX_VIOLATION"
        assert failed is not None and failed.code == "UNEXPECTED_RUNTIME_ERROR"
