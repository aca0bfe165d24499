"""Runs recorded before the code changed shape: every command gives the same result for them as it did then.

If a change alters a result on purpose, `python scripts/record_golden.py --expect` writes the new ones down; the commit says why.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from golden_runs import (
    JOURNAL,
    KEPT,
    NAMES,
    PLACEHOLDER,
    RECORD,
    SECRET,
    Scene,
    branched,
    expected,
    exported,
    folded,
    rechained,
    replayed,
    resumed,
    set_out,
    shown,
)
from golden_words import FOLLOW_UP, FOLLOWING_QUESTION, Words

import sonde
from sonde.testing import ScriptedModel, ScriptedServer

SIMILAR = {"follow-up", "batch-item", "limit", "incident"}
"""Made by the code that made "ask" and "rca": `make test-long` looks at them."""
FINISHED = [name for name in NAMES if name != "interrupted"]
REPLAYED = [name for name in FINISHED if name != "rlms"]


def each_of(names: Iterable[str]) -> pytest.MarkDecorator:
    long = [pytest.mark.long]
    return pytest.mark.parametrize("name", [pytest.param(name, marks=long * (name in SIMILAR)) for name in names])


every_run = each_of(NAMES)
ASIDE = (
    "run_id",
    "notes",
    "engine_version",
    "prompt_template_hash",
)  # a replay is made by the Sonde of today, with its texts
TIMED = re.compile(r"(_at|_time|_sec|_s|_ms|latency.*|duration.*)$")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with set_out(tmp_path / "golden") as found:
        yield found


def without_times(value: Any) -> Any:
    """A record without what differs between a run and its replay: ids, notes, times, and the order of parallel children."""
    if isinstance(value, list):
        kept = [without_times(item) for item in cast("list[Any]", value)]
        return sorted(kept, key=lambda item: json.dumps(item, sort_keys=True))
    if not isinstance(value, dict):
        return value
    fields = cast("dict[str, Any]", value).items()
    return {key: without_times(item) for key, item in fields if key not in ASIDE and not TIMED.search(key)}


def archived(path: Path) -> dict[str, str]:
    """The files of an export."""
    with tarfile.open(path) as archive:
        files = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@every_run
def test_a_recorded_run_is_shown_as_its_journal_tells_it(scene: Scene, name: str) -> None:
    told = shown(scene, name)
    page = scene.sonde("runs", "show", name)

    assert folded(scene, name) == told == expected(name)["record"]
    assert told["status"] in page.out or "sonde resume interrupted" in page.out


def test_all_recorded_runs_are_listed(scene: Scene) -> None:
    rows = {Path(row["path"]).name: row for row in scene.sonde("runs", "--json").json["runs"]}

    assert set(rows) == set(NAMES)
    assert {name: row["status"] for name, row in rows.items()} == {
        **dict.fromkeys(NAMES, "succeeded"),
        "interrupted": "interrupted",
        "limit": "partial",
    }


@every_run
def test_a_recorded_run_replays_to_the_bit(scene: Scene, name: str) -> None:
    found = replayed(scene, name)

    assert found == expected(name)["replay"]
    assert found["equal"] is (True if name in REPLAYED else None)


@each_of(REPLAYED)
def test_a_replay_gives_the_same_record_as_the_run(scene: Scene, name: str) -> None:
    again = sonde.replay(scene.runs / name)

    assert again.record is not None
    kept = json.loads((scene.runs / name / RECORD).read_text())
    assert without_times(again.record.model_dump(mode="json")) == without_times(kept)


@each_of(REPLAYED)
def test_the_recorded_words_alone_lead_to_the_same_end(scene: Scene, name: str) -> None:
    """Also after prompts have changed, when a replay to the bit cannot succeed any more."""
    said = scene.sonde("replay", name, "--words-only", "--json")

    assert (said.code, said.json["status"]) == (0, expected(name)["record"]["status"])


@every_run
def test_resume_asks_only_for_what_a_recorded_run_lacks(scene: Scene, name: str) -> None:
    journal = (scene.runs / name / JOURNAL).read_bytes()

    found = resumed(scene, name)

    assert found == expected(name)["resume"]
    if name != "interrupted":
        more = (scene.runs / name / JOURNAL).read_bytes().removeprefix(journal).splitlines()
        assert found["prompts"] == [] and [json.loads(line)["type"] for line in more] in ([], ["run_resumed"])
    if name in REPLAYED:
        assert shown(scene, name) == expected(name)["record"]


@each_of(FINISHED)
def test_a_finished_run_is_not_resumed(scene: Scene, name: str) -> None:
    with ScriptedServer() as server:
        said = scene.asking(server, "resume", name)

    assert (said.code, server.requests) == (2, ())


def test_a_run_that_was_killed_ends_like_one_that_was_not(scene: Scene) -> None:
    resumed(scene, "interrupted")

    assert scene.sonde("diff", "interrupted", "subcalls", "--json").json["equal"] is True
    assert scene.sonde("replay", "interrupted").code == 0


def test_a_run_of_a_version_that_took_a_turn_instead_of_asking_replays(tmp_path: Path) -> None:
    """Code of assign-only may make no sub-calls, and older versions took that for a ban on their own small question."""
    (tmp_path / "a.txt").write_text("beta is 42\n")
    turns = ["FINAL('It is what it is. [a.txt:1]')", "FINAL(held_final)"]
    options: dict[str, Any] = {"profile": "assign-only", "max_subcalls": 0, "runs_dir": tmp_path / "runs"}
    answer = sonde.ask("?", tmp_path / "a.txt", model=ScriptedModel(turns), **options)
    assert answer.run_dir is not None
    assert answer.status == "succeeded"
    journal = answer.run_dir / JOURNAL
    journal.write_bytes(rechained(journal.read_bytes().replace(b'"max_subcalls":0', b'"max_subcalls":9')))

    again = sonde.replay(answer.run_dir, trust_run=True)

    assert again.equal, again.differences
    assert again.record is not None
    assert again.record.runtime_ref.usage.iterations == 2


def test_a_run_of_a_version_that_did_not_record_delegating_replays_without_it(scene: Scene) -> None:
    again = sonde.replay(scene.runs / "edit")

    assert again.equal
    assert again.record is not None
    assert again.record.runtime_ref.usage.llm_subcalls == 1
    assert "delegating" not in again.record.runtime_ref.state_trajectory


@every_run
def test_a_recorded_run_can_be_branched(scene: Scene, name: str) -> None:
    assert branched(scene, name) == expected(name)["branch"]


@every_run
def test_an_export_of_a_recorded_run_is_the_same_run_elsewhere(scene: Scene, name: str) -> None:
    assert exported(scene, name) == expected(name)["export"]
    files = archived(scene.place / f"{name}.tar.gz")
    elsewhere = Scene(scene.place / "elsewhere")

    assert elsewhere.sonde("runs", "import", scene.place / f"{name}.tar.gz").code == 0

    (imported,) = elsewhere.runs.iterdir()
    assert {path.name: path.read_text() for path in imported.iterdir()} == {
        each: text for each, text in files.items() if each != "export.json"
    }
    assert scene.sonde("diff", name, imported, "--exit-code").code == 0
    assert scene.sonde("replay", imported, "--json").json.get("equal") is expected(name)["replay"]["equal"]


@every_run
def test_a_redacted_export_holds_no_secret_and_is_only_looked_at(scene: Scene, name: str) -> None:
    target, page = scene.place / "redacted.tar.gz", scene.place / "redacted.html"
    assert scene.sonde("export", name, "--redact", "-o", target).code == 0
    assert scene.sonde("export", name, "--redact", "--html", "-o", page).code == 0
    elsewhere = Scene(scene.place / "elsewhere")
    elsewhere.sonde("runs", "import", target)

    (imported,) = elsewhere.runs.iterdir()
    record = elsewhere.sonde("runs", "show", imported, "--json").json
    assert SECRET not in page.read_text() + "".join(archived(target).values())
    assert record["status"] == expected(name)["record"]["status"]
    assert elsewhere.sonde("replay", imported).code == 2


@every_run
def test_the_page_of_a_recorded_run_holds_all_of_it(scene: Scene, name: str) -> None:
    page = scene.place / "page.html"
    assert scene.sonde("export", name, "--html", "-o", page).code == 0

    events = [json.loads(line) for line in (scene.runs / name / JOURNAL).read_text().splitlines()]
    replies = [event["text"] for event in events if event["type"] == "model_replied"]
    shown_text = page.read_text()
    assert all(json.dumps(re.split("[<>&'\n]", reply)[0], ensure_ascii=False)[1:-1] in shown_text for reply in replies)
    assert (SECRET in shown_text) is (SECRET in (scene.runs / name / JOURNAL).read_text())


@every_run
def test_a_recorded_run_does_not_differ_from_itself(scene: Scene, name: str) -> None:
    found = scene.sonde("diff", name, name, "--json")

    assert found.json["equal"] is True and found.json["same_answer"] is True


def test_runs_that_part_are_compared_where_they_part(scene: Scene) -> None:
    found = scene.sonde("diff", "subcalls", "interrupted", "--json", "--exit-code")

    assert found.code == 1
    assert found.json["first_difference"]["session"] == "root/3.1"
    assert scene.sonde("diff", "ask", "follow-up", "--json").json["first_difference"]["what"] == "run_started"


def test_a_recorded_run_is_followed_up_with_its_variables(scene: Scene) -> None:
    with ScriptedServer(Words(FOLLOW_UP)) as server:
        said = scene.asking(server, "ask", FOLLOWING_QUESTION, "--continue", "ask")

    (made,) = (path for path in scene.runs.iterdir() if path.name not in NAMES)
    assert said.json["answer"] == expected("follow-up")["resume"]["answer"]
    assert "7 2026-01-01T00:01:07Z ERROR pay gave up after 3 attempts True" in server.requests[1].prompt()
    assert scene.sonde("replay", made).code == 0


def test_a_recorded_follow_up_is_followed_up(scene: Scene) -> None:
    words = [
        "```python\nprint(longest(rows))\nprint(read_file('checkout.log', 4, 4))\n```",
        "```python\nFINAL(f'{len(rows)} lines [checkout.log:4]')\n```",
    ]
    with ScriptedServer(Words(words)) as server:
        said = scene.asking(server, "ask", "And the longest line?", "--continue", "follow-up")

    (made,) = (path for path in scene.runs.iterdir() if path.name not in NAMES)
    assert (said.json["status"], said.json["answer"]) == ("succeeded", "7 lines [checkout.log:4]")
    assert scene.sonde("replay", made).code == 0


@every_run
def test_what_is_kept_names_no_machine(name: str) -> None:
    files = {path.name: path.read_bytes() for path in (KEPT / name).iterdir()}
    text = b"".join(files.values()).decode()

    assert rechained(files[JOURNAL]) == files[JOURNAL], "a journal in git is sound as it is"
    assert set(re.findall(r'"(/[a-z]+)/', text)) <= {PLACEHOLDER}
