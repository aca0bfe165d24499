"""Every case of the table through a real folder: exactly the expected bytes or exactly the old ones, and undo gives the old ones back."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.contexts.workspace import LocalWorkspace, WorkspaceContext, accept
from sonde.errors import ToolFault

from .patch_cases import CASES, Case


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below the folder with its bytes and mode; links and folders too."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes() if path.is_file() else b"", path.lstat().st_mode)
        for path in sorted(root.rglob("*"))
    }


def contents(root: Path) -> dict[str, bytes]:
    return {name: data for name, (data, _) in tree(root).items() if (root / name).is_file()}


def make(folder: Path, files: dict[str, bytes]) -> Path:
    root = folder / "workspace"
    root.mkdir()
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (folder / "outside").write_text("untouched")
    return root


def test_the_table_is_long_enough() -> None:
    assert len(CASES) >= 120
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.requirement(64)
@pytest.mark.requirement(72)
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=[pytest.mark.long] * case.name.startswith("1 MB")) for case in CASES],
)
def test_a_patch_gives_the_expected_files_or_leaves_every_byte(case: Case, tmp_path: Path) -> None:
    root = make(tmp_path, case.before)
    before = tree(tmp_path)
    workspace = LocalWorkspace(root, approve=accept)
    context = WorkspaceContext(workspace)

    if case.after is None:
        with pytest.raises(ToolFault):
            context.apply_patch(case.patch)
    else:
        assert context.apply_patch(case.patch)["applied"]
        assert contents(root) == case.after
        workspace.undo()

    assert tree(tmp_path) == before
