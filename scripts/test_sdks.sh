#!/bin/sh
# The clients of Langfuse (of versions 4 and 3) and LangSmith read the replies of the tests' servers, in environments of their own.
set -eu
cd "$(dirname "$0")/.."
for version in now before; do
  home=.bench/sdks-$version
  wanted="langfuse langsmith"
  test $version = now || wanted="langfuse<4"
  test -x "$home/bin/python" || .venv/bin/uv venv --quiet --python .venv/bin/python "$home"
  # shellcheck disable=SC2086 # several words
  .venv/bin/uv pip install --quiet --python "$home/bin/python" --editable . $wanted \
    pytest pytest-timeout pytest-randomly pytest-socket hypothesis inline-snapshot
  "$home/bin/python" -m pytest tests/contexts/traces/test_product_clients.py "$@"
done
