"""Elements of each tile per thread, and the diagnostics for kernels with more than can be compiled.

In: a function with layouts. Every operation is unrolled over the elements of a thread, so the text of a kernel, and the time
of LLVM and ptxas, grow with the elements per thread, the latter more than linearly: a kernel that loads, masks and stores
256 elements of f32 a thread takes 3 s of processor time, 512 take 9 s, 960 take 31 s, and all but 255 of them are spilled.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.ir.core import Function, Op, Value
from tilec.ir.ops import Broadcast, Constant, WriteOp
from tilec.ir.ops.staging_ops import Relayout
from tilec.ir.ops.sync_ops import Roles

MOST_ELEMENTS: Final = 1024
"""Largest number of elements of one tile per thread."""

MOST_OPERATIONS: Final = 70_000
"""Largest number of operations of a kernel after unrolling."""

FITTING_ELEMENTS: Final = 64
"""Elements of one tile per thread that leave registers for other values (a thread has 255 of 32 bits)."""


def largest(function: Function) -> tuple[Op, Value] | None:
    """The tile with the most elements per thread, and the first operation that makes or stores it; among equals, one with a
    source location."""

    def size(pair: tuple[Op, Value]) -> tuple[int, bool]:
        layout = pair[1].layout
        return (layout.num_registers if layout else 0, pair[0].loc is not None)

    return max(_tiles(function), key=size, default=None)


def _tiles(function: Function) -> Iterable[tuple[Op, Value]]:
    """Tiles that operations make or store, except constants and broadcasts, which cost nothing until they are used."""
    for op in function.body.walk():
        costs_nothing = isinstance(op, Constant | Broadcast) or (
            isinstance(op, Relayout) and isinstance(op.operands[0].owner, Constant | Broadcast)
        )
        results = () if costs_nothing else op.results
        stored = (op.tile,) if isinstance(op, WriteOp) else ()
        yield from ((op, value) for value in (*results, *stored) if value.layout is not None)


def check(function: Function) -> None:
    """CompileError E0530 if a thread would have more elements of a tile than `MOST_ELEMENTS`."""
    found = largest(function)
    if found is None or found[1].layout is None or found[1].layout.num_registers <= MOST_ELEMENTS:
        return
    count = found[1].layout.num_registers
    message = f"each thread would hold {count} elements of one tile; at most {MOST_ELEMENTS} can be compiled"
    raise CompileError(_refusal("E0530", message, function, *found))


def too_long(function: Function) -> CompileError:
    """E0531: the kernel has more than `MOST_OPERATIONS` operations."""
    message = f"`{function.name}` has more than {MOST_OPERATIONS} operations after unrolling over the elements of a thread"
    found = largest(function)
    return CompileError(Diagnostic("E0531", message) if found is None else _refusal("E0531", message, function, *found))


def elements_text(value: Value) -> str:
    """Text for a tile and its elements per thread."""
    assert value.layout is not None
    shape = " x ".join(map(str, value.tile.shape))
    count, threads = value.layout.num_registers, 32 * prod(digit.extent for digit in value.layout.warps)
    return f"a tile of {shape} {value.tile.dtype}: {count} elements for each of {threads} threads"


def tile_warps(function: Function) -> int:
    """Warps that tiles are distributed over: those of the first role, if there are roles."""
    return next((op.warps[0] for op in function.body.ops if isinstance(op, Roles)), function.num_warps)


def fewer_elements(function: Function, value: Value, most_warps: int = 16) -> str:
    """Suggestion for fewer elements per thread, with at most `most_warps`."""
    warps, size = tile_warps(function), value.tile.size
    warp_counts = () if warps < function.num_warps else (2, 4, 8, 16)  # a role's warps are derived from its tiles
    fitting_warps = next((n for n in warp_counts if warps < n <= most_warps and size <= n * 32 * 2 * FITTING_ELEMENTS), None)
    smaller_tile = f"use a smaller tile: {warps * 32} threads hold {warps * 32 * FITTING_ELEMENTS} elements well"
    return (
        f"set `schedule = {{ warps = {fitting_warps} }}` for this kernel, or {smaller_tile}" if fitting_warps else smaller_tile
    )


def _refusal(code: str, message: str, function: Function, op: Op, value: Value) -> Diagnostic:
    location = op.loc or function.loc
    note = f"a thread has 255 registers of 32 bits, and holds well up to {FITTING_ELEMENTS} elements of a tile"
    label = Label(location, elements_text(value)) if location else None
    return Diagnostic(code, message, label, notes=(note,), hint=fewer_elements(function, value))
