"""The report of a batch as data and as Markdown, and all its files. The page with plots is `page`, the Parquet file `table`.

Numbers are over every finished item of the manifest, whichever start of the batch finished it; `spent_usd` is all that was paid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from sonde.batch.driver import BatchOutcome
from sonde.batch.folder import DiskFull
from sonde.batch.issues import ISSUES, Issue, IssueFile
from sonde.batch.page import render
from sonde.batch.result import ItemResult
from sonde.batch.table import write_parquet
from sonde.core.markdown_safety import quiet
from sonde.core.plurals import plural
from sonde.core.record import percentile
from sonde.engines.pages import inline
from sonde.runs.rundir import pretty_json, write_atomically

TOP = 10


def report_of(outcome: BatchOutcome, issues: Sequence[Issue] = ()) -> dict[str, Any]:
    """The whole batch in one object."""
    results = outcome.results
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
        "judges": dict(Counter(result.judge for result in results).most_common()),
        "engines": dict(Counter(result.engine for result in results).most_common()),
        "labels": dict(Counter(result.label for result in results if result.label).most_common()),
        "failures": _failures(results),
        "cost_usd": _spread([result.cost_usd for result in results]),
        "spent_usd": round(outcome.spent_usd, 6),
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


def _failures(results: Sequence[ItemResult]) -> list[dict[str, Any]]:
    """Failed items by code, with a few of them by name."""
    codes: dict[str, list[ItemResult]] = {}
    for result in results:
        if result.failed:
            codes.setdefault(result.code or result.status, []).append(result)
    ordered = sorted(codes.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [
        {
            "code": code,
            "count": len(group),
            "message": group[0].message,
            "items": [result.id for result in group[:TOP]],
        }
        for code, group in ordered
    ]


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
    """The report to read. Words of manifests, models and traces stay words: they are hostile, perhaps."""
    cost, latency = report["cost_usd"], report["latency_s"]
    left = f"; {report['left']:,} left, stopped because: {inline(str(report['stopped']))}" if report["left"] else ""
    more = report["spent_usd"] - cost["total"]
    besides = f"; {more:.4f} USD besides for items that wait and attempts that failed" if more >= 0.00005 else ""
    head = [
        f"# Batch {report['batch']}",
        "",
        f"- {report['finished']:,} of {plural(report['items'], 'item')} finished{left}",
        f"- {_counted(report['statuses'])}; judged by {_counted(report['judges'])}",
        f"- cost {cost['total']:.4f} USD (median {cost['median']:.5f}, most {cost['max']:.5f}){besides}",
        f"- {plural(report['tokens_in'] + report['tokens_out'], 'token')} in {plural(report['model_calls'], 'model call')}",
        f"- latency median {latency['median']:.2f} s, 95 % within {latency['p95']:.2f} s, longest {latency['max']:.2f} s",
    ]
    if report["workers_replaced"] or report["resumed"]:
        head.append(
            f"- {plural(report['workers_replaced'], 'worker')} replaced, {plural(report['resumed'], 'item')} resumed"
        )
    return quiet("\n".join([*head, *_broken(report), *_labels(report), *_failed(report), *_issues(report)]) + "\n")


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "nothing"


def _broken(report: dict[str, Any]) -> list[str]:
    lines = [f"- line {line['line']}: {inline(line['reason'])}" for line in report["broken_lines"]]
    return ["", "## Lines that are no items", *lines] if lines else []


def _labels(report: dict[str, Any]) -> list[str]:
    lines = [f"- {inline(label)}: {count:,}" for label, count in report["labels"].items()]
    return ["", "## Labels", *lines] if lines else []


def _failed(report: dict[str, Any]) -> list[str]:
    lines = [
        f"- {each['code']}: {each['count']:,}, such as {_names(each['items'][:3])} ({inline(each['message'])})"
        for each in report["failures"]
    ]
    return ["", "## Failures", *lines] if lines else []


def _issues(report: dict[str, Any]) -> list[str]:
    found = report["issues"]
    if not found["top"]:
        return []
    lines = [
        f"- [{issue['state']}] {inline(issue['label'])} in {inline(issue['component']) or 'an unnamed component'}: "
        f"{plural(issue['count'], 'trace')}, such as {_names(issue['traces'][:2])} ({inline(issue['sample'], 120)})"
        for issue in found["top"]
    ]
    return ["", f"## Issues ({_counted(found['states'])})", *lines]


def _names(ids: Sequence[str]) -> str:
    return ", ".join(inline(each, 100) for each in ids)


def write_report(outcome: BatchOutcome, issues: Sequence[Issue] = ()) -> tuple[dict[str, Any], list[str]]:
    """report.json, report.md, report.html, issues.json and results.parquet; and what was skipped, in words.

    `DiskFull` when the disk does not take them: the results are sound, and a later start writes the report.
    """
    try:
        return _written(outcome, issues)
    except OSError as error:
        why = error.strerror or str(error)
        raise DiskFull(
            f"the report in {outcome.folder.path} cannot be written: {why}; make room and start the batch again"
        ) from None


def _written(outcome: BatchOutcome, issues: Sequence[Issue]) -> tuple[dict[str, Any], list[str]]:
    folder = outcome.folder.path
    report = report_of(outcome, issues)
    write_atomically(folder / "report.json", pretty_json(report))
    write_atomically(folder / "report.md", markdown(report).encode("utf-8", "backslashreplace"))
    page = render(report, outcome.results)
    write_atomically(folder / "report.html", page.encode("utf-8", "backslashreplace"))
    write_atomically(folder / ISSUES, pretty_json(msgspec.to_builtins(IssueFile(issues=list(issues)))))
    skipped = write_parquet(folder / "results.parquet", outcome.results)
    return report, [skipped] if skipped else []
