"""What a trace says goes to terminals, chats and trackers; the receiver of a notice points elsewhere, repeats secrets or floods."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from victim import Listener, Victim

from journeys.journey import SONDE
from watch.notice_receiver import Receiver, Reply
from watch.watch_scene import Fault, append, traffic

pytestmark = pytest.mark.hostile_long

HOSTILE = "<!channel> @everyone \x1b]0;owned\x07 <https://evil.example|x> <img src=x onerror=alert(1)> \u202e` {n}"
TOKEN = "tok-1234567890-abcdef"


@pytest.fixture
def traces(victim: Victim) -> Path:
    path = victim.folder / "traces.jsonl"
    append(path, traffic(12, 1200, [Fault(step="send_mail", text=HOSTILE, begin=0, end=1e9)]))
    return path


def watch(victim: Victim, traces: Path, *words: str | Path) -> list[str]:
    return ["watch", "--source", str(traces), "--once", "--state", str(victim.own / "state"), *map(str, words)]


@pytest.mark.parametrize("shape", ["json", "slack", "github"])
def test_a_message_with_mentions_and_terminal_code_is_harmless_wherever_it_is_shown(
    victim: Victim, traces: Path, shape: str
) -> None:
    with Receiver() as receiver:
        hook = victim.own / "hook"
        hook.write_text(receiver.url)
        done = victim.call(*watch(victim, traces, "--on-new-file", hook, "--on-new-as", shape))

    (body,) = receiver.bodies
    text = json.dumps(body, ensure_ascii=False)
    assert done.returncode == 0, done.stderr
    for sign in ("\x1b", "\u202e", "\x07"):
        assert sign not in done.stdout + done.stderr + text
    if shape == "slack":
        assert "<!channel>" not in body["text"]
        assert {block["text"]["type"] for block in body["blocks"]} == {"plain_text"}
    if shape == "github":
        assert "``" in body["body"]  # its own tick does not end the code around it


def test_a_webhook_that_points_elsewhere_is_not_followed(victim: Victim, traces: Path, listener: Listener) -> None:
    away = [Reply(status, {"Location": f"{listener.url}/steal"}) for status in (302, 307, 308, 303) * 5]
    with Receiver(*away) as receiver:
        hook = victim.own / "hook"
        hook.write_text(receiver.url)
        (victim.own / "token").write_text(TOKEN)
        done = victim.call(
            *watch(victim, traces, "--on-new-file", hook, "--on-new-token-file", victim.own / "token"), "--digest", "1h"
        )

    assert done.returncode == 1
    assert listener.heard == []
    assert TOKEN not in done.stdout + done.stderr
    assert "redirect" in done.stderr


def test_a_reply_that_floods_and_repeats_the_secrets_tells_nobody_what_they_are(victim: Victim, traces: Path) -> None:
    echo = f"/hook/T0P-s3cret-path {TOKEN} \x1b[2J".encode() * 1000
    with Receiver(Reply(500, body=echo), Reply(422, body=echo)) as receiver:
        hook = victim.own / "hook"
        hook.write_text(receiver.url)
        (victim.own / "token").write_text(TOKEN)
        done = victim.call(*watch(victim, traces, "--on-new-file", hook, "--on-new-token-file", victim.own / "token"))

    assert "was not told" in done.stderr
    for text in ("T0P-s3cret-path", TOKEN, "\x1b"):
        assert text not in done.stdout + done.stderr


def test_a_program_that_floods_its_output_is_ended(victim: Victim, traces: Path) -> None:
    marker = victim.home / "told"
    script = victim.write("flood.py", f"open({str(marker)!r}, 'a').write('x')\nwhile True: print('\\x1b[2J' * 10000)\n")
    done = victim.call(*watch(victim, traces, "--on-new", f"{sys.executable} {script}"))

    assert done.returncode == 1
    assert "printed too much" in done.stderr
    assert "\x1b" not in done.stderr
    assert "x" in marker.read_text()


@pytest.mark.hostile_long
def test_a_program_that_leaves_its_group_and_hangs_dies_with_the_watch(victim: Victim, traces: Path) -> None:
    note = victim.home / "pid"
    script = victim.write(
        "hang.py",
        "import os, sys, time\nif os.fork(): time.sleep(9999)\nos.setsid()\n"
        f"open({str(note)!r} + '.new', 'w').write(str(os.getpid()))\nos.rename({str(note)!r} + '.new', {str(note)!r})\n"
        "time.sleep(9999)\n",
    )
    words = [each for each in watch(victim, traces, "--on-new", f"{sys.executable} {script}") if each != "--once"]
    process = subprocess.Popen(
        [SONDE, *words],
        cwd=victim.folder,
        env=victim.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        victim.wait_for(note)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    victim.wait_for_end(int(note.read_text()))
