#!/bin/sh
# Run by test_wheel.sh in an empty folder, with the installed `sonde` first on PATH: what a newcomer tries in the first minutes.
set -eu

say() { echo "ok: $*"; }
fail() { echo "try_wheel.sh: $*" >&2; exit 1; }

sonde --version > version.txt
sonde doctor > doctor.txt || { cat doctor.txt; fail "sonde doctor says that code could not run safely here"; }
say "doctor"
sonde self-test > self.txt || { cat self.txt; fail "sonde self-test"; }
sonde completion bash > completion.sh && sonde man > sonde.1
say "self-test, completion, man"

mkdir logs
printf '09:00 web started\n09:01 payments: connection refused by ledger\n09:02 web answered 500\n' > logs/app.log
sonde ask "Which service refused the connection?" logs/ --quiet > answer.txt
grep -q "app.log:[0-9]" answer.txt || { cat answer.txt; fail "no passage was cited"; }
say "ask without a model"

sonde runs list > /dev/null
sonde replay last --quiet > /dev/null
sonde export last --html -o page.html > /dev/null
grep -q "<html" page.html || fail "the page is not in the wheel"
say "runs, replay, page"

echo 'print(sum(range(10)))' | sonde exec - | grep -q 45 || fail "sonde exec"
if echo 'open("/etc/passwd")' | sonde exec - > /dev/null 2>&1; then fail "the sandbox let a program open a file"; fi
say "exec"

sonde demo --list > demos.txt
say "demo --list: $(wc -l < demos.txt) recordings"

python - <<'PYTHON'
import sys
from importlib import resources
from pathlib import Path

import sonde
from sonde.sandbox import Sandbox
from sonde.testing import ScriptedModel

here = resources.files("sonde")
assert "site-packages" in str(here), f"not the installed one: {here}"
needed = [
    "py.typed", "engines/prompts/ask.md", "engines/taxonomy_files/trail.yaml",
    "contexts/controls_library/v1.yaml", "viewer/static/index.html", "bench/recordings",
]
missing = [name for name in needed if not here.joinpath(name).is_file() and not here.joinpath(name).is_dir()]
assert not missing, f"not in the wheel: {missing}"

model = ScriptedModel(["```python\nFINAL('ledger refused [app.log:2-2]')\n```"] * 3)
answer = sonde.ask("Who refused?", "logs/", model=model)
assert answer.citations, answer.gaps
assert answer.annotator_kind == "LLM"
assert sonde.replay(answer.run_dir).equal
with Sandbox() as box:
    assert box.execute("x = 6 * 7; print(x)").stdout == "42\n"
heavy = {"pydantic_ai", "openai", "phoenix", "ray", "pandas", "duckdb"} & set(sys.modules)
assert not heavy, heavy
print("ok: library calls, types, prompts, taxonomies, controls, page, recordings")
PYTHON
