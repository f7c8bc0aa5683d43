"""`python -m engine`."""

from __future__ import annotations

import sys

from engine.cli import run

if __name__ == "__main__":
    sys.exit(run())
