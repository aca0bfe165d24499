"""What rules see in a window of time, before any model: counts, groups of failures, the change that each is suspected of, representatives.

Every trace of the window counts (`contexts.traces.window`). Tables of GROUPS_SHOWN groups and CHANGES_SHOWN changes are shown; what was
left out is a gap. A window without traces ends the run before a model is paid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from sonde.contexts.configs import change_type
from sonde.contexts.traces.changes import Change, Suspicion, attribute_changes, plain_words, suspect
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.representatives import representatives
from sonde.contexts.traces.span import Row, us_of_text
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.views import content_excerpt, span_excerpt
from sonde.contexts.traces.window import COMPARED, Group, Window, read_window, seconds, together
from sonde.core.canonical import cut, percent, plural
from sonde.core.evidence import Excerpt
from sonde.errors import NotInSource
from sonde.runtime.engine import Gathered, Prefilter

GROUPS_SHOWN = 20
TIMELINE_SHOWN = 6
CHANGES_SHOWN = 4
CHANGES_LISTED = 12
SNAPSHOTS_COMPARED = 20
MESSAGE_CHARS = 200
UNRECORDED = {"tokens": "no tokens are recorded", "cost": "no cost is recorded"}
Rows = list[dict[str, Any]]


def prefilter(gathered: Gathered) -> Prefilter:
    """The window, its groups each with its suspected change, representatives of different groups, and a timeline."""
    context = cast("TracesContext", gathered.context)
    query = cast("TraceQuery | None", gathered.params.get("query"))
    named = cast("Sequence[str]", gathered.params.get("trace_ids", ()))
    window = read_window(context.store, query, named)
    if not window.traces:
        every = context.store.traces(TraceQuery(project=query.project if query else None, limit=1000, own=True))
        began = [seconds(row.start_us) for row in every.rows]
        times = f" (traces began between {began[0]} and {began[-1]}{' or later' * bool(every.more)})" if began else ""
        raise NotInSource(f"no trace lies in this window{times}; widen --from and --to, or --last, or name trace ids")
    context.window = window
    gaps = [*context.store.skipped(), *window.gaps]
    if query is not None and query.condition is not None:
        gaps.append("a filter chose the traces: counts and rates are of those, and nothing else was compared with them")
    diffs, excerpts = _config_changes(context, gathered.params, window, gaps)
    changes = [
        *attribute_changes(window),
        *(_of_diff(row) for row in diffs),
        *cast("Sequence[Change]", gathered.params.get("changes", ())),
    ]
    shown = window.groups[:GROUPS_SHOWN]
    if len(window.groups) > len(shown):
        gaps.append(f"{len(shown)} of {len(window.groups)} groups of failures are shown; group_by('group') has more")
    calm = Suspicion(change=None, speaks_against=("there is no incident to explain",))
    suspicions = [suspect(window, each, changes) if window.verdict == "incident" else calm for each in shown]
    proofs = _proofs(context, window, [each.change for each in suspicions if each.change])
    groups = [
        {**window.group_row(group), "suspected_change": _change_row(suspicion, proofs)}
        for group, suspicion in zip(shown, suspicions, strict=True)
    ]
    chosen = representatives(
        window.traces,
        named,
        groups={window.traces[at].trace_id: each.id for each in reversed(window.groups) for at in each.members},
    )
    for each in chosen:
        gaps += [f"{each.facts.trace_id}: {gap}" for gap in context.store.gaps(each.facts.trace_id)]
    timeline = _timeline(window, shown, gaps)
    # Many small groups may have one cause; a group of half of the failures has its own.
    small = not any(2 * len(each.members) >= window.failed for each in window.groups)
    alone = small and window.verdict == "incident" and window.failed and not any(each.change for each in suspicions)
    whole = suspect(window, together(window), changes) if alone else None
    overall = _change_row(whole, _proofs(context, window, [whole.change])) if whole and whole.change else None
    near = _near(window, changes, [*suspicions, *([whole] if whole else [])])
    variables: dict[str, Any] = {
        "window": window.row(),
        "groups": groups,
        "changes": near,
        "overall_change": overall,
        "representatives": [each.row() for each in chosen],
        "timeline": timeline,
        "config_changes": [
            row
            for row in diffs
            if row["diff_ref"] in {each.get("diff_ref") for each in near} or row in diffs[-CHANGES_SHOWN:]
        ],
    }
    cited = {each.facts.root_span_id for each in chosen} | {
        ref["ref"] for event in timeline for ref in event["evidence_refs"]
    }
    cited |= {span_id for group in groups for span_id in group["example_span_ids"]}
    spans = [context.store.span(span_id) for span_id in sorted(cited)]
    return Prefilter(
        variables=variables,
        text=_text(variables),
        excerpts=(*(span_excerpt(span.summary) for span in spans), *excerpts, *proofs.values()),
        gaps=tuple(gaps),
    )


def headline(window: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> str:
    """The window in sentences: how many failed, the main groups since when and with which suspected change; or that nothing is wrong."""
    traces, failed, recovered = (int(window[name]) for name in ("traces", "failed", "recovered"))
    share = f" ({percent(failed, traces)})" if failed else ""
    said = f"{failed or 'None'} of {plural(traces, 'trace')} failed{share}"
    if window["verdict"] == "healthy":
        figures = f"{', '.join(['time', *(what for what in UNRECORDED if window[what])])} and tries"
        compared = f"{figures} are in line" if traces >= COMPARED else f"too few traces to compare {figures}"
        single = [f"{plural(len(window['outliers']), 'outlier')} in time or tokens"] if window["outliers"] else []
        looked_at = "; ".join(["no span has status ERROR", compared, *single, *unrecorded(window)])
        return f"{said}: {looked_at}. By these signs the window is healthy."
    said += f", {recovered} had errors and recovered." if recovered else "."
    main = [group for group in groups if group["pattern"] != "stray"]
    if window["verdict"] == "steady":
        said += " What fails did not begin within the window and is no large part of it: no incident is visible, no cause is named."
        return f"{said} {_sentence(main[0], 'Largest group')}" if main else said
    if not main:
        return f"{said} Each failed in a way of its own: no group has more than a few traces, and no common cause is visible."
    largest = main[0]["count"] >= max(group["count"] for group in groups)
    said += f" {_sentence(main[0], 'Largest group' if largest else 'Main group')}"
    for other in [group for group in main[1:] if group["pattern"] == "onset"][:2]:
        said += f" {_sentence(other, 'Also')}"
    return said


def unrecorded(window: Mapping[str, Any]) -> list[str]:
    """The figures that no trace of the window has, in words."""
    return [words for what, words in UNRECORDED.items() if not window[what]]


def _sentence(group: Mapping[str, Any], beginning: str) -> str:
    what = f"{group['component']}: {group['message']}" if group["message"] else group["component"]
    kind = "" if kind_of(group) == "error" else f" ({kind_of(group)})"
    since, until = (_clock(group[name], group) for name in ("first_seen", "last_seen"))
    if group["onset"]:
        since = _clock(group["onset"]["at"], group)
    change = group["suspected_change"]
    cause = f"suspected change: {change['name']}" if change["change_ref"] else "suspected change: unknown"
    if change["at"] and change["change_ref"]:
        cause += f" ({_clock(change['at'], group)})"
    times = f"from {since} to {until}" if since != until else f"at {since}"
    return f"{beginning}: {group['count']} × {cut(what, MESSAGE_CHARS)}{kind}, {times}, {cause}."


def kind_of(group: Mapping[str, Any]) -> str:
    """What kind of group it is, with a mark for errors that all its traces recovered from."""
    mended = group["kind"] in {"error", "retries"} and group["recovered"] == group["count"]
    return f"{group['kind']}, recovered" if mended else str(group["kind"])


def sharpest(group: Mapping[str, Any]) -> str:
    """The value of an attribute that most sets the group apart, with how often it has it and others have it; empty if none does."""
    return next(map(_apart, group["over_represented"]), "")


def _apart(each: Mapping[str, Any]) -> str:
    return (
        f"{each['attribute']}={cut(each['value'], 60)} in {each['in_group']} of {each['of_group']}, "
        f"elsewhere {each['in_others']} of {each['of_others']}"
    )


def _clock(moment: str, group: Mapping[str, Any]) -> str:
    """Hours and minutes where all of the group lies on one day, else with the date."""
    same = str(group["first_seen"])[:10] == str(group["last_seen"])[:10] == moment[:10]
    return moment[11:19] if same else moment[:16].replace("T", " ")


def _text(variables: Mapping[str, Any]) -> str:
    """The window for a prompt."""
    groups = cast("Rows", variables["groups"])
    lines = [f"Counted: {headline(variables['window'], groups)}"]
    if groups:
        lines.append("Groups (kind, traces, component: message, since, suspected change):")
    for group in groups[:8]:
        change = group["suspected_change"]
        what = cut(f"{group['component']}: {group['message']}", MESSAGE_CHARS)
        since = group["onset"]["at"] if group["onset"] else f"{group['pattern']}, first {group['first_seen']}"
        spans = ", ".join(group["example_span_ids"][:2])
        lines.append(
            f"- {group['id']} {kind_of(group)}, {group['count']}, {what}, {since}, {change['name']} (spans {spans})"
        )
        if group["onset"] and group["onset"]["since_of_calls"] != "0 of 0":
            service = f" (service {group['service']})" if group["service"] else ""
            sides = f"{group['onset']['before_of_calls']} before, {group['onset']['since_of_calls']} since"
            lines.append(f"  of the traces that call {group['component']}{service} it hit {sides}")
        if group["over_represented"]:
            lines.append(f"  {'; '.join(map(_apart, group['over_represented'][:3]))}")
    if variables["changes"]:
        lines.append("Changes:")
    lines += [
        f"- {each['at'] or 'all along'} {each['name']} (change_ref {each['change_ref']}): {cut(each['detail'], 160)}"
        for each in variables["changes"]
    ]
    lines += [
        "Representative traces:",
        *(f"- {row['trace_id']}: {row['why_selected']}" for row in variables["representatives"]),
    ]
    return "\n".join(lines)


def _timeline(window: Window, groups: Sequence[Group], gaps: list[str]) -> Rows:
    """The first failure of each group, and the last of those that began; then what else failed in their traces."""
    chosen: dict[str, tuple[int, str, str]] = {}
    for group in groups:
        count = len(group.members)
        since = group.onset.position if group.onset else group.members[0]
        ends = {since: "" if count == 1 else f" (the first of {count})"}
        if group.onset and group.members[-1] != since:
            ends[group.members[-1]] = f" (the last of {count})"
            if group.members[0] < since:
                ends[since] = f" ({group.onset.since[0]} of {group.onset.since[1]} traces from here on)"
        for at, note in ends.items():
            facts = window.traces[at]
            failure = next((each for each in facts.failures if each.component == group.component), None)
            if group.kind in {"error", "retries"} and failure:
                words = f"{failure.component} failed: {cut(failure.message, MESSAGE_CHARS) or 'no message'}"
                chosen.setdefault(failure.span_id, (failure.at_us, words + note, failure.component))
            else:
                words = f"{group.component} was {group.kind}: {group.message}"
                chosen.setdefault(facts.root_span_id, (facts.start_us, words + note, group.component))
        if len(chosen) >= TIMELINE_SHOWN:
            break
    left = sum(each.error_spans for each in window.traces)
    others = [failure for facts in window.traces for failure in facts.failures[1:]]
    for failure in others[: TIMELINE_SHOWN - len(chosen)] if len(chosen) < TIMELINE_SHOWN else ():
        words = f"{failure.component} failed: {cut(failure.message, MESSAGE_CHARS) or 'no message'}"
        chosen.setdefault(failure.span_id, (failure.at_us, words, failure.component))
    if left > len(chosen):
        gaps.append(
            f"by rule, the timeline has only {len(chosen)} of {left} spans with errors: those that groups begin and end with"
        )
    return [
        {
            "timestamp": seconds(at_us),
            "event": words,
            "component": component,
            "evidence_refs": [{"kind": "SPAN", "ref": span_id}],
        }
        for span_id, (at_us, words, component) in sorted(chosen.items(), key=lambda item: (item[1][0], item[0]))
    ]


def _config_changes(
    context: TracesContext, params: Mapping[str, Any], window: Window, gaps: list[str]
) -> tuple[Rows, tuple[Excerpt, ...]]:
    """The changes between config snapshots up to the end of the window: later ones cannot have caused anything in it."""
    query = cast("TraceQuery | None", params.get("query"))
    end = seconds(query.end_us if query and query.end_us is not None else window.traces[-1].start_us + 1_000_000)
    snapshots = context.configs.list_config_snapshots(str(params.get("project") or ""), end_time=end)
    created = {row["snapshot_id"]: row["created_at"] for row in snapshots}
    every = list(pairwise(snapshots))
    first = next((seconds(each.start_us) for each in window.traces if each.failures), "")
    before = [pair for pair in every if pair[1]["created_at"] <= first]
    pairs = every[-SNAPSHOTS_COMPARED:]
    if before and before[-1] not in pairs:
        pairs = [before[-1], *pairs]
    if len(every) > len(pairs):
        gaps.append(
            f"{len(every) - len(pairs)} of {len(every)} config changes are not shown; get_config_diff compares any two"
        )
    diffs = [context.configs.get_config_diff(a["snapshot_id"], b["snapshot_id"]) for a, b in pairs]
    found = [each for each in diffs if each.value["paths"]]
    rows = [{**each.value, "created_at": created[each.value["target_snapshot_id"]]} for each in found]
    return rows, tuple(excerpt for each in found for excerpt in each.excerpts)


def _of_diff(row: Mapping[str, Any]) -> Change:
    kind = change_type(row["paths"])
    return Change(
        kind="config",
        change_type=kind,
        name=f"{kind} snapshot {row['target_snapshot_id']}",
        ref=str(row["target_snapshot_id"]),
        at_us=us_of_text(str(row["created_at"])),
        detail=str(row["summary"]),
        words=plain_words(f"{' '.join(row['paths'])} {row['diff'][:4000]}"),
        diff_ref=str(row["diff_ref"]),
    )


def _near(window: Window, changes: Sequence[Change], suspicions: Sequence[Suspicion]) -> Rows:
    """Changes to show: the suspected ones, then those nearest to where the main groups began."""
    suspected = {each.change.ref for each in suspicions if each.change}
    onsets = [window.traces[each.onset.position].start_us for each in window.groups if each.onset][:3]
    onsets = onsets or [window.traces[0].start_us]

    def distance(change: Change) -> tuple[bool, int, str]:
        return (change.ref not in suspected, min(abs(change.at_us - onset) for onset in onsets), change.ref)

    near = [each for each in sorted(changes, key=distance) if not each.standing or each.ref in suspected]
    shown = sorted(near[:CHANGES_LISTED], key=lambda each: (each.at_us, each.ref))
    return [{**each.row(), "diff_ref": each.diff_ref} for each in shown]


def _proofs(context: TracesContext, window: Window, changes: Sequence[Change]) -> dict[str, Excerpt]:
    """By change: the span that first shows its new value."""
    found: dict[str, Excerpt] = {}
    for change in changes:
        if change.attribute is None or change.ref in found:
            continue
        facts = next((each for each in window.traces if change.attribute in each.attributes), None)
        key, value = change.attribute
        for span in context.store.spans(facts.trace_id) if facts else ():
            if window.table.pair(key, span.attributes.get(key)) == (key, value):
                found[change.ref] = content_excerpt(span)
                break
    return found


def _change_row(suspicion: Suspicion, proofs: Mapping[str, Excerpt]) -> Row:
    row = suspicion.row()
    change = suspicion.change
    refs: Rows = []
    if change and change.diff_ref:
        refs = [{"kind": "CONFIG_DIFF", "ref": change.diff_ref}]
    elif change and change.ref in proofs:
        refs = [{"kind": "SPAN", "ref": proofs[change.ref].ref}]
    return {**row, "diff_ref": change.diff_ref if change else None, "evidence_refs": refs}
