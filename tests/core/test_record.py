"""The run record is a fold of the events: every count in it is a count of what happened, and it stays small."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from runs.streams import Teller, TickingClock, long_story, told
from sonde.core.events import (
    ROOT,
    AnyEvent,
    Cited,
    CodeRan,
    CodeStarted,
    HostReturned,
    ModelReplied,
    Noted,
    RunEnded,
    RunStarted,
    StatusChanged,
    SubcallEnded,
    SubcallStarted,
    TurnStarted,
    WroteBack,
)
from sonde.core.record import RecordFold, RunRecord, percentile
from sonde.core.status import LOOP_TRANSITIONS, LoopState, RunStatus
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import fold, pretty_json


def size(record: RunRecord) -> int:
    return len(pretty_json(record.model_dump(mode="json")))


def ended(*more: AnyEvent, **changes: Any) -> RunRecord:
    events = [event for event in told() if not isinstance(event, RunEnded | StatusChanged)]
    end: dict[str, Any] = {"status": "succeeded", "output": "yes", "output_type": "answer", "elapsed_s": 6.0} | changes
    return fold([*events, RunEnded(**end), *more])


@pytest.mark.requirement(126)
def test_the_record_has_the_fields_of_the_contract() -> None:
    record = fold(told()).model_dump(mode="json")

    assert {"schema_version", "run_id", "run_type", "status", "started_at", "completed_at"} <= record.keys()
    assert {"dataset_ref", "input_ref", "runtime_ref", "output_ref", "writeback_ref", "error"} <= record.keys()
    assert {"dataset_id", "dataset_hash"} <= record["dataset_ref"].keys()
    assert {"project_name", "trace_ids", "time_window", "filter_expr", "controls_version"} <= record["input_ref"].keys()
    assert {
        "engine_version",
        "model_provider",
        "model_name",
        "temperature",
        "prompt_template_hash",
        "budget",
        "usage",
        "state_trajectory",
        "subcall_metadata",
        "repl_trajectory",
        "scaffold",
    } <= record["runtime_ref"].keys()
    assert {"artifact_type", "artifact_path", "schema_version"} <= record["output_ref"].keys()
    assert {"phoenix_annotation_ids", "writeback_status", "annotation_names", "annotator_kinds"} <= record[
        "writeback_ref"
    ].keys()
    assert (record["started_at"], record["status"]) == ("2026-01-31T12:00:00Z", "succeeded")


@pytest.mark.requirement(135)
def test_counters_are_counts_of_events() -> None:
    events = told()
    usage = fold(events).runtime_ref.usage

    assert usage.iterations == sum(isinstance(event, TurnStarted) for event in events) == 7
    assert usage.tool_calls == sum(isinstance(event, HostReturned) and event.tool for event in events) == 5
    assert usage.llm_subcalls == sum(isinstance(event, SubcallStarted) for event in events) == 4
    assert usage.depth_reached == 1
    replies = [event for event in events if isinstance(event, ModelReplied)]
    assert usage.tokens_in == sum(reply.tokens_in for reply in replies) + 50  # and the failed attempt
    assert usage.cost_usd == pytest.approx(0.0004 * len(replies))


@pytest.mark.requirement(135)
def test_the_trajectory_of_each_session_follows_the_declared_machine() -> None:
    runtime = fold(told()).runtime_ref
    paths = [runtime.state_trajectory, *(sub.state_trajectory for sub in runtime.subcall_metadata if sub.mode == "rlm")]

    assert len(paths) == 2
    for path in paths:
        states = [LoopState(state) for state in path]
        assert states[0] is LoopState.INITIALIZED and states[-1] is LoopState.COMPLETED
        assert all(after in LOOP_TRANSITIONS[before] for before, after in pairwise(states))


@pytest.mark.requirement(116)
def test_metrics_give_latencies_with_their_p95_and_counts() -> None:
    metrics = fold(told()).metrics

    assert metrics.total_latency_s == 6.0
    assert metrics.model_latency_s == pytest.approx(0.8 * metrics.model_calls)
    assert metrics.tool_latency_s == pytest.approx(0.022)
    assert metrics.tool_latency_p95_s == pytest.approx(0.006)
    assert (metrics.tool_calls, metrics.depth_reached, metrics.model_failures) == (5, 1, 1)


@pytest.mark.requirement(116)
def test_write_back_counts_are_metrics_too() -> None:
    record = ended(WroteBack(status="partial", succeeded=3, failed=2, annotation_ids=["a"], names=["rca.primary"]))

    assert (record.metrics.writeback_succeeded, record.metrics.writeback_failed) == (3, 2)
    assert record.writeback_ref.phoenix_annotation_ids == ["a"]


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([], 95) == 0.0
    assert percentile([3.0], 95) == 3.0
    assert percentile([float(n) for n in range(1, 101)], 95) == 95.0


@pytest.mark.requirement(76)
def test_the_state_object_has_counters_and_artifacts() -> None:
    state = fold(told()).state

    assert (state.run_id, state.engine_type, state.status) == ("run-1", "ask", RunStatus.SUCCEEDED)
    assert state.budget["max_iterations"] == 60
    assert (state.counters.iteration, state.counters.depth, state.counters.tool_calls_total) == (7, 1, 5)
    assert state.counters.tokens_total > 9_000
    assert state.artifacts.intermediate_evidence_ids == ["src/fetch.py:1-13", "src/fetch.py:4-4"]
    assert "three times" in state.artifacts.final_output["answer"]


@pytest.mark.requirement(98)
def test_subcalls_are_listed_with_parent_depth_and_times() -> None:
    child = next(sub for sub in fold(told()).runtime_ref.subcall_metadata if sub.mode == "rlm")

    assert (child.call_id, child.parent_call_id, child.depth, child.status) == ("root/3.2", "root", 1, "succeeded")
    assert child.started_at <= str(child.completed_at)
    assert len(child.input_ref_hash) == 64


@pytest.mark.requirement(103)
def test_each_step_shows_code_output_tools_and_sub_queries() -> None:
    steps = fold(told()).runtime_ref.repl_trajectory
    third = next(step for step in steps if (step.session, step.turn) == ("root", 3))
    second = next(step for step in steps if (step.session, step.turn) == ("root", 2))

    assert [trace.mode for trace in third.subquery_trace] == ["query", "query", "query", "rlm"]
    assert third.subquery_trace[0].prompt.startswith("Summarise part 0")
    assert [trace.status for trace in second.tool_trace] == ["ok", "error"]
    assert second.tool_trace[1].error is not None and second.fault is not None
    assert {step.session for step in steps} == {"root", "root/3.2"}


def test_a_typed_action_without_code_is_a_step_too() -> None:
    start = next(event for event in told() if isinstance(event, RunStarted))
    call = HostReturned(turn=1, ordinal=1, name="grep", args={}, args_hash="h", ok=True, result=[])

    (step,) = fold([start, TurnStarted(turn=1, elapsed_s=0.0), call]).runtime_ref.repl_trajectory

    assert (step.turn, step.code, len(step.tool_trace)) == (1, "", 1)


def test_two_blocks_of_one_turn_are_two_steps() -> None:
    start = next(event for event in told() if isinstance(event, RunStarted))
    blocks = [
        event
        for block in (0, 1)
        for event in (CodeStarted(turn=1, block=block, code=f"x{block}"), CodeRan(turn=1, block=block, ok=True))
    ]

    steps = fold([start, *blocks]).runtime_ref.repl_trajectory

    assert [(step.block, step.code) for step in steps] == [(0, "x0"), (1, "x1")]


@pytest.mark.requirement(117)
def test_citations_keep_their_hash_and_not_their_text() -> None:
    citations = fold(told()).citations

    assert len(citations) == 2
    assert all(len(each["excerpt_hash"]) == 64 and "snippet" not in each for each in citations)


@pytest.mark.requirement(115)
def test_a_failed_run_names_its_error() -> None:
    error = {"code": "TOOL_RESPONSE_INVALID", "message": "not data", "stage": "run_engine", "retryable": False}

    record = ended(status="failed", output=None, error=error)

    assert record.error is not None and record.error.model_dump(mode="json") == error
    assert record.output_ref.artifact_path is None


@pytest.mark.requirement(115)
def test_a_failure_without_a_reason_is_recorded_as_unexpected() -> None:
    record = ended(status="failed", output=None)

    assert record.error is not None and record.error.code == "UNEXPECTED_RUNTIME_ERROR"


@pytest.mark.requirement(134)
def test_a_run_that_went_over_budget_ends_partial_with_its_reason_and_output() -> None:
    error = {"code": "WALL_TIME_LIMIT_REACHED", "message": "time", "stage": "runtime_budget", "retryable": True}
    events = [event for event in told() if not isinstance(event, RunEnded | StatusChanged)]

    record = fold(
        [*events, StatusChanged(status="terminated_budget", error=error), RunEnded(status="partial", output="so far")]
    )

    assert record.status is RunStatus.PARTIAL
    assert record.error is not None and record.error.retryable
    assert record.output_ref.artifact_path == "result.json"


@pytest.mark.requirement(113)
def test_a_failed_write_back_makes_a_success_partial_until_one_succeeds() -> None:
    error = {"code": "WRITEBACK_FAILED", "message": "refused", "stage": "rca_writeback", "retryable": True}
    failed = WroteBack(status="failed", failed=2, error=error)

    partial = ended(failed)
    mended = ended(failed, WroteBack(status="succeeded", succeeded=2))

    assert partial.status is RunStatus.PARTIAL
    assert partial.error is not None and partial.error.code == "WRITEBACK_FAILED"
    assert mended.status is RunStatus.SUCCEEDED and mended.error is None


def test_writing_back_again_a_week_later_does_not_complete_the_run_later() -> None:
    events = told()
    later = WroteBack(status="succeeded", at=events[-1].at + 7 * 86_400)

    assert fold([*events, later]).completed_at == fold(events).completed_at


def test_the_rules_of_the_contract_hold_for_records_that_others_write() -> None:
    good = fold(told()).model_dump(mode="json")

    changes: list[dict[str, Any]] = [{"status": "failed"}, {"output_ref": {}}, {"run_type": "poem"}, {"status": "done"}]
    for broken in changes:
        with pytest.raises(ValidationError):
            RunRecord.model_validate(good | broken)
    assert RunRecord.model_validate(good | {"added_in_1_1": True}).run_id == "run-1"


def test_a_record_survives_its_file() -> None:
    record = fold(told())

    assert RunRecord.model_validate_json(record.model_dump_json()) == record


@pytest.mark.long
def test_the_record_does_not_grow_with_the_context() -> None:
    def record_of(scale: int) -> RunRecord:
        teller = Teller(Recorder(TickingClock()))
        long_story(teller, 600, output="x\n" * scale)
        return fold(teller.events)  # pyright: ignore[reportArgumentType]  # every event of a story is one of the union

    assert size(record_of(500_000)) < size(record_of(5_000)) * 1.05


@pytest.mark.long
def test_the_record_of_a_huge_run_stays_below_a_megabyte_and_says_what_is_missing() -> None:
    teller = Teller(Recorder(TickingClock()))
    long_story(teller, 20_000, output='"\\\x00' * 3_000)

    record = fold(teller.events)  # pyright: ignore[reportArgumentType]  # every event of a story is one of the union

    assert size(record) < 1_000_000
    runtime = record.runtime_ref
    assert len(runtime.repl_trajectory) + runtime.repl_trajectory_omitted == 400
    assert len(runtime.subcall_metadata) + runtime.subcall_metadata_omitted == 3_600
    assert runtime.usage.tool_calls == 2_800
    assert [step.turn for step in runtime.repl_trajectory][:2] == [1, 2]
    assert runtime.repl_trajectory[-1].turn == 400


def test_ten_thousand_calls_in_one_block_are_counted_not_listed() -> None:
    start = next(event for event in told() if isinstance(event, RunStarted))
    calls = [
        HostReturned(turn=1, ordinal=n, name="read", args={"n": n}, args_hash="h", ok=True, result="y" * 5_000)
        for n in range(10_000)
    ]

    record = fold([start, CodeStarted(turn=1, block=0, code="loop"), *calls])

    (step,) = record.runtime_ref.repl_trajectory
    assert len(step.tool_trace) + step.tool_trace_omitted == 10_000
    assert all(len(str(trace.result_preview)) <= 2_000 for trace in step.tool_trace)
    assert size(record) < 1_000_000


def child(number: int) -> list[AnyEvent]:
    """A sub-call that ran one block with twenty calls, as wordy as they get."""
    path = f"{ROOT}/1.{number}"
    calls = [
        HostReturned(
            session=path, turn=1, ordinal=n, name="grep", args="y" * 1_900, args_hash="h", ok=True, result="z" * 5_000
        )
        for n in range(20)
    ]
    return [
        SubcallStarted(
            session=path,
            call_id=f"c{number}",
            parent_call_id="r",
            depth=1,
            objective="o",
            input_ref_hash="h",
            mode="rlm",
        ),
        CodeStarted(session=path, turn=1, block=0, code="x" * 9_000),
        *calls,
        CodeRan(session=path, turn=1, block=0, ok=True, stdout="o" * 9_000),
    ]


@pytest.mark.parametrize("ended", [True, False])
def test_the_record_of_ninety_wordy_children_stays_below_a_megabyte(ended: bool) -> None:
    start = next(event for event in told() if isinstance(event, RunStarted))
    ends = [
        SubcallEnded(session=f"{ROOT}/1.{number}", call_id=f"c{number}", status="succeeded", summary="done")
        for number in range(90)
    ]

    record = fold([start, *(event for number in range(90) for event in child(number)), *(ends if ended else [])])

    assert size(record) < 1_000_000
    runtime = record.runtime_ref
    assert len(runtime.repl_trajectory) + runtime.repl_trajectory_omitted == 90 + ended


def test_the_record_of_long_lists_stays_below_a_megabyte_and_counts_what_is_missing() -> None:
    start = next(event for event in told() if isinstance(event, RunStarted))
    start = msgspec.structs.replace(start, input_ref={"trace_ids": [f"{number:032x}" for number in range(20_000)]})
    cited = [
        Cited(turn=1, ordinal=n, citation={"kind": "TOOL_IO", "ref": f"tool:t:{n}", "arguments": {"q": "w" * 20_000}})
        for n in range(100)
    ]
    noted = [Noted(text=f"{number} " + "ä" * 600) for number in range(700)]
    end = RunEnded(
        status="partial", output="x", output_type="answer", gaps=[f"{number} ö" * 200 for number in range(700)]
    )

    record = fold([start, *cited, *noted, end])

    assert size(record) < 1_000_000
    assert len(record.input_ref.trace_ids) + record.input_ref.trace_ids_omitted == 20_000
    assert len(record.citations) + record.citations_omitted == 100
    assert len(record.notes) + record.notes_omitted == 700
    assert len(record.gaps) + record.gaps_omitted == 700
    assert record.notes and record.gaps and record.citations


def test_a_large_output_is_given_by_path_and_hash() -> None:
    record = ended(output="z" * 100_000, output_hash="h")

    assert record.state.artifacts.final_output == {"artifact_path": "result.json", "sha256": "h"}


def test_nothing_is_recorded_before_the_start() -> None:
    with pytest.raises(ValueError, match="run_started"):
        RecordFold().record()
