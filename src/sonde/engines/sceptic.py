"""The sceptic: claims about a trace are given to somebody who doubts them and who does not see how sure their author is.

He gets the rules, the task and the steps: all of them while they are short, otherwise the outline with the steps that the claims name and
the steps just before those. What comes back are odds; a claim that nobody judged keeps the confidence it came with and is not verified.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sonde.contexts.traces.transcript import Transcript
from sonde.core.canonical import jsonable
from sonde.engines.refs import fields_of, number
from sonde.runtime.engine import Review

GROUP = 24
SHOWN_CHARS = 100_000
OUTLINE_CHARS = 20_000
HIDDEN = frozenset({"confidence", "verified", "doubt", "first_failure", "impact", "id", "caused_by"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sceptic:
    """Checks claims about one trace. `words` is the prompt that stands before claims and steps."""

    words: str
    transcript: Transcript

    def review(self) -> Review:
        """As the runtime uses it."""
        return Review(questions=self.questions, judged=judged)

    def questions(self, claims: Sequence[Mapping[str, Any]]) -> list[str]:
        """One prompt for each group of claims."""
        numbered = [{"claim": at, **_bare(claim)} for at, claim in enumerate(claims)]
        groups = [numbered[at : at + GROUP] for at in range(0, len(numbered), GROUP)]
        return [
            f"{self.words}\n{json.dumps(group, ensure_ascii=False)}\n\n{self._steps({str(each.get('span_id')) for each in group})}"
            for group in groups
        ]

    def _steps(self, named: set[str]) -> str:
        whole = self.transcript.text()
        if len(whole) <= SHOWN_CHARS:
            return f"The whole trace:\n\n{whole}"
        steps = self.transcript.steps
        wanted = {at for at, step in enumerate(steps) if step.span_id in named}
        near = sorted(wanted | {at - 1 for at in wanted if at})
        room = min(self.transcript.room, max(SHOWN_CHARS // max(len(near), 1), 400))
        shown = "\n\n".join(steps[at].text(room) for at in near)
        outline = self.transcript.outline(OUTLINE_CHARS)
        return f"The trace in outline:\n{outline}\n\nThe steps that the claims name, and those just before them:\n\n{shown}"


def judged(claims: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> list[dict[str, Any]]:
    """The claims with the odds that were given to them."""
    verdicts: dict[int, Mapping[str, Any]] = {}
    for answer in answers:
        for each in listed(answer):
            if isinstance(each.get("claim"), int) and "odds" in each:
                verdicts[each["claim"]] = each
    return [_with_verdict(claim, verdicts.get(at)) for at, claim in enumerate(claims)]


def _with_verdict(claim: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> dict[str, Any]:
    if verdict is None:
        return {**claim, "confidence": number(claim.get("confidence"), 0.5), "doubt": "", "verified": False}
    return {
        **claim,
        "confidence": number(verdict["odds"], 0.5),
        "doubt": str(verdict.get("why", "")),
        "verified": True,
    }


def _bare(claim: Mapping[str, Any]) -> dict[str, Any]:
    """A claim without what would tell the sceptic how sure its author is, and without numbers that are not the sceptic's."""
    return {str(key): jsonable(value) for key, value in claim.items() if key not in HIDDEN}


def listed(text: str) -> list[dict[str, Any]]:
    """The objects of the first JSON list in an answer that has some, whatever stands around it."""
    decoder = json.JSONDecoder()
    at = text.find("[")
    while at >= 0:
        try:
            found, _ = decoder.raw_decode(text, at)
        except ValueError:
            found = None
        except RecursionError:  # a model that repeats itself: thousands of brackets, each of which would be tried
            return []
        objects = (
            [fields for each in cast("list[Any]", found) if (fields := fields_of(each))]
            if isinstance(found, list)
            else []
        )
        if objects:
            return objects
        at = text.find("[", at + 1)
    return []
