"""examples/folder_model.py as a command model, with a thread in the place of the person."""

from __future__ import annotations

import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sonde.core.deadline import Deadline, SystemClock
from sonde.models import Message, Model, ModelRequest, ModelSettings, open_model

PROGRAM = Path(__file__).parents[2] / "examples" / "folder_model.py"


def folder_model(folder: Path) -> Model:
    settings = ModelSettings(environ={"PATH": os.environ["PATH"]}, count_wait=False, timeout_s=200)
    return open_model([sys.executable, str(PROGRAM), str(folder), "--poll", "0.02"], settings)


def answer_everything(folder: Path, stop: threading.Event) -> None:
    while not stop.wait(0.02):
        for prompt in folder.glob("*.prompt.md"):
            answer = prompt.with_name(prompt.name.replace(".prompt.", ".answer."))
            if not answer.exists():
                beside = answer.with_suffix(".part")
                beside.write_text(f"answer to {prompt.read_text()}")
                beside.rename(answer)


@pytest.mark.long
def test_parallel_prompts_get_their_own_answers(tmp_path: Path) -> None:
    folder, stop = tmp_path / "desk", threading.Event()
    folder.mkdir()
    person = threading.Thread(target=answer_everything, args=(folder, stop))
    person.start()
    model = folder_model(folder)

    def call(number: int) -> str:
        request = ModelRequest(messages=[Message("user", f"question {number}")])
        return model.complete(request, deadline=Deadline(SystemClock(), 0.01)).text

    try:
        with ThreadPoolExecutor(12) as pool:
            texts = list(pool.map(call, range(12)))
    finally:
        stop.set()
        person.join()

    assert texts == [f"answer to question {number}" for number in range(12)]
    assert sorted(path.name for path in folder.glob("*.prompt.md")) == [f"{n:04}.prompt.md" for n in range(1, 13)]
    assert not list(folder.glob(".*"))
