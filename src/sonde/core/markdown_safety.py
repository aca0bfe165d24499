"""Markdown that calls nobody when it is shown: pictures and frames from elsewhere become the words they are made of.

A page that loads `![](https://…?what-the-model-read)` tells a stranger what was read, without a click. Links that somebody must click stay.
Nothing else of the text is touched, and programs in it only where they look like such a picture. Takes time linear in the text.
"""

from __future__ import annotations

import re

_ELSEWHERE = r"\s{0,100}<?\s{0,100}(?:[a-z][a-z0-9+.-]{0,20}:)?(?:/|\\|&#|%2f){2}"
_PARAGRAPHS = re.compile(r"(\n[ \t]*\n)")  # neither a picture nor a tag goes on over an empty line
_PICTURE, _PLACE = re.compile(r"!\["), re.compile(rf"\]\({_ELSEWHERE}", re.IGNORECASE)
_TAG, _ADDRESS = (
    re.compile(r"<(?=[a-z][a-z0-9]{0,20}[\s/])", re.IGNORECASE),
    re.compile(r"//|\\\\|&#|url\(", re.IGNORECASE),
)
_DEFINITION = re.compile(rf"^([ \t>*+-]{{0,20}})\[(?=[^\]]{{1,999}}\]:{_ELSEWHERE})", re.IGNORECASE | re.MULTILINE)


def quiet(markdown: str) -> str:
    """The text with nothing in it that a viewer would fetch by itself."""
    return "".join(map(_quiet_paragraph, _PARAGRAPHS.split(_DEFINITION.sub(r"\1\\[", markdown))))


def _quiet_paragraph(text: str) -> str:
    text = _before(_PLACE, text, _PICTURE, r"!\[")
    return _before(_ADDRESS, text, _TAG, "&lt;")


def _before(place: re.Pattern[str], text: str, sign: re.Pattern[str], words: str) -> str:
    """The text with these words for every sign that a place from elsewhere may belong to: one that follows it."""
    last = max((found.start() for found in place.finditer(text)), default=-1)
    return sign.sub(lambda found: words if found.start() < last else found[0], text)
