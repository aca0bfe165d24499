"""Markdown that fetches nothing when it is shown: remote images and frames become plain text.

A page that loads `![](https://…?what-the-model-read)` tells a stranger what was read, without a click. Links that somebody must click stay.
The rest of the text is left alone, code included, unless it looks like such an image. Takes time linear in the text.
"""

from __future__ import annotations

import re

_ELSEWHERE = r"\s{0,100}<?\s{0,100}(?:[a-z][a-z0-9+.-]{0,20}:)?(?:/|\\|&#|%2f){2}"
_PARAGRAPHS = re.compile(r"(\n[ \t]*\n)")  # neither an image nor a tag continues past an empty line
_PICTURE, _PLACE = re.compile(r"!\["), re.compile(rf"\]\({_ELSEWHERE}", re.IGNORECASE)
_TAG, _ADDRESS = (
    re.compile(r"<(?=[a-z][a-z0-9]{0,20}[\s/])", re.IGNORECASE),
    re.compile(r"//|\\\\|&#|url\(", re.IGNORECASE),
)
_DEFINITION = re.compile(rf"^([ \t>*+-]{{0,20}})\[(?=[^\]]{{1,999}}\]:{_ELSEWHERE})", re.IGNORECASE | re.MULTILINE)


def quiet(markdown: str) -> str:
    """The text without anything that a viewer would fetch by itself."""
    paragraphs = _PARAGRAPHS.split(_DEFINITION.sub(r"\1\\[", markdown))
    without_pictures = [_defused(text, _PICTURE, _PLACE, r"!\[") for text in paragraphs]
    return "".join(_defused(text, _TAG, _ADDRESS, "&lt;") for text in without_pictures)


def _defused(text: str, sign: re.Pattern[str], address: re.Pattern[str], words: str) -> str:
    """The text with `words` in place of every sign that a remote address follows."""
    last = max((found.start() for found in address.finditer(text)), default=-1)
    return sign.sub(lambda found: words if found.start() < last else found[0], text)
