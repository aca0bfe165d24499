"""Traces: one canonical span from every source, stores over files and servers, inspection tools, and the pre-filter.

    store = open_store("traces.jsonl", cache=Path("~/.cache/sonde"))          # or open_store("http://localhost:6006", project="shop")
    context = TracesContext(store, trace_ids=[trace_id])                      # tools for a run
    found = prefilter(trace_id, store.summaries(trace_id), store.span)        # without any model

Everything here reads; `sonde.phoenix` writes annotations.
"""
