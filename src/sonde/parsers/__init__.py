"""Parsers of untrusted documents. `documents.parse` is the door; the other modules run in confined processes.

Importing this package imports nothing: the confined processes start from here.
"""

PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
"""How compressed files begin."""


class BadDocument(ValueError):
    """What is wrong with a document, in words of ours that hold nothing of it. Of any other error only the class leaves the parser's
    process: its words may be the document's, and they reach places where its text is masked.
    """

    in_our_words = True
