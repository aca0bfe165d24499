"""One question to one system, started by tokens.py in that system's own environment: NAME BASE_URL PLACE QUESTION.

PLACE is a file or a folder: Sonde gets it as it is, the others its text or a dictionary of texts by path. Prints one JSON object: the
system's name with its version, and its answer.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUntypedFunctionDecorator=false
# The peers are not installed where this is checked.

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TURNS = 25
PATIENCE_S = 36_000.0  # behind the server may be a person, or a slow model; no request may be sent twice


def sonde(_base_url: str, place: Path, question: str) -> str:
    from sonde import ask

    os.environ["SONDE_TIMEOUT_S"] = str(PATIENCE_S)
    budget: Any = {"max_iterations": TURNS, "max_cost_usd": None, "max_wall_time_sec": PATIENCE_S}
    return ask(question, place, model="openai:scripted", **budget).text


def rlms(base_url: str, place: Path, question: str) -> str:
    from rlm import RLM

    options = {"model_name": "scripted", "base_url": base_url, "api_key": "sk-none", "timeout": PATIENCE_S}
    loop = RLM(backend="openai", backend_kwargs=options, max_iterations=TURNS)
    return str(loop.completion(_data(place), root_prompt=question).response)


def dspy(base_url: str, place: Path, question: str) -> str:
    import dspy as library
    from dspy.primitives.local_interpreter import LocalInterpreter

    model = library.LM("openai/scripted", api_base=base_url, api_key="sk-none", cache=False, timeout=PATIENCE_S)
    library.configure(lm=model, adapter=library.ChatAdapter())
    loop = library.RLM("context, query -> answer", max_iters=TURNS, interpreter_factory=LocalInterpreter)
    return str(loop(context=_data(place), query=question).answer)


def smolagents(base_url: str, place: Path, question: str) -> str:
    from smolagents import CodeAgent, LogLevel, OpenAIServerModel, tool

    options = {"timeout": PATIENCE_S}
    model = OpenAIServerModel("scripted", api_base=base_url, api_key="sk-none", client_kwargs=options)

    @tool
    def llm_query(prompt: str) -> str:
        """Ask a language model one question.

        Args:
            prompt: what to do, with the text to look at
        """
        return str(model([{"role": "user", "content": prompt}]).content)

    agent = CodeAgent(tools=[llm_query], model=model, max_steps=TURNS, verbosity_level=LogLevel.OFF)
    agent.state["context"] = _data(place)  # additional_args would put all of it into the prompt
    return str(agent.run(f"{question}\nThe data is in the variable `context`: a text, or texts by path."))


def _data(place: Path) -> str | dict[str, str]:
    if place.is_file():
        return place.read_text()
    return {str(path.relative_to(place)): path.read_text() for path in sorted(place.rglob("*")) if path.is_file()}


SYSTEMS: dict[str, Callable[[str, Path, str], str]] = {
    "sonde": sonde,
    "rlms": rlms,
    "dspy": dspy,
    "smolagents": smolagents,
}


def main(name: str, base_url: str, place: str, question: str) -> None:
    shown = sys.stdout
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # what systems print is not measured
    answer: Any = SYSTEMS[name](base_url, Path(place), question)
    package = "sonde-rlm" if name == "sonde" else name
    json.dump({"name": f"{name} {importlib.metadata.version(package)}", "answer": answer}, shown)


if __name__ == "__main__":
    main(*sys.argv[1:])
