"""How much of each tile one thread holds, and the refusal of kernels where that is more than can be compiled.

In: a function with layouts. Every operation is written out for each element that a thread holds, so the text of a kernel, and
the time that LLVM and ptxas take for it, grow with the elements a thread, the latter faster than in proportion: a kernel that
loads, masks and stores 256 elements of f32 a thread takes 3 s of processor time, 512 take 9 s, 960 take 31 s, and all but 255
of them live in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod
from typing import Final

from tilec.diagnostics import CompileError, Diagnostic, Label
from tilec.ir.core import Function, Op, Value
from tilec.ir.ops import Broadcast, Constant, WriteOp
from tilec.ir.ops_staging import Relayout
from tilec.ir.ops_sync import Roles

MOST_ELEMENTS: Final = 1024
"""Elements of one tile that a thread may hold."""

MOST_OPERATIONS: Final = 70_000
"""Operations that a kernel may be written out to, all loops that are unrolled included."""

FITTING_ELEMENTS: Final = 64
"""Elements of one tile that leave registers for what else a kernel holds (255 of 32 bits a thread)."""


def largest(function: Function) -> tuple[Op, Value] | None:
    """The tile of which a thread holds the most elements, and the first operation that makes or stores it; of several tiles one
    that has a place in the source."""

    def size(pair: tuple[Op, Value]) -> tuple[int, bool]:
        layout = pair[1].layout
        return (layout.num_registers if layout else 0, pair[0].loc is not None)

    return max(_tiles(function), key=size, default=None)


def _tiles(function: Function) -> Iterable[tuple[Op, Value]]:
    """What operations make, constants and repetitions left out, which cost nothing until they are used, and what they store."""
    for op in function.body.walk():
        costs_nothing = isinstance(op, Constant | Broadcast) or (
            isinstance(op, Relayout) and isinstance(op.operands[0].owner, Constant | Broadcast)
        )
        made = () if costs_nothing else op.results
        stored = (op.tile,) if isinstance(op, WriteOp) else ()
        yield from ((op, value) for value in (*made, *stored) if value.layout is not None)


def check(function: Function) -> None:
    """CompileError E0530 where a thread would hold more of a tile than `MOST_ELEMENTS`."""
    found = largest(function)
    if found is None or found[1].layout is None or found[1].layout.num_registers <= MOST_ELEMENTS:
        return
    count = found[1].layout.num_registers
    message = f"each thread would hold {count} elements of one tile; at most {MOST_ELEMENTS} can be compiled"
    raise CompileError(_refusal("E0530", message, function, *found))


def too_long(function: Function) -> CompileError:
    """E0531: the kernel comes to more than `MOST_OPERATIONS`."""
    message = (
        f"`{function.name}` comes to more than {MOST_OPERATIONS} operations, each written out for every element of a thread"
    )
    found = largest(function)
    return CompileError(Diagnostic("E0531", message) if found is None else _refusal("E0531", message, function, *found))


def told(value: Value) -> str:
    """A tile and what each thread holds of it, in words."""
    assert value.layout is not None
    shape = " x ".join(map(str, value.tile.shape))
    count, threads = value.layout.num_registers, 32 * prod(digit.extent for digit in value.layout.warps)
    return f"a tile of {shape} {value.tile.dtype}: {count} elements for each of {threads} threads"


def tile_warps(function: Function) -> int:
    """Warps that hold the tiles: of the first role, where there are several."""
    return next((op.warps[0] for op in function.body.ops if isinstance(op, Roles)), function.num_warps)


def way_out(function: Function, value: Value) -> str:
    """What makes the threads hold less of a tile."""
    warps, size = tile_warps(function), value.tile.size
    wider = () if warps < function.num_warps else (2, 4, 8, 16)  # the warps of a role follow from its tiles
    fitting = next((n for n in wider if n > warps and size <= n * 32 * 2 * FITTING_ELEMENTS), None)
    smaller = f"use a smaller tile: {warps * 32} threads hold {warps * 32 * FITTING_ELEMENTS} elements well"
    return f"set `schedule = {{ warps = {fitting} }}` for this kernel, or {smaller}" if fitting else smaller


def _refusal(code: str, message: str, function: Function, op: Op, value: Value) -> Diagnostic:
    where = op.loc or function.loc
    note = f"a thread has 255 registers of 32 bits, and holds well up to {FITTING_ELEMENTS} elements of a tile"
    label = Label(where, told(value)) if where else None
    return Diagnostic(code, message, label, notes=(note,), hint=way_out(function, value))
