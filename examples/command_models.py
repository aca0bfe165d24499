"""Programs as models: one for the root, a cheaper one for sub-calls. No key passes through Sonde.

    python examples/command_models.py "claude --print" "codex exec -" "What does this do?" src/

A program gets the prompt on standard input and prints its reply. It is started without a shell, with PATH, HOME and LANG only,
and killed at the run's deadline. Its tokens are estimated (four characters each), so budgets hold for it too.
"""

from __future__ import annotations

import sys

import sonde


def main(root: str, small: str, question: str, path: str) -> None:
    answer = sonde.ask(
        question,
        path,
        model=f"command:{root}",
        sub_model=f"command:{small}",
        max_subcalls=8,  # money is unknown for a program, so count what can be counted
        max_tokens_total=200_000,
    )
    print(answer.text)
    used = answer.record.runtime_ref
    print(f"{used.model_name} asked {used.usage.llm_subcalls} times for help of {used.sub_model_name}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
