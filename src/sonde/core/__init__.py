"""Values and rules only, no I/O: budgets, states, events, the record, evidence, canonical JSON.

Importing it also refuses a mixed-up installation. PyPI has an unrelated distribution called `sonde`, whose files go into the same folder
as ours: installing it after ours replaces `sonde/__init__.py`, uninstalling it removes that file. Its `__init__` imports `sonde.core`, and
so does all our code; so this is the place to check.
"""

import sys

_package = sys.modules["sonde"]
if "ask" not in getattr(_package, "__all__", ()):
    raise ImportError(
        f"the package `sonde` in {next(iter(_package.__path__))} is not Sonde: an unrelated distribution called sonde has replaced "
        "or removed files of sonde-rlm. To repair it: pip uninstall sonde, then pip install --force-reinstall --no-deps sonde-rlm"
    )
