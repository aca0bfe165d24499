"""The windows as a benchmark: does the dossier name the right group of failures and the right change, and nothing where nothing is wrong?

Only the report counts. By rule, in a window with a cause the first group must be of the right component and message (with two causes the
first two groups; for latency and cost the first of that kind), and its suspected change must be the guilty one, or none if no change is
guilty. A healthy window is right if it is not called an incident and no change, slowness, cost or retries are named. Of a model, the first
hypothesis must name the component and its suspected change must be right; in a healthy window it may suspect no change and want nothing
done at once (P0). What is true lies in a folder apart from the windows.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Unpack, cast

from sonde.api.investigations import incident
from sonde.api.launch import RunOptions
from sonde.api.result import Investigation
from sonde.bench.suite import BenchCase, fits, json_in
from sonde.bench.traffic import Json
from sonde.bench.windows import CONFIGS, DEPLOYS, REPOSITORY, TRACES, Cause, WindowGold, make
from sonde.engines.submission import fields_of, items_of

SAID = "said"
"""The kind of what a model says: a sentence, in which only the component is looked for."""
WORDS_SHARE = 0.6
"""How many of a message's words a group's message must have; reports fold ids and cut long messages."""
PLAIN = """Below are the spans of an LLM system over some hours, one per line (time, trace, span and parent, service and release, name,
milliseconds, tokens, status and message), and the changes that were made. Say what is wrong: groups of failures, the gravest first, or
latency or cost that rose. Name for each the change of ours that caused it, or leave it empty if none did. If all is as usual, name none.
Answer with JSON only: {{"groups": [{{"component": "span name", "message": "...", "kind": "error|slow|costly",
"suspected_change": "version, tag or commit", "first_seen": "time"}}]}}

{changes}

{spans}"""


class Incidents:
    """The benchmark over the windows of some seeds; they are made when they are not there yet."""

    name = "incident"
    taxonomy: str | None = None

    def __init__(self, data: Path, seeds: Sequence[int] = (1,)) -> None:
        self.data = data
        self.truths: dict[str, WindowGold] = {}
        for seed in seeds:
            gold = data / "gold" / f"{seed}.json"
            if not gold.is_file():
                make(seed, data / "windows" / str(seed), gold)
            for each in map(WindowGold.of, json.loads(gold.read_text("utf-8"))):
                self.truths[f"{seed}/{each.name}"] = each

    def cases(self) -> list[BenchCase]:
        """One per window."""
        return [BenchCase(key=key, source=self.data / "windows" / key / TRACES) for key in self.truths]

    def investigate(self, case: BenchCase, **options: Unpack[RunOptions]) -> Investigation:
        """The dossier of a window, with the changes that are on record for it."""
        folder = case.source.parent
        configs = folder / CONFIGS if (folder / CONFIGS).is_dir() else None
        changes = [str(folder / DEPLOYS)] if (folder / DEPLOYS).is_file() else []
        changes += [f"git:{folder / REPOSITORY}"] if (folder / REPOSITORY).is_dir() else []
        return incident(case.source, configs=configs, changes=changes, writeback=False, **options)

    def predicted(self, report: Mapping[str, Any]) -> Json:
        """What a model says of the window in its own words. The groups of the report are counted by rule, so they are not its judgement."""
        window, change = fields_of(report.get("window")), _change(report.get("suspected_change"))
        hypotheses = [str(fields_of(each).get("statement") or "") for each in items_of(report.get("hypotheses"))]
        said = hypotheses or [str(report["incident_summary"])] if report.get("incident_summary") else []
        urgent = any(fields_of(each).get("priority") == "P0" for each in items_of(report.get("recommended_actions")))
        groups = [{"component": each, "message": each, "kind": SAID, "change": "", "onset": ""} for each in said]
        counts = {"traces": window.get("traces"), "failed": window.get("failed")}
        return {"verdict": "incident" if urgent else "", **counts, "groups": groups, "change": change}

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> Json:
        """What the tables of the report say of the window: verdict, counts, groups with their changes, and the change of the whole."""
        del case
        window = fields_of(report.get("window"))
        groups = [
            {
                "component": str(group.get("component") or ""),
                "message": str(group.get("message") or ""),
                "kind": str(group.get("kind") or "error"),
                "change": _change(group.get("suspected_change")),
                "onset": str(fields_of(group.get("onset")).get("at") or group.get("first_seen") or ""),
            }
            for group in map(fields_of, items_of(report.get("groups")))
        ]
        counts = {key: window.get(key) for key in ("verdict", "traces", "failed")}
        return {**counts, "groups": groups, "change": _change(report.get("suspected_change"))}

    def plain_prompt(self, case: BenchCase) -> str | None:
        """Every span on a line, and the changes."""
        folder = case.source.parent
        changes = (folder / DEPLOYS).read_text("utf-8") if (folder / DEPLOYS).is_file() else ""
        for path in sorted(folder.glob(f"{CONFIGS}/**/*.*")):
            changes += f"\n{path.relative_to(folder)}:\n{path.read_text('utf-8')}"
        if (folder / REPOSITORY).is_dir():
            words = ["git", "log", "--date=iso-strict", "--format=%cd %h %s", "--name-only"]
            changes += subprocess.run(words, cwd=folder / REPOSITORY, check=True, capture_output=True, text=True).stdout
        lines: list[str] = []
        for span in map(json.loads, case.source.read_text("utf-8").splitlines()):
            table = span["attributes"]
            begun = datetime.fromtimestamp(span["start_time"] / 1e9).astimezone().isoformat(timespec="seconds")
            release = table.get("service.version") or table.get("release") or ""
            took, tokens = (span["end_time"] - span["start_time"]) // 1_000_000, table.get("llm.token_count.total", "")
            ids = f"{span['trace_id'][:8]} {span['span_id'][:6]} {(span['parent_id'] or '')[:6]}"
            where = f"{table['service.name']} {release} {span['name']} {table.get('llm.model_name', '')}"
            lines.append(f"{begun} {ids} {where} {took} {tokens} {span['status_code']} {span['status_message'][:120]}")
        return fits(PLAIN.format(changes=changes, spans="\n".join(lines)))

    def read_plain(self, text: str) -> Json:
        """The groups in the answer, which has the form of the report's tables."""
        return self.by_rule(BenchCase(key="", source=self.data), fields_of(json_in(text, "{")))

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """Whether group, change and onset are right, and both the first two; for a healthy window, whether something was invented."""
        truth, found = self.truths[case.key], cast("Json", predicted)
        groups = cast("list[Json]", found["groups"])
        if not truth.causes:
            named = [group for group in groups if group["change"] or group["kind"] not in {"error", SAID}]
            invented = bool(named or found["change"] or found["verdict"] == "incident")
            failed = found["traces"] is None and not groups  # no report at all says nothing of health
            return {"right": float(not invented and not failed), "invented": float(invented)}
        marked: list[tuple[bool, bool, bool]] = []
        for cause in truth.causes:
            kinds = {SAID, "error", "retries"} if cause.kind == "error" else {SAID, cause.kind}
            rivals = [group for group in groups if group["kind"] in kinds][: len(truth.causes)]
            group = next((each for each in rivals if _same_group(cause, each)), None)
            if group is None:
                marked.append((False, False, False))
                continue
            said = group["change"]
            if len(truth.causes) == 1 or (group["kind"] == SAID and _same_change(cause, truth, found["change"])):
                said = said or found["change"]
            elif group["kind"] == SAID and cause.marks:  # a report has one change; words tell the other
                said = group["message"]
            marked.append((True, _same_change(cause, truth, said), _same_onset(cause, group["onset"])))
        group_right, change_right, onset_right = (float(all(column)) for column in zip(*marked, strict=True))
        return {
            "right": group_right * change_right,
            "group": group_right,
            "change": change_right,
            "onset": onset_right,
        }

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """Nothing beyond the means."""
        del predictions
        return {}

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """One row per window, in the order of the kinds, and the counts beside the bars."""
        rows: list[str] = []
        right = invented = healthy = 0
        for case, predicted in sorted(predictions, key=lambda each: (self.truths[each[0].key].kind, each[0].key)):
            truth, score = self.truths[case.key], self.score(case, predicted)
            right += int(score["right"])
            invented += int(score.get("invented", 0))
            healthy += not truth.causes
            asked = [score.get(name) for name in ("right", "group", "change", "onset")]
            marks = ["" if each is None else "yes" if each else "no" for each in asked]
            first = fields_of(next(iter(predicted["groups"]), None))
            named = f"{first.get('component', '')}: {first.get('message', '')[:40]}".replace("|", "/").replace(
                "\n", " "
            )
            said = str(first.get("change") or predicted["change"])[:40].replace("|", "/").replace("\n", " ")
            counts = f"{predicted['verdict']}, {predicted['failed']} of {predicted['traces']}"
            rows.append(f"| {' | '.join([truth.kind.replace('_', ' '), case.key, counts, *marks, named, said])} |")
        head = ["window", "key", "verdict, failed", "right", "group", "change", "onset", "first group", "its change"]
        lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}", *rows]
        lines += ["", f"Right: {right} of {len(rows)} (the bar is 16 of 20 by rule, 19 with a capable model)."]
        lines += [f"Invented something in {invented} of {healthy} healthy windows (the bar is 0)."]
        return "\n".join(lines)


