"""Values and rules only, no I/O: budgets, states, events, the record, evidence, canonical JSON.

Importing it also refuses a mixed-up installation. PyPI has an unrelated distribution called `sonde`, whose files land in the same folder
as ours: installed after us it replaces `sonde/__init__.py`, uninstalled it removes it. That other `__init__` imports `sonde.core`, and so
does everything of ours; this is where both meet.
"""

import sys

_package = sys.modules["sonde"]
if "ask" not in getattr(_package, "__all__", ()):
    raise ImportError(
        f"the package `sonde` in {next(iter(_package.__path__))} is not Sonde: an unrelated distribution called sonde has replaced "
        "or removed files of sonde-rlm. To repair it: pip uninstall sonde, then pip install --force-reinstall --no-deps sonde-rlm"
    )
