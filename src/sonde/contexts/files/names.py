"""What a name says about a file beyond secrets (disk.py): that it is noise, which a walk of a folder skips, or surely not text."""

from __future__ import annotations

SKIPPED_FOLDERS = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache",
        ".pytest_cache", ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", "investigator_runs",
    }
)  # fmt: skip
"""Version control, installed packages, caches, and our own run folders (yesterday's answers are not today's evidence)."""

BINARY_SUFFIXES = frozenset(
    """
    .so .dll .dylib .exe .o .a .lib .pyc .pyo .pyd .class .jar .war .whl .egg .wasm .zip .gz .tgz .bz2 .xz
    .zst .7z .rar .tar .png .jpg .jpeg .gif .webp .ico .bmp .tif .tiff .heic .mp3 .mp4 .m4a .mov .avi .mkv
    .webm .wav .ogg .flac .woff .woff2 .ttf .otf .eot .sqlite .sqlite3 .parquet .arrow .feather .npy .npz .pkl
    .pickle .pt .pth .onnx .gguf .safetensors .bin .iso .dmg .deb .rpm
    """.split()  # noqa: SIM905 - suffixes read better as text
)
"""Kinds that are not opened when everything is searched; named alone, such a file is looked at like any other."""
