#!/bin/sh
# The tests of models/providers.py with pydantic-ai really installed, in an environment of its own (.bench/providers).
set -eu
cd "$(dirname "$0")/.."
home=.bench/providers
test -x "$home/bin/python" || .venv/bin/uv venv --quiet --python .venv/bin/python "$home"
.venv/bin/uv pip install --quiet --python "$home/bin/python" --editable ".[models]" \
  pytest pytest-timeout pytest-randomly pytest-socket hypothesis
exec "$home/bin/python" -m pytest tests/models/test_providers.py "$@"
