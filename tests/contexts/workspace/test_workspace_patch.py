"""All that was written to a workspace, as one diff."""

from __future__ import annotations

from pathlib import Path

from sonde.contexts.workspace import LocalWorkspace, accept, plan_patch


def test_several_plans_are_one_patch_from_the_first_text_to_the_last(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("one\n")
    workspace = LocalWorkspace(tmp_path, approve=accept)
    patches = [
        "*** Update File: a.txt\n-one\n+two\n*** Add File: new.txt\n+x\n*** Delete File: b.txt",
        "*** Update File: a.txt\n-two\n+three\n*** Update File: c.txt\n*** Move to: d.txt\n-one\n+moved",
        "*** Delete File: new.txt",
    ]

    for patch in patches:
        workspace.apply(plan_patch(f"*** Begin Patch\n{patch}\n*** End Patch", workspace.text))

    lines = workspace.changes().diff().splitlines()
    assert "two" not in workspace.changes().diff()
    assert [line for line in lines if line.startswith(("---", "+++"))] == [
        *("--- a/a.txt", "+++ b/a.txt", "--- a/b.txt", "+++ /dev/null"),
        *("--- a/c.txt", "+++ /dev/null", "--- /dev/null", "+++ b/d.txt"),
    ]
