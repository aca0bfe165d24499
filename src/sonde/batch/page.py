"""The report of a batch as one HTML page without scripts or anything from elsewhere; plots are inline SVG.

Colours follow the reader's light or dark setting. All text is escaped, and characters that reverse text or are
invisible are written out: labels and messages come from models and traces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape as escaped
from typing import Any

from sonde.batch.result import ItemResult
from sonde.core.canonical import cut, plural
from sonde.core.markdown_safety import written_out

BINS = 24
ROWS = 12
SHOWN = 600  # characters of an answer
SIGNS = {"fail": "✕", "insufficient_evidence": "?", "pass": "✓", "not_applicable": "–"}
_WIDTH, _HEIGHT = 460, 150
_STYLE = """
:root{color-scheme:light dark;--ink:#1d2329;--dim:#667079;--line:#dde2e6;--paper:#fff;
--bar:#3b6ea5;--good:#3f8f5f;--part:#c08a2b;--bad:#b9473d}
@media(prefers-color-scheme:dark){:root{--ink:#e4e7ea;--dim:#98a2ab;--line:#343b42;--paper:#16191c;
--bar:#7aa7d9;--good:#69b98a;--part:#d9ad5c;--bad:#e07a70}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:1000px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin:0}h2{font-size:1.05rem;margin:2rem 0 .5rem}p.dim,td.dim,figcaption{color:var(--dim)}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(400px,100%),1fr));gap:1.5rem}figure{margin:0}figcaption{font-size:.85rem}
.tiles{display:flex;flex-wrap:wrap;gap:2rem;margin:1.2rem 0}.tile b{display:block;font-size:1.4rem}
table{border-collapse:collapse;width:100%;font-size:.9rem}
td,th{text-align:left;padding:.3rem .8rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}svg{width:100%;height:auto}svg text{font:11px system-ui,sans-serif;fill:var(--dim)}
.scroll{overflow-x:auto}.matrix{width:auto}.matrix th,.matrix td{padding:.2rem .35rem;white-space:nowrap}.k{white-space:nowrap}
.matrix tbody th{position:sticky;left:0;background:var(--paper);font-weight:400}
.matrix thead a{writing-mode:vertical-rl;font:12px ui-monospace,monospace}
@media(max-width:700px){td{overflow-wrap:anywhere}.matrix tbody th{white-space:normal;overflow-wrap:anywhere;min-width:8rem;max-width:40vw}}
.v{text-align:center;min-width:1.1rem}.v.fail{background:var(--bad);color:var(--paper);font-weight:700}
.v.insufficient_evidence{background:var(--part);color:#1d2329;font-weight:700}.v.pass{color:var(--good)}.v.not_applicable{color:var(--dim)}
a{color:var(--bar)}.bar{fill:var(--bar)}.succeeded{fill:var(--good)}.partial{fill:var(--part)}.failed,.refused{fill:var(--bad)}code{font-size:.85em}
"""


def escape(text: str) -> str:
    """Foreign text for the page."""
    return escaped(written_out(text))


def finished_words(report: Mapping[str, Any]) -> str:
    """How many items are finished; refused ones could not even be started."""
    refused = report["statuses"].get("refused", 0)
    could_not = f", {refused:,} could not be started" if refused else ""
    return f"{report['finished'] - refused:,} of {plural(report['items'], 'item')} finished{could_not}"


def status_words(answer: Mapping[str, Any]) -> str:
    """How an item ended, and whether its answer needed no proof."""
    return f"{answer['status']}{', unproved' if answer.get('unproved') else ''}"


def render(report: Mapping[str, Any], results: Sequence[ItemResult]) -> str:
    """The page."""
    finished = [result for result in results if result.status != "refused"]
    plots = [
        *(
            []
            if report["unpriced"]
            else [histogram("Cost of an item, USD", [result.paid_usd for result in finished], "{:.2g}")]
        ),
        histogram("Latency of an item, seconds", [result.latency_s for result in finished], "{:.2g}"),
        bars("Statuses", report["statuses"], classed=True),
        bars("Labels", report["labels"]),
    ]
    left = f"; {report['left']:,} left, stopped because {report['stopped']}" if report["left"] else ""
    said = f"{finished_words(report)}{left}"
    rate = report["items_per_second"]
    tiles = [
        ("cost", "unknown" if report["unpriced"] else f"${report['cost_usd']['total']:.4f}"),
        ("median latency", f"{report['latency_s']['median']:.2f} s"),
        ("95 % within", f"{report['latency_s']['p95']:.2f} s"),
        ("model calls", f"{report['model_calls']:,}"),
        ("tokens", f"{report['tokens_in'] + report['tokens_out']:,}"),
        ("items per second", f"{rate:.1f}" if rate else "-"),
    ]
    top: list[Mapping[str, Any]] = report["issues"]["top"]
    issues = [
        [
            issue["state"],
            issue["count"],
            f"{issue['label']} in {issue['component'] or 'an unnamed component'}",
            issue["sample"],
            " ".join(issue["traces"][:3]),
            f"{(issue['first_seen'] or '?')[:16]} to {(issue['last_seen'] or '?')[:16]}",
        ]
        for issue in top
    ]
    failures = [[e["code"], e["count"], e["message"], " ".join(e["items"][:5])] for e in report["failures"]]
    broken = [[line["line"], line["reason"]] for line in report["broken_lines"]]
    body = [
        f"<h1>{escape(report['batch'])}</h1>",
        f'<p class="dim">{escape(said)}</p>',
        '<div class="tiles">' + "".join(f'<div class="tile"><b>{v}</b>{n}</div>' for n, v in tiles) + "</div>",
        f'<div class="grid">{"".join(plots)}</div>',
        _table("Top findings", ["", "traces", "what", "evidence", "for example", "seen"], issues),
        matrix(report["controls"]),
        _answers(report["answers"]),
        _table("Failures", ["code", "items", "the first one says", "for example"], failures),
        _table("Lines that are no items", ["line", "why"], broken),
    ]
    title = escape(f"Batch {report['batch']}")
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    return f'{head}<meta name="viewport" content="width=device-width"></head><body>{"".join(body)}</body></html>\n'


def histogram(title: str, values: Sequence[float], form: str) -> str:
    """How often which value, in equal steps from the least to the most."""
    if not values:
        return _figure(title, "", "nothing to show")
    low, high = min(values), max(values)
    step = (high - low) / BINS or 1.0
    counts = [0] * BINS
    for value in values:
        counts[min(BINS - 1, int((value - low) / step))] += 1
    tallest, width = max(counts), _WIDTH / BINS
    drawn = [
        f'<rect class="bar" x="{number * width + 1:.1f}" width="{width - 2:.1f}" '
        f'y="{_HEIGHT - 20 - count / tallest * (_HEIGHT - 35):.1f}" height="{count / tallest * (_HEIGHT - 35):.1f}">'
        f"<title>{form.format(low + number * step)} to {form.format(low + (number + 1) * step)}: {count}</title></rect>"
        for number, count in enumerate(counts)
        if count
    ]
    middle = sorted(values)[len(values) // 2]
    drawn += [
        f'<line x1="0" x2="{_WIDTH}" y1="{_HEIGHT - 20}" y2="{_HEIGHT - 20}" stroke="var(--line)"/>',
        f'<text x="0" y="{_HEIGHT - 5}">{form.format(low)}</text>',
        f'<text x="{_WIDTH}" y="{_HEIGHT - 5}" text-anchor="end">{form.format(high)}</text>',
    ]
    return _figure(title, "".join(drawn), f"{plural(len(values), 'item')}, median {form.format(middle)}")


def bars(title: str, counts: Mapping[str, int], *, classed: bool = False) -> str:
    """One bar per name, longest first."""
    shown = sorted(counts.items(), key=lambda pair: -pair[1])[:ROWS]
    if not shown:
        return _figure(title, "", "nothing to show")
    most = shown[0][1]
    rows: list[str] = []
    for number, (name, count) in enumerate(shown):
        y, long = number * 22, count / most * (_WIDTH - 230)
        kind = escape(name) if classed else "bar"
        rows.append(
            f'<text x="0" y="{y + 13}">{escape(name[:28])}</text><rect class="{kind}" x="170" y="{y + 3}" '
            f'width="{max(1.0, long):.1f}" height="13"/><text x="{176 + long:.1f}" y="{y + 13}">{count:,}</text>'
        )
    more = f"and {len(counts) - len(shown)} more" if len(counts) > len(shown) else ""
    return _figure(title, "".join(rows), more, height=len(shown) * 22 + 4)


def matrix(controls: Mapping[str, Any]) -> str:
    """A row per control and a column per trace, linked to its run; what does not hold is coloured, and every cell has a sign too."""
    counts: Mapping[str, Mapping[str, int]] = controls["counts"]
    traces: Sequence[Mapping[str, Any]] = controls["traces"]
    if not counts:
        return ""
    heads = "".join(
        f'<th scope="col"><a href="{escape(each["path"])}" title="{escape(each["trace_id"])}: '
        f'{escape(_plain(each["verdict"]))}">{escape(each["trace_id"][:8])}</a></th>'
        for each in traces
    )
    rows: list[str] = []
    for name, found in counts.items():
        cells: list[str] = []
        for each in traces:
            verdict = each["verdicts"].get(name, "")
            title = escape(f"{name}, trace {each['trace_id'][:8]}: {_plain(verdict) or 'not asked'}")
            cells.append(f'<td class="v {escape(verdict)}" title="{title}">{SIGNS.get(verdict, "")}</td>')
        told = "".join(f'<td class="n">{found.get(kind, 0) or ""}</td>' for kind in SIGNS)
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{told}{"".join(cells)}</tr>')
    signs = "".join(f'<th scope="col" title="{_plain(kind)}">{sign}</th>' for kind, sign in SIGNS.items())
    left = controls["judged"] - len(traces)
    key = ", ".join(f"{sign} {_plain(kind)}" for kind, sign in SIGNS.items())
    more = f"; {left:,} more in results.jsonl" if left else ""
    return (
        f'<h2>Controls and traces</h2><div class="scroll"><table class="matrix"><thead><tr><th scope="col">control</th>{signs}{heads}'
        f"</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="dim">{plural(len(traces), "trace")}, the worst first{more}. {key}.</p>'
    )


def _plain(verdict: str) -> str:
    return verdict.replace("_", " ")


def _figure(title: str, drawing: str, caption: str, height: int = _HEIGHT) -> str:
    picture = (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">{drawing}</svg>'
        if drawing
        else ""
    )
    return f"<figure><h2>{escape(title)}</h2>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def _answers(answers: Sequence[Mapping[str, Any]]) -> str:
    """Each item's answer, with a link to its run."""
    if not answers:
        return ""
    rows = "".join(
        f'<tr><td><a href="{escape(each["path"])}">{escape(each["id"])}</a></td><td class="k">{escape(status_words(each))}</td>'
        f"<td>{escape(cut(each['answer'], SHOWN))}</td></tr>"
        for each in answers
    )
    return f"<h2>Answers</h2><table><thead><tr><th>item</th><th></th><th>answer</th></tr></thead><tbody>{rows}</tbody></table>"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    cells = [
        [
            f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{escape(str(value))}</td>"
            for value in row
        ]
        for row in rows
    ]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f"<h2>{escape(title)}</h2><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
