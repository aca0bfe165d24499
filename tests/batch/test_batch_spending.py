"""What a batch has spent so far: every attempt of every start counts, also of items that were given up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from batch.scene import Scene, counting_server
from runs.streams import told
from sonde.batch.crew import Happening, Lost
from sonde.batch.driver import drive
from sonde.batch.folder import BatchFolder, ResultLines
from sonde.batch.item_runner import Job
from sonde.batch.manifest import Item
from sonde.batch.progress import plan_batch
from sonde.batch.result import ItemResult
from sonde.core.events import ModelReplied, RunEnded
from sonde.errors import ConfigError

pytestmark = pytest.mark.long

ITEM = Item(id="a", engine="ask", fields={"question": "What?"})


@dataclass(slots=True)
class DyingCrew:
    """Every worker dies of its job."""

    jobs: list[Job] = field(default_factory=list[Job])

    def room(self, *, alone: bool = False) -> bool:
        return not self.jobs

    def give(self, job: Job, *, alone: bool = False) -> None:
        self.jobs.append(job)

    def wait(self, timeout_s: float) -> Sequence[Happening]:
        lost, self.jobs = self.jobs, []
        return [Lost(jobs=tuple(lost), how="signal 9")]

    def pause(self) -> None: ...

    def closed(self) -> str | None: ...

    def spent(self, usd: float) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    folder = BatchFolder(tmp_path / "batch")
    folder.items.mkdir(parents=True)
    return folder


def finish(folder: BatchFolder, *results: ItemResult) -> None:
    lines = ResultLines(folder.results)
    for result in results:
        lines.append(result)
    lines.close()


def begun(folder: BatchFolder, attempt: int) -> float:
    """A run that was cut off; what its replies have cost."""
    run = folder.run_dir(ITEM, attempt)
    run.path.mkdir()
    journal = run.journal()
    events = [event for event in told() if not isinstance(event, RunEnded)]
    for event in events:
        journal.append(event)
    journal.close()
    return sum(event.cost_usd or 0.0 for event in events if isinstance(event, ModelReplied))


def result(attempt: int, cost_usd: float, status: str = "failed") -> ItemResult:
    return ItemResult(id="a", key=ITEM.key, engine="ask", status=status, cost_usd=cost_usd, attempt=attempt)  # pyright: ignore[reportArgumentType]  # a status


def test_a_failed_attempt_still_counts_after_the_next_one(folder: BatchFolder) -> None:
    finish(folder, result(1, 0.4), result(2, 0.3, "succeeded"))

    plan = plan_batch([ITEM], folder)

    assert plan.spent_usd == pytest.approx(0.7)
    assert [each.attempt for each in plan.finished.values()] == [2]


def test_an_item_that_is_given_up_keeps_its_attempt_and_what_it_has_cost(folder: BatchFolder) -> None:
    finish(folder, result(1, 0.4))
    cost = begun(folder, 2)
    job = Job(item=ITEM, attempt=2)
    plan = plan_batch([], folder)

    outcome = drive(replace(plan, jobs=(job,)), folder, DyingCrew())

    (given_up,) = outcome.results
    assert (given_up.status, given_up.attempt, given_up.cost_usd) == ("failed", 2, pytest.approx(cost))
    assert cost > 0
    for retry in (False, True):
        assert plan_batch([ITEM], folder, retry_failed=retry).spent_usd == pytest.approx(0.4 + cost)


def test_a_machine_without_room_for_a_process_is_not_another_batch(folder: BatchFolder) -> None:
    with pytest.raises(BlockingIOError), folder.held():
        raise BlockingIOError(11, "Resource temporarily unavailable")
    with folder.held(), pytest.raises(ConfigError, match="another"), folder.held():
        pass


def test_the_report_of_a_stopped_batch_tells_what_was_paid_for_items_that_wait(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(30)
    flags = ["--concurrency", "8"]
    with counting_server(0.02) as server:
        stopped = scene.run(server.base_url, *flags, "--max-cost-usd", "0.002")
        replies = sum(server.counts().values())
        report = json.loads((scene.folder.path / "report.json").read_text())
        scene.run(server.base_url, *flags)
        whole = json.loads((scene.folder.path / "report.json").read_text())

    assert replies > report["model_calls"], "an item was stopped between its two requests"
    assert f"cost limit is reached: ${report['spent_usd']:.4f} of" in report["stopped"]
    assert report["spent_usd"] > report["cost_usd"]["total"]
    assert "besides for items that wait" in stopped.stdout
    assert whole["spent_usd"] == pytest.approx(whole["cost_usd"]["total"], abs=1e-5)


def test_a_cap_below_the_longest_reply_is_used_up_and_then_says_what_would_help(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(5)
    prices = ["--price", "3/15"]  # the longest reply alone costs 0.061
    with counting_server() as server:
        stopped = scene.run(server.base_url, *prices, "--max-cost-usd", "0.0115")
        spent = json.loads((scene.folder.path / "report.json").read_text())["spent_usd"]
        asked = len(server.times)
        again = scene.run(server.base_url, *prices, "--max-cost-usd", "0.0115")
        assert len(server.times) == asked > 0
        raised = scene.run(server.base_url, *prices, "--max-cost-usd", "0.05")

    assert 0 < spent <= 0.0115
    for shown in (stopped, again):
        assert f"${spent:.4f} of $0.0115 is spent, and the next request may cost $0.0" in shown.stderr
        assert "with a higher --max-cost-usd the same command continues from here" in shown.stderr
    assert raised.returncode == 0
    assert server.extra() == 0


def test_a_cap_that_pays_for_no_request_asks_nothing_and_says_so(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(2)
    with counting_server() as server:
        stopped = scene.run(server.base_url, "--price", "100/100", "--max-cost-usd", "0.05")

    assert server.times == []
    assert "$0.0000 of $0.0500 is spent, and the next request may cost $0." in stopped.stderr
    assert stopped.returncode == 1
