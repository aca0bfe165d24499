"""The commands about traces say the same over every source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_program import sonde

from contexts.traces import trace_servers as servers
from contexts.traces.trace_samples import write_lines
from contexts.traces.trace_servers import KEYS, PROJECT, STEPS, Answer, hex_ids, serving, uuids

BAD = next(step for step in STEPS if step.trace == "bad")
OWN = ("gaps", "excerpt_hash", "incident_id", "project_name", "coverage", "error_spans", "outcome")
"""What a source says in its own way, and what follows from ids."""
LIVE = {
    "phoenix": ("phoenix", servers.phoenix),
    "langfuse 4": ("langfuse", servers.langfuse),
    "langfuse 3": ("langfuse", servers.langfuse_v3),
    "langsmith": ("langsmith", servers.langsmith),
    "langsmith 2": ("langsmith", servers.langsmith_v2),
}


def _plainly(text: str) -> Any:
    """What was printed, with the same names for traces and spans from every source."""
    for step in STEPS:
        root = step.parent is None
        for trace, span in (hex_ids(step), uuids(step)):
            text = text.replace(span, f"trace {step.trace}" if root else f"span {step.trace} {step.name}")
            text = text.replace(trace, f"trace {step.trace}")
    return json.loads(text, object_hook=lambda table: {key: table[key] for key in table if key not in OWN})


def _said(*place: str, folder: Path, bad: str) -> list[Any]:
    """What the commands say."""
    found: list[Any] = []
    window = ("--from", "2026-11-02T00:00Z", "--to", "2026-11-03T00:00Z")
    lists = (("traces", "ls", *window), ("traces", "ls", "--failed", *window), ("traces", "overview", *window))
    for words in (*lists, ("traces", "show", bad[:8])):
        done = sonde(*words, "--json", *place, cwd=folder, **KEYS)
        assert done.returncode == 0, done.stderr
        found.append(_plainly(done.stdout))
    for words in (("rca", bad[:8]), ("comply", bad), ("incident", *window)):
        done = sonde(*words, "--no-writeback", "--json", *place, "--runs-dir", "runs", cwd=folder, **KEYS)
        assert done.returncode == 0, done.stderr
        found.append(_plainly(done.stdout)["report"])
    return found


@pytest.mark.long
@pytest.mark.parametrize("live", LIVE)
def test_the_commands_say_the_same_over_a_server_as_over_a_file(live: str, tmp_path: Path) -> None:
    product, answer = LIVE[live]
    spans = [{**(span := servers.phoenix_span(step)), **span.pop("context")} for step in STEPS]
    file = write_lines(tmp_path / "traces.jsonl", spans)
    ids = uuids if product == "langsmith" else hex_ids

    wanted = _said("--source", str(file), folder=tmp_path, bad=hex_ids(BAD)[0])
    with serving(answer) as (url, _):
        found = _said("--source", f"{product}:{url}", "--project", PROJECT, folder=tmp_path, bad=ids(BAD)[0])

    assert found == wanted
    assert [each["trace_id"] for each in found[1]["traces"]] == ["trace bad"]
    assert found[4]["primary_label"] == "upstream_dependency_failure"


@pytest.mark.long
@pytest.mark.parametrize(("product", "answer"), [("langfuse", servers.langfuse), ("langsmith", servers.langsmith)])
def test_nothing_is_written_to_a_server_that_is_not_phoenix(product: str, answer: Answer, tmp_path: Path) -> None:
    ids = uuids if product == "langsmith" else hex_ids
    with serving(answer) as (url, seen):
        place = ("--source", f"{product}:{url}", "--project", PROJECT)
        done = sonde("rca", ids(BAD)[0], *place, "--runs-dir", "runs", cwd=tmp_path, **KEYS)
        told = sonde("publish", "last", "--runs-dir", "runs", cwd=tmp_path, SONDE_SOURCE=f"{product}:{url}", **KEYS)

    assert done.returncode == 0, done.stderr
    assert told.returncode == 2 and "only reads" in told.stderr
    assert {(each.method, each.path) for each in seen if each.method != "GET"} <= {("POST", "/api/v1/runs/query")}
    (record,) = tmp_path.glob("runs/*/run_record.json")
    assert (record.parent / "annotations.jsonl").exists()
    kept = "".join(path.read_text() for path in record.parent.iterdir() if path.is_file())
    assert not any(key in kept for key in (servers.SECRET, servers.KEY))


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("langfuse:cloud.langfuse.com", "langfuse:https://cloud.langfuse.com"),
        ("langfuse:https://cloud.langfuse.com", "LANGFUSE_PUBLIC_KEY"),
        ("https://us.cloud.langfuse.com", "LANGFUSE_PUBLIC_KEY"),
        ("https://eu.api.smith.langchain.com", "LANGSMITH_API_KEY"),
        ("langsmith:https://me:secret@smith.example", "LANGSMITH_API_KEY"),
    ],
)
def test_a_server_that_is_named_wrongly_or_has_no_key_says_what_is_missing(
    source: str, told: str, tmp_path: Path
) -> None:
    done = sonde("traces", "ls", "--source", source, cwd=tmp_path)

    assert done.returncode == 2 and told in done.stderr


@pytest.mark.long
def test_an_address_that_is_no_phoenix_server_says_how_to_name_the_others(tmp_path: Path) -> None:
    with serving(lambda _: (404, "<html>This page could not be found.</html>")) as (url, _):
        done = sonde("traces", "ls", "--source", url, cwd=tmp_path)

    assert done.returncode == 2
    assert f"langfuse:{url}" in done.stderr and f"langsmith:{url}" in done.stderr
