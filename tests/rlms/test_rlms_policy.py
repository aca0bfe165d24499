"""The trigger policy and the canary gate."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from rlms_loop import CITED, Loop

from sonde.core.canonical import MAX_JSON_ITEMS
from sonde.errors import ConfigError
from sonde.rlms.canary import judge
from sonde.rlms.policy import Forced, LoopPolicy, Mode, Reason, Thresholds, decide, read_policy, role_goes_on

SMALL = {"line_count": 2499, "estimated_tokens": 119_999, "file_count": 39}
LARGE = {**SMALL, "line_count": 2500}
GOOD_STATUS = {"status": "ok", "should_run": True}
GOOD_RESULT = {"ok": True, "citations": [{"path": "a", "signal": "retry"}], "highlights": ["retries are wrong"]}


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path, standalone="true")


@pytest.mark.requirement("O15")
@pytest.mark.parametrize(
    ("policy", "large", "requested", "should_run", "reason"),
    [
        (LoopPolicy(), True, True, False, "disabled"),
        (LoopPolicy(enabled=True, roles={"planner": False}), True, True, False, "role_disabled"),
        (LoopPolicy(enabled=True, policy=Forced(force_off=True, force_on=True)), True, True, False, "force_off"),
        (LoopPolicy(enabled=True, policy=Forced(force_on=True)), False, False, True, "force_on"),
        (LoopPolicy(enabled=True), True, False, True, "auto_threshold"),
        (LoopPolicy(enabled=True), False, True, False, "auto_not_met"),
        (LoopPolicy(enabled=True, mode="requested"), False, True, True, "requested_keyword"),
        (LoopPolicy(enabled=True, mode="requested"), True, False, False, "request_not_found"),
        (LoopPolicy(enabled=True, mode="hybrid"), True, True, True, "hybrid_requested"),
        (LoopPolicy(enabled=True, mode="hybrid"), True, False, True, "hybrid_auto"),
        (LoopPolicy(enabled=True, mode="hybrid"), False, False, False, "hybrid_not_met"),
    ],
)
def test_every_reason_of_the_policy(
    policy: LoopPolicy, large: bool, requested: bool, should_run: bool, reason: str
) -> None:
    decision = decide(policy, "planner", LARGE if large else SMALL, requested=requested)

    assert (decision.should_run, decision.reason) == (should_run, reason)


@pytest.mark.requirement("O15")
@pytest.mark.parametrize("name", ["line_count", "estimated_tokens", "file_count"])
def test_each_threshold_counts_from_its_value_on(name: str) -> None:
    assert not Thresholds().met(SMALL)
    assert Thresholds().met({**SMALL, name: SMALL[name] + 1})


def test_the_policy_is_total_and_its_reason_fits_its_answer() -> None:
    for enabled, role, off, on, requested, large in itertools.product([True, False], repeat=6):
        for mode in get_args(Mode):
            policy = LoopPolicy(
                enabled=enabled, mode=mode, roles={"planner": role}, policy=Forced(force_on=on, force_off=off)
            )
            decision = decide(policy, "planner", LARGE if large else SMALL, requested=requested)
            assert decision.reason in get_args(Reason)
            runs = {"force_on", "auto_threshold", "requested_keyword", "hybrid_requested", "hybrid_auto"}
            assert decision.should_run == (decision.reason in runs)


def test_the_defaults_are_the_contracts() -> None:
    policy = LoopPolicy()

    assert (policy.enabled, policy.mode, policy.request_keyword) == (False, "auto", "RLMS_REQUEST")
    assert (policy.auto.max_lines, policy.auto.max_estimated_tokens, policy.auto.max_files) == (2500, 120_000, 40)
    limits = policy.limits
    assert (limits.max_steps, limits.max_depth, limits.timeout_seconds, limits.max_subcalls) == (40, 2, 240, 80)
    assert policy.output.require_citations
    assert policy.policy.fail_mode == "warn_and_continue"


@pytest.mark.requirement(43)
def test_a_role_goes_on_after_a_failure_only_where_that_is_configured() -> None:
    assert role_goes_on("warn_and_continue", ok=False)
    assert not role_goes_on("fail_role", ok=False)
    assert role_goes_on("fail_role", ok=True)


@pytest.mark.parametrize(
    "config",
    [
        {"enabled": True, "mode": "hybrid"},
        {"rlms": {"enabled": True, "mode": "hybrid"}},
        {"runners": {}, "loops": [{"id": "x"}, {"id": "demo", "rlms": {"enabled": True, "mode": "hybrid"}}]},
    ],
)
def test_the_policy_is_found_in_a_section_or_a_whole_configuration(tmp_path: Path, config: dict[str, Any]) -> None:
    place = tmp_path / "config.json"
    place.write_text(json.dumps(config))

    policy = read_policy(str(place), "demo")

    assert (policy.enabled, policy.mode) == (True, "hybrid")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"x": ' + "[" * 101 + "]" * 101 + "}",
        f'{{"x": [{"{}," * MAX_JSON_ITEMS}0]}}',
        '{"mode": "sometimes"}',
        '{"auto": {"max_lines": "x"}}',
        '{"loops": [{"id": "a"}]}',
        '{"limits": {"max_steps": 0}}',
        '{"limits": {"timeout_seconds": -1}}',
        '{"policy": {"fail_mode": "never"}}',
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(tmp_path: Path, text: str) -> None:
    place = tmp_path / "config.json"
    place.write_text(text)

    with pytest.raises(ConfigError):
        read_policy(str(place), "demo")


def decided(loop: Loop, config: dict[str, Any], *more: str) -> dict[str, Any]:
    place = loop.tmp / "config.json"
    place.write_text(json.dumps(config))
    words = ["--config", str(place), "--role", "planner", "--loop-id", "demo", "--iteration", "1"]
    words += ["--repo", str(loop.repo), "--context-file-list", str(loop.files), "--output-dir", str(loop.output)]
    called = loop.sonde("rlms", "decide", *words, *more)
    assert called.code == 0, called.stderr
    return json.loads(called.stdout)


@pytest.mark.requirement("O15")
def test_a_decision_not_to_run_is_kept_as_a_skipped_status_with_its_event(loop: Loop) -> None:
    said = decided(loop, {"enabled": True})

    assert (said["should_run"], said["reason"], said["fail_mode"]) == (False, "auto_not_met", "warn_and_continue")
    assert said["metrics"] == {"file_count": 2, "line_count": 8, "char_count": 87, "estimated_tokens": 22}
    status = json.loads((loop.output / "status.json").read_text())
    assert (status["status"], status["reason"], status["should_run"]) == ("skipped", "auto_not_met", False)
    assert json.loads((loop.output.parent.parent / "latest" / "planner.status.json").read_text()) == status
    (event,) = map(json.loads, (loop.tmp / "loops" / "demo" / "events.jsonl").read_text().splitlines())
    assert (event["event"], event["status"], event["data"]["reason"]) == ("rlms_decision", "skip", "auto_not_met")


@pytest.mark.long
@pytest.mark.requirement("O15")
def test_a_decision_to_run_reaches_the_status_of_the_run(loop: Loop) -> None:
    (loop.repo / "b.txt").write_text("please: RLMS_REQUEST\n")
    said = decided(loop, {"enabled": True, "mode": "hybrid"})

    loop.call(loop.replies("root", [CITED]), metadata_file=loop.output / "metadata.json")

    status = json.loads((loop.output / "status.json").read_text())
    assert said["reason"] == status["reason"] == "hybrid_requested"
    assert status["mode"] == "hybrid"
    lines = (loop.tmp / "loops" / "demo" / "events.jsonl").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["rlms_decision", "rlms_start", "rlms_end"]


@pytest.mark.parametrize("metadata", [{}, {"objective": "ship it"}])
def test_a_decision_is_kept_beside_the_metadata_also_when_that_is_empty(loop: Loop, metadata: dict[str, Any]) -> None:
    place = loop.tmp / "given.json"
    place.write_text(json.dumps(metadata))

    decided(loop, {"enabled": True}, "--metadata-file", str(place))

    kept = json.loads((loop.output / "metadata.json").read_text())
    assert kept.pop("decision")["reason"] == "auto_not_met"
    assert kept == metadata


def test_the_keyword_may_be_looked_for_in_files_of_its_own(loop: Loop) -> None:
    (loop.repo / "b.txt").write_text("RLMS_REQUEST\n")
    report = loop.tmp / "report.md"
    report.write_text("x" * 1_048_570 + "RLMS_REQUEST")  # across two pieces
    empty = loop.tmp / "empty.md"
    empty.write_text("nothing")

    assert decided(loop, {"enabled": True, "mode": "requested"}, "--request-file", str(report))["should_run"]
    assert not decided(loop, {"enabled": True, "mode": "requested"}, "--request-file", str(empty))["should_run"]


@pytest.mark.requirement("O15")
def test_the_gate_opens_for_a_good_result() -> None:
    assert judge(GOOD_STATUS, GOOD_RESULT).ok
    assert judge(GOOD_STATUS, GOOD_RESULT, "retr(y|ies)").ok


@pytest.mark.requirement("O15")
@pytest.mark.requirement("O14")
@pytest.mark.parametrize(
    ("status", "result", "failed"),
    [
        ({"status": "failed"}, {}, ["status_ok"]),
        ({"status": "skipped", "should_run": False}, {}, ["status_ok", "should_run"]),
        ({}, {"ok": False}, ["result_ok"]),
        ({}, {"citations": []}, ["has_citations", "has_non_fallback_citations"]),
        ({}, {"citations": [{"path": "a", "signal": "file_reference"}]}, ["has_non_fallback_citations"]),
        ({}, {"highlights": ["something else"]}, ["highlight_matches"]),
        (
            {},
            {"citations": "many", "highlights": None},
            ["has_citations", "has_non_fallback_citations", "highlight_matches"],
        ),
    ],
)
def test_the_gate_stays_shut_and_says_why(status: dict[str, Any], result: dict[str, Any], failed: list[str]) -> None:
    verdict = judge(GOOD_STATUS | status, GOOD_RESULT | result, "retries")

    assert not verdict.ok
    assert verdict.as_dict()["failed"] == failed


@pytest.mark.long
def test_the_gate_as_a_command(loop: Loop) -> None:
    shut = loop.sonde("rlms", "gate", "--output-dir", str(loop.output))
    loop.call(loop.replies("root", ["set_final('no proof')"]))
    fallback = loop.sonde("rlms", "gate", "--output-dir", str(loop.output))
    loop.call(loop.replies("good", [CITED]))
    good = loop.sonde("rlms", "gate", "--output-dir", str(loop.output))

    assert (shut.code, fallback.code, good.code) == (1, 1, 0)
    status, result = json.loads(shut.stdout)["reasons"]
    assert f"{loop.output / 'status.json'} is not there" in status and "--standalone" in status
    assert "result.json" in result
    assert "reasons" not in json.loads(fallback.stdout)
    assert json.loads(fallback.stdout)["failed"] == ["has_non_fallback_citations"]
    assert loop.sonde("rlms", "gate").code == 2
    (loop.output / "result.json").write_text("[" * 100_000)
    assert loop.sonde("rlms", "gate", "--output-dir", str(loop.output)).code == 1
    assert loop.sonde("rlms", "gate", "--output-dir", str(loop.output), "--highlight-pattern", "(").code == 2
