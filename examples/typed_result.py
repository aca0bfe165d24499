"""A typed result: give a pydantic model, get an instance of it, or a run that says why not.

    OPENAI_API_KEY=… python examples/typed_result.py logs/

A value that does not fit goes back to the model with the violations named, once; after that the run ends partial or failed.
It is never coerced, and never half an object.
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, Field

import sonde


class Outage(BaseModel):
    """What the answer must be. The field descriptions go to the model as part of the schema."""

    service: str = Field(description="the service that failed first")
    minute: str = Field(pattern=r"^\d\d:\d\d$", description="when, as HH:MM")
    severity: Literal["low", "high"]
    citations: list[str] = Field(min_length=1, description="proof, each as path:start-end")


def main(path: str) -> int:
    answer = sonde.ask("What was the first outage?", path, schema=Outage)
    if not isinstance(answer.value, Outage):  # without a model, or out of budget: passages instead of an object
        print(f"{answer.status}: no typed answer; gaps: {', '.join(answer.gaps) or 'no model is set'}")
        return 1
    print(f"{answer.value.minute} {answer.value.service} ({answer.value.severity})")
    # `citations` of the answer were read again and hashed; those of the value are only what the model wrote.
    print("\n".join(f"  {each.path}:{each.start_line} {each.snippet}" for each in answer.citations))
    return 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
