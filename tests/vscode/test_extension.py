"""What must hold between the extension and the runtime; the extension's own behaviour is tested by vitest (vscode/test)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sonde.contexts.workspace import Policy
from sonde.contexts.workspace.policy import HARMLESS, SECRETS, SKIPPED, STARTS_PROGRAMS
from sonde.core.budget import Budget
from sonde.disk import COPIES
from sonde.engines.edit import EDIT_BUDGET, LARGE_BUDGET, PROTOCOL_BUDGET

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "vscode/src"


def listed(name: str) -> set[str]:
    """The words of a list in policy.ts."""
    text = (SOURCE / "policy.ts").read_text()
    found = re.search(rf"const {name} = \[(.*?)\];", text, re.DOTALL)
    assert found
    return set(re.findall(r'"([^"]+)"', found[1]))


@pytest.mark.requirement(47)
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("SECRETS", SECRETS),
        ("COPIES", COPIES),
        ("HARMLESS", HARMLESS),
        ("STARTS_PROGRAMS", STARTS_PROGRAMS),
        ("SKIPPED", SKIPPED),
    ],
)
def test_both_sides_protect_the_same_names(name: str, names: tuple[str, ...]) -> None:
    assert listed(name) == set(names)


@pytest.mark.requirement(68)
def test_a_task_without_limits_has_those_of_the_document() -> None:
    budget = PROTOCOL_BUDGET

    assert (budget.max_depth, budget.max_subcalls, budget.max_tokens_per_subcall) == (2, 6, 1000)
    assert (budget.max_tokens_total, budget.max_wall_time_sec) == (6000, 60)


@pytest.mark.parametrize(("name", "budget"), [("STANDARD", EDIT_BUDGET), ("LARGE", LARGE_BUDGET)])
def test_the_extension_sends_the_limits_that_sonde_edit_has(name: str, budget: Budget) -> None:
    block = (SOURCE / "settings.ts").read_text().split(f"const {name}")[1].split("};")[0]

    assert {name: int(value.replace("_", "")) for name, value in re.findall(r"(\w+): ([\d_]+),", block)} == {
        "maxDepth": budget.max_depth,
        "maxSubcalls": budget.max_subcalls,
        "maxTokensPerSubcall": budget.max_tokens_per_subcall,
        "maxTotalTokens": budget.max_tokens_total,
        "timeoutSeconds": budget.max_wall_time_sec,
    }


@pytest.mark.requirement(47)
@pytest.mark.parametrize(
    "name", ["bridge", "guard", "policy", "toolhost", "tasks", "trace", "lines", "environment", "protocol"]
)
def test_what_decides_does_not_need_an_editor(name: str) -> None:
    assert 'from "vscode"' not in (SOURCE / f"{name}.ts").read_text()


def test_nothing_of_a_folder_is_believed_before_it_is_trusted() -> None:
    manifest = json.loads((ROOT / "vscode/package.json").read_text())
    untrusted = manifest["capabilities"]["untrustedWorkspaces"]
    settings = manifest["contributes"]["configuration"]["properties"]
    starts_things = {name for name, setting in settings.items() if setting.get("scope") == "machine-overridable"}

    assert untrusted["supported"] == "limited"
    assert starts_things == set(untrusted["restrictedConfigurations"])
    assert {settings[name]["scope"] for name in ("sonde.budget", "sonde.customBudget")} == {
        "machine"
    }  # what it costs is the user's


@pytest.mark.requirement(65)
def test_no_command_is_allowed_by_default() -> None:
    manifest = json.loads((ROOT / "vscode/package.json").read_text())

    assert manifest["contributes"]["configuration"]["properties"]["sonde.allowedCommands"]["default"] == []
    assert Policy().commands == ()


@pytest.mark.requirement(70)
@pytest.mark.requirement(73)
@pytest.mark.parametrize(
    "path",
    [
        "vscode/src/bridge.ts",
        "vscode/src/toolhost.ts",
        "src/sonde/server/stdio.py",
        "examples/demo-workspace/sample.ts",
        "examples/demo-workspace/sample.test.ts",
        "tests/server/scripted_model.py",
        "docs/runbook-vscode.md",
        "docs/protocol.md",
    ],
)
def test_every_deliverable_is_there(path: str) -> None:
    assert (ROOT / path).stat().st_size > 100
