"""The layout of a tile to which a loop adds another in every iteration: that of what it adds, where conversions cost more.

In: a loop without layouts on such tiles. Out: the tiles, and which layout each has. A sum that begins at a constant can begin
in any layout. With the natural one, a loop that adds what a reduction leaves converts it through shared memory in every
iteration; with that of the reduction, one conversion after the loop does, or none. A thread may then hold more elements of the
tile, since a reduction leaves replicas: `MOST_REGISTERS` bounds how many.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Op, Value
from tilec.ir.layouts.conversion_scratch import is_free
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Binary, Broadcast, Constant, For
from tilec.target.families import MemorySpace

MOST_REGISTERS: Final = 8
"""Elements of a thread, where the natural layout has fewer."""


def added(loop: For) -> dict[Value, tuple[Op, Value]]:
    """The carried tiles without a layout that begin at a constant, and to which the loop only adds another tile (or takes the
    larger, and so on): each with this operation and that tile."""
    body = loop.regions[0]
    users: dict[Value, list[Op]] = {}
    for op in body.walk():
        for value in op.operands:
            users.setdefault(value, []).append(op)
    found: dict[Value, tuple[Op, Value]] = {}
    for argument, initial, total in zip(body.arguments[1:], loop.initial, body.ops[-1].operands, strict=True):
        op = total.owner
        if not argument.tile.rank or argument.layout is not None or not isinstance(initial.owner, Constant):
            continue
        if not isinstance(op, Binary) or op not in body.ops or op.operands.count(argument) != 1 or total.layout is not None:
            continue
        term = next(value for value in op.operands if value is not argument)
        is_own = isinstance(term.owner, Op) and not isinstance(term.owner, Constant | Broadcast)
        if is_own and term.tile.shape == argument.tile.shape and users[argument] == [op] and users[total] == [body.ops[-1]]:
            found[argument] = op, term
    return found


def carried_layout(term: Value, usual: Layout) -> Layout:
    """The layout of the carried tile to which `term` is added; `usual`: its natural one."""
    layout = term.layout
    if layout is None or is_free(term, usual) or layout.num_registers > max(MOST_REGISTERS, usual.num_registers):
        return usual
    return layout.in_space(MemorySpace.REGISTERS)
