"""Twenty windows of traces whose cause is known: the traces, the changes around them, and apart from both what went wrong.

Three windows are healthy. A seed decides which business meets which cause, what everything is called, how much of it there is and where
the guilty change can be seen: in a file of deploys, in the releases of the spans, in config snapshots or in a git repository. No name, id
or path tells the cause of a window; the windows have neutral names in a shuffled order.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from sonde.bench.businesses import BUSINESSES
from sonde.bench.traffic import MODELS, Shipped, Stage, Thrown, Traffic, Trouble, filled, provider_of
from sonde.core.deadline import rfc3339
from sonde.runs.rundir import write_atomically

MINUTE = 60.0
LEAST_HITS, MOST_TRACES = 10, 400
TRACES, DEPLOYS, CONFIGS, REPOSITORY = "traces.jsonl", "deploys.json", "configs", "repo"

BROKEN: tuple[Thrown, ...] = (
    ("KeyError", "'{field}'"),
    ("TypeError", "unsupported operand type(s) for *: 'NoneType' and 'float' in {field}"),
    ("ValidationError", "1 validation error for {Thing}: {field} Field required [input_value={{'{thing}': '{id}'}}]"),
    ("AttributeError", "'NoneType' object has no attribute '{field}'"),
    ("ProgrammingError", 'column "{field}" does not exist at character {n}'),
    ("HTTPStatusError", "Client error '400 Bad Request' for url 'http://{service}/v2/{thing}s/{id}'"),
    ("ValueError", "invalid literal for int() with base 10: '{id}' while reading {field}"),
    ("IndexError", "{thing} list index out of range"),
)
NUMBERED: tuple[Thrown, ...] = (
    ("LookupError", "{thing} {id} is not in shard {n}"),
    ("ConflictError", "could not lock {thing} {uuid} within {n} ms, held by {hex}"),
    ("IntegrityError", "{thing} {id} refers to missing {field} {n}"),
    ("SchemaError", "payload {hex} of {thing} {id} has {n} unknown keys"),
)
EXHAUSTED: tuple[Thrown, ...] = (
    ("TimeoutError", "QueuePool limit of size 20 overflow 10 reached, connection timed out"),
    ("OSError", "[Errno 24] Too many open files: '/tmp/{thing}-{hex}'"),
    ("MemoryError", "Unable to allocate {n} MiB for an array of {thing}s"),
    ("ResourceExhausted", "cursor cache of {service} is full, {n} handles open"),
)
TIMED_OUT: tuple[Thrown, ...] = (
    ("ReadTimeout", "{service} gave no reply within 250 ms, call {hex}"),
    ("DeadlineExceeded", "Deadline Exceeded calling {service}, elapsed 250 ms"),
    ("ConnectTimeout", "connection to {service}:8443 timed out, request {hex}"),
)
PROVIDER: tuple[Thrown, ...] = (
    ("RateLimitError", "Error code: 429 - tokens per min exceeded in organization org-{hex}, limit {n}"),
    ("OverloadedError", "Error code: 529 - overloaded_error: Overloaded, request req_{hex}"),
    ("ServiceUnavailableError", "Error code: 503 - The engine is currently overloaded, request {uuid}"),
    ("InternalServerError", "Error code: 500 - The server had an error while processing your request {hex}"),
)
CREDENTIAL: tuple[Thrown, ...] = (
    ("AuthenticationError", "401 Unauthorized: access token for {service} has expired"),
    ("SSLCertVerificationError", "certificate verify failed: certificate has expired (_ssl.c:1007)"),
    ("ExpiredTokenException", "The security token included in the request is expired, request {uuid}"),
    ("PermissionDenied", "403 Forbidden: API key of {service} is no longer valid"),
)
BAD_JSON: tuple[Thrown, ...] = (
    ("JSONDecodeError", "Expecting ',' delimiter: line 1 column {n} (char {n})"),
    ("ToolInputError", "arguments are not valid JSON: Unterminated string starting at line {n} column {n}"),
    ("OutputParserException", "Could not parse tool arguments: extra data after '{field}' at char {n}"),
)
SWITCHED: tuple[Thrown, ...] = (
    ("NotImplementedError", "no {field} rule in the second engine for {thing} {id}"),
    ("ConnectionError", "No route to host {service}-next:8443"),
    ("IndexNotFound", "index {thing}s-v3 does not exist, request {hex}"),
    ("ValueError", "{field} must be given when strict mode is on"),
)
SUBJECTS = (
    "Read {field} from the new record",
    "Split {thing} lookup in two",
    "Drop the old {field} path",
    "Tidy imports",
    "Update readme",
    "Log less",
    "Rename a helper",
    "Cache {thing}s for a minute",
    "Bump dependencies",
    "Move constants",
    "Type hints for {thing}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One thing that is wrong. `marks` are the names of the guilty change, empty if no change is; `words` are of the errors' message."""

    kind: str
    """The kind of the group that a report should name: error, slow or costly."""
    components: tuple[str, ...]
    words: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    onset: str
    tolerance_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGold:
    """What is true of a window: nothing is wrong if there is no cause. `changes` names all changes that can be seen."""

    name: str
    kind: str
    causes: tuple[Cause, ...]
    changes: tuple[str, ...]

    @classmethod
    def of(cls, read: Mapping[str, Any]) -> WindowGold:
        """As it was written."""
        causes = [
            Cause(
                kind=each["kind"],
                components=tuple(each["components"]),
                words=tuple(each["words"]),
                marks=tuple(each["marks"]),
                onset=each["onset"],
                tolerance_s=each["tolerance_s"],
            )
            for each in read["causes"]
        ]
        return cls(name=read["name"], kind=read["kind"], causes=tuple(causes), changes=tuple(read["changes"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit of a generated repository: when, about what, and the files it writes."""

    at: float
    subject: str
    files: dict[str, str]


@dataclass(slots=True, kw_only=True)
class TraceWindow:
    """A window under construction: its traffic, the changes that are on record, and the causes."""

    name: str
    kind: str
    draw: Random
    traffic: Traffic
    count: int
    listed: bool
    """Whether deploys are in a file; if not, only the spans tell."""
    deploys: list[tuple[Shipped, str]] = field(default_factory=list[tuple[Shipped, str]])
    snapshots: list[tuple[float, str, dict[str, str]]] = field(default_factory=list[tuple[float, str, dict[str, str]]])
    commits: list[Commit] = field(default_factory=list[Commit])
    guilty: Commit | None = None
    causes: list[Cause] = field(default_factory=list[Cause])
    blamed: list[str] = field(default_factory=list[str])

    def moment(self, at: float) -> str:
        """A time of the window as text."""
        return rfc3339(datetime.fromtimestamp(self.traffic.start_us / 1e6 + at, UTC))

    def share(self, low: float, high: float) -> float:
        """A time between two shares of the window."""
        return self.traffic.seconds * self.draw.uniform(low, high)

    def tool(self, *, low: float = 0.25, high: float = 0.8, other_than: Stage | None = None) -> Stage:
        """A tool that this share of the traffic needs, of another service than the one given."""
        fit = [
            stage
            for stage in self.traffic.tools
            if low <= self.traffic.share(stage) <= high and (other_than is None or other_than.service != stage.service)
        ]
        rest = [stage for stage in self.traffic.tools if other_than is None or other_than.service != stage.service]
        return self.draw.choice(fit) if fit else max(rest, key=self.traffic.share)

    def thrown(self, pool: tuple[Thrown, ...], service: str) -> Thrown:
        """An error of the pool with this system's words in it; ids and numbers stay open."""
        kind, text = self.draw.choice(pool)
        thing = self.draw.choice(self.traffic.business.things)
        words = {
            "field": self.draw.choice(self.traffic.business.fields),
            "thing": thing,
            "Thing": thing.capitalize(),
            "service": service,
        }
        return kind, re.sub(r"\{(field|thing|Thing|service)\}", lambda found: words[found[1]], text).replace(
            "{{", "{"
        ).replace("}}", "}")

    def ship(self, at: float, service: str, note: str = "", **more: Any) -> Shipped:
        """A deploy that is on record and in the traffic."""
        gone = self.traffic.ship(at, service, **more)
        self.deploys.append((gone, note))
        return gone

    def quiet_deploys(self, *besides: str, around: float | None = None) -> None:
        """Deploys that did no harm: some of the day before, and one near a moment, of services other than these."""
        others = [name for name in self.traffic.services if name not in besides] or [self.traffic.front]
        for _ in range(self.draw.randint(1, 3)):
            self.ship(-self.draw.uniform(3, 30) * 3600, self.draw.choice(self.traffic.services))
        if around is not None and not self.traffic.one_release:
            self.ship(around - self.draw.uniform(15, 40) * MINUTE, self.draw.choice(others))

    def configure(self, *steps: tuple[float, str, str]) -> list[str]:
        """Config snapshots: one of days ago, then one per (time, file, content). Returns the tags of those."""
        models = "".join(f"slot_{slot}: {model}\n" for slot, model in enumerate(self.traffic.models))
        files = {
            "models.yaml": models,
            "prompts/system.md": f"You work for {self.traffic.project}.\nBe brief and say what you are not sure of.\n",
            "flags.json": json.dumps({f"new_{each}": False for each in self.traffic.business.things}, indent=1) + "\n",
            "limits.yaml": "".join(f"{name}:\n  timeout_ms: 8000\n  retries: 1\n" for name in self.traffic.services),
        }
        number = self.draw.randint(30, 400)
        self.snapshots.append((-self.draw.uniform(20, 90) * 3600, f"c{number}", dict(files)))
        tags: list[str] = []
        for at, path, content in steps:
            number += self.draw.randint(1, 3)
            files = {**files, path: content}
            self.snapshots.append((at, f"c{number}", dict(files)))
            tags.append(f"c{number}")
        return tags

    def history(self, tool: Stage, at: float) -> tuple[str, str]:
        """Commits of days and hours that did no harm, some near a moment. Returns the tool's own file and what is in it."""
        traffic, draw = self.traffic, self.draw
        slug = re.sub(r"(?<=[a-z])(?=[A-Z])|[^A-Za-z]+", "_", tool.name.removeprefix("tools.")).lower()
        path, others = f"{tool.service}/{slug}.py", [name for name in traffic.services if name != tool.service]
        body = "".join(f"def {word}(record):\n    return record['{word}']\n\n\n" for word in traffic.business.fields)
        first = {path: body, "README.md": f"# {traffic.project}\n"}
        first |= {f"{name}/main.py": f"NAME = '{name}'\n" for name in traffic.services}
        self.commits.append(Commit(at=-draw.uniform(40, 90) * 3600, subject="Import", files=first))
        hours = [-draw.uniform(5, 20) * 3600, -draw.uniform(1, 4) * 3600]
        for number, moment in enumerate(
            [*hours, at - draw.uniform(30, 50) * MINUTE, at + draw.uniform(15, 30) * MINUTE]
        ):
            other = f"{draw.choice(others)}/main.py"
            more = "".join(f"LIMIT_{each} = {draw.randrange(90)}\n" for each in range(number + 1))
            self.commit(moment, other, first[other] + more)
        return path, body

    def commit(self, at: float, path: str, content: str) -> Commit:
        """A commit to one file, under one of the subjects that people write."""
        business = self.traffic.business
        subject = self.draw.choice(SUBJECTS).format(
            field=self.draw.choice(business.fields), thing=self.draw.choice(business.things)
        )
        made = Commit(at=at, subject=subject, files={path: content})
        self.commits.append(made)
        return made

    def blame(
        self,
        stage: Stage,
        *marks: str,
        kind: str = "error",
        thrown: Thrown | None = None,
        tolerance: float = 15 * MINUTE,
        also: tuple[str, ...] = (),
    ) -> None:
        """This is what is wrong, and which change did it. It begins with the first trace that meets it."""
        self.blamed.append(stage.name)
        text = re.sub(r"\{\w+\}", " ", thrown[1]) if thrown else ""
        words = tuple(dict.fromkeys(re.findall(r"[a-z_]{3,}", text.lower())))[:8]
        self.causes.append(
            Cause(
                kind=kind,
                components=(stage.name.replace("{model}", "").strip(), *also),
                words=words,
                marks=marks,
                onset="",
                tolerance_s=max(tolerance, self.traffic.seconds * 0.08),
            )
        )

    def write(self, folder: Path) -> WindowGold:
        """The window as files below a folder of its own; returns what is true of it."""
        folder.mkdir(parents=True)
        spans = self.traffic.spans(self.count)
        while self.count < MOST_TRACES and any(
            len(self.traffic.met.get(stage, ())) < LEAST_HITS for stage in self.blamed
        ):
            self.count = min(MOST_TRACES, int(self.count * 1.4))
            spans = self.traffic.spans(self.count)
        spans.sort(key=lambda span: span["end_time"])  # as exporters send them
        (folder / TRACES).write_text("".join(f"{json.dumps(span)}\n" for span in spans), "utf-8")
        deploys = sorted(self.deploys, key=lambda each: each[0].at)
        if deploys and self.listed:
            rows = [
                {"at": self.moment(each.at), "service": each.service, "version": each.version}
                | ({"summary": note} if note else {})
                for each, note in deploys
            ]
            (folder / DEPLOYS).write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
        for at, tag, files in self.snapshots:
            about = json.dumps({"created_at": self.moment(at)})
            for path, content in {**files, "metadata.json": about}.items():
                target = folder / CONFIGS / tag / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content, "utf-8")
        hashes = self._repository(folder / REPOSITORY) if self.commits else {}
        firsts = [self.moment(min(self.traffic.met[stage])) for stage in self.blamed]
        causes = [replace(each, onset=first) for each, first in zip(self.causes, firsts, strict=True)]
        if self.guilty is not None:
            causes = [replace(each, marks=(hashes[self.guilty.at],)) for each in causes]
        seen = [each.version for each, _ in deploys] + [tag for _, tag, _ in self.snapshots] + list(hashes.values())
        return WindowGold(name=self.name, kind=self.kind, causes=tuple(causes), changes=tuple(dict.fromkeys(seen)))

    def _repository(self, folder: Path) -> dict[float, str]:
        """A git repository with the commits; their hashes by their times."""
        began = self.traffic.start_us / 1e6
        stream = ""
        for each in sorted(self.commits, key=lambda each: each.at):
            stream += f"commit refs/heads/main\ncommitter Kim Lund <kim@example.org> {int(began + each.at)} +0000\n"
            stream += _data(each.subject)
            stream += "".join(f"M 100644 inline {path}\n{_data(content)}" for path, content in each.files.items())
        run = partial(subprocess.run, check=True, capture_output=True, text=True, cwd=folder)
        folder.mkdir()
        for words in (
            ["init", "--quiet", "--initial-branch=main"],
            ["fast-import", "--quiet"],
            ["reset", "--quiet", "--hard"],
        ):
            run(["git", *words], input=stream if words[0] == "fast-import" else "")
        listed = run(["git", "log", "--format=%ct %H"]).stdout.split()
        at_second = dict(zip(map(int, listed[::2]), listed[1::2], strict=True))
        return {each.at: at_second[int(began + each.at)] for each in self.commits}


def one_path(window: TraceWindow) -> None:
    """A deploy breaks one tool, and with it one or two routes."""
    tool, at = window.tool(), window.share(0.4, 0.6)
    window.quiet_deploys(tool.service, around=at - 20 * MINUTE)
    gone = window.ship(at, tool.service)
    thrown = window.thrown(BROKEN, tool.service)
    rate = window.draw.uniform(0.6, 0.95)
    window.traffic.troubles.append(Trouble(stage=tool.name, versions={gone.version: rate}, thrown=thrown))
    window.blame(tool, gone.version, thrown=thrown)


def two_causes(window: TraceWindow) -> None:
    """A deploy breaks one tool; later another one fails for a reason of its own."""
    first, at = window.tool(low=0.3), window.share(0.25, 0.4)
    second, later = window.tool(low=0.3, other_than=first), window.share(0.6, 0.7)
    gone = window.ship(at, first.service)
    thrown = window.thrown(BROKEN, first.service)
    window.traffic.troubles.append(Trouble(stage=first.name, versions={gone.version: 0.7}, thrown=thrown))
    window.blame(first, gone.version, thrown=thrown)
    if window.draw.random() < 0.5:
        other = window.thrown(CREDENTIAL, second.service)
        window.traffic.troubles.append(Trouble(stage=second.name, begin=later, thrown=other))
        window.blame(second, thrown=other)
        return
    again = window.ship(later, second.service)
    other = window.thrown(SWITCHED, second.service)
    window.traffic.troubles.append(Trouble(stage=second.name, versions={again.version: 0.8}, thrown=other))
    window.blame(second, again.version, thrown=other)


def early_stray(window: TraceWindow) -> None:
    """Something else fails once or twice long before the deploy that matters."""
    tool, at = window.tool(), window.share(0.5, 0.65)
    other = window.tool(other_than=tool)
    early = Trouble(
        stage=other.name,
        begin=0,
        end=window.share(0.08, 0.12),
        rate=0.35,
        thrown=("RateLimitError", "429 Too Many Requests, retry after {n} s"),
    )
    gone = window.ship(at, tool.service)
    thrown = window.thrown(BROKEN, tool.service)
    broken = Trouble(stage=tool.name, versions={gone.version: 0.75}, thrown=thrown)
    window.traffic.troubles += [early, broken]
    window.blame(tool, gone.version, thrown=thrown)


def slow_burn(window: TraceWindow) -> None:
    """A deploy leaks something: failures are rare at first and common at the end."""
    tool, at = window.tool(low=0.35), window.share(0.12, 0.2)
    gone = window.ship(at, tool.service)
    window.quiet_deploys(tool.service)
    if not window.traffic.one_release:
        others = [name for name in window.traffic.services if name != tool.service]
        window.ship(window.share(0.5, 0.7), window.draw.choice(others))
    thrown = window.thrown(EXHAUSTED, tool.service)
    window.traffic.troubles.append(Trouble(stage=tool.name, begin=at, rate=0.8, grows=True, thrown=thrown))
    window.blame(tool, gone.version, thrown=thrown, tolerance=window.traffic.seconds * 0.35)


def dear_prompt(window: TraceWindow) -> None:
    """The system prompt gets long examples; every call of a model costs more than twice as much."""
    llm, at = window.traffic.llms[0], window.share(0.4, 0.6)
    example = "Example: the customer asks for {thing} {id}. First look it up, then answer in two sentences.\n"
    things = window.traffic.business.things
    longer = "".join(filled(example.replace("{thing}", window.draw.choice(things)), window.draw) for _ in range(24))
    (_, tag) = window.configure(
        (-window.share(0.5, 2.0), "limits.yaml", "default:\n  timeout_ms: 9000\n"),
        (at, "prompts/system.md", f"You work for {window.traffic.project}.\n{longer}"),
    )
    window.quiet_deploys(around=at)
    window.traffic.troubles.append(Trouble(stage=llm.name, begin=at, tokens=window.draw.uniform(2.2, 3.2)))
    names = tuple(each.name for each in window.traffic.routes)
    window.blame(llm, tag, kind="costly", also=(*window.traffic.models, llm.service, *names))


def slow_stage(window: TraceWindow) -> None:
    """A deploy makes one stage many times slower; nothing fails."""
    pool = [*window.traffic.tools, *window.traffic.stores]
    fit = [each for each in pool if window.traffic.share(each) >= 0.3]
    stage, at = window.draw.choice(fit or [window.tool()]), window.share(0.4, 0.6)
    window.quiet_deploys(stage.service, around=at)
    gone = window.ship(at, stage.service)
    window.traffic.troubles.append(
        Trouble(stage=stage.name, versions={gone.version: 0.95}, slow=window.draw.uniform(7, 12))
    )
    window.blame(stage, gone.version, kind="slow", also=(stage.service,))


def retry_storm(window: TraceWindow) -> None:
    """A timeout is cut and retries are raised: most calls of one tool time out, again and again."""
    tool, at = window.tool(low=0.3), window.share(0.4, 0.6)
    limits = "".join(
        f"{name}:\n  timeout_ms: {250 if name == tool.service else 8000}\n  retries: {6 if name == tool.service else 1}\n"
        for name in window.traffic.services
    )
    flags = json.dumps(
        {f"new_{each}": each == window.traffic.business.things[0] for each in window.traffic.business.things}
    )
    (_, tag) = window.configure((-window.share(0.3, 2.0), "flags.json", flags), (at, "limits.yaml", limits))
    window.quiet_deploys(tool.service, around=at)
    thrown = window.thrown(TIMED_OUT, tool.service)
    window.traffic.tries[tool.name] = 6
    window.traffic.troubles.append(Trouble(stage=tool.name, begin=at, rate=0.85, thrown=thrown, again=0.85))
    window.blame(tool, tag, thrown=thrown)


def model_switch(window: TraceWindow) -> None:
    """Another model is called; the arguments it writes for one tool are no JSON."""
    traffic, tool, at = window.traffic, window.tool(), window.share(0.4, 0.6)
    others = [name for names in MODELS.values() for name in names if name not in traffic.models]
    model = window.draw.choice(others)
    traffic.switches.append((at, 0, model))
    marks = [model]
    if window.draw.random() < 0.6:
        tags = window.configure(
            (-window.share(0.3, 2.0), "prompts/system.md", f"You work for {traffic.project}. Be kind.\n"),
            (at, "models.yaml", f"slot_0: {model}\nslot_1: {traffic.models[1]}\n"),
        )
        marks.append(tags[-1])
        window.quiet_deploys(tool.service, around=at)
    else:
        window.quiet_deploys(tool.service)
        marks.append(window.ship(at, traffic.llms[0].service, f"answers with {model}", rollout=1).version)
    thrown = window.thrown(BAD_JSON, tool.service)
    traffic.troubles.append(Trouble(stage=tool.name, model=model, rate=window.draw.uniform(0.45, 0.7), thrown=thrown))
    window.blame(tool, *marks, thrown=thrown)


def provider_down(window: TraceWindow) -> None:
    """The provider of a model refuses most calls for a while; no change of ours did it."""
    traffic, at = window.traffic, window.share(0.4, 0.55)
    llm, model = traffic.llms[0], traffic.models[0]
    window.quiet_deploys(around=at)
    window.ship(at + window.share(0.2, 0.25), window.draw.choice(traffic.services))
    thrown = window.thrown(PROVIDER, llm.service)
    end = at + window.share(0.2, 0.35)
    traffic.troubles.append(
        Trouble(stage=llm.name, begin=at, end=end, model=model, rate=0.75, thrown=thrown, again=0.85)
    )
    window.blame(llm, thrown=thrown, also=(model, provider_of(model)))


def credential_expired(window: TraceWindow) -> None:
    """A key or certificate runs out at a moment; no change of ours did it."""
    tool, at = window.tool(), window.share(0.4, 0.6)
    window.quiet_deploys(tool.service, around=at)
    if window.draw.random() < 0.5:
        window.configure((-window.share(0.6, 2.0), "flags.json", '{"dark_mode": true}\n'))
    else:
        window.history(tool, at)
    thrown = window.thrown(CREDENTIAL, tool.service)
    window.traffic.troubles.append(Trouble(stage=tool.name, begin=at, rate=0.97, thrown=thrown))
    window.blame(tool, thrown=thrown)


def flag_flipped(window: TraceWindow) -> None:
    """A flag in the configuration is set; the tool behind it fails."""
    tool, at = window.tool(), window.share(0.4, 0.6)
    things = window.traffic.business.things
    flipped = {f"new_{each}": each == things[1] for each in things}
    _, tag = window.configure(
        (-window.share(0.4, 1.5), "prompts/system.md", f"You work for {window.traffic.project}. Answer in short.\n"),
        (at, "flags.json", json.dumps(flipped, indent=1) + "\n"),
    )
    window.quiet_deploys(tool.service, around=at)
    thrown = window.thrown(SWITCHED, tool.service)
    window.traffic.troubles.append(
        Trouble(stage=tool.name, begin=at, rate=window.draw.uniform(0.6, 0.95), thrown=thrown)
    )
    window.blame(tool, tag, thrown=thrown)


def bad_commit(window: TraceWindow) -> None:
    """A commit to the tool's own file; it is live some minutes later, and so is one to another service."""
    draw, traffic, tool, at = window.draw, window.traffic, window.tool(), window.share(0.45, 0.6)
    path, body = window.history(tool, at)
    name = traffic.business.fields[0]
    changed = body.replace(f"record['{name}']", f"record['{name}']['value']")
    window.guilty = window.commit(at - draw.uniform(5, 9) * MINUTE, path, changed)
    window.commit(at - draw.uniform(1, 3) * MINUTE, "README.md", f"# {traffic.project}\n\nSee the wiki.\n")
    thrown = window.thrown(BROKEN, tool.service)
    traffic.troubles.append(Trouble(stage=tool.name, begin=at, rate=draw.uniform(0.6, 0.9), thrown=thrown))
    window.blame(tool, thrown=thrown)


def two_deploys(window: TraceWindow) -> None:
    """Another service is deployed just before the first failure; the guilty deploy is a little older."""
    tool, at = window.tool(), window.share(0.4, 0.6)
    others = [name for name in window.traffic.services if name != tool.service]
    window.quiet_deploys(tool.service)
    gone = window.ship(at - window.draw.uniform(4, 7) * MINUTE, tool.service)
    window.ship(at - window.draw.uniform(0.5, 1.5) * MINUTE, window.draw.choice(others))
    thrown = window.thrown(BROKEN, tool.service)
    rate = window.draw.uniform(0.7, 0.95)
    window.traffic.troubles.append(Trouble(stage=tool.name, begin=at, versions={gone.version: rate}, thrown=thrown))
    window.blame(tool, gone.version, thrown=thrown)


def taken_back(window: TraceWindow) -> None:
    """A bad deploy is taken back within the window, and the failures stop."""
    tool, at = window.tool(low=0.3), window.share(0.3, 0.4)
    before = next(each for each in window.traffic.shipped if each.service == tool.service)
    gone = window.ship(at, tool.service)
    window.ship(window.share(0.6, 0.7), tool.service, version=before.version, rollout=45)
    thrown = window.thrown(BROKEN, tool.service)
    window.traffic.troubles.append(Trouble(stage=tool.name, versions={gone.version: 0.85}, thrown=thrown))
    window.blame(tool, gone.version, thrown=thrown)


def one_segment(window: TraceWindow) -> None:
    """A deploy or a setting breaks one tool for one tenant, region, plan or channel only."""
    tool, at = window.tool(low=0.4, high=1.0), window.share(0.35, 0.5)
    key, values = window.draw.choice(window.traffic.segments)
    value = values[window.draw.randint(1, 2)]
    thrown = window.thrown(SWITCHED, tool.service)
    if window.draw.random() < 0.5:
        window.quiet_deploys(tool.service, around=at)
        gone = window.ship(at, tool.service)
        trouble = Trouble(stage=tool.name, versions={gone.version: 0.95}, only=(key, value), thrown=thrown)
        mark = gone.version
    else:
        window.quiet_deploys(tool.service, around=at)
        setting = json.dumps({key: {value: {"strict": True}}}, indent=1) + "\n"
        _, mark = window.configure((-window.share(0.3, 1.0), "flags.json", "{}\n"), (at, "overrides.json", setting))
        trouble = Trouble(stage=tool.name, begin=at, rate=0.95, only=(key, value), thrown=thrown)
    window.traffic.troubles.append(trouble)
    window.blame(tool, mark, thrown=thrown, tolerance=25 * MINUTE)


def many_ids(window: TraceWindow) -> None:
    """A deploy breaks one tool; no two of its messages are alike."""
    tool, at = window.tool(), window.share(0.4, 0.6)
    window.quiet_deploys(tool.service)
    gone = window.ship(at, tool.service)
    thrown = window.thrown(NUMBERED, tool.service)
    rate = window.draw.uniform(0.6, 0.9)
    window.traffic.troubles.append(Trouble(stage=tool.name, versions={gone.version: rate}, thrown=thrown))
    window.blame(tool, gone.version, thrown=thrown)


def partial_fix(window: TraceWindow) -> None:
    """A bad deploy, and later one that mends most of it."""
    tool, at = window.tool(low=0.35), window.share(0.25, 0.35)
    gone = window.ship(at, tool.service)
    mended = window.ship(window.share(0.6, 0.68), tool.service)
    thrown = window.thrown(BROKEN, tool.service)
    rates = {gone.version: 0.85, mended.version: 0.25}
    window.traffic.troubles.append(Trouble(stage=tool.name, versions=rates, thrown=thrown))
    window.blame(tool, gone.version, thrown=thrown)


def nothing(window: TraceWindow) -> None:
    """An ordinary window, in which people commit as ever."""
    window.quiet_deploys()
    window.history(window.tool(), window.share(0.4, 0.6))


def nothing_but_a_deploy(window: TraceWindow) -> None:
    """An ordinary window with more noise than usual; a deploy and a setting within it do no harm."""
    at = window.share(0.4, 0.6)
    window.listed = True
    window.traffic.stray_rate = 0.03
    window.quiet_deploys()
    window.ship(at, window.draw.choice(window.traffic.services))
    window.configure((at + window.share(0.05, 0.15), "flags.json", '{"dark_mode": true}\n'))


def nothing_but_retries(window: TraceWindow) -> None:
    """Many calls fail at the first try and succeed at the second, all the time, as on any other day."""
    window.traffic.mended_rate = 0.22
    window.traffic.stray_rate = 0.012
    for tool in window.draw.sample(window.traffic.tools, k=4):
        window.traffic.tries[tool.name] = 3
    window.quiet_deploys(around=window.share(0.5, 0.7))


KINDS: tuple[Callable[[TraceWindow], None], ...] = (
    one_path,
    two_causes,
    early_stray,
    slow_burn,
    dear_prompt,
    slow_stage,
    retry_storm,
    model_switch,
    provider_down,
    credential_expired,
    flag_flipped,
    bad_commit,
    two_deploys,
    taken_back,
    one_segment,
    many_ids,
    partial_fix,
    nothing,
    nothing_but_a_deploy,
    nothing_but_retries,
)
EVERY_SERVICE = frozenset({"two_deploys", "provider_down", "credential_expired", "one_segment", "flag_flipped"})
"""Kinds in which a deploy of another service must not look like one of everything."""


def windows(seed: int) -> list[TraceWindow]:
    """All windows of a seed, in an order that tells nothing."""
    draw = Random(f"windows {seed}")  # noqa: S311 - reproducible on purpose
    chosen = draw.sample(BUSINESSES, k=8)
    turns = [chosen[number % len(chosen)] for number in range(len(KINDS))]
    draw.shuffle(turns)
    made: list[TraceWindow] = []
    for kind, business in zip(KINDS, turns, strict=True):
        own = Random(draw.getrandbits(64))  # noqa: S311 - reproducible on purpose
        one_release = kind.__name__ not in EVERY_SERVICE and own.random() < 0.3
        stamped = own.choice(["all", "all", "some", "root", "none"])
        told_by_spans = stamped in {"all", "some"} or (stamped == "root" and one_release)
        window = TraceWindow(
            name=f"{own.getrandbits(32):08x}",
            kind=kind.__name__,
            draw=own,
            traffic=Traffic(own, business, one_release=one_release, stamped=stamped, hours=own.uniform(1.5, 6)),
            count=own.randint(280, 400) if kind is one_segment else own.randint(100, 340),
            listed=not told_by_spans or own.random() < 0.5,
        )
        kind(window)
        made.append(window)
    draw.shuffle(made)
    return made


def make(seed: int, folder: Path, gold: Path, kinds: Collection[str] = ()) -> None:
    """Write the windows of a seed below a folder, all or only some kinds, and what is true of them to a file elsewhere."""
    chosen = [window for window in windows(seed) if not kinds or window.kind in kinds]
    truths = [window.write(folder / window.name) for window in chosen]
    gold.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(gold, json.dumps([asdict(each) for each in truths], indent=1).encode())


def _data(text: str) -> str:
    return f"data {len(text.encode())}\n{text}\n"
