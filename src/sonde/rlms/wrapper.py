"""`sonde rlms`: starts the worker, ends it when time is up whatever it is doing, and writes the files however it ends.

The worker keeps its own deadline and normally ends by itself; the kill from outside comes a moment later and takes every process that
the worker has started with it. If this process is killed, the worker's launcher ends the worker and everything below it. `invoke` does
not reach processes that detached themselves from their group on purpose while the worker lives; the command does.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from sonde.errors import ConfigError
from sonde.models.process import launched
from sonde.rlms.files import read_list, split_list
from sonde.rlms.layout import WORKER_STDERR, Decided, Layout
from sonde.rlms.request import Request, read_request
from sonde.rlms.result import LoopFindings, exit_code, failure, failure_class, is_result

GRACE_S = 3.0
STOPS = tuple(
    signal.Signals[name] for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)  # Windows has two
PR_SET_CHILD_SUBREAPER = 36


def invoke(flags: Mapping[str, str | None], environ: Mapping[str, str], python: str = sys.executable) -> dict[str, Any]:
    """One invocation, its files written; the result is what result.json holds."""
    started = time.monotonic()
    try:
        request = read_request(flags, environ)
    except ConfigError as error:
        return _refused(flags, error)
    layout = Layout(
        output=Path(request.output_dir),
        repo=Path(request.repo),
        runs=Path(request.runs_dir) if request.runs_dir else None,
        loop_id=request.loop_id,
        role=request.role,
        iteration=request.iteration,
        standalone=request.standalone,
    )
    kept = LoopFindings()
    try:
        layout.make()
        decided = Decided.of(request.metadata)
        layout.clear()
        layout.keep_metadata(request.metadata)
        layout.emit("rlms_start", "started", {"mode": decided.mode, "reason": decided.reason})
        try:
            listed = read_list(request.context_file_list)
            layout.keep_list(listed)
            listing = replace(request, listed=tuple(split_list(listed)))
            with layout.open_log() as log:
                result = _run(listing, environ, python, started, kept, stderr=log)
        except ConfigError as error:
            result = failure(request, failure_class(error), error.message)
        _tell_time(result, started)
        layout.write_result(result, decided)
        layout.emit("rlms_end", "ok" if result["ok"] else "failed", {"error_code": result.get("error_code")})
    except ConfigError as error:
        result = failure(request, failure_class(error), error.message)
    except OSError as error:
        words = f"the files in {request.output_dir} cannot be written: {error}"
        result = failure(request, "worker_failure", words, kept)
    except KeyboardInterrupt:
        result = failure(request, "worker_failure", "the call was interrupted, and its worker ended", kept)
    else:
        return result
    _tell_time(result, started)
    _write_failure(layout, result, Decided.of(request.metadata))
    return result


def _tell_time(result: dict[str, Any], started: float) -> None:
    result["stats"]["elapsed_seconds"] = round(time.monotonic() - started, 3)


def _refused(flags: Mapping[str, str | None], error: ConfigError) -> dict[str, Any]:
    """The result for flags that make no request, also written if they name an output folder."""
    result = failure(None, failure_class(error), error.message)
    said = flags.get("iteration") or ""
    iteration = int(said) if said.isascii() and said.isdecimal() else said
    loop_id, role = flags.get("loop_id") or "", flags.get("role") or ""
    result |= {"loop_id": loop_id, "role": role, "iteration": iteration}
    output = flags.get("output_dir")
    if output:
        standalone = flags.get("standalone") == "true"
        layout = Layout(
            output=Path(output).absolute(),
            repo=Path(flags.get("repo") or "."),
            loop_id=loop_id,
            role=role,
            iteration=iteration,
            standalone=standalone,
        )
        _write_failure(layout, result, Decided())
    return result


def _write_failure(layout: Layout, result: Mapping[str, Any], decided: Decided) -> None:
    """Write what can be written, and remove what says otherwise; the caller gets the result anyway."""
    with suppress(ConfigError, OSError):
        layout.clear()
        layout.write_result(result, decided)
        layout.emit("rlms_end", "failed", {"error_code": result["error_code"]})


def _run(
    request: Request, environ: Mapping[str, str], python: str, started: float, kept: LoopFindings, *, stderr: BinaryIO
) -> dict[str, Any]:
    """The worker's result. What it has told by the time it ends is in `kept`, however it ends."""
    with ExitStack() as stack:
        if not request.runs_dir:
            unkept = tempfile.TemporaryDirectory(prefix="sonde-rlms-", ignore_cleanup_errors=True)
            request = replace(request, runs_dir=stack.enter_context(unkept))
        order = json.dumps({"request": request.to_wire(), "started": started}).encode()
        if shutil.which(python) is None:
            return failure(request, "missing_python", f"the worker cannot be started: there is no program {python!r}")
        try:
            worker = subprocess.Popen(
                # -P: a package of that name in the working folder is not ours
                launched([python, "-P", "-m", "sonde.rlms.worker"], environ, stderr.fileno()),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=dict(environ),
                start_new_session=True,
                pass_fds=(stderr.fileno(),),
            )
        except OSError as error:
            return failure(request, "missing_python", f"the worker cannot be started with {python!r}: {error.strerror}")
        left = request.limits.timeout_seconds - (time.monotonic() - started)
        timed_out, printed = False, b""
        try:
            printed, _ = worker.communicate(order, timeout=max(0.0, left) + GRACE_S)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            if worker.poll() is None:  # end it with everything below it; one that has ended is left alone
                _signal(worker.pid, signal.SIGSTOP)  # it must not start others while they are being counted
                for pid in (worker.pid, *_descendants(worker.pid)):
                    _kill(pid)
                with suppress(subprocess.TimeoutExpired):
                    printed, _ = worker.communicate(timeout=GRACE_S)
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                if pipe is not None:
                    pipe.close()
            result = _heard(printed, kept)
    if result is not None:
        return result
    if timed_out:
        seconds = request.limits.timeout_seconds
        words = f"timeout exceeded: timeout_seconds of {seconds} is used up; the worker was ended from outside"
        return failure(request, "limit_exceeded", words, kept)
    words = f"the worker ended with code {worker.returncode} and without a result; {WORKER_STDERR} says more"
    return failure(request, "invalid_worker_output", words, kept)


