"""Axes of two elements that `join` adds and `split` takes apart, in registers: then both move nothing.

A tile that `join` makes has the layout of its parts, of which each thread has both. A tile of which `split` takes one last axis
after the other apart has those axes in registers, and its threads are spread over the others. Several numbers of each thread,
which a kernel combines by itself, thus change places with those of other threads in one conversion.
"""

from __future__ import annotations

from tilec.ir.core import Function, Op, Value
from tilec.ir.layouts.blocked_layouts import natural, reshaped
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import Bitcast, Broadcast, Compare, Constant, Iota, Reduce, Reshape, Select


def split_axes(function: Function) -> dict[Value, int]:
    """How many of a tile's last axes are taken apart by `split`, one after the other; tiles with none are left out."""
    found: dict[Value, int] = {}
    for op in reversed(list(function.body.walk())):
        if isinstance(op, Bitcast) and op.result in found:
            found[op.operands[0]] = max(found[op.result], found.get(op.operands[0], 0))
        source = _taken_apart(op)
        if source is not None:
            found[source] = max(1 + found.get(op.result, 0), found.get(source, 0))
    return found


def apart(shape: tuple[int, ...], axes: int, warps: int) -> Layout | None:
    """The layout of a tile whose last `axes` are in registers; None if there is none."""
    outer, count = shape[:-axes], 2**axes
    return reshaped(natural((*outer, count), warps, count), (*outer, count), shape)


def is_apart(layout: Layout, axes: int) -> bool:
    """Whether the last `axes` of a layout are in registers alone."""
    return not any(digit.axis is not None and digit.axis >= layout.rank - axes for digit in (*layout.lanes, *layout.warps))


def joined(function: Function) -> frozenset[Broadcast]:
    """What repeats the parts of each `join`."""
    found: set[Broadcast] = set()
    for op in function.body.walk():
        if isinstance(op, Select) and _is_choice(op, op.result.tile.shape):
            sides = [one.owner for one in op.operands[1:]]
            shape = (*op.result.tile.shape[:-1], 1)
            parts = [side for side in sides if isinstance(side, Broadcast) and side.operands[0].tile.shape == shape]
            if len(parts) == 2:
                found |= set(parts)
    return frozenset(found)


def doubled(layout: Layout) -> Layout:
    """The layout of a part of a `join`, whose last axis has one element, with two elements along that axis in each thread."""
    return Layout(layout.rank, (Digit(2, layout.rank - 1, 1), *layout.registers), layout.lanes, layout.warps)


def _taken_apart(op: Op) -> Value | None:
    """The tile of which `split` takes an element, if a reduction is that."""
    if not isinstance(op, Reduce) or op.axis != op.operands[0].tile.rank - 1:
        return None
    choice = op.operands[0].owner
    if not isinstance(choice, Select) or not _is_choice(choice, op.operands[0].tile.shape):
        return None
    return choice.operands[1] if isinstance(choice.operands[2].owner, Constant) else None


def _is_choice(op: Op, shape: tuple[int, ...]) -> bool:
    """Whether an operation chooses by the position along a last axis of two elements."""
    if not isinstance(op, Select) or not shape or shape[-1] != 2 or op.result.tile.shape != shape:
        return False
    test = op.operands[0].owner
    if not isinstance(test, Compare) or test.kind != "eq":
        return False
    index, wanted = test.operands
    while isinstance(index.owner, Broadcast | Reshape) and index.tile.shape[-1] == 2:
        index = index.owner.operands[0]
    return isinstance(index.owner, Iota) and isinstance(wanted.owner, Constant)
