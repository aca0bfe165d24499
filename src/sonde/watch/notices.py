"""Telling people: what happened to issues goes to a program or to a webhook.

    json      one object for each change: `event`, `issue`, `key`; for a digest `events`
    slack     a message for an incoming webhook of Slack
    github    a new issue, for https://api.github.com/repos/OWNER/REPO/issues

Each change is told at least once, in order, also after a kill or while the receiver is away, and muted issues are not told. That a
change is being told is written down before it is sent, that it was told after. A kill between the two sends it once more with the same
`key`, which is also the header Idempotency-Key: receivers that remember keys see it once. What a trace says is data: it loses control
signs and what looks like a secret, is cut, and is no markup, link or mention in Slack or on GitHub. Addresses and tokens are in no
message and not in the state.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from http import HTTPStatus
from typing import Any, Literal, Self, cast
from urllib.parse import unquote_plus, urlsplit

import httpx2

from sonde.contexts.traces.span import time_text
from sonde.core.cancellation import Stop
from sonde.core.canonical import clip, lapse, plural
from sonde.core.deadline import Clock, SystemClock
from sonde.core.markdown_safety import code
from sonde.core.redaction import redact_text, rewrite_value, secret_forms, without_surrogates
from sonde.errors import ConfigError, SondeError
from sonde.models.command import PASSED_ON
from sonde.models.http_errors import retry_after
from sonde.models.process import Program, run_process
from sonde.trace_client import MAX_REPLY_BYTES, ReplyTooLarge, TraceClient
from sonde.watch.issues import KnownIssue, affected_text, known_issues
from sonde.watch.lifecycle import NoSuchIssue
from sonde.watch.state import Happening, WatchState, happenings

NoticeShape = Literal["json", "slack", "github"]
KINDS = ("new", "regressed", "reopened", "resolved", "investigated")
TOLD = ("new", "regressed")
SEND_S = 30.0
PROGRAM_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_ASKED_S = 2.0, 600.0, 3_600.0
TRIES = 150  # about a day
TRIES_AT_THE_END = 4
TROUBLE_S = 60.0  # after an error of our own, such as a full disk
LOOK_S = 1.0
MANY = 20  # changes that wait, which are then told together
EVENTS = 50  # of one digest
TEXT = 500
REFUSED = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
_SIGNS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]+")
_CALL = re.compile(r"@(?=everyone\b|channel\b|here\b)", re.IGNORECASE)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeTarget:
    """Who is told: a program, or an address with its token."""

    argv: tuple[str, ...] = ()
    url: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    shape: NoticeShape = "json"
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @classmethod
    def of(
        cls, text: str, *, shape: NoticeShape | None = None, token: str = "", environ: Mapping[str, str]
    ) -> NoticeTarget:
        """From what the user gave. ConfigError without the text itself: an address may be a secret."""
        if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
            return cls._program(text, shape, token, environ)
        try:
            parts = urlsplit(text)
            _ = parts.port
        except ValueError:
            raise ConfigError("--on-new: the address is not a URL, such as https://example.org/hook") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or not text.isascii() or re.search(r"\s", text):
            raise ConfigError(
                "--on-new takes a program or an address that begins with https:// or http:// and has no spaces"
            )
        if parts.username is not None or parts.password is not None:
            raise ConfigError("--on-new: no password in the address; put a token into SONDE_ON_NEW_TOKEN or a file")
        usual: NoticeShape = "json"
        if parts.hostname == "hooks.slack.com":
            usual = "slack"
        elif parts.hostname == "api.github.com" and re.fullmatch(r"/repos/[^/]+/[^/]+/issues/?", parts.path):
            usual = "github"
        return cls(url=text, token=token, shape=shape or usual, environ=environ)

    @classmethod
    def _program(cls, text: str, shape: NoticeShape | None, token: str, environ: Mapping[str, str]) -> Self:
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise ConfigError(f"--on-new: the command cannot be split into words: {error}; check its quotes") from None
        passed = {"PATH": os.defpath, **{name: environ[name] for name in PASSED_ON if name in environ}}
        if not argv or any("\0" in word for word in argv):
            raise ConfigError("--on-new: the command is empty or holds a NUL character")
        if shape not in (None, "json") or token:
            raise ConfigError("--on-new-as and a token are for addresses; a program gets JSON on its standard input")
        if shutil.which(argv[0], path=passed["PATH"]) is None:
            raise ConfigError(f"--on-new: the program {argv[0]!r} was not found or may not be executed")
        return cls(argv=argv, environ=passed)

    @property
    def name(self) -> str:
        """What messages call it: neither arguments nor the path of an address, which may be secrets."""
        if self.argv:
            return self.argv[0]
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueNotice:
    """One message: the changes that it tells, as plain data that is fit to be sent."""

    key: str
    last: int
    """The last happening that counts as told with it."""
    attempt: int
    events: tuple[Json, ...]
    left_out: int
    together: bool
    project: str

    def body(self) -> Json:
        """As JSON."""
        head: Json = {"format": 1, "key": self.key, "attempt": self.attempt, "project": self.project}
        if self.together:
            return {**head, "event": "digest", "events": list(self.events), "left_out": self.left_out}
        return {**head, **self.events[0]}

    @property
    def title(self) -> str:
        """One line."""
        if self.together:
            return f"{plural(len(self.events) + self.left_out, 'change')} of issues" + (
                f" in {self.project}" if self.project else ""
            )
        event = self.events[0]
        return f"{_which(event)}: {event['issue']['title']}"


def _which(event: Json) -> str:
    """What happened to which issue."""
    kind = ", recovered" if event["issue"].get("recovered") else ""
    return f"{event['event']}{kind}: issue {event['issue']['number']}"


def _moment(text: str) -> str:
    """A time for people, with its zone."""
    return f"{text[:19].replace('T', ' ')} UTC"


def _said(event: Json, project: str) -> list[tuple[str, str]]:
    """What a person wants to know of an issue, with what each line is about."""
    issue: Json = event["issue"]
    lines = [
        ("cause", event["cause"]),
        ("traces", f"{event['extent']}, first {_moment(issue['first_seen'])}, last {_moment(issue['last_seen'])}"),
        ("where", issue["component"] + (f" in {project}" if project else "")),
        ("affected", affected_text(issue["users"], issue["sessions"])),
    ]
    lines += [("releases", event["set_apart"])] if event["set_apart"] else []
    lines += [("assigned to", issue["assignee"])] if issue["assignee"] else []
    lines += [("for example", issue["trace_ids"][0])] if issue["trace_ids"] else []
    told = event["text"].startswith(f"issue {issue['number']} (") or event["text"] == issue["cause"]
    lines += [] if told else [("why", event["text"])]
    lines += [("page", event["page"])] if event["page"] else []
    return lines


def slack_message(notice: IssueNotice) -> Json:
    """For an incoming webhook. Blocks are plain text, which Slack does not read as markup; the line for notifications is escaped."""
    lines: list[str] = []
    for event in notice.events:
        if notice.together:
            lines.append(f"{_which(event)}: {event['issue']['title']}")
        else:
            lines += [f"{what}: {words}" for what, words in _said(event, notice.project)]
    lines += [f"and {notice.left_out} more"] if notice.left_out else []
    lines = [_CALL.sub("@\u200b", line) for line in lines]
    title = _CALL.sub("@\u200b", notice.title)
    escaped = clip(title, 250).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    def block(kind: str, text: str, most: int) -> Json:
        return {"type": kind, "text": {"type": "plain_text", "text": clip(text, most), "emoji": False}}

    return {
        "text": escaped,
        "mrkdwn": False,
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
        "blocks": [block("header", title, 150), block("section", "\n".join(lines), 2_900)],
    }


def github_issue(notice: IssueNotice) -> Json:
    """For GitHub's issues. Whatever comes from a trace or a person stands as code: no mention, link or HTML in it works."""
    lines: list[str] = []
    for event in notice.events:
        lines += [f"- {_which(event)}: {code(event['issue']['title'])}"]
        lines += (
            [f"  - {what}: {code(words)}" for what, words in _said(event, notice.project)]
            if not notice.together
            else []
        )
    lines += [f"- and {notice.left_out} more"] if notice.left_out else []
    numbers = " ".join(str(event["issue"]["number"]) for event in notice.events[:1])
    lines += ["", f"`sonde issues show {numbers}` shows it. Key of this notice: `{notice.key}`"]
    return {"title": clip(_CALL.sub("@\u200b", notice.title), 200), "body": "\n".join(lines)}


