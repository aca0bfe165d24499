"""Markdown that fetches nothing when it is shown, by a viewer that reads it as CommonMark does, with or without tables.

Pictures, raw HTML and links to elsewhere become words that show their address. `![](https://…?what-the-model-read)` would tell a stranger
what was read, without a click. A text that could hold any of these is parsed and written anew from what is known: text, emphasis,
headings, lists, quotes, tables, code, and links to files beside it. Every other text stays as it is. Takes time linear in the text.
Not promised: anything about viewers that run what stands in code, or that fetch an address written out in plain text.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sonde.core.canonical import CONTROLS, UNSEEN

if TYPE_CHECKING:
    from markdown_it.token import Token

LANGUAGES = (
    r"bash|c|console|cpp|cs|csharp|css|csv|diff|docker|dockerfile|go|html|ini|java|javascript|js|json|jsonl|jsx|kotlin|lua|make|makefile|markdown|"
    r"md|patch|perl|php|powershell|py|pycon|python|r|rb|rs|ruby|rust|sh|shell|sql|swift|text|toml|traceback|ts|tsx|txt|typescript|xml|yaml|yml|zsh"
)
"""Of a block of code; any other word could make a viewer draw it (mermaid and its like load pictures)."""

_MAY_FETCH = re.compile(
    rf"!\[|\]\(|\]:|<[A-Za-z/!?]|(?:(?<!`)```|(?<!~)~~~)[`~]*+[ \t]*+(?!(?:{LANGUAGES})?[ \t]*$)[^ \t\n`~]",
    re.MULTILINE,
)  # a fence is tried from its first sign only, and whole: else ten thousand of them take seconds
_BESIDE = re.compile(r"#[\w.%-]*|(?![^#]*(?:\.|%2[eE]){2})[\w@+~%.-][\w./@+~%,=-]*(?:#[\w.%-]*)?", re.ASCII)
_BARE = re.compile(r"://|www\.|@", re.IGNORECASE)
_BREAK = re.compile(r"<br ?/?>", re.IGNORECASE)
_SIGNS = re.compile(
    r"\\(?=[!-/:-@\[-`{-~]|$)|[`*]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|~(?=~|$)|(?:^|(?<=~))~|!(?=\[|$)|\](?=[\[:]|$)|(?<=\])\(|<|&(?=#|\w+;)"
)
_BLOCK_SIGN = re.compile(r"[#>+=-]|~~~|[|:](?=[ :|-])|\[(?!.*\])|\d{1,9}(?=[.)])")
_FENCE = re.compile(r"\s*(```+|~~~+)")
_ESCAPES = re.compile(r"`+|\\([!-/:-@\[-`{-~])|&lt;|&amp;")
_MEANT = {"&lt;": "<", "&amp;": "&"}
_OWN_NAME = r"[*_]*(?:citations|evidence|error|final|gaps|highlights)[\s*_:#]*"
_OWN_HEADING = re.compile(rf"\s*(?:##+\s*{_OWN_NAME}|[*_]*(?:citations|gaps)[*_]*\s*:[\s*_]*)", re.IGNORECASE)
_UNDERLINED = re.compile(rf"\s*{_OWN_NAME}", re.IGNORECASE)
_UNDERLINE = re.compile(r"\s*(?:-+|=+)\s*")
_LONGEST_HEADING = 200
_NOT_SEEN = re.compile(rf"[\\{UNSEEN}]")
_SEPARATORS = dict.fromkeys(map(ord, "\v\f\x1c\x1d\x1e\x85\u2028\u2029"), " ")  # ends of lines for some viewers only
_LONGEST = 200_000  # characters; a longer text is shown as code, because parsing it could take many seconds
_MOST_BRACKETS = 5_000  # the parser's time grows with their square
_WRITTEN_OUT = re.compile(
    rf"(?![\u00ad\u034f\u180b-\u180f\u200c\u200d\u2800\ufe00-\ufe0f])[{CONTROLS}{UNSEEN}]|\r(?!\n)"
)  # but not soft hyphens, empty cells of Braille, and what joins words and emoji or chooses their form


def quiet(markdown: str) -> str:
    """The text without anything that a viewer would fetch by itself, and with every address in sight."""
    if not _MAY_FETCH.search(markdown):
        return markdown
    text = markdown.translate(_SEPARATORS)
    if len(text) > _LONGEST or text.count("[") > _MOST_BRACKETS:
        return fence(text) + "\n"
    from markdown_it import MarkdownIt  # noqa: PLC0415 (takes a tenth of a second, and few answers need it)

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.validateLink = lambda url: True  # noqa: ARG005 (its signature). Else `![](data:…)` is text here and a picture elsewhere
    try:
        tokens = parser.parse(text)
    except RecursionError:  # pictures within pictures within pictures
        return fence(text) + "\n"
    return _blocks(tokens) + "\n" * (len(text) - len(text.rstrip("\n")))


def written_out(page: str) -> str:
    """The page with what turns text around or shows nothing written out, such as <U+202E>: a name reads as it is."""
    return _WRITTEN_OUT.sub(lambda found: f"<U+{ord(found[0]):04X}>", page)


def quoted_headings(text: str) -> str:
    """An answer in which no line reads like a heading that we write below it (`Citations:`, `## Gaps`): such lines are quoted."""
    lines = text.splitlines(keepends=True)
    for at, each in enumerate(lines):
        seen = " ".join(_NOT_SEEN.sub("", each).split())
        if len(seen) > _LONGEST_HEADING:  # both calls below take long for some long lines
            continue
        seen = _NOT_SEEN.sub("", unicodedata.normalize("NFKC", html.unescape(seen)))
        underlined = _UNDERLINED.fullmatch(seen) and at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1])
        if underlined or _OWN_HEADING.fullmatch(seen):
            lines[at] = f"> {each}"
    return "".join(lines)


def words(text: str) -> str:
    """Foreign text as words of a Markdown line: nothing in it is markup."""
    escaped = {"<": "&lt;", "&": "&amp;"}
    return _SIGNS.sub(lambda sign: escaped.get(sign[0], f"\\{sign[0]}"), " ".join(text.split()))


def unescaped(markdown: str) -> str:
    """Markdown as a person reads it where nothing renders it: what `words` escaped stands as it was, code stays as it is."""
    told: list[str] = []
    fence_end = ""
    for each in markdown.split("\n"):
        ticks = _FENCE.match(each)
        if fence_end or ticks:
            ended = fence_end and each.strip().startswith(fence_end)
            fence_end = "" if ended else fence_end or str(ticks and ticks[1])
            told.append(each)
        elif each.startswith("    "):
            told.append(each)
        else:
            told.append(_unescaped_line(each))
    return "\n".join(told)


def _unescaped_line(line: str) -> str:
    """One line of text; code in it stays: from a row of ticks to the next row of as many."""
    rows: dict[int, list[int]] = {}
    for ticks in re.finditer("`+", line):
        rows.setdefault(len(ticks[0]), []).append(ticks.start())
    told: list[str] = []
    at = 0
    while found := _ESCAPES.search(line, at):
        told.append(line[at : found.start()])
        at, text = found.end(), _MEANT.get(found[0], found[1] or found[0])
        if text.startswith("`") and not found[1]:
            alike = rows.get(len(text), [])
            following = bisect_left(alike, at)
            if following < len(alike):
                at = alike[following] + len(text)
                text = line[found.start() : at]
        told.append(text)
    return "".join(told) + line[at:]


def _blocks(tokens: Sequence[Token]) -> str:
    """What the parser found, written anew. Open blocks are kept with the parts that they have so far."""
    parts: list[str] = []
    opened: list[tuple[Token, list[str]]] = []
    for token in tokens:
        if token.nesting == 1:
            opened.append((token, parts))
            parts = []
        elif token.nesting == -1:
            block, around = opened.pop()
            around.append(_block(block, parts, opened[-1][0].meta if opened else {}))
            parts = around
        elif token.type == "inline":
            parts.append(_inline(token.children or ()))
        elif token.type == "html_block":
            lines = [words(line) for line in token.content.split("\n") if line.strip()]
            parts.append("\\\n".join(_started(line) for line in lines))
        else:
            parts.append("___" if token.type == "hr" else fence(token.content, token.info.strip()))
    return "\n\n".join(parts)


def _block(block: Token, parts: list[str], outer: dict[str, Any]) -> str:
    """A block of these parts. `outer` is for what the block around it has to know."""
    whole = "".join(parts)
    match block.type.removesuffix("_open"):
        case "heading":
            title = whole.replace("\\\n", " ").replace("\n", " ").strip()
            return f"{'#' * int(block.tag[1])} {title[:-1]}{chr(92) * title.endswith('#')}{title[-1:]}".rstrip()
        case "paragraph":
            outer["loose"] = outer.get("loose") or not block.hidden
            lines = [line.strip(" \t") for line in re.sub(r"(?<!\\\n)(?:\\\n)++$", "", whole).split("\n")]
            return "\n".join(_started(line) for line in lines if line)
        case "blockquote":
            return _indented("\n\n".join(parts), "> ", "> ")
        case "list_item":
            outer["loose"] = outer.get("loose") or block.meta.get("loose")
            mark = f"{block.info}{block.markup} "
            return _indented(("\n\n" if block.meta.get("loose") else "\n").join(parts), mark, " " * len(mark))
        case "bullet_list" | "ordered_list":
            return ("\n\n" if block.meta.get("loose") else "\n").join(parts)
        case "th" | "td":
            side = str(block.attrs.get("style", "")).removeprefix("text-align:")
            rule = {"left": ":--", "right": "--:", "center": ":-:"}.get(side, "---")
            outer["rule"] = outer.get("rule", "|") + f" {rule} |"
            return whole.replace("|", r"\|").replace("\\\n", "<br>")
        case "tr":
            outer["rule"] = block.meta["rule"]
            return f"| {' | '.join(parts)} |"
        case "thead":
            return f"{whole}\n{block.meta['rule']}"
        case "tbody" | "table":
            return "\n".join(parts)
        case other:
            raise AssertionError(f"a block that was not asked for: {other}")


def _indented(text: str, first: str, others: str) -> str:
    lines = text.split("\n")
    return "\n".join(((others if at else first) + line).rstrip(" ") for at, line in enumerate(lines))


def _started(line: str) -> str:
    """A line of a paragraph that does not begin another block."""
    found = _BLOCK_SIGN.match(line)
    if not found:
        return line
    at = found.end() if found[0].isdigit() else 0
    return f"{line[:at]}\\{line[at:]}"


def fence(code: str, language: str = "") -> str:
    """Foreign text as a block of code."""
    ticks = "`" * max(3, 1 + _longest_run(code))
    body = code.removesuffix("\n")
    return f"{ticks}{language if re.fullmatch(LANGUAGES, language) else ''}\n{body}\n{ticks}"


def _longest_run(code: str) -> int:
    return max(map(len, re.findall("`+", code)), default=0)


def line(text: str) -> str:
    """Foreign text on one line of a list: as it is, or as mere words where it could fetch something."""
    return words(text) if _MAY_FETCH.search(text) else " ".join(text.split())


def code(content: str) -> str:
    """Foreign text as code within a line."""
    content = re.sub(r"[\r\n]+", " ", content.translate(_SEPARATORS)) or " "
    ticks = "`" * (1 + _longest_run(content))
    padding = " " if content[:1] in "` " or content[-1:] in "` " else ""
    return f"{ticks}{padding}{content}{padding}{ticks}"


def _inline(tokens: Sequence[Token]) -> str:
    """What stands in a paragraph, a heading or a cell."""
    written: list[str] = []
    plain: list[str] = []  # pieces of text are escaped together: a sign may lie across two of them
    link: tuple[str, int, bool] = (
        "",
        0,
        False,
    )  # its address, where its label begins, and `bare` as it was there; links do not nest
    bare = False  # whether a bare address runs on: GitHub makes it a link up to the next space and would swallow the tick of code
    for token in tokens:
        if token.type == "text" or (token.type == "html_inline" and not _BREAK.fullmatch(token.content)):
            plain.append(token.content)
            continue
        text = "".join(plain)
        if text:
            last = "" if text[-1].isspace() else text.rsplit(None, 1)[-1]
            bare = bool(_BARE.search(last)) or (bare and last == text)
        written.append(_text(text))
        plain.clear()
        match token.type:
            case "softbreak":
                written.append("\n")
            case "hardbreak" | "html_inline":
                written.append("\\\n")
            case "code_inline":
                written.append(" " * bare + code(token.content))
            case "image":
                written.append("(picture) " + _told(words(token.content), str(token.attrs["src"])))
            case "link_open":
                link = str(token.attrs["href"]), len(written), bare
            case "link_close":
                address, start, bare = link[0], link[1], link[2]
                label = "".join(written[start:])
                told = f"[{label}]({address})" if _BESIDE.fullmatch(address) else _told(label, address)
                written[start:] = [" " * (bare and told.startswith("`")), told]
            case _:  # emphasis, whose nesting has no bound
                written.append(token.markup)
                continue
        bare = bare and " " not in written[-1] and "\n" not in written[-1]
    return "".join([*written, _text("".join(plain))])


def _told(label: str, address: str) -> str:
    """An address in sight, as code, so that no viewer makes it a link again."""
    place = code(address)
    return place if not label or label == words(address) else f"{label} ({place})"


def _text(text: str) -> str:
    before, after = " " * text[:1].isspace(), " " * (text[-1:].isspace() and not text.isspace())
    return f"{before}{words(text)}{after}"
