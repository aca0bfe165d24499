"""Sources as a user gives them: a glob is judged like a folder, a name is taken, and a file that two sources hold is one file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from files_support import call

from sonde.contexts.files import FilesContext
from sonde.errors import ToolFault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "sub").mkdir(parents=True)
    for name in ("a.txt", "sub/b.txt", ".env", "credentials.json", "server.pem"):
        (folder / name).write_text("alpha\n")
    return folder


@pytest.mark.requirement("O11")
def test_a_glob_brings_no_secrets_no_pipes_and_nothing_from_outside(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret\n")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "inner.txt").symlink_to("a.txt")
    (root / "nowhere.txt").symlink_to("loop")
    (root / "out").symlink_to(tmp_path)
    os.mkfifo(root / "pipe.txt")
    context = FilesContext([f"{root}/**/*", f"{root}/.*"])

    names = [Path(name).name for name in call(context, "list_files").result]
    assert sorted(names) == ["a.txt", "b.txt", "inner.txt"]
    with pytest.raises(ToolFault, match="holds secrets"):
        call(context, "read_file", "credentials.json")


def test_a_glob_that_spells_the_name_of_a_secret_means_it(root: Path) -> None:
    (root / "sub" / ".env").write_text("beta\n")

    assert len(call(FilesContext([f"{root}/*/.env"]), "list_files").result) == 1


@pytest.mark.parametrize("more", ["a.txt", "./a.txt", "sub", "sub/b.txt", "."])
def test_a_file_that_two_sources_hold_is_counted_once(root: Path, more: str) -> None:
    for sources in ([root, root / more], [f"{root}/{more}", root]):
        assert len(call(FilesContext(sources), "grep", "alpha").result) == 2
