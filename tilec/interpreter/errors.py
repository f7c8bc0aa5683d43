"""Errors of the interpreter."""

from __future__ import annotations

from tilec.diagnostics.diagnostic import Span


class InterpreterError(Exception):
    """The launch violates the kernel's contract, or a block does what the language forbids. The message names the kernel and,
    where known, the source location, the block, the parameter and the element."""

    def __init__(self, message: str, *, kernel: str, loc: Span | None = None, block: tuple[int, ...] | None = None) -> None:
        location = f" at {loc}" if loc is not None else ""
        in_block = f" in block ({', '.join(map(str, block))})" if block is not None else ""
        super().__init__(f"`{kernel}`{location}: {message}{in_block}")
        self.kernel, self.loc, self.block = kernel, loc, block
