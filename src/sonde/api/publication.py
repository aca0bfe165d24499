"""The annotations of an investigation: written to a server when the run ends (`Writeback`), or later (`publish_run`).

A run whose annotations could not be written is partial, with WRITEBACK_FAILED. Trying again appends the outcome to the journal and
writes the record anew. Identifiers make a second write replace the first, but a rule's verdict never replaces a model's, nor a model's a
person's, unless the caller says so. Evidence of an older run that the new one does not repeat is marked superseded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from sonde.api.consent import readable_places
from sonde.api.recorded_run import open_run, recorded_mask, unmasked
from sonde.api.settings import Settings, load_settings
from sonde.api.trace_source import ENGINES, Case, case_of
from sonde.contexts.traces.catalog import DEFAULT_PROJECT
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.maskedstore import MaskedStore
from sonde.contexts.traces.shape import KeptTrace, picture_of
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.events import WroteBack
from sonde.core.evidence import EvidenceRef, pointers
from sonde.core.record import RunRecord
from sonde.engines.annotations import EVIDENCE, SUPERSEDED, Provenance, annotations_of
from sonde.engines.pages import page_of
from sonde.engines.reports import AnnotatorKind
from sonde.errors import ConfigError, RunError, ToolFault, WritebackFailed
from sonde.phoenix import Annotation, PhoenixClient, PhoenixReads, Written, write_annotations
from sonde.runs.recorder import Recorder
from sonde.runs.recording import Recording
from sonde.runs.rundir import REPORT, TRACE, pretty_json
from sonde.runtime.finish import Outcome
from sonde.trace_client import Json

if TYPE_CHECKING:
    from sonde.core.mask import Mask

ANNOTATIONS = "annotations.jsonl"
WRITEBACK_S = 300.0
KEPT_TEXTS, KEPT_CHARS = 40, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Writeback:
    """Writes the annotations of one case; the run calls it before it puts its end on the stream."""

    case: Case
    context: TracesContext
    mask: Mask | None = None
    """Hides people's data in the report, and perhaps in the ids of spans, which the server knows by their real ones."""

    def __call__(self, output: Any, annotator: str, run_id: str) -> WroteBack:
        """Write them and say what came of it; a failure of the server is in the event, not raised."""
        place = self.case.place
        annotations: list[Annotation] = []
        kept = 0
        client: PhoenixClient | None = None
        with Deadline(SystemClock(), WRITEBACK_S).in_force():  # a run that is out of time may still say what it found
            try:
                annotations = self.annotations(output, annotator, run_id)
                annotations = [replace(each, target=self._real(each.target)) for each in annotations]
                client = PhoenixClient(place.address, api_key=place.api_key, headers=place.headers)
                annotations, kept = self._against_older(annotations, output, client)
                written = write_annotations(annotations, client)
            except (RunError, ToolFault) as error:
                written = Written(error=error.message)
            except KeyboardInterrupt:
                written = Written(error="stopped before the annotations were written")
            finally:
                if client is not None:
                    client.close()
        reason, failed = written.error, len(annotations) - len(written.ids)
        if reason is None and written.unknown:
            reason = f"{len(written.unknown)} spans or traces do not exist there: {', '.join(written.unknown[:5])}"
        reason = reason if reason is None or self.mask is None else self.mask.hidden(reason)
        failure = f"{reason}; the report stands, `sonde publish {run_id}` tries again"
        return WroteBack(
            status="succeeded" if reason is None and not failed else "partial" if written.ids else "failed",
            annotation_ids=list(written.ids),
            names=sorted({each.name for each in annotations}),
            annotator_kinds=sorted({each.annotator_kind for each in annotations}),
            succeeded=len(written.ids),
            failed=failed,
            kept=kept,
            error=None if reason is None else WritebackFailed(failure).row(),
        )

    def _against_older(
        self, annotations: list[Annotation], output: Any, client: PhoenixClient
    ) -> tuple[list[Annotation], int]:
        """What to write, given what older runs of this engine wrote there, and how many a higher judge keeps us from writing."""
        report = cast("Mapping[str, Any]", output)
        shown = [str(each["trace_id"]) for each in report.get("representative_traces") or (report,)]
        traces, spans_of = list(map(self._real, shown)), self.context.store.summaries
        trace_of = {self._real(span.span_id): self._real(trace) for trace in shown for span in spans_of(trace)}
        trace_of |= {trace: trace for trace in traces}
        reads = PhoenixReads(client, self.case.place.project or DEFAULT_PROJECT)
        rows = reads.annotations("span", [each for each in trace_of if each not in traces])
        rows += reads.annotations("trace", traces)
        older = {
            (str(row.get("name")), str(row.get("span_id") or row.get("trace_id"))): row
            for row in rows
            if row.get("identifier") == annotations[0].identifier
        }
        ranks = ("CODE", "LLM", "HUMAN")
        stand: set[str] = set()
        for each in annotations if not self.case.replace_judgements else ():
            row = older.get((each.name, each.target), {})
            known = str(row.get("annotator_kind"))
            if (
                not each.name.endswith(EVIDENCE)
                and known in ranks
                and ranks.index(known) > ranks.index(each.annotator_kind)
            ):
                stand.add(trace_of.get(each.target, each.target))
        chosen = [each for each in annotations if trace_of.get(each.target, each.target) not in stand]
        said = {(each.name, each.target) for each in annotations}
        gone = [
            replace(
                annotations[0],
                name=name,
                annotator_kind="CODE",
                label=SUPERSEDED,
                score=None,
                explanation=f"A newer run did not find this again. More: sonde view {annotations[0].run_id}",
                level="span",
                target=target,
                details={"superseded_run_id": _object(row, "metadata").get("run_id")},
            )
            for (name, target), row in older.items()
            if name.endswith(EVIDENCE)
            and (name, target) not in said
            and row.get("annotator_kind") != "HUMAN"
            and _object(row, "result").get("label") != SUPERSEDED
            and trace_of.get(target) not in stand
        ]
        return [*chosen, *gone], len(annotations) - len(chosen)

    def _real(self, own_id: str) -> str:
        return own_id if self.mask is None else self.mask.restored(own_id)

    def annotations(self, output: Any, annotator: str, run_id: str) -> list[Annotation]:
        """The annotations of a report."""
        engine_type = ENGINES[self.case.engine].run_type
        by = Provenance(run_id=run_id, engine_type=engine_type, annotator_kind=cast("AnnotatorKind", annotator))
        return annotations_of(output, by, self.context.store)

    def files(self, outcome: Outcome, run_id: str) -> dict[str, str]:
        """report.md with links into the server, annotations.jsonl, and what a page shows of a server."""
        output = outcome.conclusion.output
        if output is None:
            return {}
        engine_type = ENGINES[self.case.engine].run_type
        page = page_of(engine_type, cast("Mapping[str, Any]", output), self.context, self.context.store.link)
        rows = [each.as_dict() for each in self.annotations(output, outcome.annotator, run_id)]
        files = {REPORT: page, ANNOTATIONS: "".join(f"{msgspec.json.encode(row).decode()}\n" for row in rows)}
        if self.case.place.server or isinstance(
            self.context.store, MaskedStore
        ):  # the page cannot, or must not, read it again
            files[TRACE] = pretty_json(msgspec.to_builtins(self._kept(cast("Mapping[str, Any]", output)))).decode()
        return files

    def _kept(self, report: Mapping[str, Any]) -> KeptTrace:
        """What a page needs of the server, which it does not ask: the picture of the trace, and the texts that the report cites."""
        trace_id, cited = report.get("trace_id"), list(pointers(report))
        refs = {ref.key: ref for ref in map(EvidenceRef.model_validate, cited)}
        texts = [text for ref in refs.values() if (text := self.context.text_of(ref)) and len(text) <= KEPT_CHARS]
        picture = None
        if trace_id:
            spans = self.context.store.summaries(str(trace_id))
            picture = picture_of(str(trace_id), spans, {str(each.get("span_id")) for each in cited})
        return KeptTrace(picture=picture, texts=texts[:KEPT_TEXTS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What became of a run's annotations: the status after it, what was written, which targets do not exist."""

    status: Literal["succeeded", "partial", "failed"]
    written: int
    failed: int
    kept: int
    error: str | None
    record: RunRecord
    run_dir: Path


def publish_run(
    run: str | Path,
    *,
    runs_dir: str | Path | None = None,
    source: str | None = None,
    replace_judgements: bool = False,
    trust_run: bool = False,
    settings: Settings | None = None,
) -> Publication:
    """Write the annotations of a finished investigation, again or for the first time. `source` names another server;
    `replace_judgements` lets a rule's verdict replace a model's or a person's; `trust_run` lets a run that was not made here name files
    anywhere.
    """
    chosen = settings or load_settings()
    recorded = open_run(chosen.find_run(run, runs_dir))
    ended = recorded.ended
    if ended is None:
        raise ConfigError(f"run {recorded.run_dir.run_id} has not ended; `sonde resume` continues it")
    within = readable_places(recorded.run_dir, chosen.environ, trust_run=trust_run)
    started = recorded.started
    mask = recorded_mask(recorded, chosen)
    started = unmasked(started, mask)
    case = replace(case_of(started.settings, chosen, source, within=within), replace_judgements=replace_judgements)
    if ended.output is None:
        raise ConfigError(f"run {recorded.run_dir.run_id} ended without a report, so it has no annotations")
    if not case.place.writable:
        where = f"on {case.place.name}, where Sonde only reads" if case.place.server else "files"
        raise ConfigError(
            f"the traces of this run are {where}, so its annotations are in {recorded.run_dir.path / ANNOTATIONS}; "
            "name a Phoenix server that has the same traces: sonde publish RUN --source http://localhost:6006"
        )
    known = recorded.run_dir.result()
    context = case.open()
    context.mask_with(mask)
    try:
        wrote = Writeback(case=case, context=context, mask=mask)(
            ended.output, ended.annotator_kind, recorded.run_dir.run_id
        )
    finally:
        context.store.close()
    run_dir = recorded.run_dir
    journal = run_dir.journal([*chosen.secrets(), *case.place.secrets()])
    try:
        recorder = Recorder(SystemClock(), journal, (), Recording(recorded.events))
        recorder.emit(wrote)
        record = recorder.fold.record()
    finally:
        journal.close()
    run_dir.write_record(record)
    if known is not None:
        failure = None if record.error is None else record.error.model_dump(mode="json")
        run_dir.write_result({**known, "status": record.status.value, "error": failure})
    return Publication(
        status=wrote.status,
        written=wrote.succeeded,
        failed=wrote.failed,
        kept=wrote.kept,
        error=(wrote.error or {}).get("message"),
        record=record,
        run_dir=run_dir.path,
    )


def _object(row: Json, name: str) -> Json:
    """A part of what a server sent, if it is an object."""
    part = row.get(name)
    return cast("Json", part) if isinstance(part, dict) else {}
