"""The text of a PDF, page by page; by pypdf, of the extra `pdf`."""

from __future__ import annotations

import codecs
import contextlib
import importlib
import pkgutil
from collections.abc import Iterator
from typing import BinaryIO

import pypdf
from pypdf.errors import FileNotDecryptedError

from sonde.parsers import BadDocument

for _name in ("utf-16-be", "gbk", "gb2312", "gb18030", "cp932", "cp949", "cp950", "euc_kr", "shift_jis", "mac_roman"):
    codecs.lookup(_name)  # pypdf asks for them when a font does
for _module in pkgutil.walk_packages(pypdf.__path__, "pypdf."):  # it imports its parts when a document needs them
    with contextlib.suppress(ImportError):  # those for which another package is missing
        importlib.import_module(_module.name)


def read(document: BinaryIO) -> Iterator[str]:
    """The text of every page."""
    try:
        for page in pypdf.PdfReader(document).pages:
            yield page.extract_text()
    except FileNotDecryptedError:
        raise BadDocument("it has a password") from None
