"""What a watch investigates, in which order, and that its limits of money hold."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.cli_program import sonde
from sonde.batch.limits import Ask, Closed, Limiter, SharedLimits, Slot, Told
from sonde.batch.result import FoundFailure, ItemResult
from sonde.errors import ConfigError
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest
from sonde.watch import investigations, issues, lifecycle
from sonde.watch.investigations import Candidate, candidates
from sonde.watch.loop import Ledger, WatchOptions, keep_watch
from sonde.watch.state import WatchState
from watch.test_watch_day import LOOK, MODEL, SUBMIT
from watch.watch_scene import Fault, HandClock, Post, append, traffic

pytestmark = pytest.mark.long

STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)
CARD = Fault(step="charge_card", text="TimeoutError: no answer in {n} ms", begin=120, end=1e9, every=5)


def reply(seen: SeenRequest) -> str | ScriptedReply:
    return LOOK if len(seen.body["messages"]) < 3 else SUBMIT


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(reply) as running:
        yield running


def post_with(tmp_path: Path, server: ScriptedServer | None, **options: float) -> Post:
    flags = {"model": MODEL, "base_url": server.base_url, "api_key": "none"} if server else {}
    asked = WatchOptions(every_s=60, settle_s=10, min_traces=1, quiet_windows=5, control_share=0.0)
    post = Post(tmp_path, options=replace(asked, **options), flags=flags)
    append(post.traces, traffic(60, 600, [STOCK, CARD]))
    return post


def test_a_reply_that_could_not_be_used_is_not_called_without_a_model(tmp_path: Path) -> None:
    post = post_with(tmp_path, None)
    post.look(2000)
    with WatchState(post.folder) as state:
        chosen = candidates(state, 0)[0]
        investigations.begin(state, chosen, "run", 0)
        useless = result("tool_failure", "search_stock", "By rule, without a model: it failed.", judge="CODE")
        investigations.conclude(state, chosen, useless)

    assert chosen.issue
    proof = post.issues()[chosen.issue].proof
    assert proof
    assert proof.summary == "By rule, since the model's answer could not be used: it failed."


@pytest.mark.parametrize("model", ["openai:gpt-4o-mini", "local:no-such-weights.gguf", "nonsense"])
def test_a_model_that_cannot_be_opened_stops_the_start(tmp_path: Path, model: str) -> None:
    post = post_with(tmp_path, None)
    shown = sonde("watch", "--source", post.traces, "--state", post.folder, "--once", "--model", model, cwd=tmp_path)

    assert (shown.returncode, shown.stdout) == (2, ""), shown.stderr
    assert not post.folder.exists()


@pytest.mark.long
def test_a_model_whose_server_is_away_is_named_as_the_reason(tmp_path: Path) -> None:
    with ScriptedServer(reply) as gone:
        address = gone.base_url
    post = post_with(tmp_path, None)
    flags = ("--source", post.traces, "--state", post.folder, "--once", "--control-share", "0", "--model", MODEL)
    shown = sonde("watch", *flags, "--base-url", address, cwd=tmp_path, OPENAI_API_KEY="none")

    said = [line for line in shown.stderr.splitlines() if "not investigated: " in line]
    assert said, shown.stderr
    assert all("could not be reached" in line and line.endswith("; tried again later") for line in said)


def test_an_investigation_that_is_refused_is_none(tmp_path: Path) -> None:
    post = post_with(tmp_path, None)
    post.flags = {"model": "openai:gpt-4o-mini"}  # without a key
    post.clock.seconds = 2000
    with WatchState(post.folder, create=True) as state:
        watching = post.watch(state)
        turns = [watching.turn() for _ in range(4)]
        view = issues.watch_view(state, now=post.clock.utc().timestamp())

    assert [bool(turn.investigated) for turn in turns] == [False, True, True, False]
    assert "needs a key" in turns[1].postponed
    assert (view.investigated, view.waiting) == (0, 2)


def test_new_groups_come_before_growing_ones_and_a_healthy_trace_comes_last(tmp_path: Path) -> None:
    post = post_with(tmp_path, None, control_share=0.1)
    post.look(2000)
    late = Fault(step="send_mail", text="gone", begin=0, end=1e9, every=9)
    append(post.traces, traffic(40, 60, [STOCK, CARD, late], begin=2000, first=500))
    post.look(3000)

    with WatchState(post.folder) as state:
        found = candidates(state, 0)

    assert [each.kind for each in found] == ["new", "growing", "growing", "control"]
    assert found[0].issue == 3
    assert found[1].hits > found[2].hits


def test_a_resolved_or_muted_issue_costs_nothing(tmp_path: Path) -> None:
    post = post_with(tmp_path, None)
    post.look(2000)
    with WatchState(post.folder) as state:
        lifecycle.mute(state, 1)
        lifecycle.resolve(state, 2)

        assert candidates(state, 0) == []


def test_money_that_a_killed_request_may_have_cost_counts_as_spent(tmp_path: Path) -> None:
    with WatchState(tmp_path, create=True) as state:
        limiter = Limiter(SharedLimits(max_cost_usd=1.0, concurrency=1))
        ledger = Ledger(state, limiter, "f", HandClock(), threading.Event())
        ask = Ask(tokens=10, cost_usd=0.4)
        assert isinstance(ledger.book(ask), Slot)
        assert isinstance(ledger.book(ask), Slot)
        ledger.tell(Told(asked=ask, cost_usd=0.1))
        assert state.spent(0) == pytest.approx(0.5)
    with WatchState(tmp_path) as state:  # after a kill
        assert state.count_lost(5.0) == pytest.approx(0.4)
        assert state.spent(0) == pytest.approx(0.5)
        assert state.spent(1e12) == 0


def test_a_request_for_which_no_money_is_left_does_not_go_out(tmp_path: Path) -> None:
    with WatchState(tmp_path, create=True) as state:
        limiter = Limiter(SharedLimits(max_cost_usd=0.3, concurrency=1))
        ledger = Ledger(state, limiter, "f", HandClock(), threading.Event())

        assert isinstance(ledger.book(Ask(tokens=10, cost_usd=0.4)), Closed)
        assert ledger.wanted_usd == 0.4
        assert state.spent(0) == 0


@pytest.mark.long
def test_every_group_is_investigated_once_and_the_issue_shows_the_proof(tmp_path: Path, server: ScriptedServer) -> None:
    post = post_with(tmp_path, server)
    told = post.look(2000)
    asked = len(server.requests)
    append(post.traces, traffic(60, 600, [STOCK, CARD], begin=2000, first=500))
    post.look(4000)

    assert told.count("investigated 1") == told.count("investigated 2") == 1
    assert asked == len(server.requests) == 4
    proof = post.issues()[1].proof
    assert proof
    assert (proof.judge, proof.label) == ("LLM", post.issues()[1].label)
    assert proof.cost_usd > 0
    assert (post.folder / "items" / proof.run / "report.md").is_file()
    shown = sonde("issues", "show", "1", "--state", post.folder, cwd=tmp_path)
    assert f"items/{proof.run}/report.md" in shown.stdout


@pytest.mark.long
def test_a_limit_per_hour_lets_the_rest_wait_for_the_next_hour(tmp_path: Path, server: ScriptedServer) -> None:
    post = post_with(tmp_path, server, usd_per_hour=0.0035)
    first = post.look(2000)
    later = post.look(2500)
    next_hour = post.look(2000 + 3700)

    assert len([each for each in first if each.startswith("investigated")]) == 1
    assert later == []
    assert sorted([*first, *next_hour]) == ["investigated 1", "investigated 2", "new 1", "new 2"]


@pytest.mark.long
def test_a_model_that_does_not_answer_is_tried_again_later_and_issues_are_found_all_the_same(tmp_path: Path) -> None:
    down = [True]

    def moody(seen: SeenRequest) -> str | ScriptedReply:
        return ScriptedReply(status=400, text="no such model") if down else reply(seen)

    with ScriptedServer(moody) as server:
        post = post_with(tmp_path, server)
        first = post.look(2000)
        down.clear()
        soon = post.look(2010)
        later = post.look(9000)

    assert first == ["new 1", "new 2"]
    assert soon == []
    assert sorted(later) == ["investigated 1", "investigated 2"]


@pytest.mark.long
def test_what_attempts_without_a_reply_cost_is_spent(tmp_path: Path) -> None:
    with ScriptedServer(ScriptedReply(status=502)) as server:
        post = post_with(tmp_path, server)
        post.look(2000)

    with WatchState(post.folder) as state:
        assert state.spent(0) > 0


@pytest.mark.long
def test_a_dry_run_says_what_would_be_spent_and_leaves_no_trace(tmp_path: Path, server: ScriptedServer) -> None:
    post = post_with(tmp_path, server)
    flags = (
        "--source",
        post.traces,
        "--state",
        post.folder,
        "--min-traces",
        "1",
        "--model",
        MODEL,
        "--base-url",
        server.base_url,
    )

    shown = sonde("watch", *flags, "--dry-run", "--json", cwd=tmp_path, OPENAI_API_KEY="none")

    plan = json.loads(shown.stdout)
    assert len(plan["investigations"]) == 3
    assert plan["typical_cost_usd"][0] > 0
    assert plan["room_usd"] == 5.0
    assert server.requests == ()
    assert not post.folder.exists()


def result(label: str, component: str, words: str, *, judge: str = "LLM") -> ItemResult:
    found = FoundFailure(label=label, component=component, words=words, span_id="s", first=True)
    return ItemResult(
        id="i",
        key="k",
        engine="rca",
        status="succeeded",
        judge=judge,
        label=label,
        findings=[found],
        summary=words,
        tokens_out=1,
    )


@pytest.mark.parametrize(
    ("second", "merged"),
    [
        (("tool_failure", "ledger", "connection to ledger refused at 9 ms"), True),
        (("tool_failure", "ledger", "certificate has expired"), False),
        (("retrieval_failure", "ledger", "connection to ledger refused at 9 ms"), False),
    ],
)
def test_groups_with_the_same_proved_cause_are_one_issue_and_a_split_holds(
    tmp_path: Path, second: tuple[str, str, str], merged: bool
) -> None:
    post = post_with(tmp_path, None)
    post.look(2000)
    with WatchState(post.folder) as state:
        one, other = candidates(state, 0)
        for chosen, found in (
            (one, ("tool_failure", "ledger", "connection to ledger refused at 5 ms")),
            (other, second),
        ):
            investigations.begin(state, chosen, "run", 0.0)
            investigations.conclude(state, chosen, result(*found))
        numbers = [each.number for each in issues.known_issues(state)]
        assert numbers == ([1] if merged else [1, 2])
        if merged:
            fresh = lifecycle.split(state, 1, 2)
            investigations.conclude(state, other, result(*second))
            assert sorted(each.number for each in issues.known_issues(state)) == [1, fresh]


def test_a_failure_that_a_model_finds_in_a_healthy_trace_is_an_issue(tmp_path: Path) -> None:
    post = post_with(tmp_path, None, control_share=0.1)
    post.look(2000)
    with WatchState(post.folder) as state:
        control = candidates(state, 0)[-1]
        investigations.begin(state, control, "run", 0.0)
        said = "It answered another question, about the price of the order; the user had asked for its date. Nobody noticed."
        investigations.conclude(state, control, result("instruction_failure", "plan", said))

        (found,) = issues.known_issues(state, number=3)
        assert found.title == "plan: It answered another question, about the price of the order"
        assert found.proof is not None
        assert found.proof.summary == found.signatures[0].message == said
        assert (control.kind, found.judge, found.label, found.traces) == (
            "control",
            "LLM",
            "instruction_failure",
            (control.trace_id,),
        )
        assert all(each.fingerprint != control.fingerprint for each in candidates(state, 0))


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("The tool failed.\nThen it was asked again.", "The tool failed"),
        ("The plan names a tool that does not exist — so step 3 fails", "The plan names a tool that does not exist"),
        (f"The search found nothing, so the model {'invented ' * 9}an order", "The search found nothing"),
        ("invented " * 20, f"{'invented ' * 8}".strip() + "…"),
        ("x" * 200, "x" * 79 + "…"),
        (
            "A header (e.g. Retry-After) is ignored, i.e. lost. Then it fails.",
            "A header (e.g. Retry-After) is ignored, i.e. lost",
        ),
        ("", ""),
    ],
)
def test_a_title_is_the_first_clause_of_what_a_model_says(said: str, title: str) -> None:
    assert issues.headline(said) == title


def test_counts_of_long_ago_are_summed_up_and_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "KEPT_WINDOWS", 5)
    post = post_with(tmp_path, None, quiet_windows=1)
    append(post.traces, traffic(30, 1800, [STOCK], begin=2000, first=500))
    post.look(9000)

    with WatchState(post.folder) as state:
        assert post.issues()[1].count == 30 + 15
        assert state.one("SELECT count(*) FROM hits WHERE signature = 1") < 15


@pytest.mark.long
def test_a_watch_that_is_stopped_in_an_investigation_continues_it_and_pays_no_reply_twice(tmp_path: Path) -> None:
    stop = threading.Event()

    def stopping(seen: SeenRequest) -> str | ScriptedReply:
        stop.set()
        return reply(seen)

    with ScriptedServer(stopping) as server:
        post = post_with(tmp_path, server)
        post.clock.seconds = 2000
        with WatchState(post.folder, create=True) as state:
            watching = post.watch(state)
            watching.stopping = stop
            keep_watch(watching, lambda _: None)
        asked = len(server.requests)
        told = post.look(9000)

    assert asked == 1
    assert sorted(told) == ["investigated 1", "investigated 2"]
    assert len(server.requests) == 4


@pytest.mark.long
def test_a_limit_of_investigations_holds_where_no_price_is_known_and_is_said_once(
    tmp_path: Path, server: ScriptedServer
) -> None:
    post = post_with(tmp_path, server, per_day=1)
    first = post.look(2000)
    with WatchState(post.folder) as state:
        watching = post.watch(state)
        said = [watching.turn().money for _ in range(3)]
    next_day = post.look(2000 + 90_000)

    assert len([each for each in first if each.startswith("investigated")]) == 1
    assert said == ["the limit of 1 investigation in a day is reached", "", ""]
    assert len(next_day) == 1


@pytest.mark.parametrize("began", ["0", "9e12", "1772442000"])
def test_investigations_that_a_stranger_calls_begun_count_for_the_day(
    tmp_path: Path, server: ScriptedServer, began: str
) -> None:
    post = post_with(tmp_path, server, per_day=1)
    post.clock.seconds = 2000
    with WatchState(post.folder, create=True) as state:
        watching = post.watch(state)
        watching.turn()
        for chosen in candidates(state, 0):
            investigations.begin(state, chosen, "run", float(began))
        turns = [watching.turn() for _ in range(3)]

    assert sum(bool(turn.investigated) for turn in turns) == (1 if began == "0" else 0)
    assert "the limit of 1 investigation in a day is reached" in [turn.money for turn in turns]


def test_an_investigation_of_today_that_is_taken_up_again_counts_once(tmp_path: Path, server: ScriptedServer) -> None:
    post = post_with(tmp_path, server, per_day=1)
    post.clock.seconds = 2000
    with WatchState(post.folder, create=True) as state:
        watching = post.watch(state)
        watching.turn()
        investigations.begin(state, candidates(state, 0)[0], "run", post.clock.utc().timestamp())
        turns = [watching.turn() for _ in range(2)]

    assert [bool(turn.investigated) for turn in turns] == [True, False]


@pytest.mark.parametrize("attempt", [-1_000_000, -1, 25])
def test_a_state_with_an_impossible_attempt_is_refused(tmp_path: Path, attempt: int) -> None:
    with WatchState(tmp_path, create=True) as state:
        investigations.begin(state, Candidate(kind="new", fingerprint="f", trace_id="t", attempt=attempt), "run", 0.0)

    with pytest.raises(ConfigError, match="is not the state of a watch"):
        WatchState(tmp_path)


@pytest.mark.parametrize(
    "table", ["spending (at, usd, fingerprint) VALUES (9e12,", "aside (usd, fingerprint) VALUES ("]
)
def test_no_row_of_a_strangers_state_gives_money_back(tmp_path: Path, table: str) -> None:
    with WatchState(tmp_path, create=True) as state:
        state.change(f"INSERT INTO {table} 0.5, 'f')")
        state.change(f"INSERT INTO {table} -1000, 'f')")
        assert state.spent_on("f") == state.spent(0) == 0.5
        state.count_lost(5.0)
        assert state.spent_on("f") == state.spent(0) == 0.5
        assert state.one("SELECT min(usd) FROM aside") is None


@pytest.mark.parametrize("usd", ["9e999", "-9e999"])
@pytest.mark.parametrize(
    "table", ["spending (at, usd, fingerprint) VALUES (9e12,", "aside (usd, fingerprint) VALUES ("]
)
def test_a_state_with_an_endless_amount_is_refused(tmp_path: Path, table: str, usd: str) -> None:
    with WatchState(tmp_path, create=True) as state:
        state.change(f"INSERT INTO {table} {usd}, 'f')")

    with pytest.raises(ConfigError, match="is not the state of a watch"):
        WatchState(tmp_path)
