"""A release into dist/, from the last commit alone; nothing is uploaded.

    make release                                   everything
    python scripts/release.py --only-build DIR     sdist, wheel and provenance, without the checks that install things

1. Builds sdist and wheel twice, in two folders; both must be the same to the byte (SOURCE_DATE_EPOCH is the commit's time).
2. Checks them (twine, check-wheel-contents) and writes an SBOM (CycloneDX) of the wheel with our pinned dependencies.
3. Writes the changelog of the version, a provenance statement (in-toto, SLSA v1; not signed) and SHA256SUMS.
4. Installs the wheel with pipx and with uv and runs `sonde self-test` there, and runs the wheel tests on every Python of this
   machine. One that is not here comes from Debian's unstable suite (scripts/pythons.sh: root, mmdebstrap) or is listed as untried.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
UV = ROOT / ".venv/bin/uv"
TOOLS = ROOT / ".tools/release"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only-build", type=Path, metavar="DIR")
    wanted: Path | None = parser.parse_args().only_build
    out = (wanted or ROOT / "dist").absolute()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    if git("status", "--porcelain"):
        print("note: uncommitted changes are not part of the release")
    with tempfile.TemporaryDirectory(prefix="sonde-release-") as work:
        packages = build(out, Path(work))
        source = Path(work) / "first/source"
        version: str = tomllib.loads((source / "pyproject.toml").read_text())["project"]["version"]
        if wanted is None:
            install_tools()
            check(packages)
            describe(packages, source, out / f"sonde-rlm-{version}.cdx.json")
        (out / f"CHANGELOG-{version}.md").write_text(changelog(source, version))
        statement = provenance(packages, source, version)
        (out / f"sonde-rlm-{version}.provenance.json").write_text(json.dumps(statement, indent=2) + "\n")
        sums = [f"{sha256(path)}  {path.name}\n" for path in sorted(out.iterdir())]
        (out / "SHA256SUMS").write_text("".join(sums))
        untried: list[str] = []
        if wanted is None:
            install(packages[-1], Path(work))
            untried = try_pythons(packages[-1])
    print(f"\n{out}:")
    for path in sorted(out.iterdir()):
        print(f"  {path.stat().st_size:>9,}  {path.name}")
    if untried:
        print(f"untried, because not on this machine: {', '.join(untried)}")


def build(out: Path, work: Path) -> list[Path]:
    """The sdist and the wheel of the last commit, built twice from different folders."""
    environ = os.environ | {"SOURCE_DATE_EPOCH": commit_time()}
    for name in ("first", "a-second-place"):
        source = work / name / "source"
        source.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
        subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
        run(UV, "build", "--quiet", "--out-dir", work / name / "built", source, env=environ)
    first = sorted(path for path in (work / "first/built").iterdir() if path.suffix in (".gz", ".whl"))
    for path in first:
        again = work / "a-second-place/built" / path.name
        if sha256(path) != sha256(again):
            sys.exit(f"release.py: {path.name} differs between two builds of the same commit; diffoscope shows where")
        shutil.copy(path, out)
        print(f"built twice, the same to the byte: {path.name}")
    return [out / path.name for path in sorted(first, key=lambda path: path.suffix)]


def install_tools() -> None:
    pins, ready = ROOT / "requirements/release.txt", TOOLS / ".ready"
    if not ready.exists() or pins.stat().st_mtime > ready.stat().st_mtime:
        run(UV, "venv", "--quiet", "--clear", "--python", ROOT / ".venv/bin/python", TOOLS)
        run(UV, "pip", "sync", "--quiet", "--python", TOOLS / "bin/python", "--require-hashes", pins)
        ready.touch()


def check(packages: list[Path]) -> None:
    run(TOOLS / "bin/twine", "check", "--strict", *packages)
    run(TOOLS / "bin/check-wheel-contents", packages[-1])


def describe(packages: list[Path], source: Path, sbom: Path) -> None:
    """The SBOM of an environment with the wheel and the dependencies that we pin."""
    with tempfile.TemporaryDirectory(prefix="sonde-sbom-") as place:
        python = Path(place) / "bin/python"
        run(UV, "venv", "--quiet", "--clear", "--python", ROOT / ".venv/bin/python", place)
        installing = (UV, "pip", "install", "--quiet", "--python", python)
        run(*installing, "--require-hashes", "--requirements", source / "requirements/base.txt")
        run(*installing, "--no-deps", packages[-1])
        for left in Path(place).glob("lib/*/site-packages/sonde_rlm-*.dist-info/direct_url.json"):
            left.unlink()  # it names a folder of this machine
        made = (
            "--output-reproducible",
            "--short-PURLs",
            "--pyproject",
            source / "pyproject.toml",
            "--output-file",
            sbom,
        )
        environ = os.environ | {"SOURCE_DATE_EPOCH": commit_time()}
        run(TOOLS / "bin/cyclonedx-py", "environment", *made, python, env=environ)
    print(f"SBOM: {len(json.loads(sbom.read_text())['components'])} components in {sbom.name}")


def changelog(source: Path, version: str) -> str:
    """What the version brings: its own section, after what is not assigned to a version yet."""
    sections = re.split(r"(?m)^## ", (source / "CHANGELOG.md").read_text())[1:]
    of_version = [each for each in sections if each.startswith(("Unreleased", version))]
    if not any(each.startswith(version) for each in of_version):
        sys.exit(f"release.py: CHANGELOG.md has no section for {version}; rename `## Unreleased`")
    if any("nreleased" in each.splitlines()[0] for each in of_version):
        print("note: CHANGELOG.md calls a part of this version unreleased; name version and date before you publish it")
    text = "\n\n".join(each.partition("\n")[2].strip() for each in of_version)
    return f"# sonde {version}\n\n{text}\n"


def provenance(packages: list[Path], source: Path, version: str) -> dict[str, object]:
    """Who made which files from what, as an in-toto statement with SLSA's predicate."""

    def named(path: Path, name: str = "") -> dict[str, object]:
        return {"name": name or path.name, "digest": {"sha256": sha256(path)}}

    pins = sorted((source / "requirements").glob("*.txt"))
    commit = {"gitCommit": git("rev-parse", "HEAD"), "gitTree": git("rev-parse", "HEAD^{tree}")}
    others = sorted(path for path in packages[0].parent.iterdir() if path not in packages)
    uv = subprocess.run([UV, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    system = f"{platform.system()} {platform.machine()}"
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [named(path) for path in packages],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:sonde:make-release:1",
                "externalParameters": {"target": "release", "version": version},
                "internalParameters": {"SOURCE_DATE_EPOCH": commit_time()},
                "resolvedDependencies": [
                    {"name": "sonde", "digest": commit},
                    *(named(path, f"requirements/{path.name}") for path in pins),
                ],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:sonde:scripts/release.py",
                    "version": {"python": platform.python_version(), "uv": uv, "system": system},
                },
                "byproducts": [named(path) for path in others],
            },
        },
    }


