"""An unrelated distribution called `sonde` shares our folder: what it breaks is said in words that help."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sonde import core
from sonde.cli.main import main

FOREIGN = '__version__ = "0.2.0"\nfrom sonde.core import RClass\n__all__ = ["RClass", "__version__"]\n'


@pytest.mark.parametrize(
    ("init", "imported"),
    [(FOREIGN, "sonde"), ("", "sonde.core"), (None, "sonde.core")],
    ids=["theirs", "empty", "removed"],
)
def test_an_init_that_is_not_ours_is_named_with_the_commands_that_repair_it(
    tmp_path: Path, init: str | None, imported: str
) -> None:
    package = tmp_path / "sonde"
    package.mkdir()
    (package / "core").symlink_to(Path(core.__file__).parent)
    if init is not None:
        (package / "__init__.py").write_text(init)

    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {imported}"
    ended = subprocess.run([sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == 1
    said = ended.stderr.splitlines()[-1]
    assert str(package) in said
    assert "pip uninstall sonde" in said and "--force-reinstall --no-deps sonde-rlm" in said


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_the_doctor_names_a_distribution_called_sonde_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    meta = tmp_path / "sonde-0.2.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: sonde\nVersion: 0.2.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    with pytest.raises(SystemExit):
        main(["doctor", *flags])

    shown = capsys.readouterr().out
    warning = json.loads(shown)["mixed_up"] if flags else shown.split("warning   ")[1].splitlines()[0]
    assert "sonde 0.2.0, which is not ours" in warning
