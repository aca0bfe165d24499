#!/bin/sh
# The portable backend with pydantic-monty really installed, beside the environment and not in it (.tools/monty).
set -eu
cd "$(dirname "$0")/.."
home="$PWD/.tools/monty"
test -x "$home/bin/monty" || .venv/bin/uv pip install --quiet --python .venv/bin/python --target "$home" --no-deps \
  "pydantic-monty-client>=1.4" "pydantic-monty-runtime>=1.4"
PYTHONPATH="$home" MONTY_BIN="$home/bin/monty" exec .venv/bin/python -m pytest -m monty tests/sandbox tests/escapes tests/cli tests/runtime tests/journeys tests/portable "$@"
