"""What may be read from a folder that somebody else has filled, by both ways to open: at once, and step by step for old kernels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde.disk import NotPlain, below, open_below, open_exactly


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.txt").write_text("secret")
    folder = tmp_path / "root"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/a.txt").write_text("inside")
    return folder


def content(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


@pytest.mark.parametrize("stepwise", [False, True])
def test_a_place_is_opened_exactly_and_no_link_on_the_way_is_followed(root: Path, stepwise: bool) -> None:
    place = below(root, root / "sub/a.txt")
    assert content(open_exactly(place, stepwise=stepwise)) == b"inside"

    (root / "sub").rename(root / "moved")
    (root / "sub").symlink_to("moved")  # somebody swaps the folder between the check and the opening
    with pytest.raises(OSError, match=r"Not a directory|link"):
        open_exactly(place, stepwise=stepwise)

    (root / "a.txt").symlink_to(root.parent / "outside/secret.txt")
    with pytest.raises(OSError, match="link"):
        open_exactly(root / "a.txt", stepwise=stepwise)


@pytest.mark.parametrize("stepwise", [False, True])
def test_pipes_sockets_devices_and_folders_are_refused_at_once(root: Path, stepwise: bool) -> None:
    os.mkfifo(root / "pipe")

    for place in (root / "pipe", Path("/dev/zero")):
        with pytest.raises(NotPlain):
            open_exactly(place, stepwise=stepwise)
    with pytest.raises(IsADirectoryError):
        open_exactly(root / "sub", stepwise=stepwise)
    with pytest.raises(FileNotFoundError):
        open_exactly(root / "none", stepwise=stepwise)
    with pytest.raises(NotPlain):
        open_exactly(f"{root}/sub\0/a.txt", stepwise=stepwise)


def test_a_link_may_lead_to_a_file_below_the_root_and_nowhere_else(root: Path) -> None:
    (root / "near").symlink_to("sub/a.txt")
    (root / "absolute").symlink_to(root / "sub/a.txt")
    (root / "far").symlink_to(root.parent / "outside/secret.txt")
    (root / "up").symlink_to("../outside")
    (root.parent / "door").symlink_to(root)

    assert open_below(root, root / "near").read() == open_below(root, root / "absolute").read() == b"inside"
    assert open_below(root.parent / "door", root.parent / "door/near").read() == b"inside"
    for name in ("far", "up/secret.txt", "../outside/secret.txt"):
        with pytest.raises(NotPlain):
            open_below(root, root / name)


def test_secrets_below_a_root_are_refused_by_the_name_and_by_where_it_leads(root: Path) -> None:
    (root / ".env").write_text("TOKEN=1")
    (root / "notes.txt").symlink_to(".env")

    for name in (".env", "notes.txt"):
        with pytest.raises(NotPlain, match="secrets"):
            open_below(root, root / name)
