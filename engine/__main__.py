"""`python -m engine`."""

from __future__ import annotations

import sys

from engine.entry import enter


def main() -> int:
    """Run the command."""
    return enter(f"{__package__}.cli")


if __name__ == "__main__":
    sys.exit(main())
