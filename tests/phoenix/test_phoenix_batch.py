"""`sonde batch --all-errors --since …` against a real Phoenix server (`make test-phoenix`): what fits is found over several pages, and the
judgements are on the server.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest
from phoenix_loading import protobuf, send, wait_for

pytestmark = [pytest.mark.phoenix, pytest.mark.timeout(600)]
PROJECT = "nightly"
FAILED, HEALTHY, OLD = 520, 20, 5  # more failed ones than a page of the query holds
Json = dict[str, Any]


def raw(number: int, started: datetime, *, failed: bool) -> Json:
    """A trace of one span in the form that the loader takes."""
    return {
        "trace_id": f"ba{number:030x}",
        "span_id": f"ba{number:014x}",
        "parent_span_id": None,
        "span_name": "payments.charge",
        "timestamp": started.isoformat(),
        "duration": "PT1S",
        "status_code": "Error" if failed else "Ok",
        "status_message": f"TimeoutError: no answer after {number} ms" if failed else "",
        "span_attributes": {"openinference.span.kind": "TOOL", "tool.name": "charge"},
        "events": [],
    }


@pytest.fixture(scope="module")
def url() -> str:
    """A server with this night's traces, and some failed ones of last week."""
    address, now = os.environ["PHOENIX_URL"], datetime.now(UTC)
    tonight = [raw(n, now - timedelta(minutes=n % 60), failed=n < FAILED) for n in range(FAILED + HEALTHY)]
    before = [raw(9000 + n, now - timedelta(days=7), failed=True) for n in range(OLD)]
    send(address, PROJECT, [protobuf(span) for span in tonight + before])
    wait_for(len(tonight) + OLD, address, PROJECT)
    return address


def batch(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "sonde",
        "batch",
        "--runs-dir",
        str(folder),
        "--project",
        PROJECT,
        "--json",
        *flags,
    ]
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ} | {"HOME": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environ, check=False)


def test_every_failed_trace_of_the_night_is_found_judged_once_and_grouped(url: str, tmp_path: Path) -> None:
    query = ["--all-errors", "--since", "24h", "--source", url]
    found = batch(tmp_path, *query, "--name", "all", "--no-writeback")

    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    assert (report["items"], report["statuses"]) == (FAILED, {"partial": FAILED})
    assert sum(issue["count"] for issue in report["issues"]["top"]) == FAILED


def test_judgements_are_written_to_the_server_and_an_unknown_project_is_refused(url: str, tmp_path: Path) -> None:
    done = batch(tmp_path, "--all-errors", "--since", "24h", "--source", url, "--limit", "3", "--name", "three")
    assert done.returncode == 0, done.stderr
    ids = [
        json.loads(line)["trace_ids"][0] for line in (tmp_path / "batch-three/results.jsonl").read_text().splitlines()
    ]
    asked = httpx2.get(
        f"{url}/v1/projects/{PROJECT}/trace_annotations", params={"trace_ids": ids, "limit": 100}, timeout=60
    )

    assert {each["trace_id"] for each in asked.json()["data"] if each["name"] == "rca.primary"} == set(ids)
    nowhere = batch(tmp_path, "--all-errors", "--source", url, "--project", "nowhere")
    assert nowhere.returncode != 0
    assert "nowhere" in nowhere.stderr
