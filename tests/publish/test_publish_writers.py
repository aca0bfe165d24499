"""Annotations to a server: what was written before a failure counts as written."""

from __future__ import annotations

import json

import httpx2

from sonde.core.annotation import Annotation
from sonde.phoenix import AnnotationWriter, PhoenixClient, PhoenixUnavailable
from sonde.publish.writers import event_of, publish


def annotation(number: int) -> Annotation:
    return Annotation(
        run_id="r",
        engine_type="rca",
        schema_version="1.0.0",
        name="rca.evidence",
        annotator_kind="CODE",
        label="hot_span",
        score=0.8,
        explanation="{}",
        level="span",
        target=f"{number:016x}",
        identifier=f"i{number}",
    )


def test_what_a_server_took_before_it_went_away_is_told_as_written() -> None:
    taken: list[str] = []

    def server(request: httpx2.Request) -> httpx2.Response:
        rows = json.loads(request.content)["data"]
        if taken:
            return httpx2.Response(503)
        taken.extend(row["span_id"] for row in rows)
        return httpx2.Response(200, json={"data": [{"id": row["span_id"]} for row in rows]})

    client = PhoenixClient("http://phoenix", transport=httpx2.MockTransport(server), attempts=2, wait=lambda _: None)
    annotations = [annotation(number) for number in range(250)]

    done = publish(annotations, AnnotationWriter(client), (PhoenixUnavailable,))

    assert taken and list(done.ids) == taken
    assert done.error is not None
    event = event_of(annotations, done, None)
    assert (event.status, event.succeeded, event.failed) == ("partial", len(taken), 250 - len(taken))