def install(wheel: Path, work: Path) -> None:
    """Install the wheel as people install programs, and let it try itself far from here."""
    home = work / "home"
    home.mkdir()
    ways = {
        "pipx": (
            ["pipx", "install", "--quiet"],
            {"PIPX_HOME": "pipx", "PIPX_BIN_DIR": "pipx-bin", "PIPX_MAN_DIR": "man"},
        ),
        "uv tool": (["uv", "tool", "install", "--quiet"], {"UV_TOOL_DIR": "uv", "UV_TOOL_BIN_DIR": "uv-bin"}),
    }
    for name, (command, places) in ways.items():
        environ = os.environ | {key: str(work / place) for key, place in places.items()}
        run(TOOLS / "bin" / command[0], *command[1:], "--python", ROOT / ".venv/bin/python", wheel, env=environ)
        program = work / f"{command[0]}-bin" / "sonde"
        bare = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        run(program, "self-test", cwd=home, env=bare)
        print(f"{name} install: self-test passed")


def try_pythons(wheel: Path) -> list[str]:
    """Run the wheel tests on each Python; those that can be had neither here nor, as root, from Debian's unstable suite."""
    untried: list[str] = []
    for number in PYTHONS:
        python = find_python(number)
        if python is None:
            if os.getuid() == 0 and shutil.which("mmdebstrap"):
                print(f"\nthe wheel on Debian's Python {number}", flush=True)
                run("bash", "scripts/pythons.sh", number, env=os.environ | {"WHEEL": str(wheel)})
            else:
                untried.append(f"Python {number}")
            continue
        print(f"\nthe wheel on {python}", flush=True)
        run("sh", "scripts/test_wheel.sh", env=os.environ | {"PYTHON": python, "WHEEL": str(wheel)})
    return untried


def find_python(number: str) -> str | None:
    """A Python of this version that starts: on PATH (a shim of pyenv's may be there and not start), or one of pyenv's."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{number}.*/bin/python"))
    for each in (f"python{number}", *map(str, kept)):
        if shutil.which(each) and subprocess.run([each, "-c", ""], capture_output=True, check=False).returncode == 0:
            return each
    return None


def commit_time() -> str:
    return git("log", "-1", "--format=%ct")


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*words: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(list(map(str, words)), cwd=cwd, env=env, check=False)
    if done.returncode:
        sys.exit(f"release.py: {' '.join(map(str, words))} ended with {done.returncode}")


if __name__ == "__main__":
    main()
