"""Public agent traces with labels, as folders for `sonde bench labelled`. The data is read from checkouts and never committed.

    python benchmarks/labelled_traces.py --agentrx CHECKOUT --bioagent CHECKOUT --out .bench/labelled

| folder | from | labels |
|---|---|---|
| tau | microsoft/AgentRx (MIT): failed runs of a shop's assistant (tau-bench retail) | failures with step and category, one critical |
| magentic | microsoft/AgentRx (MIT): failed runs of Magentic-One, without those that AgentRx took from Who&When | the same |
| bioagent | lyyang01/bioagent-benchmark (MIT): logs of data-analysis agents in three frameworks | one category per log |

The split into dev and held is by the hash of the name. It was made before a trace or label of AgentRx was read; the labels of bioagent
are its file names, which had been seen. All runs of magentic are also among the hand-crafted ones of Who&When, with other labels:
--whowhen FOLDER leaves out those whose question is in that folder.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from sonde.bench.metrics import plain_name
from sonde.contexts.traces.importers.whowhen import span_id_of, trace_id_of

LabelledTrace = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]
"""Name, lines of the file and labels of a trace."""
ROOT = "f" * 16
AGENTRX = {
    "Instruction/Plan Adherence Failure": (
        "The agent does not follow the instructions, the domain's policy or its own plan: it skips a required step, does it in another "
        "order, or takes an action that was not asked for or not confirmed."
    ),
    "Invention of New Information": (
        "The agent adds, drops or changes information that no input, context or tool output supports, and works with it."
    ),
    "Invalid Invocation": "A tool call that cannot be parsed or validated: missing, malformed or wrong arguments for the tool's schema.",
    "Misinterpretation of Tool Output": (
        "The agent draws a wrong conclusion from a tool's or another agent's output, computes wrongly from it, or uses only a part of it."
    ),
    "Intent-Plan Misalignment": (
        "The agent misreads what the user wants or its constraints, and plans or acts towards another goal."
    ),
    "Underspecified User Intent": (
        "Information that is needed to do the task rightly is missing from all that the user and the tools say, and the agent goes on "
        "without it or cannot go on."
    ),
    "Intent Not Supported": "What is asked for needs an ability that is not there, such as watching a video.",
    "Guardrails Triggered": (
        "A valid action is blocked by a safety policy or by a site: a refusal, a robot check, a log-in, a paywall, a content filter."
    ),
    "System Failure": "A service or an endpoint is not reachable, times out or breaks down.",
}
OTHER_SPELLINGS = {"instruction adherence failure": "Instruction/Plan Adherence Failure"}
BIOAGENT = {
    "Interrupted Execution": "Network failures, limits of an API or crashes of the program end the run.",
    "Round or Time Limit Exceeded": "The run takes too long, plans again and again, or reaches the maximum number of rounds unfinished.",
    "Knowledge Acquisition Failure": "The agent does not find out what it needs: the right API, valid code, essential facts of the task.",
    "Long Context Handling Failure": "Earlier content is ignored or lost; the behaviour becomes erratic or contradicts itself.",
    "Information Not Shared or Unsynced": "Information (inputs, outputs, dependencies) does not reach the agent that needs it.",
    "Inconsistent Planning Behavior": "Planner and executor diverge, or necessary steps of the procedure are missing.",
    "Lack of Active Clarification": "Key unknowns (types of variables, structures) are neither asked about nor printed.",
    "Early Stopping Fault": "The task is ended before key steps are done or the result is verified.",
    "Ambiguous Input Prompt": "Vague or incomplete task instructions make the outputs unstable.",
    "Missing Environment Dependency": "Packages are missing, imports fail, or paths of tools are wrong.",
    "Planner Issue": "The plan is incomplete or faulty: preprocessing is missing, or parts of the process are not covered.",
    "Coder Issue": "The code has wrong parameters, does not save its outputs, or has flawed logic.",
    "Poor Instruction Following": "Instructions of the task are not followed, such as where to save, or how to treat edge cases.",
    "Redundant Process or Code": "Code is generated repeatedly, modules are called without need, or useless steps are not skipped.",
}


def tau(checkout: Path) -> Iterator[LabelledTrace]:
    """Name, spans and labels of each run: a span for each reply of the assistant and for each call of a tool."""
    runs = json.loads((checkout / "data/tau_retail/tau_dataset_failed.json").read_text("utf-8"))
    golds = {str(each["trajectory_id"]): each for each in _json(checkout / "data/ground_truth/tau_ground_truth.json")}
    for run in runs:
        name = str(run["task_id"])
        trace_id = hashlib.sha256(f"tau:{name}".encode()).hexdigest()[:32]
        messages = run["traj"]
        task = run["info"]["task"]["instruction"]  # what the user (a model) was told to want; the annotators saw it
        rows: list[dict[str, Any]] = []
        heard: list[dict[str, Any]] = []
        calls: dict[str, str] = {}
        spoken = [at for at, each in enumerate(messages) if each["role"] in {"assistant", "tool"}]
        # A label at a user's message belongs to the reply to it.
        places = [
            f"{next((each for each in spoken if each >= at), spoken[-1]) + 1:016x}" for at in range(len(messages))
        ]
        for at, message in enumerate(messages):
            found: dict[str, Any]
            if message["role"] in {"system", "user"}:
                heard.append({"message": {"role": message["role"], "content": message["content"]}})
                continue
            if message["role"] == "tool":
                output = str(message["content"])
                asked = calls.get(message["tool_call_id"], "")
                found = {"tool.name": message["name"], "input.value": asked, "output.value": output}
                kind, error = "TOOL", output if output.startswith("Error") else ""
            else:
                made: list[Any] = message.get("tool_calls") or []
                calls |= {each["id"]: each["function"]["arguments"] for each in made}
                said: dict[str, Any] = {"role": "assistant", "content": message["content"] or ""}
                if made:
                    said["tool_calls"] = [{"tool_call": {"function": each["function"]}} for each in made]
                found = {"llm.input_messages": heard, "llm.output_messages": [{"message": said}]}
                heard, kind, error = [], "LLM", ""
            attributes = {"openinference.span.kind": kind, **found}
            row = _row(trace_id, places[at], at, name=str(message.get("name") or "assistant"), attributes=attributes)
            failed = {"status_code": "ERROR", "status_message": error} if error else {}
            rows.append({**row, **failed, "parent_id": ROOT})
        about = {"openinference.span.kind": "AGENT", "input.value": f"What the user wants: {task}"}
        root = _row(trace_id, ROOT, 0, name="retail assistant", attributes=about)
        yield name, [root, *rows], _labels(golds[name], places)


def magentic(checkout: Path, whowhen: Path | None) -> Iterator[LabelledTrace]:
    """Name, conversation and labels of each run that Who&When does not have."""
    known = {path.stem for path in (checkout / "data/magentic_dataset_whowhen").glob("*.json")}
    asked = {_json(path)["question"].strip()[:80] for path in whowhen.glob("*/*.json")} if whowhen else set[str]()
    for gold in _json(checkout / "data/ground_truth/magentic_one_ground_truth.json"):
        name = gold["trajectory_id"]
        history = _json(checkout / f"data/magentic_dataset/{name}.json")
        record = {"question": history[0]["content"], "history": history}
        if name in known or record["question"].strip()[:80] in asked:
            continue
        trace_id = trace_id_of(record)
        yield name, [record], _labels(gold, [span_id_of(trace_id, at) for at in range(len(history))])


def bioagent(checkout: Path) -> Iterator[LabelledTrace]:
    """Name, conversation and label of each log; the label stands in the file's name, so the name is a hash."""
    names = {plain_name(each): each for each in BIOAGENT}
    for path in sorted((checkout / "logs/logs_by_error").glob("*.json")):
        text = path.read_text("utf-8")
        messages: list[Any] = ast.literal_eval(text) if "'role'" in text[:100_000] else json.loads(text)
        history = [
            {
                "role": str(each.get("role", "")),
                "name": str(each.get("name", "")),
                "content": _text(each.get("content")),
            }
            for each in messages
        ]
        label = names[plain_name(path.name.partition(".")[0])]
        record = {"question": history[0]["content"], "history": history}
        yield path.stem, [record], [{"category": label, "critical": True}]


