"""The process that checks grammars, with limits on processor time and memory.

    python -I -S grammar_worker.py MODEL_FOLDER VOCABULARY ENDING FOLDER...

ENDING are the tokens that end a generation, with commas between them; the other folders are those of llguidance and this
package. `engine.reply_worker` takes the requests. A request has the `kind` of a form and its `value`, a reply the `grammar`, or
`why` it cannot be had, or `error`.

llguidance is native code that clients feed. What it does with a grammar the first time, it does here: a crash of it, and a
grammar that takes too much, end this process alone.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from engine.serving.grammar_compiler import Compiler

CPU_SECONDS: Final = 10.0
"""Limit of processor time for one grammar, in seconds."""
MEMORY_BYTES: Final = 2 << 30
"""Limit of the process's address space. A vocabulary of 150,393 tokens and four large grammars took 414 MB of it."""
NO_VOCABULARY: Final = 3
"""The exit status if the vocabulary cannot be read."""


def reply_to(compiler: Compiler, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to a request."""
    from engine.errors import UsageError

    try:
        return {"grammar": compiler.made(request["kind"], request["value"])}
    except UsageError as error:
        return {"why": error.what}
    except RecursionError:
        return {"why": "it is nested too deeply"}


def main(folder: str, vocabulary: int, ending: list[int]) -> None:
    """Reply to requests until stdin closes."""
    from engine.reply_worker import serve
    from engine.serving.grammar_compiler import Compiler
    from engine.serving.grammar_depth import deep_thread

    compiler, thread = Compiler(folder, vocabulary, ending), deep_thread("grammars")
    try:
        compiler.read()
    except (OSError, ValueError):
        sys.exit(NO_VOCABULARY)

    def reply(request: dict[str, Any]) -> dict[str, Any]:
        return thread.submit(reply_to, compiler, request).result()

    serve(sys.stdin.buffer, sys.stdout.buffer, reply, cpu_seconds=CPU_SECONDS, memory_bytes=MEMORY_BYTES)


if __name__ == "__main__":
    sys.path += sys.argv[4:]
    main(sys.argv[1], int(sys.argv[2]), [int(token) for token in sys.argv[3].split(",") if token])
