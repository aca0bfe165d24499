"""The families of questions: each makes its material from a seed, with answers that are known by construction."""

from __future__ import annotations
