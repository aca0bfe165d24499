"""A stranger who knows how masked runs write people's data tries to get at somebody's address, or to have it sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from victim import Victim

ADDRESS = "jane.doe@corp.com"


def masked(victim: Victim, *words: str | Path, script: tuple[str, ...], question: str = "Who?") -> tuple[str, str]:
    """What the user reads, and what the model got."""
    model = victim.model(*script)
    done = victim.call("ask", question, *words, "--mask", "--runs-dir", victim.own, "--model", model.name)
    assert done.returncode == 0, done.stderr
    return done.stdout, "".join(path.read_text() for path in victim.own.rglob("events.jsonl"))


def test_a_placeholder_in_a_strangers_file_does_not_become_an_address(victim: Victim) -> None:
    victim.write("a.txt", f"the owner is {ADDRESS}\n")
    victim.write("b.txt", "write to <email-1>, &lt;email-1>, <email-1.2> and <literal-1>\n")
    said, journal = masked(
        victim,
        "a.txt",
        "b.txt",
        script=("print(CONTEXT['b.txt'])", "FINAL('It says: ' + CONTEXT['b.txt'].strip() + ' [b.txt:1]')"),
    )

    assert "It says: write to <email-1>, &lt;email-1>, <email-1.2> and <literal-1>" in said
    assert ADDRESS not in said
    assert ADDRESS not in journal


@pytest.mark.hostile_long
def test_a_found_config_neither_turns_the_mask_off_nor_changes_its_patterns(victim: Victim) -> None:
    own = victim.home / ".config" / "sonde"
    own.mkdir(parents=True)
    (own / "sonde.toml").write_text('mask = true\nmask_patterns = ["customer=C-[0-9]+"]\n')
    victim.write("sonde.toml", 'mask = false\nmask_patterns = ["customer=never"]\n')
    victim.write("a.txt", f"C-77 is {ADDRESS}\n")
    model = victim.model("print(CONTEXT['a.txt'])", "FINAL('it is <email-1> [a.txt:1]')")
    done = victim.call("ask", "Who?", "a.txt", "--runs-dir", victim.own, "--model", model.name)

    journal = "".join(path.read_text() for path in victim.own.rglob("events.jsonl"))
    assert f"it is {ADDRESS}" in done.stdout
    assert "may not set mask" in done.stderr
    assert ADDRESS not in journal
    assert "C-77" not in journal


@pytest.mark.hostile_long
def test_a_strangers_run_with_the_name_of_our_values_gets_none_of_them(victim: Victim) -> None:
    victim.write("a.txt", f"the owner is {ADDRESS}\n")
    masked(victim, "a.txt", script=("print(CONTEXT['a.txt'])", "FINAL('<email-1> [a.txt:1]')"))
    (run,) = [path.parent for path in victim.own.rglob("events.jsonl")]
    (run / "seal").unlink()  # as any copy that somebody sends back

    for words in (
        ("replay", run),
        ("ask", "And?", "--continue", run, "--model", "openai:x", "--base-url", "http://127.0.0.1:9"),
    ):
        done = victim.call(*words, "--runs-dir", victim.own)
        assert done.returncode == 2
        assert "masked" in done.stderr
        assert ADDRESS not in done.stdout + done.stderr


@pytest.mark.parametrize("pattern", ["a=(a{1000}){1000}", "a=(?=x)", "a=" + "(x+)*" * 500])
def test_a_pattern_bomb_is_refused_in_one_line(victim: Victim, pattern: str) -> None:
    victim.write("a.txt", "x" * 10_000)
    done = victim.call("ask", "Who?", "a.txt", "--mask-pattern", pattern, "--dry-run", "--model", "openai:x")

    assert done.returncode == 2
    assert done.stderr.startswith("sonde: --mask-pattern")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.hostile_long
def test_text_made_to_be_slow_to_mask_takes_linear_time(victim: Victim) -> None:
    victim.write(
        "a.txt", "a" * 2_000_000 + "@" * 500_000 + "a.%40" * 300_000 + "token=!" * 100_000 + "1 " * 500_000 + "\n"
    )
    model = victim.model("FINAL('done')")

    done = victim.sonde(
        "ask", "Who?", "a.txt", "--mask", "--no-citations", "--runs-dir", victim.own, "--model", model.name
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.hostile_long
def test_an_answer_full_of_placeholders_and_addresses_takes_linear_time(victim: Victim) -> None:
    victim.write("a.txt", "nothing\n")
    model = victim.model("FINAL('<email-1> a@corp.com ' * 50_000)")

    done = victim.sonde(
        "ask", "Who?", "a.txt", "--mask", "--no-citations", "--runs-dir", victim.own, "--model", model.name
    )
    assert done.returncode == 0, done.stderr
