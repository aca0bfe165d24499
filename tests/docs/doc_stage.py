"""Where the blocks of a page are run: a folder with a little data, and a server that plays a model.

The prelude of every page, as CONTRIBUTING.md tells it:

- the working folder holds `logs/app.log`, `src/app.py`, `traces.jsonl` (seeded; `$TRACE_ID` is the id of a failed one), `demo-workspace/`
  and `examples/`;
- LANGFUSE_HOST and LANGSMITH_ENDPOINT name servers with the traces of tests/contexts/traces/trace_servers.py, and their keys are set;
- OPENAI_BASE_URL and OPENAI_API_KEY name a scripted server, so `openai:gpt-4o-mini` answers: it reads and cites the first line of a file;
- python blocks of a page share their names, shell blocks run under `bash -eu` with the `sonde` of this environment
  (tests/cli/warm_program.py says how).
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import yaml
from doc_blocks import ROOT, Block

from sonde.bench.seeded import generate
from sonde.testing import SeenRequest

LOG = """\
09:00:01 web INFO started
09:01:07 payments ERROR connection refused by ledger
09:01:08 payments ERROR retry 1 failed
09:02:00 web ERROR answered 500 to /checkout
"""
CODE = "def charge(amount):\n    # TODO: this loses data when amount is negative\n    return amount * 100\n"
ASK = """\
path = list_files()[0]
line = read_file(path, 1, 1)
FINAL(f"It says so in the first line. [{path}:1-1]")"""
TRACES = """\
span = groups[0]["example_span_ids"][0]
print(get_span(span)["summary"])
FINAL(f"It fails there. [span:{span}]")"""
RCA = """\
span = hot_spans[0]["span_id"]
get_span(span)
get_tool_io(span)
refs = [{"kind": "SPAN", "ref": span}, {"kind": "TOOL_IO", "ref": "tool:" + span}]
SUBMIT(primary_label=rule["label"], summary="the tool failed first", confidence=0.8, evidence_refs=refs)"""


def set_up(folder: Path) -> str:
    """Fill the folder; returns the id of a failed trace."""
    for name, text in {"logs/app.log": LOG, "src/app.py": CODE}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for name in ("examples", "examples/demo-workspace"):
        shutil.copytree(ROOT / name, folder / Path(name).name)
    data = generate(6, seed=7)
    data.write(folder / "traces.jsonl", folder / ".gold.json")
    return next(each.trace_id for each in data.gold if each.label == "tool_failure")


def reply(seen: SeenRequest) -> str:
    """What the scripted model says, by what it was asked to be."""
    conversation = "\n\n".join(str(message["content"]) for message in seen.body["messages"])
    if "apply_patch" in conversation or "Plan the change" in conversation:
        return _editor().reply(conversation)
    asked = TRACES if "rate_over_time(" in conversation else ASK
    return f"```python\n{RCA if 'root cause' in conversation[:400] else asked}\n```"


def _editor() -> Any:
    """The scripted model of the editor tests, which knows the demo task."""
    spec = importlib.util.spec_from_file_location("editor", ROOT / "tests" / "server" / "scripted_model.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Stage:
    """Runs the blocks of one page, one after the other."""

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._environ = environ
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def play(self, block: Block) -> None:
        """Run, write or parse one block; an exception or a failed assertion says what is wrong with it."""
        if name := block.directives.get("file"):
            (self._folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self._folder / name).write_text(block.code)
        match block.language:
            case "python" if "file" not in block.directives:
                exec(compile("\n" * block.line + block.code, block.page, "exec"), self._names)  # the pages are ours
            case "sh" if "file" not in block.directives:
                self._shell(block)
            case "toml":
                tomllib.loads(block.code)
            case "yaml":
                yaml.safe_load(block.code)
            case "json":
                json.loads(block.code)
            case _:
                pass

    def _shell(self, block: Block) -> None:
        done = subprocess.run(
            ["bash", "-eu", "-o", "pipefail", "-c", block.code],
            cwd=self._folder,
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
        wanted = int(block.directives.get("exit", "0"))
        assert done.returncode == wanted, f"{block.where}: {done.returncode}\n{done.stdout}\n{done.stderr}"


def environment(folder: Path, base_url: str, trace_id: str, programs: Path) -> dict[str, str]:
    """What shell blocks see: the scripted server, and nothing of the developer's."""
    return {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": "sk-scripted",
        "TRACE_ID": trace_id,
    }
