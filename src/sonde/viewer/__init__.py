"""Runs to look at: a page on loopback, live while a run goes on, and the same page as one file."""

from __future__ import annotations

from sonde.viewer.onefile import export_html
from sonde.viewer.server import ViewerServer

__all__ = ["ViewerServer", "export_html"]
