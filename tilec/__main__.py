"""`python -m tilec` and the `tilec` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status."""
    from tilec.cli.commands import run

    sys.exit(run())


if __name__ == "__main__":
    main()
