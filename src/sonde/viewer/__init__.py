"""Runs to look at: a page on loopback, live while a run goes on (`server`), and the same page as one file that needs no server.

That file holds the viewer's own files and the run's data. It loads nothing; its policy allows only its own script and style, by their
hashes. Texts longer than 20,000 characters are cut. `redact` removes what looks like a secret, as in `runs.export`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from sonde.api.consent import is_trusted, readable_places
from sonde.core.canonical import clip
from sonde.core.events import as_dict
from sonde.core.redaction import redact_text, rewrite_value
from sonde.runs.catalog import summarise
from sonde.runs.export import redact_events
from sonde.runs.rundir import TRACE, NoSuchRun, RunDir, write_atomically
from sonde.viewer.excerpts import shown_excerpts, shown_trace
from sonde.viewer.server import STATIC, ReadablePlaces, ViewerServer
from sonde.viewer.stream import slim

__all__ = ["ViewerServer", "export_html"]
MODULES = (
    "dom",
    "source",
    "model",
    "highlight",
    "detail",
    "steps",
    "budget",
    "flame",
    "answer",
    "picture",
    "runs",
    "issues",
    "compare",
    "app",
)
"""In the order of their imports."""

TEXT = 20_000


def export_html(
    run: RunDir,
    target: str | Path,
    *,
    within: ReadablePlaces = readable_places,
    redact: bool = False,
    cache: Path | None = None,
) -> Path:
    """Write the run as one page; a name without a suffix gets .html. `within` says in which folders the sources that it cites may be
    read; `cache` keeps indexes of trace files.
    """
    events = redact_events(run.events()) if redact else run.events()
    if not events:
        raise NoSuchRun(f"{run.path} was cut off before its first event, so it has nothing to show")
    full = [{**as_dict(event), "n": number} for number, event in enumerate(events)]
    summary = asdict(summarise(run.path)) | {"path": run.run_id}
    places = within(run)
    kept = run.text(TRACE)
    shown = shown_excerpts(
        full, lambda number: full[number].get("result"), kept=kept, within=places, folder=run.path, cache=cache
    )
    excerpts = [replace(each, redacted=redact and redact_text(each.text) != each.text).as_dict() for each in shown]
    slimmed = [slim(event, number) for number, event in enumerate(full)]
    data = {  # everything that the page would ask a server for
        "runs": [summary],
        "news": {
            run.run_id: {
                "events": slimmed,
                "total": len(slimmed),
                "running": False,
                "torn": False,
                "stranger": not is_trusted(places),
            }
        },
        "full": {run.run_id: rewrite_value(full, lambda text: clip(text, TEXT))},
        "excerpts": {run.run_id: excerpts},
        "trace": {
            run.run_id: shown_trace(
                full, lambda number: full[number].get("result"), kept=kept, within=places, cache=cache
            )
        },
    }
    path = Path(target)
    path = path if path.suffix else path.with_suffix(".html")
    write_atomically(path, page(rewrite_value(data, redact_text) if redact else data).encode())
    return path


def page(data: dict[str, Any]) -> str:
    """The page with this data in it."""
    script, style = bundle(), _static("style.css")
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    inside = msgspec.json.encode(data).decode().replace("<", "\\u003c")  # so that no </script> can end the data
    head = (
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n<style>{style}</style>\n'
        f'<script type="application/json" id="sonde-data">{inside}</script>'
    )
    html = _static("index.html")
    html = html.replace('<link rel="stylesheet" href="style.css">', "")
    html = html.replace('<script type="module" src="app.js"></script>', "")
    before, title, after = html.partition("<title>Sonde</title>")
    end = after.replace("</body>", f'<script type="module">{script}</script>\n</body>')
    return f"{before}{title}\n{head}{end}"


def bundle() -> str:
    """The page's modules as one: they import and export by name, so that removing the imports and the word `export` is enough."""
    text = "\n".join(_static(f"{name}.js") for name in MODULES)
    text = re.sub(r"^import \{[^}]*\} from \"[^\"]*\";\n", "", text, flags=re.MULTILINE)
    return re.sub(r"^export (?=async function|function|class|const)", "", text, flags=re.MULTILINE)


def _static(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
