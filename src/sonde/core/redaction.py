r"""Removes what must not be written or shown, for journals, messages, errors and exports.

Known key values are found in every spelling in which they turn up: plain, in capitals, in a URL, in hex, in base64, in a JSON text
(`secret_forms`). Only an export with `--redact` also loses what merely looks like a secret, by pattern (`redact_text`, `redact_value`).
Patterns look at a text as it stands and as it reads without escapes (`readings`), so that `\nsk-…` in JSON and `key%3Dsk-…` in an
address are keys too. Text that UTF-8 cannot hold is made writable.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import unescape
from io import StringIO
from typing import Any, cast
from unicodedata import decimal, normalize
from urllib.parse import quote, quote_plus, unquote

import msgspec

from sonde.core.canonical import UNSEEN
from sonde.core.deadline import deadline_in_force
from sonde.core.events import Event, as_dict, encode
from sonde.core.markdown_safety import words

REMOVED = "[key removed]"
SHORTEST_SECRET = 8  # "none", "test" or "ollama" are dummies; removing such words would falsify the content
SHORTEST_MIXED = 6  # of letters and digits together, which no ordinary word is
_BETWEEN = (" ", "-", ".", ",", "\n", "\0")  # the last is UTF-16 that was read as something else
_ESCAPES = (("\\x", 2), ("\\u", 4))
SHORTEST_PIECE = 24  # of a key in base64 that is broken into lines
SHORTEST_CAPITALS = 12  # shorter keys may be words that the content has in another case
LONGEST_NAMED = 20_000
REDACTED = "[redacted]"
Span = tuple[int, int, str]
"""Where a value begins and ends, and of which kind it is."""

_LEFT = r"(?<![A-Za-z0-9])"
"""Where a token may begin: not inside a word, but behind `_`, `-` or any sign."""
_OWN_LEFT = r"(?:(?<![A-Za-z0-9_])|(?<=_)(?=[A-Za-z_-]{0,40}[0-9]))"
"""The same for those that look like names in code: behind `_` they need a digit, which `test_npm_install_works` has not."""

_KEY_KIND = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)? ?----"
_PRIVATE_KEY = re.compile(rf"-?---- ?BEGIN {_KEY_KIND}[\s\S]*?(?:(---- ?END {_KEY_KIND}-?)|\Z)")
"""Of OpenSSL and OpenSSH, of OpenPGP (`… BLOCK-----`), and of SSH2 (`---- BEGIN …`)."""
_SHAPES: Sequence[tuple[Sequence[str], re.Pattern[str]]] = [
    (["----BEGIN", "---- BEGIN"], _PRIVATE_KEY),
    (
        ["LS0tLS1CRUdJTi"],
        re.compile(r"LS0tLS1CRUdJTi(?!BDRVJU|BQVUJM)[A-Za-z0-9+/]{16,}={0,2}"),
    ),  # the same in base64; no certificate
    (["sk-", "pk-", "rk-"], re.compile(rf"{_LEFT}(?:sk|pk|rk)-[A-Za-z0-9_-]{{16,}}")),
    (
        ["_live_", "_test_", "whsec_"],
        re.compile(rf"{_OWN_LEFT}(?:(?:sk|pk|rk)_(?:live|test)_|whsec_)[A-Za-z0-9+/=]{{10,}}"),
    ),
    (
        ["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "gl"],
        re.compile(
            _LEFT
            + r"(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|gl(?:pat|dt|rt|ptt|cbt|soat|ft|agent)-[\w-]{16,}|glsa_\w{20,})"
        ),
    ),
    (["AKIA", "ASIA"], re.compile(rf"{_LEFT}(?:AKIA|ASIA)[A-Z0-9]{{16}}(?![A-Za-z0-9])")),
    (
        ["AIza", "ya29.", "GOCSPX-", "1//0"],
        re.compile(rf"(?:{_LEFT}(?:AIza|ya29\.|GOCSPX-)|(?<![A-Za-z0-9/])1//0)[A-Za-z0-9_-]{{20,}}"),
    ),
    (["xox", "xapp-"], re.compile(rf"{_LEFT}(?:xox[abcdposre]|xapp)-[A-Za-z0-9-]{{10,}}")),
    (["hooks.slack.com/"], re.compile(r"(?<=hooks\.slack\.com/services/)[A-Za-z0-9/]{20,}")),
    (["/webhooks/"], re.compile(r"(?<=/webhooks/)[0-9]{15,22}/[A-Za-z0-9_-]{30,}")),  # of Discord
    ([":AA"], re.compile(r"(?<![0-9])[0-9]{8,10}:AA[A-Za-z0-9_-]{30,}")),  # of a bot in Telegram
    (
        ["dp."],
        re.compile(rf"{_LEFT}dp\.(?:pt|st|sa|ct|scim|audit|said)\.(?:[a-z0-9_-]{{2,35}}\.)?[A-Za-z0-9]{{32,}}"),
    ),
    (["ATATT3", "ATCTT3"], re.compile(rf"{_LEFT}AT[AC]TT3[A-Za-z0-9_=-]{{20,}}")),
    (["SK"], re.compile(rf"{_LEFT}SK[0-9a-f]{{32}}(?![A-Za-z0-9])")),
    (
        [
            "hf_",
            "npm_",
            "gsk_",
            "r8_",
            "dckr_pat_",
            "dop_v1_",
            "shpat_",
            "shpss_",
            "figd_",
            "sntrys_",
            "phx_",
            "phc_",
            "lin_api_",
            "lsv2_",
            "ntn_",
            "rubygems_",
            "sbp_",
            "sb_secret_",
            "vcp_",
            "nfp_",
            "pscale_",
            "glc_",
            "dckr_oat_",
            "shpca_",
        ],
        re.compile(
            _OWN_LEFT
            + r"(?:hf|npm|gsk|r8|dckr_[po]at|dop_v1|shp(?:at|ss|ca)|figd|sntrys|phx|phc|lin_api|lsv2_pt|lsv2_sk|ntn|rubygems"
            + r"|sbp|sb_secret|vcp|nfp|pscale_(?:tkn|pw|oauth)|glc)_[A-Za-z0-9_-]{20,}"
        ),
    ),
    (
        [
            "pypi-",
            "nvapi-",
            "xai-",
            "tvly-",
            "pplx-",
            "PMAK-",
            "sq0",
            "AGE-SECRET-KEY-",
            "tskey-",
            "NRAK-",
            "dt0c01.",
            "xkeysib-",
            "CFPAT-",
            "pul-",
        ],
        re.compile(
            _LEFT
            + r"(?:pypi-AgE|nvapi-|xai-|tvly-|pplx-|PMAK-|sq0(?:csp|atp|idp)-|AGE-SECRET-KEY-|tskey-[a-z]{2,10}-"
            + r"|NRAK-|dt0c01\.[A-Z0-9]{24}\.|xkeysib-|CFPAT-|pul-(?=[0-9a-f]{40}))[A-Za-z0-9_-]{16,}"
        ),
    ),
    (["SG."], re.compile(rf"{_LEFT}SG\.[\w-]{{16,100}}\.[\w-]{{16,}}")),
    (["hvs.", "hvb.", "hvr."], re.compile(rf"{_LEFT}hv[sbr]\.[\w-]{{20,}}")),
    ([".atlasv1."], re.compile(rf"{_LEFT}[A-Za-z0-9]{{14}}\.atlasv1\.[\w-]{{40,}}")),
    (  # of Docker and npm
        ['"auth":', "_auth"],
        re.compile(
            r"""(?:(?<="auth": ")|(?<="auth":")|(?<=_auth=)|(?<=_auth = ))(?=[a-z]{0,8}[A-Z0-9=])[A-Za-z0-9+/]{8,}={0,2}(?=["\s]|\Z)"""
        ),
    ),
    (["dapi"], re.compile(rf"{_LEFT}dapi[0-9a-f]{{32}}")),
    (  # each run of such characters is tried once from its beginning, and behind `_` and `-` for a little
        ["eyJ"],
        re.compile(r"(?a:(?<![\w-])eyJ[\w-]{8,}|(?<=[_-])eyJ[\w-]{8,200})\.[\w-]{8,}\.[\w-]{8,}"),
    ),
    (["earer "], re.compile(r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{12,}")),
    (["BEARER "], re.compile(r"(?<=BEARER )[A-Za-z0-9._~+/=-]{12,}")),
    (["asic "], re.compile(r"(?<=[Bb]asic )(?=[A-Za-z+/]{0,500}[0-9=])[A-Za-z0-9+/]{8,}={0,2}")),
    (  # a password may hold @ and /; a port before a path is none, nor is [::1]
        ["://"],
        re.compile(r"(?<=://)(?!\[[0-9A-Fa-f:.]{2,45}\])[^\s/:@'\"]{0,100}:(?![0-9]{1,5}/)[^\s'\"]{1,200}(?=@)"),
    ),
    (["://"], re.compile(r"(?<=://)(?=[A-Za-z_-]{0,200}[0-9])[A-Za-z0-9_-]{16,200}(?=@[A-Za-z0-9])")),
    (["sig=", "ignature="], re.compile(r"(?<=[?&]sig=)[\w%+/=-]{16,}|(?<=-Signature=)[0-9a-f]{32,}")),
]
"""What is removed wherever it is, and texts without which it cannot be there: looking for those is much quicker."""

_OF_PASS = """
    admin auth become bind db default docker ftp git http key ldap login mail mongo mysql pg postgres rabbitmq redis registry require root
    service smtp ssh store sudo user vnc
""".split()  # noqa: SIM905 - words read better as text
_OF_KEY = "access account api app encryption master private shared signing storage subscription".split()  # noqa: SIM905 - as above
_NAME = "|".join(
    (
        "password|passwd|passphrase|token|secret(?:[_-]?key(?:[_-]?base)?)?|key(?<=auth[_-]key)",
        *(f"pass(?<={each}pass)|pass(?<={each}[_-]pass)" for each in _OF_PASS),
        *(f"key(?<={each}key)|key(?<={each}[_-]key)" for each in _OF_KEY),
    )
)
"""Telling names, by their last word: few letters begin one, which makes the search quick."""
_GAP = r"[ \t]{0,80}+(?:\r?\n\s{0,3}+)?+"
"""Blanks around a sign: many where values stand in a column, few over the end of a line."""
_MARK = r"""(?:[bfrunl@$]{1,2}(?=["'`]))?"""  # b"…", f"…", @"…"
_TYPE = r"""&?(?:'[a-z]{1,20}\ )?[\w.]{1,40}+(?:[\[<][\w.,\ ]{0,40}+[\]>])?+\??(?:\ ?\|\ ?\w{1,20})?"""
_SIGN = rf"""(?:
    ["'] [ \t]{{0,80}}+ ,? \s{{0,80}}+
        (?: ["']? [\w-]{{1,20}}+ ["']? {_GAP} [:=] {_GAP} ["'] [^"'<>\r\n]{{0,60}}+ ["'] ,? \s{{0,80}}+ ){{0,3}}
        ["']? value ["']? {_GAP} [:=] {_GAP} (?: \{{ {_GAP} ["']stringvalue["'] {_GAP} : {_GAP} )? (?={_MARK}["'])
    | ["'] {_GAP} : {_GAP} \{{ \s{{0,80}}+ (?: "[\w-]{{1,20}}+" {_GAP} : {_GAP}
        (?: true | false | "[^"<>\r\n]{{0,60}}+" ) ,? \s{{0,80}}+ ){{0,3}}
        "value" {_GAP} : {_GAP} (?=")
    | : [ \t]{{1,4}} [|>][+-]? [ \t]{{0,4}} \r?\n [ \t]{{1,80}}+
    | ["']? [ \t]{{0,80}}+ \r?\n [ \t]{{0,80}}+ value: {_GAP} | ,(?:parameter)?value=
    | (?: {_GAP} : {_GAP} | [ \t]{{1,80}}+ (?=string\b) ) {_TYPE} [ \t]{{1,80}}+ = {_GAP} (?={_MARK}["'`])
    | (?: ["']\]? )? {_GAP} (?: (?: => | := | : {_GAP} \[ ) {_GAP} (?={_MARK}["'`]) | [:=] {_GAP} )
) {_MARK} (?: (?:"{{3}}|'{{3}})(?=[^"'\r\n]{{4,200}}["']) | ["'`]? )"""
"""What joins a name and its value: `value` in a pair of fields or a table, the sign of a block in YAML, a type and `=`, or a sign.
In code `token => x` and `token := x` are no values unless they are quoted.
"""
_QUOTED = r"""(?<=")(?:[^"\\\r\n]|\\.){4,2000}(?=")|(?<=')(?:[^'\\\r\n]|\\.){4,2000}(?=')"""
_VALUE = re.compile(rf"""{_QUOTED}|(?<=`)[^`\s]{{4,2000}}(?=`)|[^\s"',;]{{4,}}""")
"""One in quotes goes to its quote."""
_NO_WORD = r"""[ \t]{1,80}+(?:["']|(?![-$])(?=[^\s"',;]{0,100}[0-9!@#%^*+=]))"""
_MIXED = r"""(?=[^\s"'`|,;<>()]{0,100}[0-9])(?=[^\s"'`|,;<>()]{0,100}[A-Za-z])[^\s"'`|,;<>()]{6,}+(?!\()"""
_LISTED = (
    r"""["']\s{0,4},\s{0,80}+["'](?!-)(?=[^"'\r\n]{0,100}[0-9])"""
    r"""|["']?[ \t]{0,4}\r?\n[ \t]{0,80}+-[ ]["']?(?!-)(?=\S{0,100}[0-9])"""
)
"""Between two texts of a list, also in YAML, of which the second has a digit and is no option."""
_NAMED: Sequence[tuple[Sequence[str], re.Pattern[str], re.Pattern[str]]] = [
    (["pass", "secret", "token", "key"], re.compile(rf"(?x) (?:{_NAME}) {_SIGN}"), _VALUE),
    (  # a folder in PWD is no secret, and `pass` alone is seldom one
        ["pwd", "pass"],
        re.compile(
            rf"""(?x) p (?<![a-z]p) (?: wd ["']? (?: = | : {_GAP} ) ["']? (?! [/~.$\\] | [a-z]:[\\/] )
            | (?<![_-]p) ass ["']? {_GAP} [:=] {_GAP} ["'] (?=[^\s"']{{0,200}}[0-9]) (?=[^\s"']{{4,200}}["']) )"""
        ),
        _VALUE,
    ),
    # behind a blank only what is no word: "use --token to sign in"
    (
        ["-"],
        re.compile(rf"""-(?<![\w-]-)[\w-]{{0,40}}?(?:{_NAME})(?:{_NO_WORD}|{_LISTED})"""),
        _VALUE,
    ),
    (
        ["env ", "define ", "configure set ", "login ", "requirepass", "masterauth", "identified ", "password '"],
        re.compile(
            rf"""(?x) (?: (?:env(?<!\wenv)|\#define|configure[ ]set)[ \t]{{1,4}}[\w.-]{{0,60}}?(?:{_NAME})
            | login[ \t]{{1,4}}\S{{1,100}}\s{{1,40}}password
            | requirepass | masterauth | identified[ ](?:with[ ]\S{{1,60}}[ ])?by(?:[ ]password)?
            | password(?=[ \t]') ) (?=[ \t]{{1,80}}+["']?[^"'\r\n]{{0,100}}[0-9!@#%^*+=]) {_NO_WORD}"""
        ),
        _VALUE,
    ),
    (  # options of some programs
        ["curl", "mysql", "mariadb", "redis-cli ", " login ", "sshpass"],
        re.compile(
            r"""(?x) (?: curl[ ](?:[^|;\\\r\n]|\\\s){0,300}?(?<=[ ])(?:-[a-z]{0,5}u|--user)[ =]{0,4}["']?[^\s:"'$]{1,100}:
            | curl["'],[ ](?:["'][^"'\r\n]{0,200}["'],[ ]{0,4}){0,9}?["'](?:-u|--user)["'],[ ]{0,4}["'][^\s:"'$]{1,100}:
            | (?: sshpass[ ]-p[ ]? | sshpass["'],[ ]{0,4}["']-p["'],[ ]{0,4} | (?:mysql|mariadb)[\w-]{0,10}[ ][^|;\r\n]{0,200}?(?<=[ ])-p
                | redis-cli[ ][^|;\r\n]{0,200}?(?<=[ ])-a[ ]
                | (?:docker|podman|helm|oc)[ ](?:\w{1,20}[ ])?login[ ][^|;\r\n]{0,200}?(?<=[ ])-p[ ] ) ["']? (?=[^\s"']{0,100}[a-z])
            ) (?!\$)"""
        ),
        _VALUE,
    ),
    (  # two in brackets, as in a call; a list of names seldom has digits
        ['"', "'"],
        re.compile(rf"""[(\[]\s{{0,80}}+{_MARK}["'][\w.:-]{{0,60}}?(?:{_NAME})["']\s{{0,4}},\s{{0,80}}+{_MARK}["']"""),
        re.compile(
            rf"""(?=[^"'\r\n]{{0,200}}[0-9])(?=[^"'\r\n]{{0,200}}[A-Za-z])(?:{_QUOTED})(?=["']\s{{0,80}}+,?\s{{0,80}}+[)\]])"""
        ),
    ),
    (
        ["set"],
        re.compile(rf"""set(?<![a-z]set)\w{{0,40}}?(?:{_NAME})\(["'](?=[^"'\r\n]{{0,100}}[0-9])"""),
        re.compile(_QUOTED),
    ),
    (  # names in words
        [" key"],
        re.compile(
            rf"""(?x) key (?:{"|".join(rf"(?<={each}[ ]key)" for each in (*_OF_KEY, "secret"))})
            (?:[ ]\[[^\]\r\n]{{0,30}}\])? (?: : (?:\*\*)? | \*\*: ) [ \t]{{1,80}}+ `?"""
        ),
        re.compile(_MIXED),
    ),
    (["**"], re.compile(rf"(?:{_NAME})(?::\*\*|\*\*:)[ \t]{{1,80}}+`?"), re.compile(_MIXED)),  # names in Markdown
    (  # columns, and tables in Markdown
        ["pass", "secret", "token", "key"],
        re.compile(
            rf"""(?mx) (?: ^(?=[\w.-]{{4,60}}+[ \t]{{2}}) [\w.-]{{0,40}}? (?:{_NAME}) [ \t]{{2,80}}+
            | \| [ `*]{{0,4}}+ [\w.-]{{0,40}}? (?:{_NAME}) [ `*]{{0,40}}+ \| [ `*]{{0,40}}+ )"""
        ),
        re.compile(rf"(?m){_MIXED}(?=[ \t`*]{{0,80}}+(?:\||\r?$))"),
    ),
    (["</"], re.compile(rf"<(?!token>)[\w:.-]{{0,40}}?(?:{_NAME}|pwd)>"), re.compile(r"[^<>\r\n]{4,500}(?=</)")),
]
"""Texts without one of which they cannot be there, telling names in small letters with what joins them, and values behind them."""
_QUOTE = r"""\\{0,16}["']"""
_HEADER = re.compile(
    rf"""(?x) (?: (?P<authorization> authorization ) | cookie )
    (?: (?P<closed> {_QUOTE} \]? )? {_GAP} (?: (?: => | := | : {_GAP} \[ ) {_GAP} (?=b?{_QUOTE}) | (?P<sign> [:=] ) {_GAP} )
    | (?P<pair> {_QUOTE} {_GAP} , ) \s{{0,80}} (?P<value> {_QUOTE}value{_QUOTE} {_GAP} : {_GAP} )? (?=b?{_QUOTE}) )
    (?: b?(?P<quote> {_QUOTE} ) )?"""
)
"""The name of a header whose whole value is removed, in small letters, and what stands before the value. Names and values are also
pairs: `("Cookie", "…")`, `{"name": "Cookie", "value": "…"}`.
"""
_COOKIES = re.compile(r"""(?i)"cookies"\s{0,4}:\s{0,4}\[[^\]]{0,100000}""")
"""A list of them, as browsers write it (HAR): each has a name and a value."""
_COOKIE_VALUE = re.compile(r"""(?:(?<="value":")|(?<="value": "))[^"\r\n]{4,}(?=")""")
_COOKIE = re.compile(r"""(?:[^\s=;,"]{1,100};[ \t]{0,4}){0,8}[^\s=;,"]{1,100}=""")
_AUTHORIZATION = re.compile(
    r"""(?P<scheme>[Bb]asic[ \t]{1,4}(?=[a-z]{0,8}[A-Z0-9=])[^\s"',;]{4,}"""
    r"""|[A-Za-z0-9-]{3,20}[ \t]{1,4}(?:[\w-]{1,40}=|[^\s"',;]{8,})|[\w-]{1,40}=\\{0,16}")"""
    r"""|(?P<mixed>(?=[^\s"',;]{0,200}[0-9=])[^\s"',;]{8,})|[^\s"',;]{8,}"""
)
"""How values begin that are more than words about authorization."""
_BEFORE_HEADER = re.compile(r"""(\\{0,16}["'`])[\w-]{0,20}\Z""")
_STRINGS = re.compile(r"""\\.|["\r\n]""")
_CLOSING = {
    quote: re.compile(
        rf"=\\*+{quote}[^{quote}\r\n]{{0,2000}}{quote}(?=\s{{0,4}}(?:[;,{quote}\\]|\Z))|(?<!\\)(?P<escapes>\\*+){quote}|(?P<end>[\r\n])"
    )
    for quote in "\"'`"
}
"""What may end a header in quotes: not those of `theme="dark";`, which may have lost their escapes."""
_REST_OF_LINE = re.compile(r"[^\r\n]{0,16384}")  # servers take no longer header

_SECRETIVE = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[\w~@#$%^&*+=/.!:-]*[\w~@#$%^&*+=/-](?![\w(\[{<]|::)")
"""The beginning of a value that is more than a word or a number, and no call."""
_PHRASE = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[^(){}<>\x20]*\x20[^(){}<>]*")
"""A value of several words, which only quotes or tags hold together."""
_HELD = re.compile(r"(?=[^\d]*\d)(?=[^A-Za-z]*[A-Za-z])[^{}<>\x20]{6,}(?<!\))")
"""A value without blanks that quotes hold together, and no call."""
_CODE_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")

PART = 1 << 18
"""Characters of a large text that are searched at once; a part ends with its last line, or after twice as many."""
CONTEXT = 1 << 10
"""Characters before a part that are looked at with it: `password:` may stand above its value."""
MOST_NESTED = 3
PIECE, OVERLAP = 1 << 20, 1 << 14
"""Characters of a text whose escapes are resolved at once, and of the piece before: where each was takes memory."""
_COLOUR = r"""(?:
    (?: \x1b | \\{1,8} (?: u001[Bb] | x1[Bb] | 033 | e ) ) (?: \[ [0-?]{0,40} [\x20-/]{0,4} [@-~] | [()] [0-9A-Z] )
)"""
_COLOURS = re.compile(f"(?x){_COLOUR}")
"""What makes a terminal write in colour, also escaped."""
_ESCAPED = re.compile(
    rf"""(?x)
    {_COLOUR}
    | (?<!\\)\\++ (?: (?P<hex> u[0-9A-Fa-f]{{4}} | x[0-9A-Fa-f]{{2}} ) | (?P<letter> [nrtbfv"'/@_.-] ) )
    | % (?:25){{0,8}} (?P<percent> [0-9A-Fa-f]{{2}} )
    | & (?:amp;){{0,8}} (?: (?P<number> \#0{{0,20}}[0-9]{{1,7}} | \#[xX]0{{0,20}}[0-9A-Fa-f]{{1,6}}
            | (?:nbsp|shy|quot|lt|gt)(?![A-Za-z]) ) ;?
        | (?P<entity> commat | period | lowbar | apos | equals | colon | hyphen | dash | zwj | zwnj | lrm | rlm
            | ZeroWidthSpace | NoBreak ); )
    | [{UNSEEN}]
    """
)
"""Escapes of JSON, Markdown and code, also doubled, of addresses and of HTML; colours and signs that nobody sees."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "v": "\v"}

_TELLING = re.compile(rf"(?i)(?:{_NAME}|authorization|cookie)$")
_VALUES = ("value", "Value", "stringValue", "S", "SS")
"""Fields that hold what the name above or beside them speaks of; the last two are types of DynamoDB."""
_OPTIONS = {"sshpass": "-p", "curl": "-u", "redis-cli": "-a"}
"""Options of some programs that a password follows."""
LONGEST_NAME = 100


@dataclass(frozen=True, slots=True)
class SecretForms:
    """Key values in every spelling in which they turn up, longest first so that no part of one stays behind."""

    spellings: tuple[str, ...]
    encoded: tuple[bytes, ...]
    """What a line of the journal holds if one of them is in it."""
    broken: tuple[tuple[tuple[str, ...], re.Pattern[str]], ...] = ()
    """In base64 that is broken into lines anywhere: pieces, of which one is whole then, and the pattern of all of it."""

    def remove(self, text: str) -> str:
        """The text without them."""
        for spelling in self.spellings:
            text = text.replace(spelling, REMOVED)
        for pieces, pattern in self.broken:
            if any(piece in text for piece in pieces):
                text = pattern.sub(REMOVED, text)
        return text


def secret_forms(secrets: Sequence[str]) -> SecretForms:
    r"""The spellings of these values: plain, in capitals, in a URL (once and twice), in hex, in base64 (after anything else, or broken
    into lines; in UTF-16 too), in base32, in JSON, in Markdown, as `\x73`, `\u0073`, `\163` and `&#115;`, with a sign between all
    characters.
    """
    found: set[str] = set()
    broken: dict[str, tuple[tuple[str, ...], re.Pattern[str]]] = {}
    for secret in secrets:
        mixed = len(secret) >= SHORTEST_MIXED and re.search(r"\d", secret) and re.search(r"[^\W\d_]", secret)
        if len(secret) < SHORTEST_SECRET and not mixed:
            continue
        raw = secret.encode("utf-8", "surrogateescape")  # a variable of the environment need not be UTF-8
        in_url = {quote(raw, safe=""), quote(raw), quote_plus(raw)}
        in_url |= {re.sub("%..", lambda code: code[0].lower(), each) for each in in_url}
        in_url |= {"".join(f"%{code:02{case}}" for code in raw) for case in "xX"}
        found |= in_url | {each.replace("%", "%25") for each in in_url}
        found |= {secret, _quoted(secret), json.dumps(secret)[1:-1], words(secret), raw.hex(), raw.hex().upper()}
        found |= {raw.hex(" "), raw.hex(":"), "".join(f"\\{code:03o}" for code in raw)}
        found |= {"".join(form.format(code) for code in raw) for form in ("&#{};", "&#x{:x};", "&#x{:X};")}
        found |= {sign.join(secret) for sign in _BETWEEN}
        wide = secret.encode("utf-16-le", "replace")
        found |= {wide.hex(), wide.hex().upper(), *_shifted(wide, base64.b64encode, 6)}
        in_base32 = _shifted(raw, base64.b32encode, 5)
        found |= in_base32 | {each.lower() for each in in_base32}
        found |= {"".join(f"{sign}{code:0{width}{case}}" for code in raw) for sign, width in _ESCAPES for case in "xX"}
        found.add(base64.b64encode(raw).decode().rstrip("="))
        for width in (64, 76):  # as PEM and MIME break it; the last piece may be too short to be told from other text
            lines = base64.b64encode(raw).decode().rstrip("=")
            pieces = [lines[at : at + width] for at in range(0, len(lines), width)]
            found |= {piece for piece in pieces if len(piece) >= SHORTEST_PIECE}
        for before in range(3):  # "Bearer " or "user:" may stand before it: its bits begin at one of three places
            whole = base64.b64encode(b"\0" * before + raw).decode().rstrip("=")
            own = whole[(0, 2, 3)[before] : (before + len(raw)) * 8 // 6]
            found |= {own, own.replace("+", "-").replace("/", "_")}
            size = max(6, min(SHORTEST_PIECE, len(own) // 2))
            pieces = tuple(own[at : at + size] for at in range(0, len(own) - size + 1, size))
            broken[own] = pieces, re.compile(r"(?:\s|\\[rn])*".join(map(re.escape, own)))
        if len(secret) >= SHORTEST_CAPITALS:
            found |= {secret.upper(), secret.lower(), secret[::-1]}
    spellings = tuple(sorted(found, key=lambda spelling: (-len(spelling), spelling)))
    pieces = {piece for each, _ in broken.values() for piece in each}
    return SecretForms(
        spellings, tuple(_quoted(each).encode() for each in (*spellings, *sorted(pieces))), tuple(broken.values())
    )


def _shifted(raw: bytes, encode: Callable[[bytes], bytes], bits: int) -> set[str]:
    """What is sure to be in an encoded text that holds these bytes, whatever stands before and after them."""
    found: set[str] = set()
    for before in range(bits if bits == 5 else 3):  # after so many bytes a group begins anew
        whole = encode(b"\0" * before + raw).decode()
        found.add(whole[-(-before * 8 // bits) : (before + len(raw)) * 8 // bits])
    return found


def url_secrets(url: str | None) -> list[str]:
    """The password in an address, as it stands there and as it is sent."""
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://([^/?#\s]*)@", url or "")
    password = found[1].partition(":")[2] if found else ""
    return [each for each in {password, unquote(password)} if each]


def _quoted(text: str) -> str:
    return msgspec.json.encode(without_surrogates(text)).decode()[1:-1]


def encodable(event: Event) -> tuple[Event, bytes]:
    """The event in a form that UTF-8 can hold, and its line: code can print a lone surrogate, a file cannot hold one."""
    try:
        return event, encode(event)
    except UnicodeEncodeError:
        event = rewrite_text(event, without_surrogates)
        return event, encode(event)


def clean_value(value: Any, forms: SecretForms) -> Any:
    """Plain data as an event that carries it will be written; the same object when nothing has to be removed."""
    try:
        line = msgspec.json.encode(value)
    except UnicodeEncodeError:
        value = rewrite_value(value, without_surrogates)
        line = msgspec.json.encode(value)
    return rewrite_value(value, forms.remove) if any(form in line for form in forms.encoded) else value


def is_same_but_for_keys(text: str, recorded: str) -> bool:
    """Whether this text, from a replay that may not know the keys, is the recorded one before they were removed."""
    at = 0
    for piece in recorded.split(REMOVED):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def rewrite_text(event: Event, change: Callable[[str], str]) -> Event:
    """The event with every text in it changed, keys of free data included; its type stays."""
    fields = {name: value if name == "type" else rewrite_value(value, change) for name, value in as_dict(event).items()}
    return msgspec.convert(fields, type(event))


def rewrite_value(value: Any, change: Callable[[str], str]) -> Any:
    """Plain data with every text in it changed, keys included."""
    match value:
        case str():
            return change(value)
        case dict():
            return {
                rewrite_value(key, change): rewrite_value(item, change)
                for key, item in cast("dict[Any, Any]", value).items()
            }
        case list() | tuple():
            return [rewrite_value(item, change) for item in cast("Sequence[Any]", value)]
        case _:
            return value


def without_surrogates(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot hold, written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def found_in_parts(text: str, find: Callable[[str], Iterable[Span]]) -> Iterator[Span]:
    """What `find` finds in a text of any size, in order. Before the second part and each later one, this looks at the run's deadline
    and at its stop (`Deadline.check`). Each part is read with the end of the last one and with the first line of a private key that
    goes on; one that ends within a very long line also with what stands behind it.
    """
    run = deadline_in_force()
    since = 0.0 if run is None else run.clock.now()
    begin, before = 0, ""
    while True:
        end, behind = text.find("\n", begin + PART, begin + 2 * PART) + 1, 0
        if not end and len(text) <= begin + 2 * PART:
            end = len(text)
        elif not end:  # no value has such a sign in it, except for a card or a cookie
            end, behind = begin + 2 * PART, OVERLAP
            end = max(text.rfind(sign, begin + PART, end) for sign in " \t\"',;") + 1 or end
        seen, shift = before + text[begin:end], begin - len(before)
        spans = find(seen + text[end : end + behind])
        here = ((max(begin, start + shift), stop + shift, kind) for start, stop, kind in spans)
        yield from sorted((span for span in here if span[0] < min(end, span[1])), key=lambda span: (span[0], -span[1]))
        if end == len(text):
            return
        found = (_PRIVATE_KEY.finditer(each) for each in ((seen, resolved(seen)) if "PRIVATE" in seen else ()))
        goes_on = any(key[1] is None for keys in found for key in keys)
        before = text[max(begin, end - (behind or CONTEXT)) : end]
        before = f"-----BEGIN PRIVATE KEY-----\n{before}" if goes_on else before
        begin = end
        if run is not None:
            since = run.check(since, "a text was still being masked")


def readings(text: str) -> Iterator[tuple[str, Callable[[int, int], tuple[int, int]]]]:
    """The text as it stands, with blanks for colours, and then, piece by piece, as it reads when what is escaped for JSON, Markdown,
    addresses and HTML is resolved and colours and signs that nobody sees are left out; each with a function from a place in it to that
    in the text. Pieces overlap. Escapes may be doubled, or nested in other escapes.
    """
    if text.isascii() and not any(sign in text for sign in "\\%&\x1b"):  # most are like this, and _ESCAPED is slow
        yield text, lambda start, end: (start, end)
        return
    yield _COLOURS.sub(lambda found: " " * len(found[0]), text), lambda start, end: (start, end)
    for begin in range(0, len(text), PIECE) if _ESCAPED.search(text) else ():
        piece, maps = text[max(0, begin - OVERLAP) : begin + PIECE], list[tuple[list[int], list[int]]]()

        def back(
            start: int, end: int, maps: list[tuple[list[int], list[int]]] = maps, offset: int = max(0, begin - OVERLAP)
        ) -> tuple[int, int]:
            for there, here in reversed(maps):
                first, last = bisect_right(there, start) - 1, bisect_left(there, end)
                last -= last == len(there) or there[last] != end
                start, end = here[first] + start - there[first], here[last] + end - there[last]
            return offset + start, offset + end

        for _ in range(MOST_NESTED):
            parts, there, here, done, length = list[str](), [0], [0], 0, 0
            for found in _ESCAPED.finditer(piece):
                sign = _sign(found)
                length += found.start() - done
                there += (length, length + len(sign))
                here += found.span()
                parts += (piece[done : found.start()], sign)
                done, length = found.end(), length + len(sign)
            if not parts:
                break
            piece = "".join([*parts, piece[done:]])
            maps.append((there, here))
            yield piece, back


def resolved(text: str) -> str:
    """The text as it reads without escapes."""
    for _ in range(MOST_NESTED):
        text = _ESCAPED.sub(_sign, text)
    return text


def _sign(found: re.Match[str]) -> str:
    """The sign that an escape stands for."""
    match found.lastgroup:
        case "hex":
            return chr(int(found["hex"][1:], 16))
        case "percent":
            return chr(int(found["percent"], 16))
        case "letter":
            return _LETTERS.get(found["letter"], found["letter"])
        case "number" | "entity":
            return unescape(f"&{found[found.lastgroup]};")[:1]
        case _:
            return ""


def folded(text: str) -> str:
    """The text with wide, mathematical and other forms of ASCII signs and of digits as the plain ones; each stays in its place."""
    return text if text.isascii() else _NOT_ASCII.sub(lambda sign: _in_ascii(sign[0]), text)


@lru_cache(maxsize=4096)
def _in_ascii(sign: str) -> str:
    plain = normalize("NFKC", sign)
    if len(plain) != 1:
        return sign
    digit = decimal(plain, None)
    plain = "-" if plain == "\u2010" else plain if digit is None else str(digit)  # the hyphen that is no minus
    return plain if plain.isascii() else sign


def redact_text(text: str) -> str:
    """The text without what looks like a secret."""

    def found(part: str) -> Iterator[Span]:
        return ((*back(*span), "") for reading, back in readings(part) for span in _secrets_in(reading))

    clean, done = StringIO(newline=""), 0
    for start, end, _ in found_in_parts(text, found):
        if start >= done:
            clean.write(text[done:start] + REDACTED)
        done = max(done, end)
    return clean.getvalue() + text[done:]


def _secrets_in(text: str, *, any_word: bool = True) -> Iterator[tuple[int, int]]:
    """Where secrets with a known shape stand, the values of telling names (without `any_word` only those that have letters and digits
    and are no name in code), and whole Authorization and Cookie headers.
    """
    if (plain := folded(text)) != text:
        yield from _secrets_in(plain, any_word=any_word)
    for needles, pattern in _SHAPES:
        if any(needle in text for needle in needles):
            yield from (found.span() for found in pattern.finditer(text))
    lower = text.lower()
    if len(lower) != len(text):  # a capital I with a dot becomes two characters
        lower = re.sub("[A-Z]+", lambda capitals: capitals[0].lower(), text)
    named = ((name, value) for needles, name, value in _NAMED if any(needle in lower for needle in needles))
    for start, end in (span for each in named for span in _values_behind(*each, text, lower)):
        if any_word or _PHRASE.fullmatch(text, start, end):
            yield start, end
            continue
        value = _SECRETIVE.match(text[start : min(end, start + LONGEST_NAMED)])
        in_quotes = text[start - 1 : start] in ('"', "'") and text[end : end + 1] == text[start - 1]
        if in_quotes and _HELD.fullmatch(text, start, end) and not _CODE_NAME.fullmatch(text, start, end):
            yield start, end
        elif value and len(value[0]) >= SHORTEST_MIXED and not _CODE_NAME.fullmatch(value[0]):
            yield start, start + value.end()
    if "authorization" in lower or "cookie" in lower:
        yield from _headers_in(text, lower)
    for cookies in _COOKIES.finditer(text) if "cookies" in lower else ():
        yield from (found.span() for found in _COOKIE_VALUE.finditer(text, *cookies.span()))


def _values_behind(name: re.Pattern[str], value: re.Pattern[str], text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Where values stand behind such names, which are looked for in `lower`, without the backslash of an escaped quote. A value may hold
    or end with another name, as in `api_key=x:password: y`: the value of that one is found too, inside the first only up to the next
    name, which keeps this linear.
    """
    done = 0
    for found, after in itertools.pairwise((*name.finditer(lower), None)):
        assert found is not None, "only the last is"
        start, end = found.end(), 0
        if start < done:
            end = done if after is None else min(done, after.start())
        elif whole := value.match(text, start):
            end = done = whole.end()
        if end > start:
            yield start, start + len(text[start:end].rstrip("\\"))


def _headers_in(text: str, lower: str) -> Iterator[tuple[int, int]]:
    """Where the values of Authorization and Cookie headers stand: in quotes up to the one that closes them, else to the end of the line.
    Every character is looked at a few times at most, however many headers there are.
    """
    seen = done = 0
    in_string = False
    for header in _HEADER.finditer(lower):
        start = header.end()
        pattern = _AUTHORIZATION if header["authorization"] else _COOKIE
        begins = pattern.match(text, start) if start >= done else None
        if begins is None:
            continue
        is_word = bool(header["authorization"]) and begins.lastgroup is None
        if is_word and header["pair"] and not header["value"]:  # names of headers: ("Authorization", "Content-Type")
            continue
        for sign in _STRINGS.finditer(text, seen, header.start()):
            if len(sign[0]) == 1:
                in_string = sign[0] == '"' and not in_string
        seen, opening = header.start(), header["quote"]
        if opening is None and header["closed"] is None:
            before = _BEFORE_HEADER.search(text, max(0, seen - 40), seen)
            opening = before[1] if before else '"' if in_string else None
        if opening is not None:
            closing = (
                each.start()
                for each in _CLOSING[opening[-1]].finditer(text, start)
                if each["end"] or (each["escapes"] is not None and len(each["escapes"]) < len(opening))
            )
            done = next(closing, len(text))
        elif is_word or (begins.lastgroup == "mixed" and header["sign"] == "="):
            done = begins.end()  # as in code, and in `?authorization=x&state=y`
        else:
            rest = _REST_OF_LINE.match(text, start)
            done = rest.end() if rest else start
        yield start, done


def tokens_in(text: str) -> Iterator[tuple[int, int]]:
    """Where tokens and keys stand in one reading of a text, line by line."""
    for start, end in _secrets_in(text, any_word=False):
        for part in re.finditer(r"[^\r\n]+", text[start:end]):  # a private key has many lines
            yield start + part.start(), start + part.end()


def names_in(fields: Mapping[Any, Any], above: str) -> dict[Any, str]:
    """The name under which each field of a table stands: that of the field, and for a `value` the `name` or `key` beside it or else the
    name above; for that of a cookie, and for each of a table of cookies, a telling one.
    """
    beside = (item for key in ("name", "key", "Name", "Key") if isinstance(item := fields.get(key), str))
    named, of_cookies = next(beside, ""), above.lower().endswith("cookies")
    pair = "token" if of_cookies else named or above
    of_pair = fields if of_cookies and not named else _VALUES
    return {key: pair if pair and key in of_pair else str(key) for key in fields}


def names_of(items: Sequence[Any], above: str) -> list[str]:
    """The name under which each item of a list stands: that of a pair (`["x-api-key", "…"]`), the option before it in a command, or else
    the name above. Those two tell only about a text that is no word.
    """
    names, option = [above] * len(items), ""
    for at, (before, item) in enumerate(itertools.pairwise(items), 1):
        if not isinstance(before, str) or len(before) > LONGEST_NAME:
            continue
        option = _OPTIONS.get(before.rpartition("/")[2], option)
        if isinstance(item, str) and item[:1] != "-" and any(sign in item for sign in "0123456789="):
            is_name = (len(items) == 2 or before.startswith("-")) and _TELLING.search(before)
            names[at] = before if is_name else "token" if before == option else above
    return names


def tells(name: str, text: str) -> bool:
    """Whether the name of a field tells that its text is a secret; `pwd` and `pass` do so only if the text looks like one."""
    return bool(_TELLING.search(name) or _NAMED[1][1].search(f'"{name}"="{text[:200]}"'.lower()))


def redact_value(value: Any, kept: Sequence[str] = (), above: str = "") -> Any:
    """Plain data without what looks like a secret, and without the texts under a telling name. `kept` fields stay as they are."""
    match value:
        case str():
            return REDACTED if above and tells(above, value) else redact_text(value)
        case list():
            items = cast("list[Any]", value)
            return [redact_value(item, above=name) for item, name in zip(items, names_of(items, above), strict=True)]
        case dict():
            fields = cast("dict[Any, Any]", value)
            names = names_in(fields, above)
            return {
                redact_text(key) if isinstance(key, str) else key: item
                if key in kept
                else redact_value(item, above=names[key])
                for key, item in fields.items()
            }
        case _:
            return value
