"""Any OpenAI-compatible server: llama.cpp, vLLM, Ollama, LM Studio. Nothing leaves your machine.

    python examples/local_server.py http://127.0.0.1:8080/v1 qwen3 "What failed first?" logs/

Small models write poor Python but fill in forms: `mode="actions"` has them choose typed actions under a JSON schema instead.
"""

from __future__ import annotations

import sys

import sonde


def main(base_url: str, name: str, question: str, path: str) -> None:
    # Settings are a value: this one run goes to your server, whatever the environment says.
    settings = sonde.load_settings(base_url=base_url, model=f"openai:{name}", timeout_s=120.0)
    answer = sonde.ask(question, path, settings=settings, mode="actions", max_iterations=8)
    print(answer.text)
    usage = answer.record.runtime_ref.usage  # counted for free models too: a token limit holds without prices
    print(f"{answer.status}: {usage.iterations} turns, {usage.tokens_in + usage.tokens_out} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
