"""Traffic of a system of agents, tools and models over some hours: its spans, as an OpenInference exporter would write them.

A `Traffic` has services, routes and a style of its own: depth, span names, where the release stands, how errors are told. It always has
noise: failures of 1-3 % of the traces, errors that a second try mends, side steps that fail without consequence, long tails of latency,
and people who quote error messages. A `Trouble` changes what one stage does for some of the traces. Times are seconds from the start.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any

from sonde.bench.businesses import Business

Json = dict[str, Any]
Thrown = tuple[str, str]
"""The class of an exception and its message."""

STRAYS: tuple[Thrown, ...] = (
    ("ConnectionResetError", "[Errno 104] Connection reset by peer"),
    ("ReadTimeout", "The read operation timed out after {n} ms"),
    ("RateLimitError", "Error code: 429 - Rate limit reached, please try again in {n}ms"),
    ("RemoteProtocolError", "Server disconnected without sending a response."),
    ("ValueError", "could not parse date '{n}/{n}'"),
    ("LookupError", "no record {id}"),
    ("PermissionError", "user {id} may not do this"),
    ("ContentFilterError", "The response was filtered, request {hex}"),
    ("CancelledError", "the caller went away"),
    ("gaierror", "[Errno -3] Temporary failure in name resolution"),
)
QUOTES = (
    'Yesterday your site told me "{text}".',
    "My colleague got this: {text}",
    "I see `{text}` in the log, is that bad?",
    "(copied from the screen) {text}",
)
SPELLINGS = ("snake", "camel", "dotted", "plain", "kebab")
LONG_AGO_H = 200
MODELS = {
    "openai": ("gpt-4o-mini", "gpt-4o", "gpt-4.1-mini", "gpt-4.1", "o4-mini"),
    "anthropic": ("claude-3-5-haiku-20241022", "claude-sonnet-4-20250514", "claude-3-7-sonnet-20250219"),
    "mistralai": ("mistral-small-2503", "mistral-large-2411"),
    "google": ("gemini-2.0-flash", "gemini-2.5-pro"),
}
RESULTS = ("output.value", "llm.output_messages", "llm.token_count", "llm.cost", "retrieval.documents")
"""Attributes that only a call that succeeded has."""
SEGMENTS = (
    ("tenant.id", ("northwind", "umbra", "kestrel", "ostia", "fjord", "lumen", "tarn")),
    ("cloud.region", ("eu-west-1", "eu-central-1", "us-east-1", "ap-south-1", "sa-east-1")),
    ("customer.plan", ("free", "team", "business", "enterprise", "trial")),
    ("app.channel", ("web", "ios", "android", "email", "voice")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One step of a route: a span with those of its inner stages below it. What is optional may fail without consequence."""

    name: str
    kind: str
    service: str
    ms: float
    inner: tuple[Stage, ...] = ()
    optional: bool = False
    attempts: int = 1
    slot: int = 0
    """Which of the system's models an LLM stage calls."""
    prompt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Shipped:
    """A version of a service that goes out at a time and takes over within `rollout` seconds."""

    at: float
    service: str
    version: str
    rollout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What one stage does differently for some traces: fail, be slow, or use more tokens.

    `rate` is the share of traces that meet it between `begin` and `end`; with `grows` it rises from nothing to that. `versions` gives a
    rate per version of the stage's service, and `model` and `only` say which traces can meet it at all.
    """

    stage: str
    begin: float = 0
    end: float = math.inf
    rate: float = 1
    grows: bool = False
    versions: Mapping[str, float] = field(default_factory=dict[str, float])
    model: str = ""
    only: tuple[str, str] = ("", "")
    thrown: Thrown | None = None
    again: float = 1
    """How likely a second try fails as well."""
    slow: float = 1
    tokens: float = 1


@dataclass(slots=True, kw_only=True)
class Visit:
    """One trace under way: who, when, and which versions and models serve it."""

    trace_id: str
    at: float
    now_us: int
    root: Stage
    asked: str
    subject: str
    about: Json
    versions: dict[str, str]
    models: tuple[str, ...]
    stray: str
    struck: dict[int, bool] = field(default_factory=dict[int, bool])


class Traffic:
    """A system, and what passes through it. `one_release` gives all services one version; `stamped` says which spans carry it."""

    def __init__(self, draw: Random, business: Business, *, one_release: bool, stamped: str, hours: float) -> None:
        self.draw, self.business = draw, business
        self.project = draw.choice(business.projects)
        self.seconds = hours * 3600
        day, hour = draw.randrange(20_700, 20_760), draw.uniform(0, 20)
        self.start_us = int((day * 24 + hour) * 3600) * 1_000_000 + draw.randrange(1_000_000)
        self.one_release, self.stamped = one_release, stamped
        self.release_key = draw.choice(["service.version", "service.version", "release"])
        self.spelling = draw.choice(SPELLINGS)
        self.told = draw.choice(["typed", "typed", "message", "event"])
        self.wrapped = draw.choice(["same", "own words", "silent"])
        self.stray_rate = draw.uniform(0.01, 0.03)
        self.mended_rate = draw.uniform(0.01, 0.05)
        self.quote_rate = draw.uniform(0.03, 0.12)
        self.segments = draw.sample(SEGMENTS, k=2)
        self.troubles: list[Trouble] = []
        self.switches: list[tuple[float, int, str]] = []
        self.tries: dict[str, int] = {}
        self.met: dict[str, list[float]] = {}
        self.numbering = draw.choice(["semantic", "counted", "dated", "commit"])
        self.front = draw.choice(["gateway", "api", "bff", "edge", "assistant"])
        self.services = draw.sample(business.services, k=draw.randint(3, 4))
        everyone = [self.front, *self.services]
        self.shipped: list[Shipped] = []
        self.major, self.minor = draw.randint(1, 7), draw.randint(2, 60)
        for name in everyone[:1] if self.one_release else everyone:
            self.ship(-1e9, name, rollout=1)
        self.models = tuple(draw.choice(MODELS[name]) for name in draw.sample(sorted(MODELS), k=2))
        calls = draw.choice(["ChatCompletion", "llm.chat", "generate", "chat {model}", "invoke_model"])
        self.tools = [
            Stage(
                name=self.spelt(name, "tool"),
                kind="TOOL",
                service=self.services[number % len(self.services)],
                ms=draw.uniform(60, 700),
                attempts=draw.choice([1, 1, 2, 3]),
            )
            for number, name in enumerate(draw.sample(business.tools, k=6))
        ]
        self.stores = [
            Stage(
                name=self.spelt(name, "retriever"),
                kind="RETRIEVER",
                service=draw.choice(self.services),
                ms=draw.uniform(80, 400),
            )
            for name in draw.sample(business.stores, k=2)
        ]
        self.llms = [
            Stage(
                name=calls,
                kind="LLM",
                service=draw.choice(everyone),
                ms=draw.uniform(900, 2600),
                attempts=draw.choice([1, 2, 3]),
                slot=slot,
                prompt=draw.randint(500, 2600),
            )
            for slot in (0, 0, 1)
        ]
        deep = draw.random() < 0.5
        names = draw.sample(business.roots, k=draw.randint(3, 4))
        self.routes = [self._route(name, number, deep=deep) for number, name in enumerate(names)]
        self.weights = [draw.uniform(0.6, 1.6) for _ in names]

    def _route(self, name: str, number: int, *, deep: bool) -> Stage:
        draw = self.draw
        # Tools go round, so that each lies on one or two routes.
        mine = [self.tools[(number * 2 + step) % len(self.tools)] for step in range(draw.randint(2, 3))]
        work = [self.llms[0], *mine]
        if draw.random() < 0.7:
            work.insert(draw.randint(1, len(work)), draw.choice(self.stores))
        if draw.random() < 0.4:
            side = draw.choice([tool for tool in self.tools if tool not in mine])
            work.append(
                Stage(
                    name=side.name, kind="TOOL", service=side.service, ms=side.ms, optional=True, attempts=side.attempts
                )
            )
        work.append(self.llms[1])
        agents = draw.sample(self.business.agents, k=2)
        if deep:
            helper = self._agent(agents[1], (self.llms[2], *work[-2:]))
            inner: tuple[Stage, ...] = (self._agent(agents[0], (*work[:-2], helper)),)
            inner = (
                Stage(name=self.spelt("run workflow", "chain"), kind="CHAIN", service=self.front, ms=12, inner=inner),
            )
        else:
            inner = (self._agent(agents[0], tuple(work)),)
        if draw.random() < 0.3:
            guard = Stage(name=self.spelt("check input", "guard"), kind="GUARDRAIL", service=self.front, ms=35)
            inner = (guard, *inner)
        return Stage(name=self.spelt(name, "chain"), kind="CHAIN", service=self.front, ms=15, inner=inner)

    def _agent(self, name: str, inner: tuple[Stage, ...]) -> Stage:
        service = inner[min(1, len(inner) - 1)].service
        return Stage(name=self.spelt(name, "agent"), kind="AGENT", service=service, ms=20, inner=inner)

    def spelt(self, words: str, suffix: str) -> str:
        """A name in this system's spelling."""
        parts = words.split()
        match self.spelling:
            case "camel":
                return "".join(part.capitalize() for part in parts) + ("" if suffix == "chain" else suffix.capitalize())
            case "dotted":
                return f"{suffix}s.{'_'.join(parts)}"
            case "plain":
                return words
            case "kebab":
                return "-".join(parts)
            case _:
                return "_".join(parts) + ("_agent" if suffix == "agent" else "")

    def ship(self, at: float, service: str, version: str = "", rollout: float | None = None) -> Shipped:
        """A version goes out, a fresh one if none is named. With one release for all, it is that of every service."""
        known = {each.version for each in self.shipped}
        begun = max(at, -LONG_AGO_H * 3600)
        count = int((begun / 3600 + LONG_AGO_H) * 1.4)  # later versions count higher
        day = datetime.fromtimestamp(self.start_us / 1e6 + begun, UTC)
        patch = 0
        while not version:
            match self.numbering:
                case "semantic":
                    fresh = f"{self.major}.{self.minor + count // 6}.{count % 6 + patch}"
                case "counted":
                    fresh = f"v{self.minor * 7 + count + patch}"
                case "dated":
                    fresh = f"{day:%Y.%m.%d}-{1 + patch}"
                case _:
                    fresh = f"{self.draw.getrandbits(28) | 0xA000000:07x}"
            version = "" if fresh in known else fresh
            patch += 1
        takes = self.draw.uniform(60, 240) if rollout is None else rollout
        everyone = [self.front, *self.services] if self.one_release else [service]
        self.shipped += [Shipped(at=at, service=name, version=version, rollout=takes) for name in everyone]
        owner = self.project if self.one_release else service
        return Shipped(at=at, service=owner, version=version, rollout=takes)

    def share(self, stage: Stage) -> float:
        """Which share of the traffic needs this stage."""
        using = sum(
            weight
            for root, weight in zip(self.routes, self.weights, strict=True)
            if any(leaf.name == stage.name and not leaf.optional for leaf in _leaves(root))
        )
        return using / sum(self.weights)

    def spans(self, count: int) -> list[Json]:
        """All spans of `count` traces, by trace; `met` then says when some met a trouble, by its stage."""
        draw = self.draw
        moments = sorted(draw.uniform(0, self.seconds) for _ in range(count))
        users = [f"u-{draw.getrandbits(20):05x}" for _ in range(max(8, count // 3))]
        homes: dict[str, Json] = {}
        for user in users:  # a few segments make most of the traffic
            falling = {key: [1 / (1 + rank) for rank in range(len(values))] for key, values in self.segments}
            homes[user] = {key: draw.choices(values, falling[key])[0] for key, values in self.segments}
        sessions: dict[str, str] = {}
        told: list[Json] = []
        self.met.clear()
        for at in moments:
            user = draw.choice(users)
            if user not in sessions or draw.random() < 0.4:
                sessions[user] = str(uuid.UUID(int=draw.getrandbits(128), version=4))
            told += self._trace(at, {"user.id": user, "session.id": sessions[user], **homes[user]})
        return told

    def _trace(self, at: float, about: Json) -> list[Json]:
        draw = self.draw
        root = draw.choices(self.routes, self.weights)[0]
        asked = filled(draw.choice(self.business.questions), draw)
        if draw.random() < self.quote_rate:
            thrown = [each.thrown for each in self.troubles if each.thrown] + list(STRAYS)
            kind, text = draw.choice(thrown)
            asked += " " + draw.choice(QUOTES).format(text=f"{kind}: {filled(text, draw)}")
        models = list(self.models)
        for moment, slot, name in self.switches:
            models[slot] = name if at >= moment else models[slot]
        leaves = [stage for stage in _leaves(root) if not stage.optional]
        visit = Visit(
            trace_id=f"{draw.getrandbits(128):032x}",
            at=at,
            now_us=self.start_us + int(at * 1e6),
            root=root,
            asked=asked,
            subject=_code(draw),
            about=about,
            versions={name: self._serving(name, at) for name in (self.front, *self.services)},
            models=tuple(models),
            stray=draw.choice(leaves).name if draw.random() < self.stray_rate else "",
        )
        told: list[Json] = []
        failed = self._play(root, None, visit, told)
        if failed is None:
            told[0]["attributes"]["output.value"] = draw.choice(self.business.facts)
        return told

    def _serving(self, service: str, at: float) -> str:
        """The version that serves a request: while one is rolled out, the old or the new one."""
        serving = ""
        for each in sorted((each for each in self.shipped if each.service == service), key=lambda each: each.at):
            if at >= each.at and self.draw.random() * each.rollout <= at - each.at:
                serving = each.version
        return serving

    def _play(self, stage: Stage, parent: Json | None, visit: Visit, told: list[Json]) -> Thrown | None:
        """The spans of a stage; what it throws if its last try fails."""
        failed: Thrown | None = None
        tries = self.tries.get(stage.name, stage.attempts)
        for attempt in range(tries):
            span = self._opened(stage, parent, visit)
            told.append(span)
            failed = None
            visit.now_us += self.draw.randrange(300, 4000)
            for inner in stage.inner:
                failed = self._play(inner, span, visit, told)
                if failed and inner.optional:
                    failed = None
                if failed:
                    break
            met = [each for each in self.troubles if each.stage == stage.name and self._meets(each, stage, visit)]
            self._spend(stage, visit, span, met)
            span["end_time"] = visit.now_us * 1000
            below = failed is not None
            failed = failed or self._throws(stage, visit, met, attempt)
            if failed is None:
                return None
            self._report(span, failed, below=below, root=parent is None)
            if attempt + 1 < tries:
                visit.now_us += int(self.draw.uniform(50_000, 400_000) * 2 ** min(attempt, 4))
        return failed

    def _opened(self, stage: Stage, parent: Json | None, visit: Visit) -> Json:
        owner = self.project if self.one_release else stage.service
        table: Json = {"openinference.span.kind": stage.kind, "service.name": owner}
        version = visit.versions[stage.service]
        marked = self.stamped == "all" or (self.stamped == "root" and parent is None)
        if marked or (self.stamped == "some" and stage.kind in {"TOOL", "AGENT", "RETRIEVER"}):
            table[self.release_key] = version
        if parent is None:
            table |= {**visit.about, "input.value": visit.asked}
        elif stage.kind == "TOOL":
            table |= {"tool.name": stage.name, "input.value": json.dumps({self.business.things[0]: visit.subject})}
        elif stage.kind == "RETRIEVER":
            table["input.value"] = visit.asked
        return {
            "trace_id": visit.trace_id,
            "span_id": f"{self.draw.getrandbits(64) | 1:016x}",
            "parent_id": None if parent is None else parent["span_id"],
            "project_name": self.project,
            "name": stage.name.replace("{model}", visit.models[stage.slot]),
            "start_time": visit.now_us * 1000,
            "end_time": 0,
            "status_code": "OK",
            "status_message": "",
            "events": [],
            "attributes": table,
        }

    def _meets(self, trouble: Trouble, stage: Stage, visit: Visit) -> bool:
        """Whether this trace meets the trouble; the same for every try."""
        if trouble.model and stage.kind == "LLM" and visit.models[stage.slot] != trouble.model:
            return False
        number = self.troubles.index(trouble)
        if number not in visit.struck:
            rate = trouble.rate if trouble.begin <= visit.at < trouble.end else 0.0
            if trouble.versions:
                rate *= trouble.versions.get(visit.versions[stage.service], 0.0)
            if trouble.grows:
                rate *= (visit.at - trouble.begin) / (self.seconds - trouble.begin)
            if trouble.model and trouble.model not in visit.models:
                rate = 0.0
            key, value = trouble.only
            if key and visit.about[key] != value:
                rate = 0.0
            visit.struck[number] = self.draw.random() < rate
            if visit.struck[number]:
                self.met.setdefault(trouble.stage, []).append(visit.at)
        return visit.struck[number]

    def _spend(self, stage: Stage, visit: Visit, span: Json, met: Sequence[Trouble]) -> None:
        """Time passes, with a long tail; a model call has tokens and a price, a retriever documents."""
        draw, table = self.draw, span["attributes"]
        taken = stage.ms * draw.lognormvariate(0, 0.45) * (draw.uniform(4, 10) if draw.random() < 0.012 else 1)
        visit.now_us += int(taken * 1000 * math.prod(each.slow for each in met))
        if stage.kind == "LLM":
            model, more = visit.models[stage.slot], math.prod(each.tokens for each in met)
            tokens_in, tokens_out = int(stage.prompt * more * draw.uniform(0.8, 1.3)), draw.randint(40, 320)
            cheap = any(word in model for word in ("mini", "small", "flash", "haiku"))
            prices = (0.15, 0.6) if cheap else (2.5, 10.0)  # USD for a million tokens in and out
            rules = f"You work for {self.project}. Be brief and say what you are not sure of. "
            table |= {
                "llm.model_name": model,
                "llm.provider": provider_of(model),
                "llm.input_messages.0.message.role": "system",
                "llm.input_messages.0.message.content": (rules * 8)[: int(160 * more)],
                "llm.input_messages.1.message.role": "user",
                "llm.input_messages.1.message.content": visit.asked,
                "llm.output_messages.0.message.role": "assistant",
                "llm.output_messages.0.message.content": draw.choice(self.business.facts),
                "llm.token_count.prompt": tokens_in,
                "llm.token_count.completion": tokens_out,
                "llm.token_count.total": tokens_in + tokens_out,
                "llm.cost.total": round((tokens_in * prices[0] + tokens_out * prices[1]) / 1e6, 7),
            }
        elif stage.kind == "RETRIEVER":
            for at, text in enumerate(draw.sample(self.business.facts, k=2)):
                table[f"retrieval.documents.{at}.document.id"] = f"d{draw.randrange(9000)}"
                table[f"retrieval.documents.{at}.document.content"] = text
                table[f"retrieval.documents.{at}.document.score"] = round(draw.uniform(0.5, 0.95), 3)
        elif stage.kind == "TOOL":
            table["output.value"] = json.dumps({draw.choice(self.business.fields): draw.randrange(1000), "ok": True})

    def _throws(self, stage: Stage, visit: Visit, met: Sequence[Trouble], attempt: int) -> Thrown | None:
        """What goes wrong in the stage itself at this try, if anything."""
        draw = self.draw
        for each in met:
            if each.thrown and (attempt == 0 or draw.random() < each.again):
                return each.thrown[0], filled(each.thrown[1], draw)
        if stage.inner:
            return None
        mendable = attempt == 0 and (self.tries.get(stage.name, stage.attempts) > 1 or stage.optional)
        if visit.stray == stage.name or (mendable and draw.random() < self.mended_rate):
            kind, text = draw.choice(STRAYS)
            return kind, filled(text, draw)
        return None

    def _report(self, span: Json, failed: Thrown, *, below: bool, root: bool) -> None:
        """The span as it ends in error, in the way of this system; `below` says that an inner stage threw."""
        kind, text = failed
        for key in [key for key in span["attributes"] if key.startswith(RESULTS)]:
            del span["attributes"][key]
        if below and self.wrapped == "silent" and not root:
            span["status_code"] = "UNSET"
            return
        span["status_code"] = "ERROR"
        if below and self.wrapped != "same":
            span["status_message"] = "Internal error" if root else f"{span['name']} did not finish"
            return
        if self.told != "event":
            span["status_message"] = f"{kind}: {text}" if self.told == "typed" else text
        if self.told != "message":
            table = {"exception.type": kind, "exception.message": text, "exception.escaped": "False"}
            span["events"].append({"name": "exception", "timestamp": span["end_time"], "attributes": table})


def filled(text: str, draw: Random) -> str:
    """A template with fresh ids and numbers in it."""
    makers = {
        "id": lambda: _code(draw),
        "n": lambda: str(draw.randrange(10, 9000)),
        "hex": lambda: f"{draw.getrandbits(48):012x}",
        "uuid": lambda: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
    }
    return re.sub(r"\{(id|n|hex|uuid)\}", lambda found: makers[found[1]](), text)


def provider_of(model: str) -> str:
    """Who offers a model."""
    return next(provider for provider, models in MODELS.items() if model in models)


def _code(draw: Random) -> str:
    """An identifier as businesses have them."""
    letters = "".join(draw.choice("ABCDEFGHKLMNPRSTX") for _ in range(draw.randint(2, 3)))
    return f"{letters}-{draw.randrange(10_000, 999_999)}"


def _leaves(stage: Stage) -> list[Stage]:
    return [leaf for inner in stage.inner for leaf in _leaves(inner)] if stage.inner else [stage]
