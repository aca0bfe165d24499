"""`without="landlock"`: asked for in the call, kept in the record, never taken over from a recording, a file or the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.api import rerun
from sonde.api.settings import load_settings
from sonde.errors import ConfigError
from sonde.runs.rundir import RunDir
from sonde.sandbox import ForkServer, Sandbox, kernel_box
from sonde.testing import ScriptedModel
from sonde.viewer import export_html

LEFT_OFF = "without landlock"


def asked(folder: Path, without: str = "landlock") -> sonde.Answer:
    model = ScriptedModel(["x = 6 * 7", "FINAL(x)"])
    return sonde.ask("What is it?", model=model, runs_dir=folder, without=without, citations=False)


def folder_of(answer: sonde.Answer) -> Path:
    assert answer.run_dir is not None
    return answer.run_dir


@pytest.fixture
def boxes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The layers of every sandbox that is opened."""
    seen: list[tuple[str, ...]] = []
    launch = kernel_box.launch

    def watched(*given: object, **named: object) -> object:
        opened = launch(*given, **named)  # pyright: ignore[reportArgumentType, reportCallIssue] - passed on as they came
        seen.append(opened[0].layers)
        return opened

    monkeypatch.setattr(kernel_box, "launch", watched)
    return seen


def test_the_run_says_that_landlock_was_left_off(tmp_path: Path, boxes: list[tuple[str, ...]]) -> None:
    answer = asked(tmp_path)

    assert answer.value == 42
    assert LEFT_OFF in boxes[0] and not any(layer.startswith("landlock") for layer in boxes[0])
    assert LEFT_OFF in answer.record.runtime_ref.layers and not answer.record.runtime_ref.unsafe
    assert any(LEFT_OFF in note for note in answer.record.notes)
    assert any(LEFT_OFF in gap for gap in answer.gaps)
    assert LEFT_OFF in (folder_of(answer) / "summary.md").read_text()
    assert LEFT_OFF in export_html(RunDir(folder_of(answer)), tmp_path / "page.html").read_text()


def test_a_replay_a_resume_and_a_branch_have_all_layers_unless_this_call_gives_one_up(
    tmp_path: Path, boxes: list[tuple[str, ...]]
) -> None:
    folder = folder_of(asked(tmp_path))
    boxes.clear()

    assert rerun.replay(folder).equal
    branched = rerun.branch(folder, 2, model=ScriptedModel(["FINAL(x)"]), runs_dir=tmp_path)
    journal = folder / "events.jsonl"
    journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:-6]))
    rerun.resume(folder, model=ScriptedModel(["FINAL(x)"]))

    assert len(boxes) == 3
    assert all(LEFT_OFF not in layers and "landlock" in " ".join(layers) for layers in boxes)
    assert LEFT_OFF not in branched.record.runtime_ref.layers


def test_a_replay_can_give_it_up_again_and_finds_no_difference(tmp_path: Path, boxes: list[tuple[str, ...]]) -> None:
    folder = folder_of(asked(tmp_path, without=""))
    boxes.clear()

    assert rerun.replay(folder, without="landlock").equal
    assert LEFT_OFF in boxes[0]


def test_no_file_and_no_variable_leaves_a_layer_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, boxes: list[tuple[str, ...]]
) -> None:
    monkeypatch.setenv("SONDE_WITHOUT", "landlock")
    model = ScriptedModel(["FINAL(1)"])

    sonde.ask("What is it?", model=model, runs_dir=tmp_path, citations=False, settings=load_settings())

    assert LEFT_OFF not in boxes[0]


@pytest.mark.parametrize("layer", ["seccomp", "rlimits", "everything"])
def test_no_other_layer_can_be_given_up(layer: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="only landlock"):
        asked(tmp_path, without=layer)


@pytest.mark.parametrize("layer", ["rlimits", "seccomp", "fork-gate"])
def test_the_other_layers_must_hold(layer: str) -> None:
    server = ForkServer(without=(layer,))
    with pytest.raises(sonde.errors.SandboxUnavailable, match=layer):
        Sandbox(server=server, without="landlock")
    server.close()
