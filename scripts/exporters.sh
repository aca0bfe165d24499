#!/bin/sh
# Real exporters of OpenTelemetry for tests of the listener, in environments of their own: Python's SDK with the instrumentation of an
# OpenAI client in .bench/exporters, Node's SDK in .bench/exporters/node.
set -eu
cd "$(dirname "$0")/.."
home=.bench/exporters
if ! [ -x "$home/bin/python" ]; then
  .venv/bin/uv venv --quiet --python .venv/bin/python "$home"
fi
.venv/bin/uv pip install --quiet --python "$home/bin/python" "opentelemetry-sdk>=1.30" "opentelemetry-exporter-otlp-proto-http>=1.30" \
  "openinference-instrumentation-openai>=0.1.20" "openai>=1.60" "opentelemetry-distro>=0.51b0"
mkdir -p "$home/node"
if ! [ -e "$home/node/.ready" ]; then
  test -e "$home/node/package.json" || printf '{"private": true}\n' >"$home/node/package.json"
  (cd "$home/node" && npm install --no-audit --no-fund --silent @opentelemetry/api@^1 @opentelemetry/sdk-trace-node@^2 @opentelemetry/resources@^2 \
    @opentelemetry/exporter-trace-otlp-http@">=0.200.0" @opentelemetry/exporter-trace-otlp-proto@">=0.200.0")
  touch "$home/node/.ready"
fi
