"""What a batch refuses before it begins, and what it says about lines, flags and prices that do not mean what they seem to."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from batch.scene import Scene, one_worker
from cli.cli_program import Shown, sonde
from sonde.batch.gate import Flights, LimitedModel
from sonde.batch.limits import Answer, Ask, Slot, Told
from sonde.core.deadline import Deadline, SystemClock
from sonde.models.base import Message, ModelRequest, suited_mode
from sonde.testing import ScriptedModel


def batch(scene: Scene, *flags: str) -> Shown:
    """`sonde batch` without any model but the one that the flags name."""
    return sonde("batch", scene.manifest, "--runs-dir", scene.runs, *one_worker(flags), cwd=scene.path)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "openai:gpt-4o-mini"], "OPENAI_API_KEY"),
        (["--model", "openai:gpt-4o-mini", "--base-url", "nonsense"], "base URL"),
        (["--model", "command:no-such-program"], "no-such-program"),
        (["--sub-model", "command:true"], "--model"),
        (["--max-wall-time-sec", "-3"], "max_wall_time_sec"),
    ],
)
def test_what_no_item_could_run_with_is_said_once_and_no_item_is_refused(
    tmp_path: Path, flags: list[str], said: str
) -> None:
    scene = Scene(tmp_path)
    scene.write(3)

    refused = batch(scene, *flags)

    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr
    assert scene.results() == {}


@pytest.mark.long
def test_a_batch_that_has_nothing_left_to_do_needs_no_key_for_its_report(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(2)
    assert batch(scene).returncode == 0

    assert batch(scene, "--model", "openai:gpt-4o-mini", "--quiet").returncode == 0


@pytest.mark.parametrize("flags", [["--limit", "1"], ["--engine", "compliance"], ["--on", "mars"]])
def test_flags_that_mean_nothing_here_are_refused_before_anything_is_made(tmp_path: Path, flags: list[str]) -> None:
    scene = Scene(tmp_path)
    scene.write(2)

    refused = batch(scene, *flags)

    assert refused.returncode == 2
    assert flags[0] in refused.stderr
    assert not scene.runs.exists()


def test_of_many_broken_lines_the_screen_says_how_many_more_there_are_and_the_report_names_all(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(1, ["no item"] * 23)

    done = batch(scene)

    assert done.returncode == 1
    assert done.stderr.count("is not an item and was skipped") == 20
    assert "3 more lines" in done.stderr
    assert done.stdout.count("- line ") == 23


@pytest.mark.long
def test_a_cap_that_no_price_can_hold_is_said_before_the_work(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(1)
    (tmp_path / "model.py").write_text("print('```python\\nFINAL(1)\\n```')")
    model = ["--model", f"command:{sys.executable} model.py"]

    capped, free = batch(scene, *model, "--max-cost-usd", "1"), batch(scene, *model)

    assert "the price of command:" in capped.stderr
    assert "the price of" not in free.stderr


class OpenGate:
    """Lets everything through and keeps what it was asked."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.counts = True
        self.asked: list[Ask] = []

    def book(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        return Slot(delay_s=0.0)

    def tell(self, told: Told) -> None:
        return


class WeakModel(ScriptedModel):
    guided = True


@pytest.mark.parametrize(("model", "mode"), [(WeakModel(["x"]), "guided"), (ScriptedModel(["x"]), "code")])
def test_a_weak_model_is_guided_in_a_batch_too(model: ScriptedModel, mode: str) -> None:
    assert suited_mode(LimitedModel(model, OpenGate(), Flights())) == mode


@pytest.mark.parametrize(("name", "priced"), [("command:gpt-4o-mini", False), ("openai:gpt-4o-mini", True)])
def test_no_money_is_set_aside_for_a_program_that_is_named_like_a_paid_model(name: str, priced: bool) -> None:
    gate = OpenGate()
    model = LimitedModel(ScriptedModel(["x"], name=name), gate, Flights())

    model.complete(ModelRequest(messages=[Message("user", "x" * 400)]), deadline=Deadline(SystemClock(), None))

    assert (gate.asked[0].cost_usd > 0) is priced
