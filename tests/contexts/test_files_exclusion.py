"""Files that are left out: by the user's globs, and by .gitignore files, which a stranger may have written."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sonde import ask, edit
from sonde.contexts.files import FilesContext
from sonde.contexts.files.exclusion import COSTLY, EXCLUDED, IGNORED, Exclusion, Judge
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel


def write(folder: Path, *names: str, **texts: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"alpha in {name}\n")
    for name, text in texts.items():
        (folder / name.replace("gitignore", ".gitignore")).write_text(text)


def read(folder: Path | str, *globs: str, gitignore: bool = True) -> list[str]:
    context = FilesContext(folder, exclusion=Exclusion.of(globs, gitignore=gitignore))
    return [name for name in context.library.listing.entries if not name.endswith(".gitignore")]


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("build/", ["a.log", "src/build", "src/x.py"]),
        ("*.log", ["build/o.txt", "src/build", "src/x.py"]),
        ("/a.log\n# src\n\n", ["build/o.txt", "src/build", "src/x.py"]),
        ("build", ["a.log", "src/x.py"]),
        ("src/*\n!src/x.py", ["a.log", "build/o.txt", "src/x.py"]),
        ("src/\n!src/x.py", ["a.log", "build/o.txt"]),
        ("**/x.*\n", ["a.log", "build/o.txt", "src/build"]),
        ("src/**\nbuil[a-d]", ["a.log"]),
        ("\\!x\n[z-a]\n[\n\\\n", ["a.log", "build/o.txt", "src/build", "src/x.py"]),
    ],
)
def test_gitignore_means_what_git_means(lines: str, left: list[str], tmp_path: Path) -> None:
    write(tmp_path, "a.log", "build/o.txt", "src/build", "src/x.py", gitignore=lines)

    assert read(tmp_path) == left
    assert read(tmp_path, gitignore=False) == ["a.log", "build/o.txt", "src/build", "src/x.py"]


def test_a_deeper_gitignore_counts_more_and_those_around_a_folder_of_a_repository_count_too(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, "src/a.log", "src/kept.log", "src/deep/b.log", gitignore="*.log\n")
    write(tmp_path / "src", gitignore="!kept.log\n")

    assert read(tmp_path) == ["src/kept.log"]
    assert read(tmp_path / "src") == ["kept.log"]
    assert read(str(tmp_path / "src" / "**" / "*.log")) == ["kept.log"]


def test_what_is_named_is_read_whatever_a_gitignore_says(tmp_path: Path) -> None:
    write(tmp_path, "build/o.txt", "a.log", gitignore="build/\n*.log\n")

    assert read(tmp_path / "a.log") == ["a.log"]
    assert read(tmp_path / "build") == ["o.txt"]
    (tmp_path / ".git").mkdir()
    write(tmp_path, gitignore="*\n")
    assert read(tmp_path / "build") == ["o.txt"]


@pytest.mark.parametrize("glob", ["*.test.ts", "**/*.test.ts", "src/*.test.ts", "./src/a.test.ts", "src/a.test.t?"])
def test_the_user_excludes_by_glob(glob: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "src/a.test.ts", "src/b.ts")

    for source in (".", "src", "src/*.ts", str(tmp_path)):
        assert [Path(name).name for name in read(source, glob)] == ["b.ts"], source


def test_a_slash_at_the_beginning_means_the_folder_that_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "build/a.txt", "src/build/b.txt")
    monkeypatch.chdir(tmp_path)

    assert read(".", "/build") == read(tmp_path, "/build/") == ["src/build/b.txt"]
    judge = Judge(Exclusion.of(["/build"]).below(str(tmp_path)))  # as edit asks
    assert [judge.excludes(each, each) for each in ("build/a.txt", "src/build/b.txt")] == [True, False]


def test_the_user_excludes_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "src/a.test.ts", "src/b.ts", "src/vendor/c.ts")
    monkeypatch.chdir(tmp_path)

    for source in (".", "src", str(tmp_path)):
        left = read(source, str(tmp_path / "src" / "*.test.ts"), f"{tmp_path}/src/vendor/")
        assert [Path(name).name for name in left] == ["b.ts"], source


def test_an_excluded_file_stays_out_even_if_it_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "b.txt", "vendor/c.txt")

    context = FilesContext(
        [tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "vendor"], exclusion=Exclusion.of(["b.txt", "vendor/"])
    )

    assert [Path(name).name for name in context.library.listing.entries] == ["a.txt"]
    assert list(context.library.listing.refused.values()) == [EXCLUDED, EXCLUDED]


def test_an_empty_glob_is_refused() -> None:
    with pytest.raises(ConfigError):
        Exclusion.of([" "])


def test_a_gitignore_that_is_a_link_or_huge_hides_nothing_and_that_is_said(tmp_path: Path) -> None:
    write(tmp_path, "one/a.txt", "two/a.txt", "rules")
    (tmp_path / "rules").write_text("*\n")
    (tmp_path / "one" / ".gitignore").symlink_to(tmp_path / "rules")
    (tmp_path / "two" / ".gitignore").write_text("*\n" * 40_000)

    listing = FilesContext(tmp_path).library.listing

    assert {"one/a.txt", "two/a.txt"} <= set(listing.entries)
    assert COSTLY in listing.refused.values()


def test_patterns_made_to_backtrack_take_no_time(tmp_path: Path) -> None:
    write(tmp_path, *(f"{'a' * 200}{n}" for n in range(10)))
    write(tmp_path, gitignore="\n".join(f"{'*a' * 60}b{n}" for n in range(20)))
    before = time.process_time()

    assert len(read(tmp_path)) == 10
    assert time.process_time() - before < 20


def test_names_that_are_not_text_are_judged(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.log")).write_text("alpha")
    write(tmp_path, "b.txt", gitignore="*.log\n[x]\n")

    assert read(tmp_path) == ["b.txt"]


def test_a_question_leaves_out_and_remembers_what(tmp_path: Path) -> None:
    write(tmp_path, "src/a.ts", "src/a.test.ts", "build/x.txt", gitignore="build/\n")
    model = ScriptedModel(["print(list_files())\nFINAL('done')"])

    answer = ask("q?", tmp_path, exclude=["*.test.ts"], model=model, citations=False, runs_dir=tmp_path / "runs")

    prompt = str(model.requests[0])
    assert "src/a.ts" in prompt
    assert "a.test.ts" not in prompt
    assert f"1 ({IGNORED})" in prompt
    assert answer.status == "succeeded"


def test_an_edit_neither_reads_nor_writes_what_is_excluded(tmp_path: Path) -> None:
    write(tmp_path, "a.txt", "private/b.txt", "build/c.txt", gitignore="build/\n")
    code = (
        "print(list_files())\ntry:\n    read_file('private/b.txt')\nexcept Exception as e:\n    print(e)\nFINAL('done')"
    )
    model = ScriptedModel([code, "FINAL('done')"])

    edit("task", tmp_path, exclude=["private/"], model=model, runs_dir=tmp_path / "runs")

    seen = str(model.requests[1:])
    assert "a.txt" in seen
    assert "build/c.txt" not in seen
    assert "excluded" in seen


@pytest.mark.parametrize("line", ["a" + " " * 4000 + "x", "[" * 4000, "a[" * 2000])
def test_lines_made_to_be_read_slowly_leave_the_other_lines_in_force(line: str, tmp_path: Path) -> None:
    write(tmp_path, "left", "right", gitignore=f"{line}\n" * 15 + "left\n")

    assert read(tmp_path) == ["right"]


def test_a_pattern_of_a_whole_page_is_refused_or_said(tmp_path: Path) -> None:
    write(tmp_path, "a", gitignore="[" * 60_000)

    assert COSTLY in FilesContext(tmp_path).library.listing.refused.values()
    with pytest.raises(ConfigError, match="too large"):
        read(tmp_path, "[" * 100_000)
