"""`python -m engine.quantize SOURCE TARGET`."""

from __future__ import annotations

import sys

from engine.entry import enter


def main() -> int:
    """Run the command."""
    return enter(f"{__package__}.tools.quantize.command")


if __name__ == "__main__":
    sys.exit(main())
