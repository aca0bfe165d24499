"""The report of a batch as data, as Markdown and as Parquet, and all its files. `page` draws the page with plots.

Numbers cover every finished item of the manifest, whichever start of the batch finished it; `spent_usd` is all that was paid.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import msgspec

from sonde.batch.driver import BatchOutcome
from sonde.batch.folder import DiskFull
from sonde.batch.issues import ISSUES, Issue, IssueFile
from sonde.batch.page import SIGNS, finished_words, render, status_words
from sonde.batch.result import ItemResult, run_path
from sonde.core.canonical import plural
from sonde.core.markdown_safety import written_out
from sonde.core.record import percentile
from sonde.engines.pages import VERDICTS, inline
from sonde.errors import how_to_install
from sonde.runs.rundir import pretty_json, write_atomically

TOP = 10
MATRIX = 200  # traces
MARKDOWN_TRACES = 50
SEVERITY = ("non_compliant", "needs_review", "compliant")
ANSWERS = 500


def report_of(outcome: BatchOutcome, issues: Sequence[Issue] = ()) -> dict[str, Any]:
    """The whole batch in one object."""
    results = outcome.results
    unpriced = sum(not result.priced for result in results)
    known = not unpriced or outcome.spent_usd > 0
    failed: dict[str, list[ItemResult]] = {}
    for result in results:
        if result.failed:
            failed.setdefault(result.code or result.status, []).append(result)
    return {
        "schema_version": "1.0.0",
        "batch": outcome.folder.path.name,
        "items": len(results) + outcome.left,
        "finished": len(results),
        "left": outcome.left,
        "stopped": outcome.stopped,
        "broken_lines": [{"line": line.number, "reason": line.reason} for line in outcome.broken],
        "workers_replaced": outcome.deaths,
        "elapsed_s": round(outcome.elapsed_s, 3),
        "items_per_second": round(outcome.fresh / outcome.elapsed_s, 3) if outcome.elapsed_s else None,
        "statuses": dict(Counter(result.status for result in results).most_common()),
        "judges": dict(Counter(result.judge for result in results if not result.failed).most_common()),
        "engines": dict(Counter(result.engine for result in results).most_common()),
        "labels": dict(Counter(result.label for result in results if result.label).most_common()),
        "failures": [
            {
                "code": code,
                "count": len(group),
                "message": group[0].message,
                "items": [each.id for each in group[:TOP]],
                "messages": [each.message for each in group[:TOP]],
            }
            for code, group in sorted(failed.items(), key=lambda pair: (-len(pair[1]), pair[0]))
        ],
        "answers": [
            {
                "id": each.id,
                "status": each.status,
                "answer": each.answer or each.summary,  # of an older version
                "value": each.value,
                "citations": each.citations,
                **({"cut": each.cut} if each.cut else {}),
                **({"unproved": True} if each.unproved else {}),
                "path": run_path(each),
            }
            for each in results[:ANSWERS]
            if each.summary
        ],
        "controls": _controls(results),
        "cost_usd": _spread([result.paid_usd for result in results if result.priced or result.known_usd])
        if known
        else dict.fromkeys(("total", "median", "p95", "max")),
        "unpriced": unpriced,
        "spent_usd": round(outcome.spent_usd, 6) if known else None,
        "latency_s": _spread([result.latency_s for result in results]),
        "tokens_in": sum(result.tokens_in for result in results),
        "tokens_out": sum(result.tokens_out for result in results),
        "model_calls": sum(result.model_calls for result in results),
        "resumed": sum(result.resumed for result in results),
        "issues": {
            "states": dict(Counter(issue.state for issue in issues).most_common()),
            "top": [msgspec.to_builtins(issue) for issue in issues[:TOP]],
        },
    }


def _controls(results: Sequence[ItemResult]) -> dict[str, Any]:
    """The verdicts of compliance items: how many of each kind per control, and trace by trace, the worst first."""
    judged = [result for result in results if result.verdicts]
    counts: dict[str, Counter[str]] = {}
    for result in judged:
        for name, verdict in result.verdicts.items():
            counts.setdefault(name, Counter())[verdict] += 1

    def badness(result: ItemResult) -> tuple[int, int, str]:
        fails = sum(verdict == "fail" for verdict in result.verdicts.values())
        return SEVERITY.index(result.label) if result.label in SEVERITY else len(SEVERITY), -fails, result.id

    return {
        "counts": {name: dict(found) for name, found in counts.items()},
        "judged": len(judged),
        "traces": [
            {
                "id": each.id,
                "trace_id": each.trace_ids[0] if each.trace_ids else each.id,
                "verdict": each.label or "",
                "verdicts": each.verdicts,
                "path": run_path(each),
            }
            for each in sorted(judged, key=badness)[:MATRIX]
        ],
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"total": 0.0, "median": 0.0, "p95": 0.0, "max": 0.0}
    return {
        "total": round(sum(ordered), 6),
        "median": ordered[len(ordered) // 2],
        "p95": percentile(ordered, 95),
        "max": ordered[-1],
    }


def markdown(report: dict[str, Any]) -> str:
    """The report to read. Text from manifests, models and traces may be hostile, so it cannot become markup."""
    cost, latency = report["cost_usd"], report["latency_s"]
    left = f"; {report['left']:,} left, stopped because: {inline(str(report['stopped']))}" if report["left"] else ""
    more = (report["spent_usd"] or 0.0) - (cost["total"] or 0.0)
    besides = f"; {more:.4f} USD besides for items that wait and attempts that failed" if more >= 0.00005 else ""
    if report["unpriced"]:
        known = f"; {cost['total']:.4f} USD for the rest" if cost["total"] else ""
        paid = f"cost unknown: no price is known for the model of {plural(report['unpriced'], 'item')}{known}"
    else:
        paid = f"cost {cost['total']:.4f} USD (median {cost['median']:.5f}, most {cost['max']:.5f})"
    head = [
        f"# Batch {report['batch']}",
        "",
        f"- {finished_words(report)}{left}",
        f"- {_counted(report['statuses'])}; judged by {_counted(report['judges']) if report['judges'] else 'nobody'}",
        f"- {paid}{besides}",
        f"- {plural(report['tokens_in'] + report['tokens_out'], 'token')} in {plural(report['model_calls'], 'model call')}",
        f"- latency median {latency['median']:.2f} s, 95 % within {latency['p95']:.2f} s, longest {latency['max']:.2f} s",
    ]
    if report["workers_replaced"] or report["resumed"]:
        head.append(
            f"- {plural(report['workers_replaced'], 'worker')} replaced, {plural(report['resumed'], 'item')} resumed"
        )
    broken = [f"- line {line['line']}: {inline(line['reason'])}" for line in report["broken_lines"]]
    labels = [f"- {inline(label)}: {count:,}" for label, count in report["labels"].items()]
    failures = [
        f"- {each['code']}: {each['count']:,}, such as {_with_reasons(each['items'][:3], each['messages'][:3])}"
        for each in report["failures"]
    ]
    issues = [
        f"- [{issue['state']}] {inline(issue['label'])} in {inline(issue['component']) or 'an unnamed component'}: "
        f"{plural(issue['count'], 'trace')}, such as {_names(issue['traces'][:2])} ({inline(issue['sample'], 120)})"
        for issue in report["issues"]["top"]
    ]
    answers = [
        f"- [{inline(each['id'], 100)}]({each['path']}) ({status_words(each)}): {inline(each['answer'], 200)}"
        for each in report["answers"]
    ]
    if len(answers) < report["finished"] - sum(each["count"] for each in report["failures"]):
        answers.append("- more in results.jsonl" if answers else "- in results.jsonl")
    sections = {
        "Answers": answers,
        "Controls and traces": _matrix(report["controls"]),
        "Lines that are no items": broken,
        "Labels": labels,
        "Failures": failures,
        f"Issues ({_counted(report['issues']['states'])})": issues,
    }
    for title, lines in sections.items():
        if lines:
            head += ["", f"## {title}", *lines]
    return "\n".join(head) + "\n"


def _matrix(controls: dict[str, Any]) -> list[str]:
    """A row per trace, the worst first, and a column per control that does not hold everywhere; the last row counts."""
    counts: dict[str, dict[str, int]] = controls["counts"]
    open_ones = [name for name, found in counts.items() if found.keys() - {"pass", "not_applicable"}]
    kept = [inline(name) for name in counts if name not in open_ones]
    held = [f"Nowhere broken: {', '.join(kept)}."] if kept else []
    if not open_ones:
        return held
    shown = controls["traces"][:MARKDOWN_TRACES]
    lines = [
        f"| trace | verdict | {' | '.join(map(inline, open_ones))} |",
        "|---" * (2 + len(open_ones)) + "|",
        *(
            f"| {inline(each['trace_id'][:12])} | {VERDICTS.get(each['verdict'], '').lower()} | "
            + " | ".join(SIGNS.get(each["verdicts"].get(name, ""), " ") for name in open_ones)
            + " |"
            for each in shown
        ),
        f"| of {plural(controls['judged'], 'trace')} | | "
        + " | ".join(f"{counts[name].get('fail', 0):,} failed" for name in open_ones)
        + " |",
    ]
    more = controls["judged"] - len(shown)
    rest = [f"{plural(more, 'more trace')} in results.jsonl."] if more else []
    key = ", ".join(f"{sign} {kind.replace('_', ' ')}" for kind, sign in SIGNS.items()) + "."
    return ["", *lines, *(line for each in (key, *rest, *held) for line in ("", each))]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "nothing"


def _with_reasons(ids: Sequence[str], reasons: Sequence[str]) -> str:
    """Items, each with its own reason; those with the same one stand together."""
    alike: dict[str, list[str]] = {}
    for each, reason in zip(ids, reasons, strict=True):
        alike.setdefault(reason, []).append(each)
    return "; ".join(f"{_names(group)} ({inline(reason)})" for reason, group in alike.items())


def _names(ids: Sequence[str]) -> str:
    return ", ".join(inline(each, 100) for each in ids)


def write_report(outcome: BatchOutcome, issues: Sequence[Issue] = ()) -> tuple[dict[str, Any], list[str]]:
    """report.json, report.md, report.html, issues.json, results.csv and results.parquet; and what was skipped, in words.

    `DiskFull` when the disk does not take them: the results are sound, and a later start writes the report.
    """
    folder = outcome.folder.path
    report = report_of(outcome, issues)
    page = render(report, outcome.results)
    try:
        write_atomically(folder / "report.json", pretty_json(report))
        write_atomically(folder / "report.md", written_out(markdown(report)).encode("utf-8", "backslashreplace"))
        write_atomically(folder / "report.html", page.encode("utf-8", "backslashreplace"))
        write_atomically(folder / ISSUES, pretty_json(msgspec.to_builtins(IssueFile(issues=list(issues)))))
        outcome.folder.keep_latest(outcome.results)
        write_atomically(folder / "results.csv", _csv(outcome.results).encode("utf-8", "backslashreplace"))
        skipped = write_parquet(folder / "results.parquet", outcome.results)
    except OSError as error:
        why = error.strerror or str(error)
        raise DiskFull(
            f"the report in {folder} cannot be written: {why}; make room and start the batch again"
        ) from None
    return report, [skipped] if skipped else []


def _csv(results: Sequence[ItemResult]) -> str:
    """The results as a table for a spreadsheet. A text that a spreadsheet would take for a formula gets a ' before it."""
    names = (
        "id",
        "engine",
        "status",
        "judge",
        "label",
        "summary",
        "code",
        "message",
        "cost_usd",
        "latency_s",
        "unpriced",
    )
    names += ("unproved", "answer")
    text = StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([*names, "value", "citations", "cut", "run"])
    for result in results:
        cells = [getattr(result, name) for name in names]
        cells += ["" if result.value is None else msgspec.json.encode(result.value).decode()]
        cells += ["; ".join(map(_place, result.citations)), ", ".join(result.cut), run_path(result)]
        rows.writerow([f"'{each}" if isinstance(each, str) and each[:1] in set("=+-@\t\r") else each for each in cells])
    return text.getvalue()


