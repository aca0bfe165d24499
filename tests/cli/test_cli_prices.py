"""What a model costs by the user's word, and what is said when nobody knows. A scripted server on loopback answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import Shown, kept_runs, sonde

from sonde.runs.catalog import summarise
from sonde.testing import ScriptedReply, ScriptedServer

ANSWER = "```python\nFINAL('payments')\n```"
PRICED = '[models."openai:house/model-7b"]\nprice = { input = 1000, output = 2000, cached = 100 }\n'


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "app.log").write_text("payments: timeout\n")
    return tmp_path


def own_file(home: Path, text: str) -> None:
    (home / ".config/sonde").mkdir(parents=True)
    (home / ".config/sonde/sonde.toml").write_text(text)


def asked(home: Path, *words: str, model: str = "openai:house/model-7b", **env: str) -> Shown:
    with ScriptedServer(ANSWER) as server:
        return sonde(
            "ask",
            "Which service?",
            "app.log",
            "--model",
            model,
            *words,
            cwd=home,
            OPENAI_BASE_URL=server.base_url,
            **env,
        )


def test_a_price_of_the_settings_is_what_a_run_costs_and_its_record_says_whose_it_is(home: Path) -> None:
    own_file(home, PRICED)

    shown = asked(home, "--json")

    told = json.loads(shown.stdout)
    usage = told["usage"]
    assert usage["cost_usd"] == pytest.approx((usage["tokens_in"] * 1000 + usage["tokens_out"] * 2000) / 1e6)
    record = json.loads((Path(told["run_dir"]) / "run_record.json").read_text())
    assert record["runtime_ref"]["price_source"] == "sonde.toml [models.openai:house/model-7b]"


def test_a_cost_limit_holds_with_a_price_of_ones_own(home: Path) -> None:
    own_file(home, PRICED)

    shown = asked(home, "--json", "--max-cost-usd", "0.01")

    assert json.loads(shown.stdout)["error"]["message"].startswith("max_cost_usd of 0.01 would be passed")


def test_after_a_cost_limit_the_offered_one_is_enough_for_the_refused_call(home: Path) -> None:
    own_file(home, PRICED)

    shown = asked(home, "--max-cost-usd", "0.0001")
    (offered,) = [line for line in shown.stderr.splitlines() if line.startswith("to go on: ")]

    again = asked(home, "--max-cost-usd", offered.split()[-1], "--json")

    assert json.loads(again.stdout)["usage"]["tokens_out"] > 0  # twice the old limit paid for no call


def test_json_and_a_model_that_never_replied_show_an_unknown_cost_as_such(home: Path) -> None:
    assert json.loads(asked(home, "--json").stdout)["usage"]["cost_usd"] is None

    failed = sonde("ask", "Which service?", "app.log", "--model", "command:false", cwd=home)
    assert "$0.0" not in failed.stderr + sonde("runs", cwd=home).stdout
    assert "cost unknown" in failed.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["house/model-7b", "openai:house/model-7b"])
@pytest.mark.parametrize("entry", ["house/model-7b", "openai:house/model-7b"])
def test_an_entry_with_only_a_price_is_about_the_model_of_that_name(home: Path, name: str, entry: str) -> None:
    own_file(home, PRICED.replace("openai:house/model-7b", entry))

    rows = sonde("config", "--model", name, cwd=home).stdout

    assert f"price                   1000/2000                          sonde.toml [models.{entry}]" in rows
    assert "price 1000/2000/100" in rows


@pytest.mark.parametrize("how", [["--price", "1000/2000"], []])
def test_a_price_can_be_a_flag_or_a_variable(home: Path, how: list[str]) -> None:
    shown = asked(home, *how, "--max-cost-usd", "50", **({} if how else {"SONDE_PRICE": "1000/2000"}))

    assert "cost unknown" not in shown.stderr
    assert "$0.0000" not in shown.stderr
    assert summarise(kept_runs(home)[0]).cost_usd


def test_the_flag_beats_the_entry_and_is_not_the_price_of_another_sub_model(home: Path) -> None:
    own_file(home, PRICED)

    flagged = sonde("config", "--model", "house/model-7b", "--price", "1/2", cwd=home).stdout
    other = sonde(
        "ask",
        "Which?",
        "app.log",
        "--dry-run",
        "--model",
        "x",
        "--price",
        "1/2",
        "--sub-model",
        "y",
        cwd=home,
        OPENAI_API_KEY="k",
    )

    assert "1/2                                --price" in flagged
    assert "cost unknown" not in other.stdout


@pytest.mark.parametrize("price", ["cheap", "1", "1/-2", "1/2/3/4", "nan/1"])
def test_what_is_no_price_is_refused_with_an_example(home: Path, price: str) -> None:
    shown = sonde("config", "--price", price, cwd=home)

    assert shown.returncode == 2
    assert "e.g. 0.5/1.5" in shown.stderr


def test_a_price_at_the_top_of_a_file_is_sent_to_its_model(home: Path) -> None:
    own_file(home, "price = { input = 1, output = 2 }\n")

    assert '[models."openai:NAME"]' in sonde("config", cwd=home).stderr


def test_the_price_of_a_found_file_lifts_no_limit(home: Path) -> None:
    (home / "sonde.toml").write_text(PRICED.replace("1000", "0").replace("2000", "0"))

    shown = asked(home, "--max-cost-usd", "0.5")

    assert "may not set models.openai:house/model-7b.price" in shown.stderr
    assert "cost unknown" in shown.stderr


@pytest.mark.long
def test_dry_run_and_doctor_use_the_price(home: Path) -> None:
    own_file(home, PRICED)

    dry = asked(home, "--dry-run")
    with ScriptedServer('{"ok": true}') as server:
        doctor = sonde("doctor", "--model", "house/model-7b", "--base-url", server.base_url, cwd=home)

    assert "cost unknown" not in dry.stdout
    assert "$1000 per million tokens read, $2000 written (sonde.toml [models.openai:house/model-7b])" in doctor.stdout


def test_an_unknown_cost_is_said_while_it_runs_at_its_end_in_the_list_and_in_the_record(home: Path) -> None:
    shown = asked(home)
    listed = sonde("runs", cwd=home).stdout

    assert "$" not in shown.stderr + listed
    assert "turn 1 (" in shown.stderr and "left · cost unknown)" in shown.stderr
    assert shown.stderr.count("the price of") == 1
    assert "the cost limit cannot hold; the run is limited to" in shown.stderr
    assert "cost unknown" in shown.stderr.splitlines()[-1] and "cost unknown" in listed
    assert "cost unknown" in (kept_runs(home)[0] / "summary.md").read_text()


def test_a_price_of_nothing_is_a_price(home: Path) -> None:
    shown = asked(home, "--price", "0/0")

    assert "$0.0000" in shown.stderr.splitlines()[-1]
    assert "$0.0000" in sonde("runs", cwd=home).stdout


@pytest.mark.long
def test_a_batch_on_a_model_without_a_price_says_so(home: Path) -> None:
    (home / "items.jsonl").write_text('{"id": "a", "engine": "ask", "question": "Which?", "paths": ["app.log"]}\n')

    with ScriptedServer(ANSWER) as server:
        words = ("batch", "items.jsonl", "--model", "openai:house", "--base-url", server.base_url)
        unknown = sonde(*words, cwd=home)
        priced = sonde(*words, "--name", "again", "--price", "1/2", cwd=home)

    assert "cost unknown: no price is known for the model of 1 item" in unknown.stdout
    assert "USD" not in unknown.stdout
    assert "cost unknown" not in priced.stdout


def test_what_a_provider_had_cached_is_in_the_record_the_cost_and_the_last_line(home: Path) -> None:
    usage = {"prompt_tokens": 2000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 1536}}
    with ScriptedServer(ScriptedReply(text=ANSWER, usage=usage)) as server:
        words = ("--model", "openai:m", "--price", "1000/2000/100", "--max-cost-usd", "99")
        done = sonde("ask", "Which service?", "app.log", *words, cwd=home, OPENAI_BASE_URL=server.base_url)
        asked = len(server.requests)
        keys = {seen.body["prompt_cache_key"] for seen in server.requests}
    (run,) = kept_runs(home)
    used = json.loads((run / "run_record.json").read_text())["runtime_ref"]["usage"]

    assert used["cached_in"] == 1536 * asked
    assert used["cost_usd"] == pytest.approx(asked * (464 * 1000 + 1536 * 100 + 10 * 2000) / 1e6)
    assert f"({1536 * asked:,} of them cached)" in done.stderr
    assert len(keys) == 1