BODIES: Mapping[NoticeShape, Callable[[IssueNotice], Json]] = {
    "json": IssueNotice.body,
    "slack": slack_message,
    "github": github_issue,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failed:
    """An attempt that told nobody. `final`: trying again would not help."""

    why: str
    pause_s: float = 0.0
    final: bool = False


class Messenger:
    """Tells one target what happens in a watch, in a thread of its own while `with` lasts, or by calling `tell`."""

    def __init__(
        self,
        state: WatchState,
        target: NoticeTarget,
        *,
        kinds: Sequence[str] = TOLD,
        digest_s: float | None = None,
        keys: Sequence[str] = (),
        hide: Callable[[str], str] = str,
        stop: Stop | None = None,
        clock: Clock | None = None,
        said: Callable[[str], object] = print,
    ) -> None:
        """`keys`: values that no notice may hold; `hide`: what else is taken out of its texts; `said` hears of what went wrong."""
        self._state = state
        self._target = target
        self._kinds = frozenset(kinds)
        self._digest_s = digest_s
        self._forms = secret_forms([*keys, target.token])
        self._hide = hide
        self._stop = stop or Stop()
        self._clock = clock or SystemClock()
        self._say = said
        self.page = ""
        """The address of the page that shows the issues, if there is one."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="sonde-tell", daemon=True)
        self._client: TraceClient | None = None
        if target.url:
            headers = {"authorization": f"Bearer {target.token}"} if target.token else {}
            parts = urlsplit(target.url)
            self._path = f"{parts.path}?{parts.query}" if parts.query else parts.path or "/"
            asked = [each.partition("=")[2] or each for each in re.split("[&;]", parts.query)]
            pieces = [*parts.path.split("/"), *asked]  # a receiver may repeat any of them in what it answers
            hidden = [self._path, target.token, *pieces, *map(unquote_plus, pieces)]
            self._client = TraceClient("the receiver", target.name, headers=headers, secrets=hidden, timeout_s=SEND_S)
        with state.transaction():
            if not state.recall("told"):  # what happened before there was anybody to tell is on the page
                state.remember("told", int(state.one("SELECT coalesce(max(id), 0) FROM happenings")))
            if not state.recall("watch_id"):
                state.remember("watch_id", secrets.token_hex(8))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """An attempt under way is finished; what is left is told after the next start."""
        self._over.set()
        self._thread.join()
        if self._client is not None:
            self._client.close()

    def _work(self) -> None:
        while not self._over.is_set() and not self._stop.is_set():
            pause = LOOK_S
            try:
                told = self.tell()
            except Exception as error:  # noqa: BLE001  # the top of a worker: the next change must still be told
                why = error if isinstance(error, SondeError) else type(error).__name__
                self._say(f"nobody could be told: {why}; again in {lapse(TROUBLE_S)}")
                told, pause = False, TROUBLE_S
            if not told:
                self._over.wait(pause)

    def flush(self) -> bool:
        """Tell what waits, a digest too, with a few attempts; whether everything was told. For the end of a watch that ends by itself."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for attempt in range(TRIES_AT_THE_END):
            while self.tell(now=True):
                if self._stop.is_set():
                    return False
            if not self._state.recall("telling"):
                return True
            if attempt < TRIES_AT_THE_END - 1 and self._stop.wait(0.5 * 2**attempt):
                break
        return False

    def tell(self, *, now: bool = False) -> bool:
        """One attempt at the next notice, if one is due; whether it was told. `now`: neither a digest nor a second attempt waits."""
        at = self._clock.utc().timestamp()
        notice = self._next(at, now=now)
        if notice is None:
            return False
        failed = self._send(notice)
        at = self._clock.utc().timestamp()
        if failed is not None and not failed.final and notice.attempt < TRIES:
            pause = min(FIRST_PAUSE_S * 2 ** min(notice.attempt - 1, 20), LONGEST_PAUSE_S)
            pause = max(pause, min(failed.pause_s, LONGEST_ASKED_S))
            self._state.remember("telling", f"{notice.last} {notice.attempt} {at + pause:.0f}")
            self._say(f"{self._target.name} was not told ({failed.why}); again in {lapse(pause)}")
            return False
        with self._state.transaction():
            self._state.remember("told", notice.last)
            self._state.remember("telling", "")
            self._state.remember("digest_at", f"{at:.0f}")
            if failed is not None:
                self._state.remember("untold", self._state.number("untold") + 1)
        if failed is not None:
            self._say(f"{self._target.name} was not told and will not be: {failed.why}; `sonde issues` lists all")
        return True

    def _next(self, at: float, *, now: bool) -> IssueNotice | None:
        """What is told next, written down as being told; None if nothing waits or it is too early."""
        state = self._state
        if not state.one("SELECT max(id) > ? FROM happenings", state.number("told")):
            return None  # as nearly always
        with state.transaction():
            told = state.number("told")
            under_way = [int(word) for word in state.recall("telling").split() if word.isdecimal() and len(word) < 20]
            last, tries, retry_at = under_way if len(under_way) == 3 else (0, 0, 0)
            if not now and at < retry_at <= at + LONGEST_ASKED_S:  # later than that: our clock has jumped
                return None
            early = self._digest_s is not None and 0 <= at - state.number("digest_at") < self._digest_s
            if early and not under_way and not now:
                return None
            waiting = happenings(state, after=told)
            if last:
                waiting = [each for each in waiting if each.id <= last]
            found = [(each, issue) for each in waiting if (issue := self._issue(each)) is not None]
            together = self._digest_s is not None or len(found) > (1 if last else MANY)
            if not last and not together and found:
                found = found[:1]
                last = found[0][0].id
            last = last or (waiting[-1].id if waiting else told)
            if not found:
                if last > told or under_way:
                    state.remember("told", last)
                    state.remember("telling", "")
                return None
            state.remember("telling", f"{last} {tries + 1} 0")
            return IssueNotice(
                key=f"sonde-{state.recall('watch_id')}-{told + 1}-{last}",
                last=last,
                attempt=tries + 1,
                events=tuple(self._event(each, issue) for each, issue in found[:EVENTS]),
                left_out=max(0, len(found) - EVENTS),
                together=together,
                project=self._clean(state.recall("project")),
            )

    def _issue(self, happening: Happening) -> KnownIssue | None:
        """The issue, unless nobody wants to hear of it, or it belongs to another one by now, which has its own happenings."""
        if happening.kind not in self._kinds:
            return None
        with suppress(NoSuchIssue):
            (issue,) = known_issues(self._state, number=happening.issue)
            return None if issue.muted else issue
        return None

    def _event(self, happening: Happening, issue: KnownIssue) -> Json:
        proof = asdict(issue.proof) if issue.proof else None
        told: Json = {
            "event": happening.kind,
            "at": time_text(happening.at_us),
            "text": happening.text or f"issue {issue.number} ({happening.kind}): {issue.title}",
            "cause": issue.cause,
            "extent": issue.extent,
            "set_apart": issue.set_apart,
            "page": f"{self.page}#/issue/{issue.number}" if self.page else "",
            "issue": {
                **issue.row(),
                "component": issue.component,
                "message": issue.message,
                "fixed_in": issue.fixed_in,
                "trend": list(issue.trend),
                "trace_ids": list(issue.traces[:5]),
                "proof": proof,
            },
        }
        return cast("Json", rewrite_value(told, self._clean))

    def _clean(self, text: str) -> str:
        whole = self._hide(redact_text(self._forms.remove(without_surrogates(text))))
        return clip(" ".join(_SIGNS.sub(" ", whole).split()), TEXT)

    def _send(self, notice: IssueNotice) -> _Failed | None:
        body = BODIES[self._target.shape](notice)
        return self._run(body) if self._client is None else self._post(self._client, body, notice.key)

    def _run(self, body: Json) -> _Failed | None:
        program = Program(
            argv=self._target.argv,
            stdin=json.dumps(body, ensure_ascii=False).encode() + b"\n",
            cwd=None,
            environment=self._target.environ,
            seconds=PROGRAM_S,
            stop=self._stop,
        )
        try:
            end = run_process(program)
        except OSError as error:
            return _Failed(why=f"it could not be started: {error.strerror}")
        if end.timed_out:
            return _Failed(why=f"it took more than {PROGRAM_S:g} s and was ended")
        if end.stopped or end.overflowed:
            return _Failed(why="it printed too much and was ended" if end.overflowed else "it was stopped")
        last = self._clean((end.stderr_tail.splitlines() or [""])[-1])
        return None if end.returncode == 0 else _Failed(why=f"exit code {end.returncode}{': ' * bool(last)}{last}")

    def _post(self, client: TraceClient, body: Json, key: str) -> _Failed | None:
        headers = {"idempotency-key": key, "user-agent": "sonde"}
        if self._target.shape == "github":
            headers |= {"accept": "application/vnd.github+json", "x-github-api-version": "2022-11-28"}
        try:
            reply = client.tell(self._path, body, headers)
        except httpx2.TimeoutException:
            return _Failed(why=f"it gave no whole answer within {SEND_S:g} s")
        except httpx2.ConnectError:
            return _Failed(why="nothing could be reached at its address")
        except ReplyTooLarge:
            return _Failed(why=f"its answer is larger than {MAX_REPLY_BYTES >> 20} MiB")
        except (httpx2.RequestError, SondeError) as error:  # its words may quote the address, which is secret
            return _Failed(why=f"the connection broke before it had answered, {type(error).__name__}")
        status = reply.status_code
        if 200 <= status < 300:
            return None
        if 300 <= status < 400:
            return _Failed(why=f"{status}: it points elsewhere, and notices follow no redirect: give the last address")
        said = self._clean(client.without_keys(reply.text[:4_000]))[:200]
        pause = retry_after(reply.headers, self._clock.utc()) or 0.0
        return _Failed(why=f"{status}{': ' * bool(said)}{said}", pause_s=pause, final=status in REFUSED)
