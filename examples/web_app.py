"""Sonde inside a FastAPI app: `aask` is the door for asynchronous programs.

    DOCS=docs fastapi run examples/web_app.py         (needs: pip install 'fastapi[standard]')
    curl 'http://127.0.0.1:8000/ask?question=How+do+I+install+it'

The run goes on in a thread; the event loop stays free. When the client hangs up, the run stops at its next step, spends no more,
and leaves a complete record.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from fastapi import FastAPI, HTTPException, Request

import sonde
from sonde.errors import ConfigError

app = FastAPI()
at_once = asyncio.Semaphore(4)  # each run has a process of its own: bound them by what the machine can bear
LOOK_S = 0.5


@app.get("/ask")
async def ask(question: str, request: Request) -> dict[str, Any]:
    """One question, one cited answer. The budget is small because strangers send the questions."""
    try:
        async with at_once:
            run = sonde.aask(question, os.environ.get("DOCS", "docs"), max_iterations=12, max_cost_usd=0.05)
            answer = await unless_gone(request, asyncio.ensure_future(run))
    except ConfigError as error:  # the caller's mistake, such as an empty question; everything else is in the record
        raise HTTPException(status_code=422, detail=str(error)) from None
    return {
        "status": answer.status,
        "text": answer.text,
        "citations": [f"{each.path}:{each.start_line}-{each.end_line}" for each in answer.citations],
        "judged_by": answer.annotator_kind,
        "run": answer.record.run_id,
    }


async def unless_gone(request: Request, run: asyncio.Future[sonde.Answer]) -> sonde.Answer:
    """Wait for the run and look after the client meanwhile: no web framework cancels a handler by itself."""
    while not run.done():
        await asyncio.wait([run], timeout=LOOK_S)
        if not run.done() and await request.is_disconnected():
            run.cancel()  # soft: `aask` waits until the run has written its record
    return await run
