"""The clients that Langfuse and LangSmith publish read what the servers of these tests reply: the replies have the form that the products
promise. What is not installed is skipped; `make test-sdks` installs it.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import json
from typing import Any

import pytest
from trace_servers import (
    KEY,
    PROJECT,
    PUBLIC,
    SECRET,
    SESSION,
    STEPS,
    hex_ids,
    langfuse,
    langfuse_v3,
    langsmith,
    langsmith_v2,
    serving,
    uuids,
)


def _version(package: str) -> int:
    try:
        return int(importlib.metadata.version(package).partition(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return -1


pytestmark = pytest.mark.long


@pytest.mark.skipif(_version("langfuse") < 4, reason="needs langfuse of version 4 or later: make test-sdks")
def test_the_client_of_langfuse_reads_observations_page_by_page() -> None:
    product: Any = importlib.import_module("langfuse.api.client")
    fields = "core,basic,time,io,metadata,model,usage,prompt,metrics,trace_context"
    with serving(langfuse) as (url, _):
        client = product.LangfuseAPI(base_url=url, username=PUBLIC, password=SECRET)
        (project,) = client.projects.get().data
        found: list[Any] = []
        cursor = None
        while True:
            page = client.observations.get_many(fields=fields, limit=2, cursor=cursor)
            found += page.data
            cursor = page.meta.cursor
            if cursor is None:
                break
        roots = client.observations.get_many(is_root_observation=True, limit=1000)
        wanted = [{"type": "stringOptions", "column": "level", "operator": "any of", "value": ["ERROR"]}]
        failed = client.observations.get_many(filter=json.dumps(wanted))

    assert project.name == PROJECT
    assert {(row.trace_id, row.id, row.status_message) for row in found} == {
        (*hex_ids(step), step.error or step.warning or None) for step in STEPS
    }
    assert [row.usage_details for row in found if row.type == "GENERATION"][-1] == {
        "input": 120,
        "output": 30,
        "total": 150,
    }
    assert len(roots.data) == 3
    assert [row.level for row in failed.data] == ["ERROR"] * 3


@pytest.mark.skipif(_version("langfuse") != 3, reason="needs langfuse of version 3: make test-sdks")
def test_the_client_of_langfuse_3_reads_traces_and_observations() -> None:
    product: Any = importlib.import_module("langfuse.api.client")
    with serving(langfuse_v3) as (url, _):
        client = product.FernLangfuse(base_url=url, username=PUBLIC, password=SECRET)
        listed = [client.trace.list(page=page, order_by="timestamp.asc") for page in (1, 2)]
        whole = client.trace.get(hex_ids(STEPS[3])[0])
        one = client.observations.get(hex_ids(STEPS[5])[1])

    assert [row.id for page in listed for row in page.data] == list(dict.fromkeys(hex_ids(step)[0] for step in STEPS))
    assert listed[0].meta.total_pages == 2
    assert [row.name for row in whole.observations] == [step.name for step in STEPS if step.trace == "bad"]
    assert (one.level.value, one.status_message, one.trace_id) == ("ERROR", STEPS[5].error, whole.id)


@pytest.mark.skipif(_version("langsmith") < 0, reason="needs langsmith: make test-sdks")
def test_the_client_of_langsmith_reads_projects_and_runs() -> None:
    product: Any = importlib.import_module("langsmith")
    with serving(langsmith) as (url, _):
        client = product.Client(api_url=url, api_key=KEY, auto_batch_tracing=False)
        projects = [project.name for project in client.list_projects()]
        runs = list(client.list_runs(project_name=PROJECT))
        roots = list(client.list_runs(project_name=PROJECT, is_root=True))
        trace = list(client.list_runs(project_name=PROJECT, trace_id=uuids(STEPS[3])[0]))
        failed = list(
            client.list_runs(project_name=PROJECT, error=True, filter=f'in(trace_id, ["{uuids(STEPS[3])[0]}"])')
        )

    with serving(langsmith_v2) as (url, _):
        client = product.Client(api_url=url, api_key=KEY, auto_batch_tracing=False)
        selects = [
            "ID",
            "TRACE_ID",
            "ERROR",
            "RUN_TYPE",
            "STATUS",
            "PARENT_RUN_IDS",
            "START_TIME",
            "PROMPT_COST",
            "INPUTS",
        ]
        asked = {"project_ids": [SESSION], "min_start_time": "2026-01-01T00:00:00Z", "selects": selects}

        async def every() -> list[Any]:
            return [run async for run in client.runs.query(**asked)]

        second = asyncio.run(every())

    assert {(run.trace_id, run.id, run.error) for run in second} == {
        (*uuids(step), step.error or None) for step in STEPS
    }
    assert {run.run_type for run in second} == {"CHAIN", "LLM", "TOOL", "RETRIEVER"}
    assert PROJECT in projects and len(projects) == 152
    assert {(str(run.trace_id), str(run.id), run.error) for run in runs} == {
        (*uuids(step), step.error or None) for step in STEPS
    }
    assert len(roots) == 3
    assert {run.name for run in trace} == {step.name for step in STEPS if step.trace == "bad"}
    assert len(failed) == 3
    assert [(run.prompt_tokens, run.completion_tokens) for run in trace if run.run_type == "llm"] == [(90, 10)]
