"""Placeholders: exact both ways, the same for the same value, and not to be forged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sonde.core.canonical import UNSEEN
from sonde.core.deadline import GRACE_S, Deadline
from sonde.core.markdown_safety import written_out
from sonde.core.mask import Mask, patterns_of
from sonde.core.redaction import PART, redact_text
from sonde.errors import ConfigError, ToolFault
from sonde.testing import FrozenClock

PIECES = st.sampled_from(
    [
        "jane@corp.com", "JANE@corp.com", "j%40x.org", "jörg@bär.de", "4111 1111 1111 1111", "378282246310005",
        "<email-1>", "&lt;card-2>", "<literal-1>", "<email-1.2>", "token=ab12cd34", "sk-abcdefghijklmnop1234",
        "https://u:p1@host/", "C-77", "\n", "\r\n", " ", '"', "\\n", "\\u0040", "é", "\ud800", "-----BEGIN PRIVATE KEY-----", "x",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=5), max_size=12).map("".join)


@given(TEXTS)
def test_what_was_hidden_comes_back_to_the_letter(text: str) -> None:
    mask = Mask({"customer": r"C-\d+"})
    hidden = mask.hidden(text)

    assert mask.restored(hidden) == text
    assert hidden.count("\n") == text.count("\n")  # so that lines keep their numbers


@given(TEXTS)
def test_looking_once_more_before_it_leaves_keeps_that(text: str) -> None:
    mask = Mask()
    hidden = mask.hidden(text)

    assert mask.restored(mask.guarded(hidden)) == text


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("to jane@corp.com, jane@corp.com", "to <email-1>, <email-1>"),
        ("Jane@Corp.com jane@corp.com", "<email-1> <email-1.2>"),
        ("?to=jane%40corp.com&x jane@corp.com", "?to=<email-1>&x <email-1.2>"),
        (r'{"to": "\njane@corp.com", "cc": "bob@corp.com"}', r'{"to": "\n<email-1>", "cc": "<email-2>"}'),
        (r'"jane@corp.com"', '"<email-1>"'),
        ("4111111111111111 and 4111-1111-1111-1111", "<card-1> and <card-1.2>"),
        ("4111111111111112 is not one, nor is 1763280000123456", "4111111111111112 is not one, nor is 1763280000123456"),
        ("amex 3782 822463 10005.", "amex <card-1>."),
        ("key sk-abcdefghijklmnop1234!", "key <token-1>!"),
        ("password=hunter2x; token = get_token(a1)", "password=<token-1>; token = get_token(a1)"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: <token-1>"),
        ("postgres://app:s3cret@db/x", "postgres://<token-1>@db/x"),
        ("a <email-1> of a stranger, jane@corp.com", "a <literal-1> of a stranger, <email-1>"),
        ("customer C-77 and C-78, again C-77", "customer <customer-1> and <customer-2>, again <customer-1>"),
        ("-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----", "<token-1>\n<token-2>\n<token-3>"),
        ("@property\ndef x(self): ...  # user@host", "@property\ndef x(self): ...  # user@host"),
    ],
)  # fmt: skip
def test_values_have_placeholders(text: str, hidden: str) -> None:
    assert Mask({"customer": r"C-\d+"}).hidden(text) == hidden


@pytest.mark.parametrize(
    "before",
    [r"card:\n", r"\t", r"\\r\\n", r"\\\\n", r"\b", r"\f", r"\u00e9", r"\x1b",
     '\\"', "%3D", "%0A", "%253D", "%5Cn", "card_", "é", "\u200b", "&#61;", "&quot;"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("value", "kind"),
    [("4111111111111111", "card"), ("sk-abcdefghijklmnop1234", "token"), ("ghp_" + "a1B2" * 9, "token"), ("AKIAABCD1234EFGH5678", "token"),
     ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVPmB92K27uhbUJU1p1r", "token")],
)  # fmt: skip
def test_a_value_is_hidden_behind_an_escape(before: str, value: str, kind: str) -> None:
    assert Mask().hidden(f"{before}{value}\\n") == f"{before}<{kind}-1>\\n"


def test_a_pattern_of_the_user_sees_no_letter_in_an_escape() -> None:
    assert Mask({"customer": r"\bC-\d+\b"}).hidden(r"\nC-77\u0020%09C-78") == r"\n<customer-1>\u0020%09<customer-2>"


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("PAN4111111111111111 4111111111111111_x 4111111111111111z", "PAN<card-1> <card-1>_x <card-1>z"),
        ("de4111 1111 1111 1111", "de<card-1>"),
        ("jane@corp.comjane@corp.com foo@x.jane@corp.com", "<email-1> <email-2>"),
        ("4008 4111 1111 1111 1111 and 4003 4111 1111 1111 1111", "<card-1><card-2> and 4003 <card-3>"),
        ("4111.1111.1111.1111 4111_1111_1111_1111", "<card-1> <card-1.2>"),
        ("&#52;111111111111111 %34%31%31%31111111111111", "<card-1> <card-1.2>"),
        ("４１１１１１１１１１１１１１１１ 4111\u200b1111\u200b1111\u200b1111", "<card-1> <card-1.2>"),
        ("o'brien@x.com \"jane doe\"@x.com f'eve@x.com'", "<email-1> <email-2> f'<email-3>'"),
        (r"o\u0027brien@x.com jane&#64;x.com jane＠x.com", "<email-1> <email-2> <email-2.2>"),
        (r'{"input": "{\"password\": \"hunter2x\"}"}', r'{"input": "{\"password\": \"<token-1>\"}"}'),
        (r"\u003cemail-1\u003e &lt;card-1&gt;", "<literal-1> <literal-2>"),
        ("ERROR\x1b[31mghp_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2\x1b[0m", "ERROR\x1b[31m<token-1>\x1b[0m"),
        ("\x1b[0mjane@corp.com \x1b[1;32mjane@corp.com\x1b(B\x1b[m", "\x1b[0m<email-1> \x1b[1;32m<email-1>\x1b(B\x1b[m"),
        (r'{"l": "\u001b[31mjane@corp.com\u001b[0m \033[1m4111111111111111"}', r'{"l": "\u001b[31m<email-1>\u001b[0m \033[1m<card-1>"}'),
        ("4111\x1b[1m1111\x1b[0m11111111 41111\ufe0f11111111111 41111\U000e004111111111111", "<card-1> <card-1.2> <card-1.3>"),
        ("sk-abcde\u3164fghijklmnop1234 sk-abcde\U000e0100fghijklmnop1234", "<token-1> <token-2>"),
        ("jane&#64corp jane&#64 jane&#000000064;x.com jane&#x00000040;x.com", "jane&#64corp jane&#64 <email-1> <email-1.2>"),
        ("jane&#64x.com 4111&zwnj;1111&ZeroWidthSpace;1111&shy;1111", "<email-1> <card-1>"),
        ("sk&hyphen;abcdefghijklmnop1234 sk\u2010abcdefghijklmnop1234", "<token-1> <token-2>"),
        (r"jane.doe\@corp.com ghp\_a1B2a1B2a1B2a1B2a1B2a1B2a1B2a1B2", "<email-1> <token-1>"),
        ("card 4111\t1111\t1111\t1111\ncard 4111  1111  1111  1111", "card <card-1>\ncard <card-1.2>"),
        ("ｓｋ－ａｂｃｄｅｆｇｈｉｊｋｌｍｎｏｐ１２３４ 密钥sk-abcdefghijklmnop1234", "<token-1> 密钥<token-2>"),
        ("٤١١١١١١١١١١١١١١١ 4111111111111111", "<card-1> <card-1.2>"),
        ("%B4111111111111111^DOE/JOHN^2512101? ;4111111111111111=2512101?", "%B<card-1>^DOE/JOHN^2512101? ;<card-1>=2512101?"),
    ],
)  # fmt: skip
def test_a_value_is_hidden_however_it_is_written(text: str, hidden: str) -> None:
    mask = Mask()

    assert mask.hidden(text) == hidden
    assert mask.restored(hidden) == text


@pytest.mark.parametrize(
    "text",
    [
        "sha 3f4111111111111111a0c2 0x4111111111111111 4111111111111111abcdef",  # digits of a hash
        "c0ffee00-4111-1111-1111-1111abcdefab",
        "4111111111111111111111 14111111111111111",
        "2026-11-16T15:33:01.123456789Z 1763280000123456789 1763280000.123456",
        "def test_npm_install_works_with_spaces(): ...  # r8_registers, my_hf_hub_download_folder_name",
        r"C:\new\table \d{4}-\d{4}-\d{4} 100%de %s%20d",
        "id 4111111111111112 and 9_007_199_254_740_991",
        "4111\t1111\t1111\t1111\t2026\n1000  4111  1111  1111  1111",  # rows of tables
        "token：共100个, 密码 token:数量1000 \x1b[31mERROR\x1b[0m [31m",
        r"[\w\.\-]+@[\w\-]+\.com a\_b ?x=1&#top &lt;b&gt; &notin;",
    ],
)
def test_what_is_no_value_stays(text: str) -> None:
    assert Mask().hidden(text) == text


@pytest.mark.parametrize(
    ("edge", "hidden"),
    [
        ("password:\nhunter2x\n", "password:\n<token-1>\n"),
        ("Authorization%3A\n Basic dXNlcjpwYXNz\n", "Authorization%3A\n <token-1>\n"),
        ("card\n4111 1111 1111 1111\njane@corp.com", "card\n<card-1>\n<email-1>"),
        ("4111 1111 1111 1111\n4111 1111 1111 1111", "<card-1>\n<card-1>"),
        ("-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----\nfree", "<token-1>\n<token-2>\n<token-3>\nfree"),
        ("-----BEGIN&#32;PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----\nfree", "<token-1>\n<token-2>\n<token-3>\nfree"),
        ("-----BEGIN PRIVATE KEY-----\n" + f"{'M' * 999}\n" * (PART // 900), "<token-1>\n" + "<token-2>\n" * (PART // 900)),
    ],
)  # fmt: skip
def test_a_large_text_is_searched_in_parts_and_no_value_is_cut(edge: str, hidden: str) -> None:
    filler = "- " * (PART // 2)
    mask = Mask()

    assert mask.hidden(filler + edge) == filler + hidden
    assert mask.restored(filler + hidden) == filler + edge
    redacted = redact_text(filler + edge)
    assert not [part for part in ("hunter", "dXNl", "MII", "MMM") if part in redacted]


@pytest.mark.parametrize(
    ("edge", "hidden", "filler"),
    [
        ("4111 1111 1111 1111", "<card-1>", "- "),
        ("4111 1111 1111 1111", "<card-1>", "!!"),
        ("jane.doe@corp.com", "<email-1>", "!!"),
        ("password: hunter2x", "password: <token-1>", "- "),
        (f"token={'aB3-' * 1000}a", "token=<token-1>", "!!"),
        (r"-----BEGIN PRIVATE KEY-----\nMIIabc\n-----END PRIVATE KEY-----", "<token-1>", "- "),
    ],
)
def test_a_value_where_a_very_long_line_is_cut_is_hidden_once_and_whole(edge: str, hidden: str, filler: str) -> None:
    before, after = (filler * PART)[: 2 * PART - len(edge) // 2] + " ", f" {filler * 9}"
    mask = Mask()

    assert mask.hidden(before + edge + after) == before + hidden + after
    assert mask.restored(before + hidden + after) == before + edge + after


WORKS: list[Callable[[str], object]] = [
    Mask().hidden,
    Mask().guarded,
    Mask().behind,
    Mask().hidden_value,
    lambda text: Mask().returned([text], {"jane": "name"}),
    redact_text,
]


@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("unit", ["- ", "-\n"])
def test_masking_ends_with_the_run_within_a_part_of_the_text_also_in_one_long_line(
    work: Callable[[str], object], unit: str
) -> None:
    run = Deadline(FrozenClock(), 1)
    run.stop.set()
    run.overtime = GRACE_S + 1

    with run.in_force():
        work(unit * 100)  # a short text never ends a run: its last words are masked too
        with pytest.raises(ToolFault, match="when the run had to end"):
            work(unit * (3 * PART))


@pytest.mark.parametrize("sign", re.sub(r"-\\[uU]\w+", "", UNSEEN).encode().decode("unicode_escape"))
def test_a_sign_that_nobody_sees_hides_nothing_from_masking_nor_from_a_reader_of_a_page(sign: str) -> None:
    assert Mask().hidden(f"jane.d{sign}oe@corp.com") == "<email-1>"
    drawn = "\u00ad\u034f\u180b\u2800\ufe00"
    assert (written_out(sign) == f"<U+{ord(sign):04X}>") == (sign not in drawn)


def test_a_card_that_is_a_number_and_a_key_of_a_table_are_hidden_too() -> None:
    mask = Mask()

    assert mask.hidden_value({"jane@corp.com": [4111111111111111, 42, True]}) == {"<email-1>": ["<card-1>", 42, True]}


@pytest.mark.parametrize("before", ["Nov 16 2026 ", "exp 0927 ", "order 12345678 ", "2026 2027 "])
def test_a_card_behind_other_digits_is_hidden(before: str) -> None:
    for card in ("4111-1111-1111-1111", "4111 1111 1111 1111"):
        assert Mask().hidden(f"{before}{card} approved") == f"{before}<card-1> approved"


def test_a_mask_goes_on_where_an_earlier_one_ended() -> None:
    first = Mask()
    first.hidden("jane@corp.com bob@corp.com JANE@corp.com")
    later = Mask({}, first.pairs())

    assert later.hidden("bob@corp.com JANE@corp.com new@corp.com") == "<email-2> <email-1.2> <email-3>"
    assert later.asked("who is <email-2>, not <email-9>?") == "who is <email-2>, not <literal-1>?"


def test_a_placeholder_in_escaped_markdown_comes_back_as_words() -> None:
    mask = Mask({"name": "_[a-z]+_"})
    mask.hidden("_jane_")

    assert mask.restored("by &lt;name-1> and <name-1>") == r"by \_jane\_ and _jane_"


@pytest.mark.parametrize(
    "given",
    ["customer", "=x", "email=x", "a b=x", "customer=", "customer=(", "customer=(?=x)", "customer=" + "x" * 1001, "c=(a{1000}){1000}"],
)  # fmt: skip
def test_a_pattern_that_cannot_be_used_is_refused(given: str) -> None:
    with pytest.raises(ConfigError):
        patterns_of([given])


@pytest.mark.long
def test_a_pattern_that_finds_too_much_is_refused() -> None:
    mask = Mask({"word": r"[a-z0-9]+"})

    with pytest.raises(ConfigError, match="finds too much"):
        mask.hidden(" ".join(f"w{number}" for number in range(200_001)))


def test_a_planted_value_that_is_no_address_is_read_once() -> None:
    planted = "a" * 300_000

    assert Mask(known=[("email-1", planted)]).restored("<email-1>") == planted


@given(TEXTS.filter(lambda text: "BEGIN" not in text), st.integers(1, 3), st.booleans())  # a key without an end goes on
def test_json_in_json_stays_json_and_its_cards_and_addresses_are_hidden(
    around: str, levels: int, ascii_only: bool
) -> None:
    text: str = f'{around}\n4111111111111111\t"jane@corp.com"'
    for _ in range(levels):
        text = json.dumps({"in": text}, ensure_ascii=ascii_only)
    hidden = Mask({"customer": r"C-\d+"}).hidden(text)
    for _ in range(levels):
        hidden = json.loads(hidden)["in"]

    assert not [each for each in ("4111", "jane", "corp") if each in hidden.rpartition("\n")[2]]


@pytest.mark.parametrize(
    "data",
    [
        {"password": "hunter2-and-more"},
        {"db": {"user": "app", "db_pass": "hunter2-and-more"}},
        {"headers": [{"name": "Cookie", "value": "sid=hunter2-and-more"}]},
        {"http.request.header.authorization": ["Token hunter2-and-more"]},
        {"key": "api_key", "value": "hunter2-and-more"},
        {"private_key": "hunter2-and-more\nhunter2-and-less"},
    ],
)
def test_a_text_under_a_telling_name_is_hidden_and_comes_back(data: dict[str, Any]) -> None:
    mask = Mask()

    hidden = mask.hidden_value(data)

    assert "hunter2" not in str(hidden) and "<token-1>" in str(hidden)
    assert mask.restored_value(hidden) == data


@pytest.mark.parametrize(
    "data", [{"token": " the", "logprob": -0.1}, {"max_tokens": 5}, {"name": "Paris", "value": "x1"}]
)
def test_a_name_that_only_looks_telling_hides_nothing(data: dict[str, Any]) -> None:
    assert Mask().hidden_value(data) == data
