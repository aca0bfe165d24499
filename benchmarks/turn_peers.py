"""One run of one system, started by turn.py in that system's own environment: NAME BASE_URL MEGABYTES TURNS.

Prints one JSON object: the system's name with its version, and the processor time of this process a turn in milliseconds.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false
# The peers are not installed where this is checked.

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable

LINE = "2026-01-01 12:00:00 INFO service-a request 12345 handled in 17 ms by worker 9, cache hit, user 4711 ....\n"


def sonde(_base_url: str, text: str, turns: int) -> None:
    from sonde import Budget, ask, load_settings

    budget = Budget(max_iterations=turns + 5, max_tokens_total=100_000_000, max_cost_usd=None)
    ask("What is it?", text, model="openai:scripted", budget=budget, settings=load_settings())


def rlms(base_url: str, text: str, turns: int) -> None:
    from rlm import RLM

    options = {"model_name": "scripted", "base_url": base_url, "api_key": "sk-none"}
    RLM(backend="openai", backend_kwargs=options, max_iterations=turns + 5).completion(text, root_prompt="What is it?")


def dspy(base_url: str, text: str, turns: int) -> None:
    import dspy as library
    from dspy.primitives.local_interpreter import LocalInterpreter

    model = library.LM("openai/scripted", api_base=base_url, api_key="sk-none", cache=False)
    library.configure(lm=model, adapter=library.ChatAdapter())
    loop = library.RLM("context, query -> answer", max_iters=turns + 5, interpreter_factory=LocalInterpreter)
    loop(context=text, query="What is it?")


def smolagents(base_url: str, text: str, turns: int) -> None:
    from smolagents import CodeAgent, LogLevel, OpenAIServerModel

    model = OpenAIServerModel("scripted", api_base=base_url, api_key="sk-none")
    agent = CodeAgent(tools=[], model=model, max_steps=turns + 5, verbosity_level=LogLevel.OFF)
    agent.run("What is it?", additional_args={"context": text})


def pyrlm_runtime(base_url: str, text: str, turns: int) -> None:
    from pyrlm_runtime import RLM, Context
    from pyrlm_runtime.adapters import OpenAICompatAdapter
    from pyrlm_runtime.policy import Policy

    policy = Policy(max_steps=turns + 5, max_total_tokens=100_000_000)
    loop = RLM(adapter=OpenAICompatAdapter(model="scripted", base_url=base_url), policy=policy)
    loop.run("What is it?", Context.from_text(text))


SYSTEMS: dict[str, Callable[[str, str, int], None]] = {
    "sonde": sonde,
    "rlms": rlms,
    "dspy": dspy,
    "smolagents": smolagents,
    "pyrlm-runtime": pyrlm_runtime,
}


def main(name: str, base_url: str, megabytes: int, turns: int) -> None:
    text = LINE * (megabytes * 1_000_000 // len(LINE))
    shown = sys.stdout
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123  # what systems print is not measured
    before = time.process_time()
    SYSTEMS[name](base_url, text, turns)
    cpu_ms = 1000 * (time.process_time() - before) / turns
    package = "sonde-rlm" if name == "sonde" else name
    json.dump({"name": f"{name} {importlib.metadata.version(package)}", "cpu_ms": cpu_ms}, shown)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
