"""Batches on this machine: complete, resumed, killed in every part, stopped softly, limited, and short of everything."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from batch.scene import PATIENCE_S, Scene, children, counting_server, eventually, kill, reply
from sonde.api.settings import resolve
from sonde.batch.driver import BatchOptions, run_batch
from sonde.batch.folder import MANIFEST, folder_for
from sonde.batch.limits import SharedLimits
from sonde.batch.manifest import read_manifest
from sonde.errors import ConfigError, UnexpectedRuntimeError
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

pytestmark = pytest.mark.long

AT_ONCE = 4


def options(**more: float) -> BatchOptions:
    return BatchOptions(limits=SharedLimits(concurrency=AT_ONCE, **more))  # pyright: ignore[reportArgumentType]  # numbers


def test_every_item_gets_a_run_and_a_result_and_a_second_start_runs_nothing(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(8)
    with counting_server() as server:
        first = run_batch(read_manifest(scene.manifest), scene.folder, scene.settings(server.base_url), options())
        asked = server.counts()
        again = run_batch(read_manifest(scene.manifest), scene.folder, scene.settings(server.base_url), options())

        assert server.counts() == asked
    assert first.complete and again.complete
    assert {result.id for result in again.results} == {f"q{number}" for number in range(8)}
    assert all(result.status == "succeeded" and result.judge == "LLM" for result in first.results)
    assert scene.runs_ended() == 8
    assert sorted(asked.values()) == [1] * 16


@pytest.mark.parametrize("lost", [["result.json"], ["result.json", "run_record.json"]])
def test_files_that_a_kill_kept_from_being_written_are_written_by_the_next_start(
    tmp_path: Path, lost: list[str]
) -> None:
    scene = Scene(tmp_path)
    scene.write(1)
    with counting_server() as server:
        settings = scene.settings(server.base_url)
        run_batch(read_manifest(scene.manifest), scene.folder, settings, options())
        (folder,) = scene.folder.items.iterdir()
        before = {name: json.loads((folder / name).read_text()) for name in lost}
        for name in lost:
            (folder / name).unlink()
        scene.folder.results.unlink()

        run_batch(read_manifest(scene.manifest), scene.folder, settings, options())

        assert server.extra() == 0
    assert {name: json.loads((folder / name).read_text()) for name in lost} == before
    assert before["result.json"]["citations"]


def test_new_lines_of_a_manifest_are_run_and_the_old_ones_are_not(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    with counting_server() as server:
        for count in (2, 5):
            scene.write(count)
            run_batch(read_manifest(scene.manifest), scene.folder, scene.settings(server.base_url), options())

        assert server.extra() == 0
    assert len(scene.results()) == 5


def test_a_killed_worker_is_replaced_and_its_items_go_on_from_their_journals(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(14)
    with counting_server(hold_after=5) as server:
        driver = scene.start(server.base_url, "--concurrency", str(AT_ONCE), "--json")
        eventually(lambda: len(server.counts()) >= 6)
        kill(children(driver.pid)[0])
        server.go.set()
        out, _ = driver.communicate(timeout=250)

        assert driver.returncode == 0
        assert server.extra() <= AT_ONCE, "more was asked twice than was in flight"
    assert json.loads(out)["workers_replaced"] == 1
    assert len(scene.results()) == 14 == scene.runs_ended()


def test_the_money_that_a_killed_worker_had_set_aside_is_free_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(1)
    with counting_server(hold_after=0) as server:
        driver = scene.start(server.base_url, "--concurrency", "1", "--max-cost-usd", "0.005", "--json")
        try:
            eventually(lambda: len(server.counts()) == 1)
            kill(children(driver.pid)[0])
            server.go.set()
            out, _ = driver.communicate(timeout=250)
        finally:
            driver.kill()

        assert json.loads(out)["workers_replaced"] == 1
    assert [result.status for result in scene.results().values()] == ["succeeded"]


def test_a_killed_driver_loses_nothing_and_the_next_start_pays_nothing_twice(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(14)
    with counting_server(hold_after=6) as server:
        driver = scene.start(server.base_url, "--concurrency", str(AT_ONCE))
        eventually(lambda: len(server.counts()) >= 7)
        driver.kill()
        server.go.set()
        driver.communicate()
        again = scene.run(server.base_url, "--concurrency", str(AT_ONCE), "--json")

        assert again.returncode == 0, again.stderr
        assert server.extra() == 0, "workers land what is in flight when their driver dies"
    report = json.loads(again.stdout)
    assert report["statuses"] == {"succeeded": 14}
    assert report["resumed"] > 0
    assert len(scene.results()) == 14 == scene.runs_ended()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_soft_stop_pauses_what_is_in_flight_and_nothing_is_asked_twice(
    tmp_path: Path, number: signal.Signals
) -> None:
    scene = Scene(tmp_path)
    scene.write(12)
    with counting_server(0.5, hold_after=5) as server:
        driver = scene.start(server.base_url, "--concurrency", str(AT_ONCE), "--json")
        eventually(lambda: len(server.counts()) >= 6)
        driver.send_signal(number)
        assert driver.stderr is not None
        while "Ctrl-C again" not in (line := driver.stderr.readline()):
            assert line, "it does not say that it stops"
        server.go.set()
        out, _ = driver.communicate(timeout=250)
        stopped = json.loads(out)
        ended = scene.runs_ended()

        assert driver.returncode == 128 + number
        assert stopped["left"] == 12 - stopped["finished"] > 0
        assert ended == stopped["finished"], "a run that was stopped must not count as ended"
        assert scene.run(server.base_url).returncode == 0
        assert server.extra() == 0
    assert len(scene.results()) == 12


def test_the_cost_limit_stops_the_batch_below_it_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(12)
    with counting_server() as server:
        poor = scene.run(server.base_url, "--max-cost-usd", "0.0012", "--json")
        report = json.loads(poor.stdout)

        assert poor.returncode == 1
        assert "cost limit" in report["stopped"]
        assert 0 < report["finished"] < 12
        assert report["cost_usd"]["total"] <= 0.0012
        rich = scene.run(server.base_url, "--max-cost-usd", "1", "--json")
        assert rich.returncode == 0, rich.stderr
        assert server.extra() == 0
    assert len(scene.results()) == 12


def test_the_request_rate_holds_over_all_workers(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(20)
    with counting_server() as server:
        began = time.monotonic()
        assert scene.run(server.base_url, "--requests-per-minute", "600").returncode == 0
        times = server.times

    assert len(times) == 40
    assert len(times) <= 10 * (times[-1] - began + 0.5) + 2, "10 a second, and half a second's worth at once"


def test_the_token_rate_holds_over_all_workers_by_what_the_server_counts(tmp_path: Path) -> None:
    each, per_second, at_once = 4000, 48_000, 2
    times: list[float] = []

    def dear(seen: SeenRequest) -> ScriptedReply:
        times.append(time.monotonic())
        usage = {"prompt_tokens": each - 100, "completion_tokens": 100, "total_tokens": each}
        return ScriptedReply(text=reply(seen), usage=usage)  # several times what such a prompt is taken for

    scene = Scene(tmp_path)
    scene.write(20)
    with ScriptedServer(dear) as server:
        limits = ["--tokens-per-minute", str(60 * per_second), "--concurrency", str(at_once)]
        began = time.monotonic()
        done = scene.run(server.base_url, *limits, "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tokens_in"] == 40 * (each - 100)
    for number, moment in enumerate(
        times
    ):  # before it went as many tokens as were due, and half a second's worth at once
        assert (number - at_once) * each <= per_second * (moment - began + 0.5), "more than what was in flight is over"


def test_a_model_server_that_dies_stops_the_batch_and_fails_no_item(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(16)
    with counting_server(hold_after=9) as server:
        port = server.port
        driver = scene.start(server.base_url, "--concurrency", str(AT_ONCE), "--json")
        eventually(lambda: len(server.counts()) >= 10)
    out, _ = driver.communicate(timeout=250)
    report = json.loads(out)

    assert driver.returncode == 1
    assert "not answered" in report["stopped"]
    assert report["statuses"].keys() == {"succeeded"}
    assert 0 < report["finished"] < 16
    with counting_server(0.01, port) as server:
        assert scene.run(server.base_url).returncode == 0
        assert server.extra() == 0
    assert all(result.status == "succeeded" for result in scene.results().values())


def test_a_full_disk_stops_the_batch_cleanly_and_it_goes_on_when_there_is_room(tmp_path: Path) -> None:
    def little_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (9_000, 9_000))  # a journal needs more than that

    scene = Scene(tmp_path)
    scene.write(10)
    with counting_server() as server:
        # Python 3.11 keeps compiled files that were cut off by the limit, and every later import of them fails
        environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        full = scene.start(server.base_url, "--quiet", preexec_fn=little_room, env=environ)
        _, said = full.communicate(timeout=PATIENCE_S)

        assert full.returncode == 1, said
        assert "make room" in said
        assert len(scene.results()) < 10
        assert scene.run(server.base_url).returncode == 0
    assert len(scene.results()) == 10 == scene.runs_ended()
    for folder in scene.folder.items.iterdir():
        assert RunDir(folder).record().status == "succeeded"
        assert (folder / "result.json").is_file()


KILLER = """
import os, sys
prompt = sys.stdin.read()
if "#3" in prompt:
    launcher = open(f"/proc/{os.getppid()}/stat").read()
    os.kill(int(launcher.rpartition(")")[2].split()[1]), 9)
