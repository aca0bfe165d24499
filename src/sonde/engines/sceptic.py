"""The sceptic: a reader who doubts claims about a trace and does not see how sure their author is.

Its prompt begins as the author's does: with the rules, the task, the facts, and the steps while all of them are shown, or otherwise the
outline. In that case the steps that the claims name follow, those just before them, and the first, which has the rules of the agent. The
claims come last. It answers with odds; a claim that it did not judge keeps its author's odds and is not verified.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.contexts.traces.transcript import Transcript
from sonde.core.canonical import jsonable
from sonde.engines.submission import fields_of, items_of, number
from sonde.runtime.engine import Review

GROUP = 24
SHOWN_CHARS = 60_000
# What would tell the sceptic how sure the author is, and numbers that are not the sceptic's.
HIDDEN = frozenset({"confidence", "odds", "verified", "doubt", "first_failure", "impact", "id", "caused_by"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sceptic:
    """Checks claims about one trace. `begins` is what the author was shown, with all steps if it is the `whole`; `words` ask for odds.
    Claims to which their author gives odds of at least `sure` are not checked.
    """

    begins: str
    words: str
    transcript: Transcript
    whole: bool
    kept: float
    sure: float | None = None

    def review(self) -> Review:
        """As the runtime uses it."""
        return Review(questions=self.questions, judged=judged, kept=self.kept)

    def questions(self, claims: Sequence[Mapping[str, Any]]) -> list[str]:
        """One prompt for each group of claims."""
        numbered = [
            {"claim": at, **{str(key): jsonable(value) for key, value in claim.items() if key not in HIDDEN}}
            for at, claim in enumerate(claims)
            if self.sure is None or number(claim.get("odds"), 0.0) < self.sure
        ]
        groups = [numbered[at : at + GROUP] for at in range(0, len(numbered), GROUP)]
        steps, prompts = self.transcript.steps, list[str]()
        for group in groups:
            shown = [self.begins]
            if not self.whole:
                named = {str(each.get("span_id")) for each in group}
                wanted = {at for at, step in enumerate(steps) if step.span_id in named}
                near = sorted(wanted | {at - 1 for at in wanted if at} | ({0} if self.sure is not None else set()))
                room = min(self.transcript.room, max(SHOWN_CHARS // max(len(near), 1), 400))
                texts = "\n\n".join(steps[at].text(room, most=room) for at in near)
                shown.append(f"The steps that the claims name, and those just before them:\n\n{texts}")
            prompts.append("\n\n".join([*shown, f"{self.words}\n{json.dumps(group, ensure_ascii=False)}"]))
        return prompts


def judged(claims: Sequence[Mapping[str, Any]], answers: Sequence[str]) -> list[dict[str, Any]]:
    """The claims with the odds that were given to them."""
    verdicts: dict[int, Mapping[str, Any]] = {}
    for answer in answers:
        for each in listed(answer):
            if isinstance(each.get("claim"), int) and "odds" in each:
                verdicts[each["claim"]] = each
    checked: list[dict[str, Any]] = []
    for at, claim in enumerate(claims):
        verdict = verdicts.get(at, {})
        odds = verdict["odds"] if verdict else claim.get("confidence", claim.get("odds"))
        doubt = str(verdict.get("why", ""))
        checked.append({**claim, "confidence": number(odds, 0.5), "doubt": doubt, "verified": bool(verdict)})
    return checked


def listed(text: str) -> list[dict[str, Any]]:
    """The objects of the first JSON list in an answer that has some, whatever stands around it."""
    decoder = json.JSONDecoder()
    at = text.find("[")
    while at >= 0:
        try:
            found, _ = decoder.raw_decode(text, at)
        except ValueError:
            found = None
        except RecursionError:  # a model that repeats itself writes thousands of brackets; do not try each
            return []
        objects = [fields for each in items_of(found) if (fields := fields_of(each))]
        if objects:
            return objects
        at = text.find("[", at + 1)
    return []
