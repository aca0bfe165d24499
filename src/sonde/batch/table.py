"""All results as one Parquet file, where the extra `data` is installed; otherwise it says that it was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from sonde.batch.result import ItemResult
from sonde.runs.rundir import write_atomically

SKIPPED = "results.parquet is skipped: it needs the extra `data` (pip install 'sonde-rlm[data]')"


def write_parquet(path: Path, results: Sequence[ItemResult]) -> str | None:
    """Write the file, whole or not at all; the reason when it is skipped."""
    if find_spec("pyarrow") is None:
        return SKIPPED
    pa, parquet = _pyarrow()
    rows = [msgspec.to_builtins(result) for result in results]
    written = BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema=_schema(pa)), written)
    write_atomically(path, written.getvalue())
    return None


def _pyarrow() -> tuple[Any, Any]:
    """0.3 s to import, and untyped."""
    return import_module("pyarrow"), import_module("pyarrow.parquet")


def _schema(pa: Any) -> object:
    """The columns with their types, also for an empty batch; what is new in a result is a column here."""
    texts = ("id", "key", "engine", "status", "judge", "code", "message", "label", "summary", "started_at", "seen_at")
    columns = {name: pa.string() for name in texts}
    columns |= {name: pa.float64() for name in ("confidence", "cost_usd", "latency_s")}
    columns |= {name: pa.int64() for name in ("tokens_in", "tokens_out", "model_calls", "turns", "attempt")}
    columns |= {name: pa.bool_() for name in ("retryable", "resumed")}
    finding = {"label": pa.string(), "component": pa.string(), "words": pa.string(), "span_id": pa.string()}
    columns["trace_ids"] = pa.list_(pa.string())
    columns["findings"] = pa.list_(pa.struct([*finding.items(), ("first", pa.bool_())]))
    return pa.schema([(name, columns[name]) for name in ItemResult.__struct_fields__])
