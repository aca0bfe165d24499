#!/bin/sh
# tests/local against a real model on this machine, in an environment of its own (.tools/local).
set -eu
cd "$(dirname "$0")/.."
home=.tools/local/venv
scripts/local.sh "$home" > /dev/null
.venv/bin/uv pip install --quiet --python "$home/bin/python" --editable . pytest pytest-timeout pytest-randomly pytest-socket hypothesis
exec "$home/bin/python" -m pytest -m local tests/local "$@"
