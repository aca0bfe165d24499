"""Parsers of untrusted documents. `documents.parse` is the door; the other modules run in confined processes.

Importing this package imports nothing: the confined processes start from here.
"""
