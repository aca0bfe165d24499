"""`sonde watch --listen` and the commands that read its store, through the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from otlp_bodies import Json, as_json, request, span, trace_id, values

from cli.cli_program import sonde
from sonde.watch.intake import Intake
from sonde.watch.otlp import read_request

pytestmark = pytest.mark.long

RAISED = values(
    ("exception.type", {"stringValue": "KeyError"}),
    ("exception.message", {"stringValue": "currency"}),
)
FAILED: Json = {
    "status": {"code": 2, "message": "KeyError: currency"},
    "events": [{"name": "exception", "timeUnixNano": "1760000000000001000", "attributes": RAISED}],
}


@pytest.mark.parametrize(
    "flags",
    [
        ("--listen", "here"),
        ("--listen", "0.0.0.0:0"),
        ("--listen", "192.0.2.1:1"),
        ("--listen", "127.0.0.1:0", "--once"),
        ("--listen", "127.0.0.1:0", "--dry-run"),
        ("--listen", "127.0.0.1:0", "--source", "http://localhost:6006"),
        ("--listen", "127.0.0.1:0", "--retain-days", "0"),
        ("--listen", "127.0.0.1:0", "--retain-gb", "nan"),
        ("--listen", "127.0.0.1:0", "--listen-token-file", "missing"),
        ("--listen", "127.0.0.1:0", "--source", "file"),
        ("--retain-days", "3"),
        ("--listen-token-file", "token"),
    ],
    ids=" ".join,
)
def test_flags_that_make_no_sense_are_refused(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "file").write_text("not a folder")

    shown = sonde("watch", *flags, "--state", tmp_path / "state", cwd=tmp_path)

    assert shown.returncode == 2
    assert "listening" not in shown.stderr


def test_a_short_token_is_refused_and_not_shown(tmp_path: Path) -> None:
    shown = sonde("watch", "--listen", "127.0.0.1:0", "--state", tmp_path, cwd=tmp_path, SONDE_LISTEN_TOKEN="hunter22")

    assert shown.returncode == 2
    assert "hunter22" not in shown.stderr + shown.stdout


def test_commands_read_the_store_while_it_is_open_for_writing(tmp_path: Path) -> None:
    rows = [span(number, trace=number, **(FAILED if number % 2 else {})) for number in range(1, 9)]
    with Intake(tmp_path / "store") as intake:
        intake.accept(read_request(as_json(request(*rows)), "application/json").spans).settled()

        window = sonde("incident", "--source", "store", "--json", cwd=tmp_path)
        asked = sonde("ask", "Why do steps fail?", "--source", "store", cwd=tmp_path)
        found = sonde("rca", trace_id(1), "--source", "store", cwd=tmp_path)
        watched = sonde("watch", "--source", "store", "--once", "--state", "state", cwd=tmp_path)

        intake.accept(read_request(as_json(request(span(99, trace=99))), "application/json").spans).settled()
    assert [shown.returncode for shown in (window, asked, found, watched)] == [0, 0, 0, 0]
    assert "KeyError" in window.stdout
    assert "currency" in asked.stdout
    assert "currency" in found.stdout
    assert "new: issue 1" in watched.stdout
