from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from sonde import ask
from sonde.contexts.values import ValuesContext
from sonde.core.canonical import sha256_text
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel
from sonde.tools import CallResult, ToolRegistry


@dataclass
class Frame:
    """What a data frame can do, as far as we ask."""

    rows: list[dict[str, Any]]
    columns: list[str] = field(default_factory=list[str])

    def to_dict(self, orient: str) -> list[dict[str, Any]]:
        assert orient == "records"
        return self.rows


class Scalar:
    """A number of another library."""

    def item(self) -> int:
        return 7


def call(context: ValuesContext, name: str, *args: Any) -> CallResult:
    registry = ToolRegistry(context.tools())
    return registry.call(name, registry.bind(name, args, {}))


@pytest.mark.requirement(1)
def test_text_is_shared_and_can_be_cited_by_its_lines() -> None:
    context = ValuesContext("one\ntwo\nthree")

    found = call(context, "grep", "two")

    assert context.shared() == {"context": "one\ntwo\nthree"}
    assert context.variables() == {}
    assert found.result == [{"path": "context.txt", "line": 2, "text": "two"}]
    assert context.reread(found.excerpts[0]) == "two"
    assert "one" not in context.describe()


def test_rows_are_a_variable_and_a_line_each() -> None:
    rows = [{"city": "Kyiv", "n": 1}, {"city": "Łódź", "n": 2}]
    context = ValuesContext(rows)

    line = call(context, "read_file", "context.json", 3, 3)

    assert context.variables() == {"context": rows}
    assert line.result == '{"city": "Łódź", "n": 2}'
    assert sha256_text(context.reread(line.excerpts[0]) or "") == line.excerpts[0].hash
    assert "city, n" in context.describe() and "line i + 2" in context.describe()


def test_a_data_frame_arrives_as_row_dicts() -> None:
    frame = Frame([{"at": dt.datetime(2024, 1, 2, tzinfo=dt.UTC), "n": math.nan, "k": Scalar()}])

    assert ValuesContext(frame).variables() == {"context": [{"at": "2024-01-02T00:00:00+00:00", "n": None, "k": 7}]}


def test_a_table_of_pyarrow_arrives_as_row_dicts() -> None:
    pyarrow = pytest.importorskip("pyarrow")

    assert ValuesContext(pyarrow.table({"a": [1, 2]})).value == [{"a": 1}, {"a": 2}]


def test_a_dict_of_texts_is_a_file_a_key() -> None:
    context = ValuesContext({"a.md": "# A\nalpha", "b.md": "# B\nbeta"})

    assert call(context, "list_files").result == ["a.md", "b.md"]
    assert call(context, "read_file", "b.md", 2).result == "beta"
    assert context.shared() == {"context": {"a.md": "# A\nalpha", "b.md": "# B\nbeta"}}


def test_other_values_are_indented_json() -> None:
    context = ValuesContext({"limits": {"cpu": (1, 2)}, 3: "x"})

    assert context.variables() == {"context": {"limits": {"cpu": [1, 2]}, "3": "x"}}
    assert call(context, "grep", '"limits"').result[0]["line"] == 2


def test_bytes_are_text_when_they_are_utf8() -> None:
    assert ValuesContext("é".encode()).value == "é"
    with pytest.raises(ConfigError):
        ValuesContext(b"\xff")


@pytest.mark.parametrize("value", [object(), [1, {"a": object()}], {1, 2}, (n for n in range(3))])
def test_a_value_without_a_form_as_data_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="context"):
        ValuesContext(value)


def test_equal_values_have_equal_fingerprints() -> None:
    assert (
        ValuesContext([1, 2]).fingerprint()
        == ValuesContext((1, 2)).fingerprint()
        != ValuesContext([1, 3]).fingerprint()
    )


def test_only_code_is_told_of_a_variable() -> None:
    def told(mode: Literal["code", "actions"]) -> str:
        model = ScriptedModel(['{"type": "finalize", "output": "x"}'] * 3)
        ask("?", {"a": [1, 2]}, model=model, mode=mode, in_memory=True)
        return model.requests[0].messages[1].content

    assert "context holds the value." in told("code")
    assert "variable" not in told("actions").lower()
