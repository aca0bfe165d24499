"""What docs/phoenix.md says, done on a real Phoenix server (`make test-phoenix`): its commands, its filters and its names in the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from phoenix_loading import protobuf, send, wait_for

from docs.doc_blocks import ROOT, blocks

pytestmark = [pytest.mark.phoenix, pytest.mark.timeout(600)]
PAGE = ROOT / "docs" / "phoenix.md"
BROWSER = ROOT / ".tools" / "browser"
PROJECT = "checkout"
TRACE = "4f1c2b".ljust(32, "0")
FILTERS = re.findall(r"^\| (Traces|Spans) \| `(.+?)` \|", PAGE.read_text("utf-8"), re.MULTILINE)
QUERY = """query ($id: ID!, $spans: String, $traces: String) { node(id: $id) { ... on Project {
    spans(first: 100, filterCondition: $spans, traceFilterCondition: $traces) { edges { node { name } } } } } }"""
Json = dict[str, Any]


def raw(number: int, name: str, kind: str, **more: str) -> Json:
    """A span of an hour ago in the form that the loader takes."""
    started = datetime.now(UTC) - timedelta(hours=1) + timedelta(seconds=number)
    return {
        "trace_id": TRACE,
        "span_id": f"4f{number:014x}",
        "parent_span_id": f"4f{0:014x}" if number else None,
        "span_name": name,
        "timestamp": started.isoformat(),
        "duration": "PT1S",
        "status_code": more.get("status", "Ok"),
        "status_message": more.get("message", ""),
        "span_attributes": {"openinference.span.kind": kind},
        "events": [],
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A server on which the commands of the page have been run, one after the other."""
    address, home = os.environ["PHOENIX_URL"], tmp_path_factory.mktemp("guide")
    spans = [
        raw(0, "place order", "AGENT"),
        raw(1, "charge", "TOOL", status="Error", message="TimeoutError: no answer"),
    ]
    send(address, PROJECT, [protobuf(span) for span in spans])
    wait_for(len(spans), address, PROJECT)
    (block,) = (each for each in blocks(PAGE) if each.language == "sh")
    environ = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(home)}
    script = ["bash", "-eux", "-c", block.code.replace("http://localhost:6006", address)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=home, env=environ, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert TRACE in done.stdout
    return address


def graphql(url: str, query: str, **variables: str | None) -> Json:
    reply = httpx2.post(f"{url}/graphql", json={"query": query, "variables": variables}, timeout=60).json()
    assert "errors" not in reply, reply["errors"]
    return reply["data"]


def project_id(url: str) -> str:
    found = httpx2.get(f"{url}/v1/projects/{PROJECT}", timeout=60).json()
    return found["data"]["id"]


def test_the_commands_leave_the_annotations_that_the_page_lists(url: str) -> None:
    table = PAGE.read_text("utf-8").partition("## What appears in the server")[2].partition("The explanation")[0]
    listed = [re.escape(name).replace("<id>", ".+") for name in re.findall(r"`([a-z]+\.[^`]+)`", table)]
    names: set[str] = set()
    for level, ids in {"trace": [TRACE], "span": [f"4f{number:014x}" for number in (0, 1)]}.items():
        path = f"{url}/v1/projects/{PROJECT}/{level}_annotations"
        found = httpx2.get(path, params={f"{level}_ids": ids, "limit": 100}, timeout=60).json()["data"]
        names |= {each["name"] for each in found}

    assert [name for name in names if not any(re.fullmatch(each, name) for each in listed)] == []
    assert [each for each in listed if not any(re.fullmatch(each, name) for name in names)] == []


@pytest.mark.parametrize(("tab", "condition"), FILTERS)
def test_each_filter_of_the_page_finds_something(url: str, tab: str, condition: str) -> None:
    asked = {"Traces": {"traces": condition, "spans": None}, "Spans": {"spans": condition, "traces": None}}[tab]

    assert graphql(url, QUERY, id=project_id(url), **asked)["node"]["spans"]["edges"]


@pytest.mark.skipif(
    not (BROWSER / "node_modules").exists() or shutil.which("chromium") is None, reason="run scripts/browser.sh first"
)
def test_phoenix_has_the_tabs_and_the_section_that_the_page_names_and_takes_the_filters_there(url: str) -> None:
    script, address = Path(__file__).with_name("guide.mjs"), f"{url}/projects/{project_id(url)}"
    typed = list(dict(FILTERS).items())  # one per tab
    wanted = {"filters": typed, "trace": f"{url}/redirects/traces/{TRACE}", "tab": "Info", "section": "Annotations"}
    assert all(f"*{wanted[word]}*" in PAGE.read_text("utf-8") for word in ("tab", "section"))
    command = ["node", str(script), str(BROWSER), address, json.dumps(wanted)]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)

    assert shown.returncode == 0, shown.stderr
    seen = json.loads(shown.stdout)
    assert seen["found"] == dict.fromkeys(dict(FILTERS).values(), True)
    assert (seen["tab"], seen["section"]) == (True, True)