def _labels(gold: Mapping[str, Any], places: Sequence[str]) -> list[dict[str, Any]]:
    """Steps are counted from 1; a label behind the end is at the last one."""
    names = {plain_name(each): each for each in AGENTRX} | OTHER_SPELLINGS
    return [
        {
            "span_id": places[min(each["step_number"], len(places)) - 1],
            "category": names[plain_name(each["failure_category"])],
            "critical": each["failure_id"] == gold["root_cause"]["failure_id"],
        }
        for each in gold["failures"]
    ]


def _row(trace_id: str, span_id: str, at: int, *, name: str, attributes: dict[str, Any]) -> dict[str, Any]:
    start = 1_772_000_000_000_000_000 + at * 1_000_000_000
    return {
        "trace_id": trace_id,
        "span_id": span_id,
        "parent_id": None,
        "name": name,
        "start_time": start,
        "end_time": start + 500_000_000,
        "status_code": "OK",
        "attributes": attributes,
    }


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def write(out: Path, source: str, taxonomy: Mapping[str, str], found: Iterator[LabelledTrace]) -> None:
    """One folder for `sonde bench labelled`."""
    labels: dict[str, Any] = {}
    out.mkdir(parents=True, exist_ok=True)
    for name, trace, failures in found:
        split = "held" if int(hashlib.sha256(f"{source}:{name}".encode()).hexdigest(), 16) % 2 else "dev"
        shown = name if source != "bioagent" else hashlib.sha256(name.encode()).hexdigest()[:8]
        path = out / split / "traces" / f"{shown}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in trace), "utf-8")
        labels[f"{split}/{shown}"] = failures
    categories = [{"name": name, "definition": text} for name, text in taxonomy.items()]
    (out / "taxonomy.yaml").write_text(
        yaml.safe_dump({"name": out.name, "categories": categories}, sort_keys=False), "utf-8"
    )
    (out / "labels.json").write_text(json.dumps(labels, indent=1), "utf-8")
    print(
        f"{out}: {sum(key.startswith('held/') for key in labels)} held, {sum(key.startswith('dev/') for key in labels)} dev"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agentrx", type=Path, help="a checkout of microsoft/AgentRx")
    parser.add_argument("--bioagent", type=Path, help="a checkout of lyyang01/bioagent-benchmark")
    parser.add_argument("--whowhen", type=Path, help="Who&When's folder: runs with the same question are left out")
    parser.add_argument("--out", type=Path, default=Path(".bench/labelled"))
    chosen = parser.parse_args()
    if chosen.agentrx:
        write(chosen.out / "tau", "agentrx", AGENTRX, tau(chosen.agentrx))
        write(chosen.out / "magentic", "agentrx", AGENTRX, magentic(chosen.agentrx, chosen.whowhen))
    if chosen.bioagent:
        write(chosen.out / "bioagent", "bioagent", BIOAGENT, bioagent(chosen.bioagent))


if __name__ == "__main__":
    main()