def _change(said: Any) -> str:
    """A suspected change as text; empty when the report says that it knows none."""
    if isinstance(said, str):
        return said.strip()
    fields = fields_of(said)
    if not fields or fields.get("change_type") == "unknown":
        return ""
    text = " ".join(str(fields.get(key) or "") for key in ("change_ref", "name", "summary")).strip()
    return re.sub(r"\S+\.\.(?=\w)", "", text)  # of two snapshots that are compared, the later one is the change


def _same_group(cause: Cause, group: Json) -> bool:
    component, message = group["component"].casefold(), group["message"].casefold()
    names = {name.casefold() for name in cause.components}
    if group["kind"] == SAID:  # in a sentence nobody writes the package of a component
        names |= {name.rpartition(".")[2] for name in names}
    if not any(name in component for name in names):
        return False
    if cause.kind != "error" or group["kind"] == SAID:
        return True
    found = sum(word in message for word in cause.words)
    return found >= WORDS_SHARE * len(cause.words)


def _same_change(cause: Cause, truth: WindowGold, said: str) -> bool:
    """Whether the text names the guilty change before any other; a commit may be cut to seven digits."""
    if not cause.marks:
        return not said
    named: dict[int, str] = {}
    for mark in (*truth.changes, *cause.marks):
        commit = re.fullmatch(r"[0-9a-f]{40}", mark)
        written = rf"{mark[:7]}[0-9a-f]*\b" if commit else rf"{re.escape(mark)}(?![.-]?\d)"
        if found := re.search(rf"(?<![\w.]){written}", said):
            named[found.start()] = mark
    return bool(named) and named[min(named)] in cause.marks


def _same_onset(cause: Cause, onset: str) -> bool:
    try:
        seen = datetime.fromisoformat(onset)
    except ValueError:
        return False
    return abs((seen - datetime.fromisoformat(cause.onset)).total_seconds()) <= cause.tolerance_s
