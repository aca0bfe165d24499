"""What an investigation leaves besides its report: annotations on a server, and two files in the run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from sonde.api.trace_source import ENGINES, Case, Source
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.shape import Tree
from sonde.core.annotation import Annotation
from sonde.core.events import WroteBack
from sonde.engines.annotations import Provenance, annotations_of
from sonde.engines.pages import page_of
from sonde.errors import RunError, ToolFault, WritebackFailed
from sonde.phoenix import AnnotationWriter, PhoenixClient
from sonde.publish.writers import Published, as_lines, event_of, publish as write
from sonde.runtime.finish import Outcome

Judge = Literal["LLM", "CODE"]
REPORT = "report.md"
ANNOTATIONS = "annotations.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Writeback:
    """Writes the annotations of one case; given to the run, which calls it before it tells its end."""

    case: Case
    context: TracesContext

    def __call__(self, output: Any, annotator: str, run_id: str) -> WroteBack:
        """Write them and say what came of it; a server's failure is told, not raised."""
        try:
            annotations = self.annotations(output, annotator, run_id)
        except (RunError, ToolFault) as error:
            return event_of([], Published(error=error.message), _error(error.message, run_id))
        done = _written(annotations, self.case.place)
        missing = f"{len(done.unknown)} spans or traces do not exist there: {', '.join(done.unknown[:5])}"
        reason = done.error or (missing if done.unknown else None)
        return event_of(annotations, done, _error(reason, run_id) if reason else None)

    def annotations(self, output: Any, annotator: str, run_id: str) -> list[Annotation]:
        """The annotations of a report."""
        by = Provenance(run_id=run_id, engine_type=self._engine_type, annotator_kind=cast("Judge", annotator))
        return annotations_of(output, by, self._root)

    @property
    def _engine_type(self) -> str:
        return ENGINES[self.case.engine].run_type

    def _root(self, trace_id: str) -> str | None:
        roots = Tree(self.context.store.summaries(trace_id)).roots()
        return roots[0].span_id if roots else None

    def files(self, outcome: Outcome, run_id: str) -> dict[str, str]:
        """report.md with links into the server, and annotations.jsonl, for the run's folder."""
        output = outcome.conclusion.output
        if output is None:
            return {}
        page = page_of(self._engine_type, cast("Mapping[str, Any]", output), self.context.store.link)
        return {REPORT: page, ANNOTATIONS: as_lines(self.annotations(output, outcome.annotator, run_id))}


def _error(reason: str, run_id: str) -> dict[str, Any]:
    return WritebackFailed(f"{reason}; the report stands, `sonde publish {run_id}` tries again").row()


def _written(annotations: list[Annotation], place: Source) -> Published:
    client = PhoenixClient(str(place.source), api_key=place.api_key, headers=place.headers)
    try:
        return write(annotations, AnnotationWriter(client), (RunError, ToolFault))
    finally:
        client.close()
