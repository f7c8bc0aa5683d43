"""`python -m engine.bench`."""

from __future__ import annotations

import os
import sys

from engine.bench.command import run


def main() -> int:
    """Run the command; what Python would still write to a closed or full stdout as it ends is dropped."""
    status = run()
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return status


if __name__ == "__main__":
    sys.exit(main())
