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
