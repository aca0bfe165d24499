"""What `make release` leaves can be checked by whoever gets it: sums, the commit, the changelog of the version."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBER = version("sonde-rlm")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a release is built from a commit"),
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script itself fails if two builds differ."""
    place = tmp_path_factory.mktemp("release") / "dist"
    command = [sys.executable, ROOT / "scripts/release.py", "--only-build", place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("the same to the byte") == 2
    return place


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_provenance_names_the_files_and_the_commit_they_were_built_from(built: Path) -> None:
    statement = json.loads((built / f"sonde-rlm-{NUMBER}.provenance.json").read_text())

    named = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}
    packages = [*built.glob("*.whl"), *built.glob("*.tar.gz")]
    assert named == {path.name: sha256(path) for path in packages}
    (source, *_) = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert source["digest"]["gitCommit"] == head.stdout.strip()


def test_the_sums_are_those_of_every_other_file(built: Path) -> None:
    lines = (line.split() for line in (built / "SHA256SUMS").read_text().splitlines())
    listed = {name: digest for digest, name in lines}

    assert listed == {path.name: sha256(path) for path in built.iterdir() if path.name != "SHA256SUMS"}


def test_the_changelog_is_that_of_the_version(built: Path) -> None:
    text = (built / f"CHANGELOG-{NUMBER}.md").read_text()

    assert text.startswith(f"# sonde {NUMBER}\n\n### New\n")
    assert "\n## " not in text


def test_no_file_of_the_packages_is_newer_than_the_commit_or_lies_outside(built: Path) -> None:
    committed = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        members = archive.getmembers()
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()

    assert max(member.mtime for member in members) <= int(committed.stdout)
    assert {name.partition("/")[0] for name in names} == {"sonde", f"sonde_rlm-{NUMBER}.dist-info"}