print("```python\\nprint(read_file('note.txt'))\\nFINAL('it says so [note.txt:1-1]')\\n```")
"""


def test_an_item_that_kills_its_workers_is_given_up_and_the_others_finish(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(6)
    (tmp_path / "model.py").write_text(KILLER)
    settings = scene.settings(model=f"command:{sys.executable} {tmp_path / 'model.py'}")

    outcome = run_batch(read_manifest(scene.manifest), scene.folder, settings, options())

    statuses = {result.id: result.status for result in outcome.results}
    assert statuses == {f"q{number}": "succeeded" for number in range(6)} | {"q3": "failed"}
    poison = next(result for result in outcome.results if result.failed)
    assert poison.code == "UNEXPECTED_RUNTIME_ERROR"
    assert "workers died" in poison.message
    assert outcome.deaths >= 5


def test_workers_that_cannot_start_are_said_and_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = Scene(tmp_path)
    scene.write(2)
    (tmp_path / "broken" / "sonde").mkdir(parents=True)
    (tmp_path / "broken" / "sonde" / "__init__.py").write_text("raise ImportError('half an installation')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))

    with pytest.raises(UnexpectedRuntimeError) as said:
        run_batch(read_manifest(scene.manifest), scene.folder, scene.settings("http://127.0.0.1:9/v1"), options())

    assert "workers.log" in said.value.message
    assert "half an installation" in (scene.folder.path / "workers.log").read_text()


def test_broken_lines_are_named_the_rest_runs_and_the_exit_code_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    missing = json.dumps({**scene.line(7), "paths": ["nowhere.txt"]})
    scene.write(3, ["{", missing])
    with counting_server() as server:
        done = scene.run(server.base_url)

    assert done.returncode == 1
    assert "line 4" in done.stderr
    assert {name: result.status for name, result in scene.results().items()} == {
        **{f"q{number}": "succeeded" for number in range(3)},
        "q7": "refused",
    }
    report = json.loads((scene.folder.path / "report.json").read_text())
    assert [line["line"] for line in report["broken_lines"]] == [4]


def test_a_batch_runs_in_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    place = tmp_path / os.fsdecode(b"caf\xe9")
    place.mkdir()
    scene = Scene(place)
    scene.write(1, ['{"id": "gone", "engine": "ask", "question": "What?", "paths": ["gone.txt"]}'])
    settings = resolve({"runs_dir": str(tmp_path / "runs")}, {"PATH": os.environ["PATH"]}, tmp_path)
    folder = folder_for(scene.manifest, tmp_path / "runs")

    outcome = run_batch(read_manifest(scene.manifest), folder, settings, options())
    again = read_manifest(folder.path / MANIFEST)

    assert sorted((result.id, result.status) for result in outcome.results) == [("gone", "refused"), ("q0", "partial")]
    assert list(again.items) == list(read_manifest(scene.manifest).items)


def test_a_failed_item_is_tried_again_only_when_asked_for(tmp_path: Path) -> None:
    down = threading.Event()
    down.set()

    def fickle(seen: SeenRequest) -> ScriptedReply | str:
        return (
            ScriptedReply(status=400, text="no such thing") if down.is_set() and "#1" in str(seen.body) else reply(seen)
        )

    scene = Scene(tmp_path)
    manifest = read_manifest(scene.write(2))
    with ScriptedServer(fickle) as server:
        settings = scene.settings(server.base_url)

        def start(*, retry: bool) -> dict[str, str]:
            again = replace(options(), retry_failed=retry)
            return {result.id: result.status for result in run_batch(manifest, scene.folder, settings, again).results}

        assert start(retry=False) == {"q0": "succeeded", "q1": "failed"}
        down.clear()
        asked = len(server.requests)
        assert start(retry=False) == {"q0": "succeeded", "q1": "failed"}
        assert len(server.requests) == asked
        assert start(retry=True) == {"q0": "succeeded", "q1": "succeeded"}
    assert len(list(scene.folder.items.iterdir())) == 3, "the failed run is kept beside the good one"


def test_an_item_that_was_refused_is_tried_again(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(1)
    (tmp_path / "note.txt").rename(tmp_path / "elsewhere.txt")
    with counting_server() as server:
        settings = scene.settings(server.base_url)
        manifest = read_manifest(scene.manifest)
        assert run_batch(manifest, scene.folder, settings, options()).results[0].status == "refused"
        (tmp_path / "elsewhere.txt").rename(tmp_path / "note.txt")

        assert run_batch(manifest, scene.folder, settings, options()).results[0].status == "succeeded"


def test_two_batches_do_not_work_in_one_folder(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(2)
    with scene.folder.held(), pytest.raises(ConfigError) as refused:
        run_batch(read_manifest(scene.manifest), scene.folder, scene.settings("http://127.0.0.1:9/v1"), options())

    assert "at work" in refused.value.message


def test_a_cluster_without_ray_or_without_a_door_is_said(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(2)
    for place in ("ray://127.0.0.1:9", "nowhere"):
        said = scene.run("http://127.0.0.1:9/v1", "--on", place)

        assert said.returncode == 2
        assert place in said.stderr
        assert "Traceback" not in said.stderr


@pytest.mark.parametrize("flags", [["--max-cost-usd", "0"], ["--requests-per-minute", "-1"], ["--compare", "nowhere"]])
def test_senseless_flags_are_refused_before_anything_is_made(tmp_path: Path, flags: list[str]) -> None:
    scene = Scene(tmp_path)
    scene.write(2)

    said = scene.run("http://127.0.0.1:9/v1", *flags)

    assert said.returncode == 2
    assert flags[0] in said.stderr
    assert not scene.runs.exists()
