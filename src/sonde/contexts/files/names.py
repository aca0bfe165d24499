"""What may be read from a root, and what a name says about a file: that it holds secrets, is noise, or is surely not text.

Secrets are refused and noise is skipped when a folder is walked, unless the user names the file itself.

Names only; content is never judged. Source code and prose about secrets (`secrets.py`, `token.md`) are ordinary files.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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

_SECRET_FOLDERS = frozenset({".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker"})

_ALWAYS = re.compile(
    r"""(?xi)
      \.env(?:rc)? | \.env\.(?!example$|sample$|template$|dist$).* | .*\.env          # environments with values in them
    | .*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|gpg|asc)                            # keys and key stores
    | id_(?:rsa|dsa|ecdsa|ed25519)(?!.*\.pub$).*                                       # private ssh keys
    | \.netrc | \.pgpass | \.htpasswd | \.npmrc | \.pypirc | \.git-credentials | \.dockercfg
    """
)
_UNLESS_PROSE = re.compile(r"(?i)(?:.*[._-])?(?:credentials?|secrets?|tokens?|passwords?)(?:[._-].*)?")
_PROSE = re.compile(
    r"(?i).*\.(?:py|pyi|js|jsx|mjs|ts|tsx|go|rs|java|kt|c|cc|cpp|h|hpp|rb|php|cs|swift|scala|sh|md|rst|html?|css|sql|proto|pub|log|csv)"
)


def refusal(place: Path, root: Path) -> str | None:
    """Why a file that somebody listed or put below a root is not read from there, or None when it may be. It judges where the path leads
    now; who could change that in between has the user's own rights.
    """
    real, top = os.path.realpath(place), os.path.realpath(root)
    if os.path.commonpath([real, top]) != top:
        return "it is a link that leads out of the folder"
    return secret_reason(place.as_posix()) or secret_reason(real)


def secret_reason(path: str) -> str | None:
    """Why a file of this name is not read, or None when it may be."""
    *folders, name = path.split("/")
    if _ALWAYS.fullmatch(name) or (_UNLESS_PROSE.fullmatch(name) and not _PROSE.fullmatch(name)):
        return "its name says that it holds secrets"
    if not _SECRET_FOLDERS.isdisjoint(folders):
        return "it lies in a folder of secrets"
    return None