def _heard(printed: bytes, kept: LoopFindings) -> dict[str, Any] | None:
    """The result among the lines that a worker printed, if it has one; notes go to `kept`."""
    for line in printed.splitlines():
        try:
            said: Any = json.loads(line)
        except (ValueError, RecursionError):  # cut off, or not from our worker
            continue
        match said:
            case ["result", result] if is_result(result):
                return result
            case [str(what), value]:
                kept.add(what, value)
            case _:
                continue
    return None


def _kill(pid: int) -> None:
    """With its group."""
    with suppress(ProcessLookupError, PermissionError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    # Gone, or a worker of the sandbox under another user, which dies with its parent.
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants(pid: int) -> list[int]:
    """Every process below this one, parents before children."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):  # it ended meanwhile
                stat = (entry / "stat").read_text("utf-8", "replace")
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for each in found:  # grows while it is read
        found += children.get(each, [])
    return found[1:]


def invoke_from_shell(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """`invoke` as a process of its own: stopped like by Ctrl-C, it still leaves the files; failed, it leaves no process.

    Programs that detached themselves come to us when their parent ends. After a good call they may stay: somebody's daemons.
    """
    if sys.platform != "linux":
        raise ConfigError(
            "sonde rlms needs Linux, which alone ends for sure what a role starts: use a Linux VM, or WSL2"
        )
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with _interrupted_by_signals():
        result = invoke(flags, environ)
    for _ in range(0 if result["ok"] else 100):  # a process that cannot be ended must not hold us
        below = _descendants(os.getpid())
        for pid in below:
            _kill(pid)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not below:
            break
        time.sleep(0.01)
    return exit_code(result), result


@contextmanager
def _interrupted_by_signals() -> Generator[None]:
    """The first signal interrupts the call, wherever it is; later ones change nothing.

    Python hears of a signal between two steps of its own. One that comes after the last step before a system call that waits, like
    the reading of a pipe, would be heard only at the end of that call. So a thread repeats it until it was heard.
    """
    heard = threading.Event()

    def interrupt(_number: int, _frame: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    def repeat() -> None:
        while came := os.read(told, 1):
            while came[0] in before and not heard.wait(0.05):
                signal.pthread_kill(main, came[0])

    main = threading.get_ident()
    told, telling = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(telling, False)
    before = {
        number: signal.signal(number, interrupt) for number in STOPS if signal.getsignal(number) != signal.SIG_IGN
    }
    earlier = signal.set_wakeup_fd(telling, warn_on_full_buffer=False)
    repeater = threading.Thread(target=repeat, daemon=True)
    repeater.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(earlier)
        for number, handler in before.items():
            signal.signal(number, handler)
        heard.set()
        os.close(telling)
        repeater.join()
        os.close(told)
