"""Mona has a question about her traces that is neither a root cause nor a dossier: which tool fails most often?"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from journey import Person

from sonde.bench.seeded import Dataset


@pytest.mark.journey
def test_a_free_question_over_traces_is_answered_with_proved_spans(person: Person, traces: Dataset) -> None:
    traces.write(person.folder / "traces.jsonl", person.home / "gold.json")
    failed = [span for span in traces.spans if span["status_code"] == "ERROR"]
    (often, _count), *_ = Counter(str(span["name"]) for span in failed).most_common(1)
    proof = next(str(span["span_id"]) for span in failed if span["name"] == often)
    model = person.model(
        f'print(get_span("{proof}"))', f'FINAL("It is {often}, for example in this span. [span:{proof}]")'
    )
    question = "Which step fails most often?"

    by_model = person.sonde("ask", question, "--source", "traces.jsonl", "--model", model.name, "--json")
    by_code = person.sonde("ask", question, "--source", "traces.jsonl")

    assert by_model.returncode == 0, by_model.stderr
    answer = json.loads(by_model.stdout)
    assert answer["status"] == "succeeded"
    assert [proof in each["ref"] for each in answer["citations"]] == [True]
    assert by_code.returncode == 0
    assert often in by_code.stdout


STACK = "Traceback (most recent call last):\n  File \"/srv/app/shop/pay.py\", line 2, in pay\nKeyError: 'currency'\n"


def checkouts() -> str:
    """Eight checkouts; from the fifth on the payment raises."""
    rows: list[str] = []
    for number in range(8):
        begun = 1_767_225_600_000_000_000 + number * 60_000_000_000
        failed = (
            {"status_code": "ERROR", "status_message": f"KeyError: 'currency' (order {number})"} if number > 3 else {}
        )
        event = {"name": "exception", "timestamp": begun, "attributes": {"exception.stacktrace": STACK}}
        row = {"trace_id": f"{number + 1:032x}", "span_id": f"{number + 1:016x}", "parent_id": None, "name": "pay"}
        row |= {"start_time": begun, "end_time": begun + 10**9, "status_code": "OK", "attributes": {}, **failed}
        rows.append(json.dumps(row | ({"events": [event]} if failed else {})))
    return "\n".join(rows)


@pytest.mark.journey
def test_a_failing_span_is_followed_to_the_code_and_the_commit_that_broke_it(person: Person) -> None:
    person.write("traces.jsonl", checkouts())
    git = ("git", "-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for line, said in (("order.currency", "Take payments"), ("currency[order]", "Look the currency up")):
        person.write("src/shop/pay.py", f"def pay(order, currency):\n    return {line}\n")
        for words in (("init", "-q"), ("add", "src"), ("commit", "-qm", said)):
            assert person.run(*git, *words).returncode == 0
    failed = f"{5:016x}"
    first = person.model(
        f"frame = stack_frames('{failed}')[0]\nprint(frame, line_history(frame['path'], frame['line']))",
        f"FINAL(f\"It raises since 'Look the currency up'. [span:{failed}] [{{frame['path']}}:{{frame['line']}}]\")",
    )
    second = person.model("FINAL(f\"{groups[0]['count']} of 8 traces failed. [group:{groups[0]['id']}]\")")

    asked = ("ask", "Why do checkouts fail?", "src", "--source", "traces.jsonl", "--json")
    planned = person.sonde(*asked, "--model", first.name, "--dry-run")
    answer = json.loads(person.sonde(*asked, "--model", first.name).stdout)
    followed = json.loads(
        person.sonde("ask", "How many?", "--continue", "last", "--model", second.name, "--json").stdout
    )
    replayed = person.sonde("replay", answer["run_id"])

    assert planned.returncode == 0 and first.calls == 2
    assert (answer["status"], followed["status"]) == ("succeeded", "succeeded")
    assert [each["path"] or each["ref"] for each in answer["citations"]] == [failed, "shop/pay.py"]
    assert "'summary': 'Look the currency up'" in first.prompts[1]
    assert "It raises since" in second.prompts[0] and followed["answer"].startswith("4 of 8 traces failed.")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
