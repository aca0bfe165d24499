# Everything runs in .venv, which `make` builds itself from python3 with venv and pip.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help venv check format test test-phoenix bench-traces pins requirements clean demo

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

venv: $(READY)   ## the virtual environment with everything pinned

$(READY): pyproject.toml requirements/dev.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sonde needs Python 3.11 or newer; set PYTHON=python3.12, say")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/pip install --quiet uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

check: $(READY)  ## ruff, pyright strict, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(READY) ## let ruff put things in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: $(READY)   ## the suite, in random order, without network
	$(BIN)/pytest -n 2 -m "not slow and not phoenix and not browser"

test-phoenix: $(READY) ## against a real Phoenix server, installed into .phoenix and stopped afterwards
	scripts/phoenix.sh run $(BIN)/pytest -m phoenix tests/phoenix

bench-traces: $(READY) ## index speed, tool latencies and memory over a million spans
	$(BIN)/python benchmarks/traces.py

requirements: $(READY) ## which requirement numbers have passing tests
	$(BIN)/python scripts/requirements.py

pins: $(READY)   ## compile the pins anew (no registry address ends up in git)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --group dev --extra code --extra otel --extra data --extra pdf --extra mcp --extra acp --extra phoenix pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url pyproject.toml -o requirements/base.txt

clean:           ## remove what make has built
	rm -rf $(VENV) dist build .pytest_cache .ruff_cache .hypothesis
