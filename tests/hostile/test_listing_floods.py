"""A stranger's folder or archive that is costly to list: countless folders, names that all look the same, long names of nothing. Listing
takes time and memory by what is there, within limits, and ends with the run's time.
"""

from __future__ import annotations

import io
import itertools
import os
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.api.ask_run import question_spec
from sonde.api.settings import load_settings
from sonde.api.sources import open_context
from sonde.contexts.files import FilesContext
from sonde.contexts.files.file_list import Entry, Listing
from sonde.contexts.files.text import Archive
from sonde.core.deadline import GRACE_S, Deadline, SystemClock
from sonde.errors import ConfigError
from sonde.parsers.archives import TOO_MANY, read
from sonde.testing import FrozenClock, ScriptedModel


def over() -> Deadline:
    """The time of a run that is over, with its grace."""
    run = Deadline(FrozenClock(), 0)
    run.overtime = GRACE_S + 1
    return run


def tar_of_folders(number: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for _ in range(number):
            info = tarfile.TarInfo("folder/")
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        archive.addfile(tarfile.TarInfo("last.txt"))
    return file.getvalue()


def zip_of_folders(number: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for at in range(number):
            archive.writestr(f"{at}/", b"")
        archive.writestr("last.txt", b"")
    return file.getvalue()


@pytest.mark.parametrize(("form", "archive"), [("tar", tar_of_folders), ("zip", zip_of_folders)])
def test_of_an_archive_of_countless_folders_the_rest_is_not_looked_at(
    form: str, archive: Callable[[int], bytes]
) -> None:
    def members(number: int) -> list[tuple[str, str]]:
        found = read(io.BytesIO(archive(number)), form=form, most=100, together=100, members=5)
        return [(name, why) for _, name, why, _ in found]

    assert members(5) == [("last.txt", "")]  # folders take no member's place
    assert [why for _, why in members(6)] == [TOO_MANY]


class CountedEntries(dict[str, Entry]):
    looks = 0

    def __contains__(self, key: object) -> bool:
        self.looks += 1
        return super().__contains__(key)


def test_thousands_of_names_that_look_the_same_are_numbered_in_one_pass() -> None:
    entries = CountedEntries()
    listing = Listing(entries=entries)

    for at in range(2000):
        listing.add(r"\xff", 1, 0, f"/real/{at}")
    listing.add(r"\xff", 1, 0, "/real/7")  # it is there already

    assert list(listing.entries)[::1000] == [r"\xff", r"\xff~1001"] and len(entries) == 2000
    assert entries.looks < 5 * 2000


def test_names_of_broken_bytes_and_of_their_escapes_are_all_listed(tmp_path: Path) -> None:
    for signs in itertools.product((b"\xff", rb"\xff"), repeat=4):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + b"".join(signs))).write_text("words\n")

    listed = FilesContext(tmp_path).list_files().value

    assert Counter(name.partition("~")[0] for name in listed) == {r"\xff\xff\xff\xff": 16}
    assert len(set(listed)) == 16


def test_listing_ends_with_the_runs_time(tmp_path: Path) -> None:
    for at in range(1001):
        (tmp_path / f"{at}.txt").touch()

    for source in (tmp_path, f"{tmp_path}/**"):
        with over().in_force(), pytest.raises(ConfigError, match="were still being listed when the run had to end"):
            FilesContext(source).list_files()


def test_countless_files_that_are_no_text_are_looked_at_within_the_runs_time(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\0")
    files = FilesContext(tmp_path)

    assert len(files.library.unreadable()) == 1
    with over().in_force():
        assert files.library.unreadable() == []


def test_archives_are_opened_within_the_runs_time_which_begins_before_them(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("words\n")
    (tmp_path / "logs.zip").write_bytes(zip_of_folders(3))
    loading = over()

    opened = open_context([tmp_path], loading=loading)

    assert isinstance(opened.context, FilesContext) and opened.began == loading.started
    assert opened.context.left_out == {"logs.zip": "was not read: the run had to end"}


def test_the_time_of_a_question_begins_before_its_files_are_listed(tmp_path: Path) -> None:
    class Ticking(SystemClock):
        ticks = itertools.count(1.0)

        def now(self) -> float:
            return next(self.ticks)

    (tmp_path / "notes.txt").write_text("words\n")
    settings = load_settings()

    with question_spec("q", [tmp_path], settings, {"clock": Ticking(), "model": ScriptedModel([])}) as spec:
        assert spec.began == 1.0


def test_the_names_of_members_count_although_the_members_are_empty() -> None:
    archive = Archive(members={f"{at:0900}": b"" for at in range(100)}, refused={"x" * 900: "encrypted"}, cut="")

    assert archive.size > 101 * 900


@pytest.mark.hostile_long
def test_archives_of_empty_members_with_long_names_have_one_limit_together(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for at in range(9_990):
            archive.writestr(f"{at:0950}", b"")
    for at in range(8):
        (tmp_path / f"{at}.zip").write_bytes(file.getvalue())

    files = FilesContext(tmp_path)

    assert len(files.library.entries) < 50_000
    assert {why.partition(":")[0] for why in files.left_out.values()} == {"not opened"}
