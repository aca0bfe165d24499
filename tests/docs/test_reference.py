"""The reference is made from docstrings by scripts/reference.py; the site's build checks its links."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT


@pytest.mark.long
def test_every_public_module_gets_a_page_with_signatures_and_words(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "reference.py"), str(tmp_path)], check=True, timeout=60)

    pages = {page.stem: page.read_text() for page in tmp_path.iterdir()}
    assert "    max_iterations: int = 60,\n" in pages["sonde.core.budget"]
    assert "Ask a question about files, folders, text or data" in pages["sonde"]
    assert all(f"({name}.md)" in pages["index"] for name in pages if name != "index")
    assert not [name for name, text in pages.items() if " at 0x" in text]  # the same page on every machine
