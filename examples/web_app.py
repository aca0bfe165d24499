"""Sonde inside a FastAPI app: `aask` is the door for asynchronous programs.

    fastapi run examples/web_app.py         (needs: pip install 'fastapi[standard]'; the folder to ask about is DOCS)
    curl 'http://127.0.0.1:8000/ask?question=How+do+I+install+it'

The run goes on in a thread; the event loop stays free. A client that hangs up cancels its run, which then stops spending
and leaves a complete record.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fastapi import FastAPI, HTTPException

import sonde
from sonde.errors import ConfigError

app = FastAPI()
AT_ONCE = asyncio.Semaphore(4)  # each run has a process of its own: bound them by what the machine can bear


@app.get("/ask")
async def ask(question: str) -> dict[str, Any]:
    """One question, one cited answer. The budget is small because strangers send the questions."""
    try:
        async with AT_ONCE:
            answer = await sonde.aask(question, os.environ.get("DOCS", "docs"), max_iterations=12, max_cost_usd=0.05)
    except ConfigError as error:  # the caller's mistake, such as an empty question; everything else is in the record
        raise HTTPException(status_code=422, detail=str(error)) from None
    return {
        "status": answer.status,
        "text": answer.text,
        "citations": [f"{each.path}:{each.start_line}-{each.end_line}" for each in answer.citations],
        "judged_by": answer.annotator_kind,
        "run": answer.record.run_id,
    }
