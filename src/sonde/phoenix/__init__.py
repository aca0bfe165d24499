"""The client of a Phoenix server, nothing else: reads in pages and by id, and annotation writes. It deletes nothing."""

from __future__ import annotations

from sonde.phoenix.annotations import Annotation, Level, Written, write_annotations
from sonde.phoenix.client import PhoenixClient, PhoenixRefused, PhoenixUnavailable
from sonde.phoenix.reads import PhoenixReads

__all__ = [
    "Annotation",
    "Level",
    "PhoenixClient",
    "PhoenixReads",
    "PhoenixRefused",
    "PhoenixUnavailable",
    "Written",
    "write_annotations",
]
