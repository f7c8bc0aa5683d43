"""`python -m tilec` and the `tilec` command.

Both remove the current folder from the module search path before they import anything (`tilec.startup`). Under `python -m
tilec`, Python itself still searches it for `tilec` first: in a folder with untrusted contents, use the command or `python -P -m
tilec`.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its status. Ctrl-C and SIGTERM end it with one line, also during imports."""
    try:
        status = _run()
    except (OSError, MemoryError, ImportError) as error:  # errors of the imports; a command that has started handles its own
        print(f"error: tilec cannot be loaded: {getattr(error, 'strerror', None) or error or 'no memory'}", file=sys.stderr)
        status = 2
    sys.exit(status)


def _run() -> int:
    from tilec.cli.ending import Terminated, leave_signals, open_standard_streams, status_of_end, unwind_on_signals

    try:
        unwind_on_signals()
        if not open_standard_streams():
            print("error: the output cannot be written: stdout is closed", file=sys.stderr)
            return 2
        from tilec.cli.commands import run
        from tilec.diagnostics.visible import guard_streams

        guard_streams()
        status = run()
        leave_signals()
        return status
    except (KeyboardInterrupt, Terminated) as error:
        return status_of_end(error)


if __name__ == "__main__":
    main()
