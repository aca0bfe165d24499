# Everything runs in .venv, which `make` builds itself from python3 with venv and pip. Larger things (Phoenix, code-server, chromium,
# peers of the benchmarks) have environments of their own under .phoenix/, .tools/ and .bench/, made by the scripts.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BASE   := $(VENV)/.base
READY  := $(VENV)/.ready
MINUTES ?= 30
NODE   := vscode/node_modules/.ready
PINNED := code otel data pdf office mcp acp
FAST   := not slow and not phoenix and not browser and not local and not journey and not hostile_long and not long and not watch

# Tests start processes by the hundred: without compiled files each of them would compile everything again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv check format test test-python test-node journeys test-hostile test-long test-watch soak-watch test-slow test-phoenix test-browser test-vscode test-local test-providers
.PHONY: requirements pins demo local vsix clean test-sdks test-monty test-superloop test-ray test-wheel test-arm64 test-kernels test-containers test-pythons release bench bench-quick docs bench-sandbox bench-turn escape-table

help:            ## this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 18

venv: $(READY)   ## the virtual environment with everything pinned

# What Sonde itself needs and no more: enough for `make demo`. `make test` adds the rest to the same environment. A venv without pip is
# made ten times as fast; where python3 has no pip that can install into it, the venv gets its own.
$(BASE): pyproject.toml requirements/base.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sonde needs Python 3.11 or newer: make PYTHON=python3.12, say")'
	test -x $(BIN)/python || $(PYTHON) -m venv --without-pip $(VENV)
	test -x $(BIN)/uv || $(PYTHON) -m pip --quiet --python $(BIN)/python install uv || { $(PYTHON) -m venv $(VENV) && $(BIN)/pip install --quiet uv; }
	$(BIN)/uv pip install --quiet --python $(BIN)/python --requirements requirements/base.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

$(READY): $(BASE) pyproject.toml requirements/dev.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python requirements/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	touch $@

$(NODE): vscode/package.json vscode/package-lock.json
	cd vscode && npm ci --no-audit --no-fund --silent
	touch $@

check: $(READY) $(NODE)  ## ruff, pyright strict, import-linter, shape; tsc and biome for the extension
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python scripts/shape.py
	cd vscode && npm run --silent check

format: $(READY) $(NODE) ## let ruff and biome put things in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cd vscode && npm run --silent format

test: test-python test-node ## the suite, in random order, without network (minutes)

test-python: $(READY)
	$(BIN)/pytest -n 2 -m "$(FAST)"

test-node: $(READY) $(NODE)
	cd vscode && npm test --silent

journeys: $(READY) ## whole uses through the installed command, all of them
	$(BIN)/pytest -n 2 tests/journeys

test-long: $(READY) ## what takes seconds each: blocks of the docs, examples, killed batches, rlms and commands as processes
	$(BIN)/pytest -n 2 -m long

test-watch: $(READY) ## 10,000 traces with five faults under a watch that is killed and whose source goes away; real exporters
	sh scripts/exporters.sh
	$(BIN)/pytest -n 0 -m watch tests/watch

soak-watch: $(READY) ## the whole service for MINUTES (30), which must stay flat; then traces into the listener at half of the bulk rate for twice that
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)
	$(BIN)/python benchmarks/intake.py --minutes $$((2 * $(MINUTES)))

test-hostile: $(READY) ## strangers' files, folders and replies against the whole program, and the longer attacks on the sandbox
	$(BIN)/pytest -n 2 -m "hostile or hostile_long" tests/hostile tests/escapes tests/sandbox

test-slow: $(READY) ## what takes longer: every kill point, soak tests
	$(BIN)/pytest -m slow

test-phoenix: $(READY) ## a real Phoenix server, installed and started here
	sh scripts/browser.sh
	sh scripts/phoenix.sh run $(BIN)/pytest -m phoenix tests/phoenix tests/publish

test-browser: $(READY) ## the page in a real browser
	sh scripts/browser.sh
	$(BIN)/pytest -m browser

test-vscode: $(READY) $(NODE) ## a real VS Code (code-server) in a real browser
	sh scripts/vscode.sh test

local: $(READY)  ## a small local model: --model local:smollm2
	bash scripts/local.sh

test-local: $(READY) ## our client against a real llama.cpp server
	bash scripts/test_local.sh

test-providers: $(READY) ## other providers through pydantic-ai, in their own environment
	bash scripts/test_providers.sh

test-sdks: $(READY) ## the clients of Langfuse and LangSmith read what the tests' servers reply
	sh scripts/test_sdks.sh

test-monty: $(READY) ## the portable backend, with the escape corpus against it
	sh scripts/test_monty.sh

test-superloop: $(READY) ## sonde rlms in the place of Superloop's worker: its own tests and loops (SUPERLOOP=/path/to/checkout)
	PATH="$(abspath $(BIN)):$$PATH" bash scripts/superloop.sh

test-ray: $(READY) ## batches on a real Ray cluster of two nodes, with kills (slow)
	sh scripts/ray.sh run python -m pytest tests/batch/test_ray.py -m slow

test-wheel: $(READY) ## the wheel as built, in empty environments
	sh scripts/test_wheel.sh

release: $(READY) ## sdist and wheel, reproducible and tried, with SBOM, provenance and changelog, into dist/ (nothing is uploaded)
	$(BIN)/python scripts/release.py

test-arm64:      ## the sandbox on arm64 kernels 6.1 and 6.12, emulated (root, Debian packages; over half an hour)
	bash scripts/emulated.sh arm64 6.1 6.12

test-kernels:    ## the sandbox on Debian's x86-64 kernels 5.10, 6.1 and 6.12, emulated (root, Debian packages; over half an hour)
	bash scripts/emulated.sh amd64 5.10 6.1 6.12

test-containers: $(READY) ## Docker, containerd, Podman, user namespaces and gVisor, tight (root, Debian packages; minutes)
	bash scripts/containers.sh

test-pythons: $(READY) ## doctor, self-test and the escape corpus on Python 3.11 to 3.14
	bash scripts/pythons.sh

docs: $(READY)   ## the documentation as a site, links checked
	sh scripts/docs.sh

bench: $(READY)  ## every benchmark, into docs/benchmarks.md (long)
	$(BIN)/python benchmarks/all.py

bench-quick: $(READY) ## the ratios that can be trusted, in under three minutes
	$(BIN)/python benchmarks/quick.py

bench-sandbox: $(READY) ## the sandbox beside its peers
	$(BIN)/python benchmarks/sandbox.py

bench-turn: $(READY) ## a turn beside other runtimes
	$(BIN)/python benchmarks/turn.py

escape-table: $(READY) ## every escape payload by family, and what got out
	PYTHONPATH=tests $(BIN)/python tests/escapes/table.py

requirements: $(READY) ## which requirement numbers have passing tests
	$(BIN)/python scripts/requirements.py

vsix: $(NODE)    ## the VS Code extension as one file
	cd vscode && npm run --silent vsix

demo: $(BASE)    ## five minutes: what it does, without a key
	$(BIN)/python examples/escape_demo.py
	$(BIN)/sonde demo

pins: $(READY)   ## compile the pins anew (no registry address ends up in git)
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --group dev $(foreach extra,$(PINNED),--extra $(extra)) pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url pyproject.toml -o requirements/base.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url requirements/docs.in -o requirements/docs.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url requirements/release.in -o requirements/release.txt

clean:           ## remove what make has built
	rm -rf $(VENV) dist build site .pytest_cache .ruff_cache .hypothesis vscode/node_modules
