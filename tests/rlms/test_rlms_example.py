"""The example loop, driven for real: four roles, their runners, and the worker before each of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rlms_loop import Loop

from cli.warm_program import warm_sonde

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "examples" / "superloop"
ROLES = ["planner", "implementer", "tester", "reviewer"]
AGENT = """\
echo "$@" >> "$0.args"
if [ -n "$PROMPT" ]; then prompt=$(cat "$PROMPT"); else prompt=$(cat); fi
case "$prompt" in
"What does this do?"*) echo "it retries" ;;
*"Step 1/"*) cat <<"CODE"
```python
said = sub_rlm("What does this do? " + read_file("src/a.py", 1, 2))
append_highlight(said)
add_citation("src/a.py", 1, 2, "retry")
set_final({"highlights": ["a finding"]})
```
CODE
;;
*) echo "report of someone. RLMS_REQUEST" ;;
esac
"""


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The command that the loop calls."""
    with warm_sonde(tmp_path_factory.mktemp("bin")) as folder:
        yield folder / "sonde"


def configure(loop: Loop, agent: str, **rlms: Any) -> Path:
    """The example's configuration with a program of ours as its only runner."""
    runner_program = loop.program("agent", agent)
    config = json.loads((EXAMPLE / "loop.json").read_text())
    config["runners"] = {
        name: {**runner, "command": ["sh", str(runner_program.path)]} for name, runner in config["runners"].items()
    }
    config["loops"][0]["rlms"] |= rlms
    place = loop.tmp / "loop.json"
    place.write_text(json.dumps(config))
    return place


def drive(loop: Loop, config: Path, program: Path) -> subprocess.CompletedProcess[str]:
    environment = loop.environment() | {"SONDE": str(program), "PYTHON": sys.executable}
    words = ["sh", str(EXAMPLE / "loop.sh"), str(config), "demo", str(loop.repo)]
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=250, check=False)


@pytest.mark.requirement(37)
@pytest.mark.requirement(44)
def test_every_role_runs_and_is_told_what_was_found_for_it(loop: Loop, program: Path) -> None:
    done = drive(loop, configure(loop, AGENT), program)

    state = loop.repo / ".superloop" / "loops" / "demo"
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"iteration 1: {role} done" for role in ROLES]
    statuses = [json.loads((state / "rlms" / "iter-1" / role / "status.json").read_text()) for role in ROLES]
    assert [(status["status"], status["reason"]) for status in statuses] == [
        ("skipped", "hybrid_not_met"),  # nobody has asked yet and the files are few
        *[("ok", "hybrid_requested")] * 3,
    ]
    prompts = [(state / "reports" / "iter-1" / f"{role}.prompt.md").read_text() for role in ROLES]
    assert ["a finding" in prompt and "it retries" in prompt for prompt in prompts] == [False, True, True, True]
    index = json.loads((state / "rlms" / "index.json").read_text())
    assert [entry["role"] for entry in index["entries"]] == ROLES
    events = [json.loads(line)["event"] for line in (state / "events.jsonl").read_text().splitlines()]
    assert events == ["rlms_decision", *["rlms_decision", "rlms_start", "rlms_end"] * 3]
    called = (loop.tmp / "agent.sh.args").read_text().splitlines()
    assert called[0].endswith("- --model gpt-5.2 -c model_reasoning_effort=high")  # the planner
    assert "exec - --model gpt-5-mini" in called  # the tester is fast


@pytest.mark.requirement(37)
def test_a_runner_by_file_and_a_repository_with_names_of_any_language(loop: Loop, program: Path) -> None:
    (loop.repo / "größe der dinge.txt").write_text("groß\n")
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=loop.repo, check=True, env=loop.environment())
    config = configure(loop, 'cat > "$0.stdin"; head -c 15 "$1"', roles=dict.fromkeys(ROLES, False))
    settings = json.loads(config.read_text())
    for runner in settings["runners"].values():
        runner |= {"prompt_mode": "file", "args": ["{prompt_file}"], "fast_args": ["{prompt_file}"]}
    config.write_text(json.dumps(settings))

    done = drive(loop, config, program)

    state = loop.repo / ".superloop" / "loops" / "demo"
    assert done.returncode == 0, done.stderr
    assert (state / "reports" / "iter-1" / "tester.md").read_text() == "You are the tes"
    assert (loop.tmp / "agent.sh.stdin").read_text() == ""
    listed = (state / "rlms" / "iter-1" / "tester" / "context-files.txt").read_text().splitlines()
    assert listed == ["b.txt", "größe der dinge.txt", "src/a.py"]


@pytest.mark.requirement(43)
@pytest.mark.parametrize(("fail_mode", "code", "roles"), [("warn_and_continue", 0, ROLES), ("fail_role", 1, [])])
def test_a_failing_worker_stops_the_role_only_where_that_is_configured(
    loop: Loop, program: Path, fail_mode: str, code: int, roles: list[str]
) -> None:
    broken = AGENT.replace("cat <<", "exit 3; cat <<")
    config = configure(
        loop, broken, policy={"force_on": True, "fail_mode": fail_mode}, roles=dict.fromkeys(ROLES[1:], False)
    )

    done = drive(loop, config, program)

    assert done.returncode == code
    assert [line.split()[2] for line in done.stdout.splitlines()] == roles
    assert "model_invocation_failed" in done.stderr
