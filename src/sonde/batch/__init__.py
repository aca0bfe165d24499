"""Batches: thousands of asks or investigations, on this machine or on a Ray cluster, that lose no recorded reply and pay for none twice.

    manifest ─▶ plan (what is finished, what was interrupted) ─▶ crew (processes here, or actors on Ray) ─▶ results.jsonl ─▶ report, issues

An item's run folder follows from the batch folder and the item, so its journal alone says whether it is finished, interrupted or
untouched; the crew, the driver and any machine may die at any time. `run_batch` is the door.
"""
