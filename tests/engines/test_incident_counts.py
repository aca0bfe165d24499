"""What the dossier counts without a model: how many failed, in which groups, since when, and after which change."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trace_cases import START_NS, Json, model, options, span, write

import sonde
from sonde.engines.reports import FailureGroup, IncidentDossier
from sonde.errors import ConfigError

DECLINED = "KeyError: 'currency'"
START = START_NS // 1_000_000_000


def trace(number: int, said: Json | None = None, *, failed: str = "", mail: str = "", pay_s: int = 1) -> list[Json]:
    """A minute of its own, a root with these attributes, and two steps."""
    trace_id, at = f"{number + 1:032x}", number * 60

    def step(place: int, name: str, error: str, lasted: int) -> Json:
        status = {"status_code": "ERROR", "status_message": error} if error else {}
        root = f"{number + 1:015x}0" if place else None
        return span(
            f"{number + 1:015x}{place}", name, at + place, trace_id=trace_id, parent=root, lasted=lasted, **status
        )

    root = step(0, "checkout", "step failed" if failed or mail else "", 10)
    root["attributes"] |= said or {}
    return [root, step(1, "charge_card", failed, pay_s), step(2, "send_mail", mail, 1)]


def dossier(folder: Path, make: Callable[[int], list[Json]], *, count: int = 40, **more: Any) -> IncidentDossier:
    source = write(folder, [row for number in range(count) for row in make(number)])
    found = sonde.incident(source, project="shop", **options(), **more)
    assert found.report is not None, found.record.error
    return IncidentDossier.model_validate(found.report)


def breaking(since: int) -> Callable[[int], list[Json]]:
    dice = random.Random(7)
    return lambda number: trace(number, failed=DECLINED if number >= since and dice.random() < 0.6 else "")


def main_group(made: IncidentDossier) -> FailureGroup:
    return made.groups[0]


def test_a_release_that_spans_carry_is_the_suspected_change_with_what_speaks_for_and_against_it(tmp_path: Path) -> None:
    made = dossier(
        tmp_path,
        lambda number: trace(
            number,
            {"release": "2.4.1" if number >= 20 else "2.4.0", "user.id": f"u{number % 6}"},
            failed=DECLINED if number in {3, *range(22, 40, 2)} else "",
        ),
    )

    change = main_group(made).suspected_change
    assert made.incident_summary.startswith(
        "By rule, without a model: 10 of 40 traces failed (25 %). Largest group: 10 × charge_card"
    )
    assert "suspected change: release 2.4.1" in made.incident_summary
    assert (change.change_type, change.change_ref, change.at) == ("deploy", "release=2.4.1", "2026-01-01T00:20:00Z")
    assert change.speaks_for == [
        "9 of 10 hit traces have release 2.4.1",
        "the group began 2 min after it",
    ]
    assert change.speaks_against == ["11 traces with it are not hit", "1 trace was hit before it"]
    assert (made.suspected_change.change_type, made.suspected_change.change_ref) == ("deploy", "release=2.4.1")
    assert [ref.ref for ref in made.suspected_change.evidence_refs] == [f"{21:015x}0:attributes"]
    assert main_group(made).blast_radius == {"users": 4}
    assert main_group(made).onset == {
        "at": "2026-01-01T00:22:00Z",
        "before": "1 of 22",
        "since": "9 of 18",
        "before_of_calls": "1 of 22",
        "since_of_calls": "9 of 18",
    }


def test_two_causes_at_once_are_two_groups_each_with_its_own_change(tmp_path: Path) -> None:
    made = dossier(
        tmp_path,
        lambda number: trace(
            number,
            {"service.version": "2" if number >= 15 else "1", "prompt.version": "b" if number >= 30 else "a"},
            failed=DECLINED if number >= 15 and number % 3 == 0 else "",
            mail="no template 'footer'" if number >= 30 and number % 3 else "",
        ),
        count=60,
    )

    assert {each.component: each.suspected_change.change_ref for each in made.groups} == {
        "charge_card": "service.version=2",
        "send_mail": "prompt.version=b",
    }


def test_a_healthy_window_says_so_and_names_no_cause_although_much_changed(tmp_path: Path) -> None:
    (tmp_path / "deploys.json").write_text(json.dumps([{"at": "2026-01-01T00:20:00Z", "name": "shop 2"}]))

    calm = dossier(
        tmp_path,
        lambda number: trace(number, {"release": "2" if number >= 20 else "1"}),
        changes=[str(tmp_path / "deploys.json")],
    )
    strays = dossier(tmp_path, lambda number: trace(number, failed="socket closed" if number in {4, 31} else ""))

    for made in (calm, strays):
        assert made.suspected_change.change_type == "unknown" and not made.suspected_change.change_ref
        assert (made.hypotheses, made.recommended_actions) == ([], [])
    assert calm.window is not None and calm.window.verdict == "healthy"
    assert calm.incident_summary == (
        "By rule, without a model: None of 40 traces failed: no span has status ERROR; time and tries are in line; "
        "no tokens are recorded; no cost is recorded. By these signs the window is healthy."
    )
    assert calm.gaps[:3] == ["no model read the content", "no tokens are recorded", "no cost is recorded"]
    assert "no incident is visible" in strays.incident_summary


def test_figures_of_too_few_traces_are_not_said_to_be_in_line(tmp_path: Path) -> None:
    made = dossier(tmp_path, trace, count=5)

    assert "too few traces to compare time and tries" in made.incident_summary
    assert "in line" not in made.incident_summary


@pytest.mark.parametrize("where", ["deploys", "git"])
def test_of_several_changes_the_one_that_fits_the_onset_is_suspected(tmp_path: Path, where: str) -> None:
    changes = {"search ranks by price": 300, "cards are charged in the currency of the order": 1190, "docs": 1700}
    if where == "deploys":
        rows = [{"at": START + at, "name": name, "summary": "x"} for name, at in changes.items()]
        (tmp_path / "deploys.json").write_text(json.dumps({"deploys": rows}))
        place = str(tmp_path / "deploys.json")
    else:
        repository = tmp_path / "repo"
        subprocess.run(["git", "init", "-q", repository], check=True)
        for name, at in changes.items():
            who = ("-c", "user.name=x", "-c", "user.email=x@example.org")
            made = ["git", *who, "-C", str(repository), "commit", "-q", "--allow-empty", "-m", name]
            subprocess.run(made, check=True, env={"GIT_COMMITTER_DATE": f"{START + at} +0000", "PATH": "/usr/bin:/bin"})
        place = f"git:{repository}"

    found = dossier(tmp_path, breaking(since=20), changes=[place])

    change = main_group(found).suspected_change
    assert "cards are charged in the currency of the order" in change.name
    assert any("currency" in reason for reason in change.speaks_for)
    assert found.suspected_change.change_ref == change.change_ref


def test_the_page_has_the_suspected_change_in_its_timeline_and_lists_every_trace_that_it_cites(tmp_path: Path) -> None:
    (tmp_path / "deploys.json").write_text(json.dumps([{"at": START + 1190, "name": "charge 2.4.1"}]))
    source = write(tmp_path, [row for number in range(40) for row in breaking(since=20)(number)])

    found = sonde.incident(source, changes=[str(tmp_path / "deploys.json")], **options())

    timeline = found.text.partition("## Timeline")[2].partition("\n## ")[0].strip().splitlines()
    assert "suspected change: deploy charge 2.4.1" in timeline[0]
    assert [row.split()[1] for row in timeline] == sorted(row.split()[1] for row in timeline)
    made = IncidentDossier.model_validate(found.report)
    listed = found.text.partition("## Traces that stand for the incident")[2].partition("\n## ")[0]
    cited = {ref.trace_id for each in (*made.timeline, *made.hypotheses) for ref in each.evidence_refs}
    assert cited and all(trace_id in listed for trace_id in cited - {""})


def test_a_trace_as_quick_as_the_others_is_not_shown_for_its_latency(tmp_path: Path) -> None:
    made = dossier(tmp_path, breaking(since=20))

    assert [each.why_selected for each in made.representative_traces if each.why_selected.startswith("latency")] == []


def test_without_a_change_near_the_onset_it_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "deploys.json").write_text(
        json.dumps([{"at": START + 60, "name": "a"}, {"at": START + 2100, "name": "b"}])
    )

    made = dossier(tmp_path, breaking(since=25), changes=[str(tmp_path / "deploys.json")])

    assert main_group(made).suspected_change.change_type == "unknown"
    assert "suspected change: unknown" in made.incident_summary
    assert made.suspected_change.summary == "nothing that is known to have changed fits the failures"


def test_a_step_that_became_slow_is_a_group_without_any_failure(tmp_path: Path) -> None:
    made = dossier(
        tmp_path,
        lambda number: trace(number, {"release": "2" if number >= 20 else "1"}, pay_s=9 if number >= 20 else 2),
    )

    (group,) = made.groups
    assert (group.kind, group.component, group.count) == ("slow", "charge_card", 20)
    assert group.suspected_change.change_ref == "release=2"
    assert "None of 40 traces failed." in made.incident_summary


def test_what_made_traces_fail_comes_before_what_they_recovered_from_which_is_marked(tmp_path: Path) -> None:
    def made(number: int) -> list[Json]:
        refused = number % 4 == 1
        rows = trace(number, {"net.peer.name": "inv-b" if refused else "inv-a"}, failed=DECLINED if refused else "")
        if number % 4 in (2, 3):  # the mail is tried twice
            again = {**rows[2], "span_id": f"{number + 1:015x}9", "start_time": rows[2]["start_time"] - 1_000_000}
            rows.append({**again, "status_code": "ERROR", "status_message": "SMTP reset"})
        return rows

    found = sonde.incident(
        write(tmp_path, [row for number in range(40) for row in made(number)]), project="shop", **options()
    )
    report = IncidentDossier.model_validate(found.report)

    assert [(each.component, each.failed, each.recovered) for each in report.groups] == [
        ("charge_card", 10, 0),
        ("send_mail", 0, 20),
    ]
    assert [(each.priority, "recovered" in each.action) for each in report.recommended_actions] == [
        ("P1", False),
        ("P2", True),
    ]
    assert "net.peer.name=inv-b in 10 of 10, elsewhere 0 of 30" in report.hypotheses[0].statement
    assert "(error, recovered)" in report.hypotheses[1].statement
    assert "| 20 | error, recovered | send_mail |" in found.text
    assert "- net.peer.name inv-b: 10 of 10 here, 0 of 30 elsewhere" in found.text


def test_a_model_gets_the_tables_and_its_counts_are_held_against_them(tmp_path: Path) -> None:
    source = write(tmp_path, [row for number in range(40) for row in breaking(20)(number)])
    said = "'incident_summary': '30 of 40 traces failed.'"
    told = "'incident_summary': f'{window[\"failed\"]} of 40 traces failed.'"
    change = "'suspected_change': {'change_type': 'deploy', 'change_ref': 'made up', 'summary': 'a guess'}"
    scripted = model(
        "print(window['failed'], groups[0]['count'], [row['hit'] for row in rate_over_time(buckets=2)])\n"
        "print(group_by('outcome'), compare_windows(at=groups[0]['onset']['at'])['before']['failed'])",
        f"SUBMIT(**{{{said}, {change}}})",
        f"SUBMIT(**{{{told}}})",
    )

    found = sonde.incident(source, project="shop", **options(scripted))

    assert found.report is not None
    failed = found.report["window"]["failed"]
    assert found.report["incident_summary"] == f"{failed} of 40 traces failed."
    prompts = [request.messages[-1].content for request in scripted.requests]
    assert f"{failed} {failed} [0, {failed}]" in prompts[1]
    assert f"counted: {failed} of 40" in prompts[2] and "change_ref of a row of `changes`" in prompts[2]


@pytest.mark.parametrize("place", ["git:nowhere", "nothing.json", "deploys.txt", "git:"])
def test_places_of_changes_that_are_none_are_refused_before_anything_runs(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path, trace(0))

    with pytest.raises(ConfigError):
        sonde.incident(source, changes=[place], **options())
