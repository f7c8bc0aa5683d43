"""Mistakes in signals between roles and in accesses to tensor memory by rows, in addition to those of `schedule_mutants`.

In: an operation of a prepared function that has signals. Out: named changes, as `schedule_mutants` makes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tests.passes.schedule_edits import Change, block_of, computed, double, drop, move, set_attribute, set_constant, set_operand
from tilec.ir.core import Function, Op
from tilec.ir.ops import Constant
from tilec.ir.ops.signal_ops import OWN, Await, SignalOp, Signals
from tilec.ir.ops.tmem_chain_ops import TileProduct, TmemRows, TmemStore
from tilec.ir.types import TileType, boolean, i32

ORDERED: Final = (SignalOp, TileProduct, TmemStore, TmemRows)


def changes(op: Op) -> Iterator[tuple[str, str, Change]]:
    """Kind, detail and edit of each mistake in one operation."""
    if isinstance(op, ORDERED):
        yield f"{op.opcode} dropped", "", drop
        yield f"{op.opcode} doubled", "", double
        for step in (-2, -1, 1, 2):
            yield f"{op.opcode} moved", f"by {step}", lambda f, o, step=step: move(f, o, step)
        for operand, value in enumerate(op.operands):
            if value.type == TileType(i32):
                yield from _changes_of_number(op, operand)
    match op:
        case Signals():
            for arrivals in (op.arrivals - 1, op.arrivals + 1, op.arrivals * 2):
                yield "wrong arrivals", str(arrivals), lambda f, o, n=arrivals: set_attribute(o, "arrivals", n)
            for parts in (op.parts - 1, op.parts + 1):
                yield "wrong parts", str(parts), lambda f, o, n=parts: set_attribute(o, "parts", n)
            for offset in (op.offset - 8, 4):
                yield "signals elsewhere", str(offset), lambda f, o, n=offset: set_attribute(o, "offset", n)
        case SignalOp():
            for part in sorted({OWN, 0, 1} - {op.part}):
                yield "signals of another part", str(part), lambda f, o, n=part: set_attribute(o, "part", n)
        case TileProduct():
            yield "another tile", f"tile {1 - op.tile}", lambda f, o: set_attribute(o, "tile", 1 - op.tile)
            for accumulates in (False, True):
                yield "adds to other sums", str(accumulates), lambda f, o, a=accumulates: _accumulate(f, o, a)
        case _:
            pass


def _changes_of_number(op: Op, operand: int) -> Iterator[tuple[str, str, Change]]:
    """Replaces a stage or a parity."""
    kind = "wrong parity" if isinstance(op, Await) and operand == 2 else "wrong stage"
    for number in (0, 1):
        yield kind, f"operand {operand} is {number}", lambda f, o, n=number: set_constant(f, o, operand, n)
    more = f"operand {operand} one more"
    yield kind, more, lambda f, o: set_operand(f, o, operand, lambda f, v: computed(f, o, "add", v, 1))


def _accumulate(function: Function, op: Op, accumulates: bool) -> None:
    """Makes a product add to its accumulators always, or never."""
    owner = op.operands[6].owner
    if isinstance(owner, Constant) and owner.value == accumulates:
        raise IndexError
    truth = Constant(value=accumulates)
    truth.define(TileType(boolean))
    block = block_of(function, op)
    block.ops.insert(block.ops.index(op), truth)
    op.operands[6] = truth.result
