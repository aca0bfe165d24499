"""Parsers of untrusted documents. `documents.parse` is the door; the other modules run in confined processes.

Importing this package imports nothing: the confined processes start from here.
"""

PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""How compressed files begin."""
