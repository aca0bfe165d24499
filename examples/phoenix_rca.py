"""Why did this trace fail? From a Phoenix server or a trace file, with the annotations written back.

    python examples/phoenix_rca.py http://localhost:6006 checkout 4f1c2b…
    python examples/phoenix_rca.py traces.jsonl "" 4f1c2b…

Works without a model too: then the report is a rule's, marked CODE. `sonde batch --all-errors --since 24h` does it for all of them.
"""

from __future__ import annotations

import sys

import sonde
from sonde.publish.otel import TraceSender, otlp_exporter


def main(source: str, project: str, trace_id: str) -> None:
    server = source.startswith("http")
    found = sonde.rca(
        trace_id,
        source,
        project=project or None,
        writeback=server,  # annotations go to the trace they are about; for a file they lie in the run's folder
        # The investigation is a trace itself, in a project of its own, so that it is not mistaken for the patient.
        on_event=TraceSender(otlp_exporter(source), project="sonde") if server else None,
    )
    if found.report is None:
        sys.exit(f"{found.status}: {found.record.error and found.record.error.message}")
    print(found.report["primary_label"], found.report["confidence"], "judged by", found.annotator_kind)
    for ref in found.report["evidence_refs"]:  # each was returned by a tool in this run, and hashed again
        print(" ", ref["kind"], ref["ref"], ref["excerpt_hash"][:12])
    print(found.run_dir)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
