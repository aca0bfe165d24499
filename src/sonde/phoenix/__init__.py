"""The client of a Phoenix server, nothing else: reads in pages and by id, and annotation writes. It deletes nothing."""

from __future__ import annotations

from sonde.phoenix.annotations import AnnotationWriter, Level, Written
from sonde.phoenix.client import PhoenixClient, PhoenixRefused, PhoenixUnavailable
from sonde.phoenix.reads import PhoenixReads

__all__ = [
    "AnnotationWriter",
    "Level",
    "PhoenixClient",
    "PhoenixReads",
    "PhoenixRefused",
    "PhoenixUnavailable",
    "Written",
]
