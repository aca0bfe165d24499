"""`python -m sonde` is `sonde`."""

from __future__ import annotations

import sys

from sonde.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
