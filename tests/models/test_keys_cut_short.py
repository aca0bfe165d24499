"""A key that somebody repeats is taken out of messages before they are cut to length: half a key would no longer be found."""

from __future__ import annotations

import os
import sys

import pytest

from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ModelCallFailed
from sonde.models import Message, Model, ModelRequest, ModelSettings, Secret, open_model
from sonde.testing import ScriptedReply, ScriptedServer

KEY = "sk-very-secret-0123456789"


def complaint(model: Model) -> str:
    with pytest.raises(ModelCallFailed) as caught:
        model.complete(ModelRequest(messages=[Message("user", "?")]), deadline=Deadline(SystemClock(), 100))
    return caught.value.message


def pieces_in(text: str) -> list[str]:
    """Parts of the key that somebody could tell it by."""
    return [KEY[at : at + 8] for at in range(3, len(KEY) - 7) if KEY[at : at + 8] in text]


def refused(reply: ScriptedReply, key: str = KEY) -> str:
    with ScriptedServer(reply) as server:
        return complaint(open_model("openai:x", ModelSettings(base_url=server.base_url, api_key=Secret(key))))


@pytest.mark.parametrize("before", [370, 380, 390])
def test_a_server_that_repeats_the_key_where_its_words_are_cut(before: int) -> None:
    said = refused(ScriptedReply(status=401, text=f"{'x' * before} {KEY} is wrong"))

    assert "answered 401" in said
    assert not pieces_in(said)


@pytest.mark.parametrize("before", [57, 65, 70])
def test_a_body_that_is_no_completion_and_repeats_the_key_where_the_glimpse_ends(before: int) -> None:
    said = refused(ScriptedReply(raw=b"y" * before + KEY.encode()))

    assert "the body is not JSON: 'yyy" in said
    assert not pieces_in(said)


def test_a_key_with_spaces_around_it_is_known_as_it_is_sent() -> None:
    assert not pieces_in(refused(ScriptedReply(status=401, text=f"{KEY} is wrong"), key=f" {KEY}\n"))


@pytest.mark.parametrize("after", [1980, 1990])
def test_a_program_that_prints_its_key_before_much_else(after: int) -> None:
    program = f"import os, sys; sys.stderr.write(os.environ['K'] + 'z' * {after}); sys.exit(1)"
    settings = ModelSettings(environ={"PATH": os.environ["PATH"]}, env={"K": KEY})
    said = complaint(open_model([sys.executable, "-c", program], settings))

    assert "zzz" in said
    assert not pieces_in(said)
