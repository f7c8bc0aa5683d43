"""Loads of what a broadcast repeats take the layout in which it is repeated.

In: a function whose tiles have layouts, before conversions. Out: the same, in place. If each thread needs other elements of a
loaded tile than the tile's layout gives it, all go through shared memory in every iteration of a loop, with barriers. A tile
that is repeated is small: that several threads load the same elements, from lines that are cached, costs less. Scales of blocks
and of groups are such tiles. A tile with another use keeps its layout, and so does one outside of loops. An exception are the
iterations that were peeled off a loop: several loads of tiles of one shape from one tensor.
"""

from __future__ import annotations

from collections import Counter

from tilec.ir.core import Function, Value
from tilec.ir.layouts.blocked_layouts import hidden
from tilec.ir.layouts.conversion_scratch import is_free
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Broadcast, Cast, For, Load, Reshape
from tilec.passes.schedule.layouts.propagation import source_layout


def spread(function: Function) -> None:
    """Set the layouts of such loads, and of their casts and reshapes."""
    uses = Counter(value for op in function.body.walk() for value in op.operands)
    inside = {one for op in function.body.walk() if isinstance(op, For) for one in op.regions[0].walk()}
    read = Counter(_read(op) for op in function.body.walk() if isinstance(op, Load))
    for op in function.body.walk():
        if isinstance(op, Broadcast) and op.operands[0].tile.rank and op.result.layout is not None:
            value = op.operands[0]
            repeated = {axis for axis, extent in enumerate(value.tile.shape) if extent == 1}
            chain = _loaded(value, hidden(op.result.layout, repeated), uses)
            load = chain[-1][0].owner if chain else None
            if op in inside or (isinstance(load, Load) and read[_read(load)] > 1):
                for moved, layout in chain:
                    moved.layout = layout


def _read(load: Load) -> tuple[Value, tuple[int, ...]]:
    """The tensor that a load reads, and the shape of its tile."""
    return load.source, load.result.tile.shape


def _loaded(value: Value, layout: Layout, uses: Counter[Value]) -> list[tuple[Value, Layout]]:
    """A tile and those that it is made from, up to the load, each with the layout that it needs; empty if it is not loaded, is
    used elsewhere too, or if each thread has its elements already."""
    if value.layout is None or is_free(value, layout):
        return []
    chain = list[tuple[Value, Layout]]()
    while uses[value] == 1:
        chain.append((value, layout))
        op = value.owner
        if isinstance(op, Load):
            return chain
        source = op.operands[0] if isinstance(op, Cast | Reshape) else None
        needed = source_layout(op, source, layout) if isinstance(op, Cast | Reshape) and source is not None else None
        if source is None or needed is None:
            break
        value, layout = source, needed
    return []
