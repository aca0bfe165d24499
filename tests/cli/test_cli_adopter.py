"""What stopped somebody who used Sonde for the first time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_program import sonde

from sonde import ask
from sonde.testing import ScriptedModel


def test_code_without_its_extra_is_said_to_the_user_and_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.ts").write_text("export function pay() { return 1 }\n")
    (tmp_path / "b.py").write_text("def charge():\n    return 1\n")
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    look = "for name in ('a.ts', 'nosuch'):\n    try:\n        print(nav_ls(name))\n    except Exception as e:\n        print(e)"
    model = ScriptedModel([look, "FINAL('done')"])

    shown = sonde("ask", "who pays?", ".", "--code", cwd=tmp_path)
    ask("who pays?", tmp_path, code=True, model=model, citations=False, in_memory=True)

    assert shown.stderr.count("typescript 1 (pip install 'sonde-rlm[code]'") == 1
    assert "the symbols of a.ts are not known" in str(model.requests[1])
    assert "typescript 1" in str(model.requests[1])
    (tmp_path / "a.ts").unlink()
    assert "sonde-rlm[code]" not in sonde("ask", "who pays?", ".", "--code", cwd=tmp_path).stderr
