"""A run as an OpenTelemetry trace (extra `otel`), so that it shows in Phoenix or any OTLP backend.

Spans are built from the run's events and handed to an exporter directly. There is no tracer provider, global or other: two of them in one
process lose spans, and a program that has its own is left alone. Prompts and other content go along only with `content=True`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from sonde.core.events import Event, RunEnded, RunStarted
from sonde.errors import ConfigError, how_to_install
from sonde.publish.spans import spans_of, trace_id

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter


class TraceNotSent(ConfigError):
    """The backend did not take the spans; the run itself is not touched by that."""


def otlp_exporter(endpoint: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 10.0) -> SpanExporter:
    """An exporter to an OTLP/HTTP endpoint; `http://127.0.0.1:6006` is completed to `…/v1/traces`."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  # an extra
        from requests import Session  # noqa: PLC0415  # comes with the extra
    except ImportError:
        raise ConfigError(f"OpenTelemetry is not installed: {how_to_install('otel')}") from None
    # Its retries are not news for a terminal: a program with logging of its own still gets them, and a trace that is not sent is told.
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())
    address = endpoint if endpoint.rstrip("/").endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
    session = Session()
    session.max_redirects = 0  # another server would get the spans and the user's headers
    return OTLPSpanExporter(endpoint=address, headers=dict(headers or {}), timeout=timeout_s, session=session)


def send_trace(
    events: Iterable[Event], exporter: SpanExporter, *, content: bool = False, project: str | None = None
) -> int:
    """Send a run as one trace; how many spans it had. Sending it again sends the same ids."""
    listed = list(events)
    spans = readable_spans(listed, content=content, project=project)
    try:
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415  # an extra
    except ImportError:
        raise ConfigError(f"OpenTelemetry is not installed: {how_to_install('otel')}") from None
    for at in range(0, len(spans), 512):
        if exporter.export(spans[at : at + 512]) is not SpanExportResult.SUCCESS:
            raise TraceNotSent(
                "the OpenTelemetry backend did not take the spans; is its address right, and does it run?"
            )
    return len(spans)


class TraceSender:
    """A listener for a run: when the run has ended, its trace is sent."""

    def __init__(self, exporter: SpanExporter, *, content: bool = False, project: str | None = None) -> None:
        self._exporter = exporter
        self._content = content
        self._project = project
        self._events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Take one event."""
        self._events.append(event)
        if isinstance(event, RunEnded):
            send_trace(self._events, self._exporter, content=self._content, project=self._project)


def readable_spans(events: Iterable[Event], *, content: bool = False, project: str | None = None) -> list[ReadableSpan]:
    """The spans of a run as OpenTelemetry's own values."""
    try:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  # an extra
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415  # an extra
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415  # an extra
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags  # noqa: PLC0415  # an extra
    except ImportError:
        raise ConfigError(f"OpenTelemetry is not installed: {how_to_install('otel')}") from None
    listed = list(events)
    run_id = next((event.run_id for event in listed if isinstance(event, RunStarted)), "")
    named = {"service.name": "sonde"} | ({"openinference.project.name": project} if project else {})
    shared: dict[str, Any] = {"resource": Resource(named), "instrumentation_scope": InstrumentationScope("sonde")}

    def context(span_id: str) -> SpanContext:
        flags = TraceFlags(TraceFlags.SAMPLED)
        return SpanContext(int(trace_id(run_id), 16), int(span_id, 16), is_remote=False, trace_flags=flags)

    return [
        ReadableSpan(
            name=span.name,
            context=context(span.id),
            parent=context(span.parent) if span.parent else None,
            kind=SpanKind.INTERNAL,
            attributes=span.attributes,
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(max(span.start, span.end)),
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
            **shared,
        )
        for span in spans_of(listed, content=content)
    ]


def _nanoseconds(at: float) -> int:
    return int(at * 1_000_000) * 1_000
