"""Seeded failures without leaks: agent traces with one known fault each, in which nothing spells the label.

Every trace is a little business: a planner, one or two agents, several tools, a knowledge base, model calls, pauses, retries that succeed.
Ten families of faults hide in them, two of them silent (every status is OK); some traces are healthy. Errors that were recovered from lie
about in all kinds, and so do side steps that fail without consequence. Half of the faults speak in plain words that no list of error
messages holds, and half of the silent ones can be seen only by reading. The labels go to a manifest of their own. The same seed gives the
same traces.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sonde.runs.rundir import write_atomically

Json = dict[str, Any]
HEALTHY = "healthy"
HEALTHY_SHARE = 0.15
RETRY_SHARE = 0.3
SIDE_STEP_SHARE = 0.25
PLAIN_SHARE = 0.5
PROJECT = "seeded"
_START_US = 1_772_000_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A little business that traces are about: a question, true facts, ordinary tool calls and a good answer."""

    agent: str
    thing: str
    question: str
    answer: str
    facts: tuple[str, ...]
    calls: tuple[tuple[str, Json, Json], ...]


TOPICS = (
    Topic(
        agent="orders_agent",
        thing="order",
        question="Where is order 4711 and can I still change the address?",
        answer="Order 4711 left the warehouse on Monday; the address can be changed until the parcel reaches the depot.",
        facts=(
            "Addresses can be changed until a parcel has reached the depot.",
            "Parcels leave the warehouse at six in the evening.",
            "A change of address costs nothing within the same country.",
        ),
        calls=(
            ("order_status", {"order": 4711}, {"state": "shipped", "day": "Monday"}),
            ("parcel_position", {"parcel": "P-81"}, {"city": "Graz", "distance_km": 84}),
            ("address_rules", {"country": "AT"}, {"change_allowed": True, "fee": 0}),
        ),
    ),
    Topic(
        agent="travel_agent",
        thing="booking",
        question="What does it cost to move my flight to Lisbon by one day?",
        answer="Moving the flight to the next day costs 45 euros, and the fare difference is zero.",
        facts=(
            "Economy bookings can be moved once for 45 euros.",
            "The fare difference is due as well when the new flight is dearer.",
            "Changes are possible until two hours before departure.",
        ),
        calls=(
            ("booking", {"reference": "XK2P9"}, {"fare_class": "economy", "changes_used": 0}),
            ("fare_quote", {"to": "LIS", "day": "+1"}, {"fare": 129, "difference": 0}),
            ("seat_map", {"flight": "TP561"}, {"free_seats": 31}),
        ),
    ),
    Topic(
        agent="ledger_agent",
        thing="invoice",
        question="Which invoices of March are unpaid and what do they sum up to?",
        answer="Two invoices of March are unpaid, together 1,870 euros.",
        facts=(
            "Invoices are due thirty days after their date.",
            "An invoice counts as paid when the full amount has arrived.",
            "Reminders go out on the first working day of a month.",
        ),
        calls=(
            ("open_invoices", {"month": "2026-03"}, {"count": 2, "total": 1870}),
            ("payment_search", {"invoice": "R-204"}, {"paid": 0}),
            ("exchange", {"from": "USD", "to": "EUR"}, {"rate": 0.92}),
        ),
    ),
    Topic(
        agent="garden_agent",
        thing="plant",
        question="When do I cut back lavender, and how far?",
        answer="Cut lavender back by a third in late August, never into the old wood.",
        facts=(
            "Lavender is cut back by a third after flowering.",
            "Cuts into old wood do not sprout again.",
            "A second light cut in spring keeps the shape.",
        ),
        calls=(
            ("plant_card", {"plant": "lavender"}, {"flowering_ends": "August", "hardy": True}),
            ("weather", {"place": "Bonn"}, {"frost_days": 0}),
            ("calendar", {"month": 8}, {"weeks": 5}),
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """What is wrong with a trace, and where."""

    trace_id: str
    label: str
    family: str
    span_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Traces as flat spans, and the manifest that no engine may read."""

    spans: list[Json]
    gold: list[Gold]

    def write(self, traces: Path, manifest: Path) -> None:
        """Two files in two places."""
        write_atomically(traces, "".join(f"{json.dumps(span)}\n" for span in self.spans).encode())
        write_atomically(manifest, json.dumps([asdict(gold) for gold in self.gold], indent=1).encode())


class Scene:
    """One trace under construction: a clock that moves on, and spans that open and close."""

    def __init__(self, draw: random.Random, number: int) -> None:
        self.draw = draw
        self.topic: Topic = draw.choice(TOPICS)
        self.trace_id = f"{draw.getrandbits(128):032x}"
        self.now = _START_US + number * 3_600_000_000
        self.spans: list[Json] = []
        self.fault_span: str | None = None

    def add(self, name: str, kind: str, parent: Json | None, milliseconds: float, **fields: Any) -> Json:
        """A span that takes this long, give or take a third."""
        span: Json = {
            "trace_id": self.trace_id,
            "span_id": f"{self.draw.getrandbits(64) | 1:016x}",
            "parent_id": None if parent is None else parent["span_id"],
            "project_name": PROJECT,
            "name": name,
            "start_time": self.now * 1000,
            "end_time": self.now * 1000,
            "status_code": fields.pop("status", "OK"),
            "status_message": fields.pop("message", ""),
            "events": fields.pop("events", []),
            "attributes": {"openinference.span.kind": kind, **fields.pop("attributes", {})},
        }
        self.spans.append(span)
        self.now += int(milliseconds * 1000 * self.draw.uniform(0.67, 1.33))
        self.close(span)
        return span

    def close(self, span: Json) -> None:
        """The span ends now."""
        span["end_time"] = self.now * 1000

    def plain(self) -> bool:
        """Whether this fault speaks in plain words, or is seen only by reading."""
        return self.draw.random() < PLAIN_SHARE

    def blame(self, span: Json) -> Json:
        """This is where it went wrong."""
        self.fault_span = span["span_id"]
        return span

    def model(self, parent: Json, asked: str, said: str, **attributes: Any) -> Json:
        """A call of the model."""
        table: Json = {
            "llm.model_name": "m-large",
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": asked,
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": said,
            "llm.finish_reason": "stop",
            **attributes,
        }
        return self.add("chat", "LLM", parent, 1800, attributes=table)

    def tool(self, parent: Json, name: str, given: Any, result: Any, **fields: Any) -> Json:
        """A call of a tool."""
        table = {"tool.name": name, "input.value": json.dumps(given)}
        if result is not None:
            table["output.value"] = result if isinstance(result, str) else json.dumps(result)
        return self.add(
            name,
            "TOOL",
            parent,
            fields.pop("milliseconds", 240),
            attributes=table | fields.pop("attributes", {}),
            **fields,
        )

    def lookup(self, parent: Json, documents: list[tuple[str, float]], **fields: Any) -> Json:
        """A look into the knowledge base."""
        table: Json = {"input.value": self.topic.question}
        for at, (text, score) in enumerate(documents):
            prefix = f"retrieval.documents.{at}.document"
            table |= {
                f"{prefix}.id": f"kb-{self.draw.randrange(900)}",
                f"{prefix}.content": text,
                f"{prefix}.score": score,
            }
        return self.add("kb", "RETRIEVER", parent, 120, attributes=table, **fields)

    def thrown(self, kind: str, message: str) -> list[Json]:
        """The event that an exception leaves."""
        return [
            {
                "name": "exception",
                "timestamp": self.now * 1000,
                "attributes": {"exception.type": kind, "exception.message": message},
            }
        ]


def generate(count: int = 200, seed: int = 7) -> Dataset:
    """`count` traces; families take turns, with healthy ones in between."""
    draw = random.Random(seed)  # noqa: S311 - reproducible on purpose
    spans: list[Json] = []
    gold: list[Gold] = []
    for number in range(count):
        healthy = draw.random() < HEALTHY_SHARE
        family = HEALTHY if healthy else FAMILY_NAMES[number % len(FAMILY_NAMES)]
        scene = play(Scene(draw, number), family)
        spans += scene.spans
        gold.append(Gold(trace_id=scene.trace_id, label=LABEL_OF[family], family=family, span_id=scene.fault_span))
    return Dataset(spans=spans, gold=gold)


def play(scene: Scene, family: str) -> Scene:
    """One trace: planning, some ordinary work, the fault's part or an ordinary one, and an answer."""
    topic = scene.topic
    root = scene.add("handle_request", "CHAIN", None, 20, attributes={"input.value": topic.question})
    scene.model(root, topic.question, f"Plan: look up the {topic.thing}, check the figures, answer.")
    agent = scene.add(topic.agent, "AGENT", root, 30)
    trouble = "OK" if family in SILENT else "ERROR"
    # Tool calls that go well, sometimes after a hiccup that a second try mends.
    for name, given, result in scene.draw.sample(topic.calls, k=scene.draw.randint(1, 3)):
        if scene.draw.random() < RETRY_SHARE:
            hiccup = scene.draw.choice(["socket closed early", "worker restarted", "please retry"])
            scene.tool(agent, name, given, None, status=trouble, message=hiccup)
        scene.tool(agent, name, given, result)
    if scene.draw.random() < SIDE_STEP_SHARE:
        said = scene.draw.choice(["nothing to suggest", "no profile for this customer", "hints are switched off"])
        scene.tool(agent, "suggest_extras", {"for": topic.thing}, None, status=trouble, message=said)
        scene.model(agent, "Are extras needed?", "No, the question can be answered without them.")
    if scene.draw.random() < 0.5:
        helper = scene.add("helper", "AGENT", agent, 15)
        scene.model(helper, "Summarise the figures so far.", "All figures agree.")
        scene.close(helper)
    fault = FAULTS.get(family)
    answer = fault(scene, agent) if fault else _good_lookup(scene, agent)
    scene.model(agent, f"Answer the customer: {topic.question}", answer)
    for span in (agent, root):
        scene.close(span)
    root["attributes"]["output.value"] = answer
    return scene


def _good_lookup(scene: Scene, agent: Json) -> str:
    scene.lookup(agent, [(text, round(scene.draw.uniform(0.62, 0.95), 2)) for text in scene.topic.facts])
    return scene.topic.answer


def _tool_crash(scene: Scene, agent: Json) -> str:
    _good_lookup(scene, agent)
    name, given, _ = scene.draw.choice(scene.topic.calls)
    kind, message = scene.draw.choice(
        [
            ("ZeroDivisionError", "division by zero"),
            ("FileNotFoundError", "/var/data/rates.csv"),
            ("MemoryError", "cannot allocate 4 GB"),
        ]
    )
    said = f"{kind}: {message}"
    scene.blame(
        scene.tool(agent, f"{name}_v2", given, None, status="ERROR", message=said, events=scene.thrown(kind, message))
    )
    return "I could not work this out."


def _tool_stuck(scene: Scene, agent: Json) -> str:
    _good_lookup(scene, agent)
    name, given, _ = scene.draw.choice(scene.topic.calls)
    said = scene.draw.choice(["gave up after 60 s", "stopped: took longer than allowed", "cancelled by the watchdog"])
    scene.blame(scene.tool(agent, f"{name}_batch", given, None, status="ERROR", message=said, milliseconds=60_000))
    return "This took too long; please ask again."


def _tool_says_error(scene: Scene, agent: Json) -> str:
    """The tool answers with an error text; the agent notices and stops."""
    _good_lookup(scene, agent)
    name, given, _ = scene.draw.choice(scene.topic.calls)
    scene.blame(
        scene.tool(agent, f"{name}_beta", given, f"Error: {name}_beta is not able to handle {json.dumps(given)}")
    )
    scene.add("check", "GUARDRAIL", agent, 10, status="ERROR", message="step produced nothing usable")
    return "Something went wrong on our side."


def _empty_lookup(scene: Scene, agent: Json) -> str:
    scene.blame(scene.lookup(agent, []))
    scene.add("check", "GUARDRAIL", agent, 10, status="ERROR", message="answer without any grounds")
    return "I believe so, but I have no source for it."


def _off_topic_lookup(scene: Scene, agent: Json) -> str:
    """Silent: the knowledge base answers another question; half of the time the scores do not show it."""
    other = scene.draw.choice([topic for topic in TOPICS if topic is not scene.topic])
    low, high = (7.0, 14.0) if scene.plain() else (0.04, 0.24)
    scene.blame(scene.lookup(agent, [(text, round(scene.draw.uniform(low, high), 2)) for text in other.facts]))
    return other.answer


def _quota(scene: Scene, agent: Json) -> str:
    _good_lookup(scene, agent)
    if scene.plain():
        said = scene.draw.choice(["partner says: come back in an hour", "our allowance for today is used up"])
        scene.blame(scene.tool(agent, "partner_quote", {"for": scene.topic.thing}, None, status="ERROR", message=said))
    else:
        said = scene.draw.choice(["HTTP/1.1 429", "429 for url /v2/quote", "too many requests"])
        table = {"http.response.status_code": 429}
        scene.blame(scene.add("GET /v2/quote", "CHAIN", agent, 90, status="ERROR", message=said, attributes=table))
    return "The partner system is busy, please try later."


def _partner_down(scene: Scene, agent: Json) -> str:
    _good_lookup(scene, agent)
    if scene.plain():
        said = scene.draw.choice(
            ["the other side hung up", "nobody home at partner.example", "partner is closed for maintenance"]
        )
        scene.blame(scene.add("call_partner", "CHAIN", agent, 4000, status="ERROR", message=said))
    else:
        code, said = scene.draw.choice(
            [(502, "bad gateway"), (503, "service unavailable"), (504, "no answer from backend")]
        )
        table = {"http.status_code": code}
        scene.blame(scene.add("POST /partner", "CHAIN", agent, 4000, status="ERROR", message=said, attributes=table))
    return "The partner system did not answer."


def _renamed_field(scene: Scene, agent: Json) -> str:
    _good_lookup(scene, agent)
    name, given, result = scene.draw.choice(scene.topic.calls)
    scene.tool(agent, name, given, {f"{key}_v2": value for key, value in result.items()})
    key = next(iter(result))
    clear = (f"missing key '{key}'", f"unexpected field '{key}_v2'", f"missing required property '{key}'")
    plain = (f"no {key} in the answer", f"'{key}'", f"looked for {key}, found {key}_v2")
    said = scene.draw.choice(plain if scene.plain() else clear)
    scene.blame(
        scene.add("read_result", "CHAIN", agent, 5, status="ERROR", message=said, events=scene.thrown("KeyError", key))
    )
    return "I could not read the figures."


def _number_format(scene: Scene, agent: Json) -> str:
    _good_lookup(scene, agent)
    name, given, _ = scene.draw.choice(scene.topic.calls)
    scene.tool(agent, name, given, {"amount": "1.234,50 EUR"})
    clear = ("could not parse '1.234,50 EUR' as a number", "invalid type for amount", "cannot decode '1.234,50 EUR'")
    plain = (
        "could not convert string to float: '1.234,50 EUR'",
        "'1.234,50 EUR' is not a number",
        "amount makes no sense",
    )
    said = scene.draw.choice(plain if scene.plain() else clear)
    scene.blame(scene.add("read_result", "CHAIN", agent, 5, status="ERROR", message=said))
    return "I could not read the amount."


def _cut_answer(scene: Scene, agent: Json) -> str:
    """Silent: the answer stops in the middle, or is not in the form that was asked for, and nobody minds."""
    _good_lookup(scene, agent)
    asked = f"Answer in one JSON object with the keys answer and source: {scene.topic.question}"
    if scene.plain():
        scene.blame(scene.model(agent, asked, f"Sure! {scene.topic.answer} Anything else?"))
        return scene.topic.answer
    scene.blame(scene.model(agent, asked, f'{{"answer": "{scene.topic.answer[:20]}', **{"llm.finish_reason": "length"}))
    return scene.topic.answer[:20]


FAULTS: dict[str, Callable[[Scene, Json], str]] = {
    "tool_crash": _tool_crash,
    "empty_lookup": _empty_lookup,
    "quota": _quota,
    "renamed_field": _renamed_field,
    "cut_answer": _cut_answer,
    "tool_stuck": _tool_stuck,
    "off_topic_lookup": _off_topic_lookup,
    "partner_down": _partner_down,
    "number_format": _number_format,
    "tool_says_error": _tool_says_error,
}
FAMILY_NAMES = tuple(FAULTS)
SILENT = ("cut_answer", "off_topic_lookup")
LABEL_OF = {
    "tool_crash": "tool_failure",
    "tool_stuck": "tool_failure",
    "tool_says_error": "tool_failure",
    "empty_lookup": "retrieval_failure",
    "off_topic_lookup": "retrieval_failure",
    "quota": "upstream_dependency_failure",
    "partner_down": "upstream_dependency_failure",
    "renamed_field": "data_schema_mismatch",
    "number_format": "data_schema_mismatch",
    "cut_answer": "instruction_failure",
    HEALTHY: HEALTHY,
}
