"""`engine.serving.grammar_worker` without the bounds that keep llguidance from harm, and with harm of other kinds: a regex that
names one has it."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Plant it, then run the worker."""
    from engine.serving import grammar_compiler, grammar_worker

    made = grammar_compiler.Compiler.made

    def harmful(self: grammar_compiler.Compiler, kind: str, value: Any) -> str:
        if value == "memory":
            kept = [bytes(1 << 28) for _ in range(64)]
            assert kept
        if value == "lost" or (isinstance(value, str) and value.startswith("lost/") and _once_more(value[4:])):
            os.kill(os.getpid(), signal.SIGKILL)
        if value == "error":
            raise KeyError(value)
        return made(self, kind, value)

    def bounded(grammar: str) -> str | None:
        return None

    grammar_compiler.too_deep = bounded
    grammar_compiler.Compiler.made = harmful
    grammar_worker.main(sys.argv[1], int(sys.argv[2]), [int(token) for token in sys.argv[3].split(",")])


def _once_more(file: str) -> bool:
    """Take a byte off a file; whether it had one. The process may write none."""
    left = os.path.getsize(file)
    os.truncate(file, max(left - 1, 0))
    return left > 0


if __name__ == "__main__":
    sys.path += sys.argv[4:]
    main()
