"""A tool of your own: any typed function with a docstring. The model reads its signature and docstring, the sandbox never runs it.

    OPENAI_API_KEY=… python examples/own_tool.py

The function runs here, in the parent, with everything you have; so it decides what generated code may reach. Keep it read-only, and
check what it is given: the arguments come from a model.
"""

from __future__ import annotations

import sonde
from sonde.errors import ToolFault

OWNERS = {"payments": "team-ledger", "web": "team-front"}
RUNBOOK = {"team-ledger": ["Restart the ledger first.", "Then replay the queue."], "team-front": ["Ask #front."]}
LOG = "09:00 web started\n09:01 payments: connection refused\n09:02 web answered 500\n"


def owner_of(service: str) -> str:
    """The team that owns a service.

    Example: team = owner_of("web")
    """
    if service not in OWNERS:  # a ToolFault goes back to the model with your words; the run goes on
        raise ToolFault(f"there is no service {service!r}; there are {', '.join(OWNERS)}")
    return OWNERS[service]


def runbook(team: str) -> list[str]:
    """What a team wants done first, step by step."""
    return RUNBOOK[team]


def main() -> None:
    answer = sonde.ask("Which service failed first, and who must be called?", LOG, tools=[owner_of, runbook])
    print(answer.text)
    for cited in answer.citations:  # the lines of the log, and the calls: owner_of(service='payments')
        print("cited:", cited.place, "·", cited.snippet)
    print("tool calls:", answer.record.metrics.tool_calls, "· judged by", answer.annotator_kind)


if __name__ == "__main__":
    main()