def _place(cited: dict[str, Any]) -> str:
    lines = f"{cited.get('path')}:{cited.get('start_line')}-{cited.get('end_line')}"
    return lines if cited.get("path") else f"{cited.get('kind', '')} {cited.get('ref', '')}"


def write_parquet(path: Path, results: Sequence[ItemResult]) -> str | None:
    """All results as one Parquet file, whole or not at all; the reason when it is skipped.

    The schema has the columns with their types, also for an empty batch; a new field of a result needs a column here.
    """
    if find_spec("pyarrow") is None:
        return f"results.parquet is skipped: it needs the extra `data` ({how_to_install('data')})"
    pa: Any = import_module("pyarrow")  # 0.3 s to import, and untyped
    parquet: Any = import_module("pyarrow.parquet")
    texts = ("id", "key", "engine", "status", "judge", "code", "message", "label", "summary", "started_at", "seen_at")
    texts += ("answer", "value", "citations")  # the last two as JSON
    columns = {name: pa.string() for name in texts}
    columns |= {name: pa.float64() for name in ("confidence", "cost_usd", "known_usd", "latency_s")}
    columns |= {name: pa.int64() for name in ("tokens_in", "tokens_out", "model_calls", "turns", "attempt", "unpriced")}
    columns |= {name: pa.bool_() for name in ("retryable", "resumed", "unproved")}
    finding = {"label": pa.string(), "component": pa.string(), "words": pa.string(), "span_id": pa.string()}
    columns["cut"] = pa.list_(pa.string())
    columns["trace_ids"] = pa.list_(pa.string())
    columns["verdicts"] = pa.map_(pa.string(), pa.string())
    columns["findings"] = pa.list_(pa.struct([*finding.items(), ("first", pa.bool_())]))
    schema = pa.schema([(name, columns[name]) for name in ItemResult.__struct_fields__])
    rows = [msgspec.to_builtins(result) for result in results]
    for row in rows:
        row |= {
            name: None if row[name] is None else msgspec.json.encode(row[name]).decode()
            for name in ("value", "citations")
        }
    written = BytesIO()
    parquet.write_table(pa.Table.from_pylist(rows, schema=schema), written)
    write_atomically(path, written.getvalue())
    return None
