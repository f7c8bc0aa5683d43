"""Mistakes in the use of tensor memory, in addition to those of `schedule_mutants`.

In: an operation of a prepared function that has accumulators in tensor memory. Out: named changes, as `schedule_mutants` makes
them. Some make several edits where one alone would break a rule of the text, not of tensor memory: a layout changes for every
value that has it, and a role with its names and warps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.passes.schedule_edits import Change, block_of, computed, set_attribute, set_constant
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import Compare, Constant, For, If, Yield
from tilec.ir.ops.sync_ops import Ring, RingOp, Roles
from tilec.ir.ops.tmem_ops import CommitMma, ReleaseMma, TmemAlloc, TmemFree, TmemLoad, TmemMma, TmemReserve
from tilec.ir.types import RingType, TileType, TmemSpaceType, TmemType, boolean

Named = Iterator[tuple[str, str, Change]]
COMPARISONS: Final = ("lt", "le", "gt", "ge", "eq", "ne")


def changes(op: Op) -> Named:
    """Kind, detail and edit of each mistake in one operation."""
    if isinstance(op, RingOp | TmemAlloc):
        yield "another ring", "", _other_ring
    match op:
        case TmemMma():
            yield from _changes_of_product(op)
        case TmemLoad():
            yield "reads another accumulator", "the one before", lambda f, o: _before(f, o, 1)
            for name, layout in _other_layouts(op.result.layout):
                yield "wrong layout", name, lambda f, o, to=layout: _replace_layout(f, o.result.layout, to)
            yield "loads outside of the branch", "", _hoist
        case CommitMma():
            yield "commits each product", "", _into_loop
        case ReleaseMma():
            yield "releases after the loop", "", _after_loop
        case TmemReserve():
            yield from _changes_of_space(op)
        case TmemAlloc():
            for more in (-16, 16, op.result.tmem.stage_columns, op.result.tmem.columns):
                yield "other columns", f"{more} more", lambda f, o, n=more: set_attribute(o, "column", o.column + n)
            for first in (0, op.result.tmem.stage_columns // 2):
                yield "columns of another buffer", f"from {first}", lambda f, o, n=first: _second_buffer(f, o, n)
            stages = op.result.tmem.stages
            for count in (stages - 1, stages + 1):
                yield "other stages", f"{count} buffers", lambda f, o, n=count: _stages(o, n)
                yield "other stages", f"{count} in the ring", lambda f, o, n=count: _stages(o, n, ring=True)
        case TmemFree():
            yield "freed by a role", "", lambda f, o: _into_role(f, o, 0)
            yield "freed by a role", "the last", lambda f, o: _into_role(f, o, -1)
            yield "freed before the roles", "", _first
        case Roles():
            yield from _changes_of_roles(op)
        case For() if len(op.operands) == 7 and any(isinstance(inner, CommitMma) for inner in op.regions[0].ops):
            for number in (0, 1):
                yield "loop begins elsewhere", f"operand 6 is {number}", lambda f, o, n=number: set_constant(f, o, 6, n)
        case If() if any(isinstance(inner, TmemLoad) for inner in op.regions[0].ops):
            yield "reads what no product computed", "regions swapped", lambda f, o: set_attribute(o, "regions", o.regions[::-1])
            for truth in (False, True):
                yield "reads what no product computed", str(truth), lambda f, o, t=truth: _truth(f, o, 0, t)
            for kind in COMPARISONS:
                yield "reads what no product computed", kind, lambda f, o, k=kind: _compare(f, o, 0, k)
        case _:
            pass


def _changes_of_product(op: TmemMma) -> Named:
    for truth in (False, True):
        yield "accumulates wrongly", str(truth), lambda f, o, t=truth: _truth(f, o, 6, t)
    for kind in COMPARISONS:
        yield "accumulates wrongly", kind, lambda f, o, k=kind: _compare(f, o, 6, k)
    yield "reads another accumulator", "the one before", lambda f, o: _before(f, o, 5)
    yield "another family", "wgmma", lambda f, o: set_attribute(o, "family", "wgmma")
    for kind in COMPARISONS[1:]:
        yield "leaves out products", kind, lambda f, o, k=kind: _only_where(f, o, k)
    yield (
        "products of one matrix",
        "the left one",
        lambda f, o: set_attribute(o, "operands", [*o.operands[:2] * 2, *o.operands[4:]]),
    )
    yield "products of one matrix", "swapped", lambda f, o: _swap(o)
    yield "a product outside of its role", "in the consumers", lambda f, o: _move_to_role(f, o, 0)
    yield "a product outside of its role", "in the producer", lambda f, o: _move_to_role(f, o, 1)


def _changes_of_space(op: TmemReserve) -> Named:
    space = op.result.type
    assert isinstance(space, TmemSpaceType)
    for columns in (space.columns // 2, space.columns * 2, space.columns - 32, 16, 0):
        yield "another space", f"{columns} columns", lambda f, o, n=columns: set_attribute(o.result, "type", TmemSpaceType(n))
    for offset in (0, 8, 512, 1024, 1010, -4, 1 << 20):
        yield "another slot", f"at {offset}", lambda f, o, n=offset: set_attribute(o, "offset", n)
    yield "allocates twice", "", _allocate_again
    yield "allocates in a role", "", lambda f, o: _into_role(f, o, 0)


def _changes_of_roles(op: Roles) -> Named:
    count = len(op.regions)
    for number in range(1, count):
        order = [*range(number, count), *range(number)]
        yield "roles of other warps", f"order {order}", lambda f, o, c=order: _reorder(o, c)
    for number in range(count):
        flipped = tuple(one != (slot == number) for slot, one in enumerate(op.alone))
        yield "products by other threads", f"alone {flipped}", lambda f, o, a=flipped: set_attribute(o, "alone", a)
        for warps in (1, 2, 3, 4, 8, 12):
            yield "roles of other warps", f"{warps} in role {number}", lambda f, o, n=number, w=warps: _warps(f, o, n, w)


def _other_layouts(layout: Layout | None) -> Iterator[tuple[str, Layout]]:
    """Layouts of the same elements on the same threads that no load makes, named."""
    assert layout is not None
    if len(layout.registers) < 3:  # rows of each thread, which `signal_mutants` changes
        return
    own, groups = layout.warps
    yield "warps of a group last", replace(layout, warps=(groups, own))
    yield "rows of a wgmma", replace(layout, warps=(own, groups), registers=_exchanged(layout.registers, 0))
    first, second, *others = layout.registers
    yield "rows first", replace(layout, registers=(second, first, *others))
    yield "lanes swapped", replace(layout, lanes=layout.lanes[::-1])
    for slot in range(2, len(layout.registers) - 1):
        yield f"registers swapped at {slot}", replace(layout, registers=_exchanged(layout.registers, slot))
    wide = [slot for slot, digit in enumerate(layout.registers) if digit.axis == 0 and digit.extent > 1 and digit.stride >= 16]
    for slot in wide:
        yield f"a warp takes each {layout.registers[slot].stride} rows", _strided(layout, slot)


def _exchanged(digits: tuple[Digit, ...], slot: int) -> tuple[Digit, ...]:
    changed = list(digits)
    changed[slot], changed[slot + 1] = changed[slot + 1], changed[slot]
    return tuple(changed)


def _strided(layout: Layout, slot: int) -> Layout:
    """Rows of a warp at larger distances: the warp's digit has the smaller stride, and the register's the larger one."""
    digit, (own, groups) = layout.registers[slot], layout.warps
    registers = list(layout.registers)
    registers[slot] = Digit(digit.extent, 0, digit.stride * own.extent if digit.stride < 128 else 32)
    stride = digit.stride if digit.stride < 128 else 32 * digit.extent
    return replace(layout, registers=tuple(registers), warps=(Digit(own.extent, 0, stride), groups))


def _replace_layout(function: Function, old: Layout | None, new: Layout) -> None:
    for op in function.body.walk():
        for value in op.results:
            if value.layout == old:
                value.layout = new


def _other_ring(function: Function, op: Op) -> None:
    """Replaces the ring by the other one."""
    slot = next(index for index, value in enumerate(op.operands) if isinstance(value.type, RingType))
    rings = [inner.result for inner in function.body.walk() if isinstance(inner, Ring)]
    if op.operands[slot] not in rings:
        raise IndexError
    op.operands[slot] = rings[1 - rings.index(op.operands[slot])]


def _before(function: Function, op: Op, slot: int) -> None:
    """The stage before, of two."""
    op.operands[slot] = computed(function, op, "sub", op.operands[slot], 1)


def _insert(function: Function, op: Op, made: Op) -> None:
    ops = block_of(function, op).ops
    ops.insert(ops.index(op), made)


def _truth(function: Function, op: Op, slot: int, value: bool) -> None:
    constant = Constant(value=value)
    constant.define(TileType(boolean))
    _insert(function, op, constant)
    op.operands[slot] = constant.result


def _compared(function: Function, op: Op, condition: Value, kind: str) -> Value:
    owner = condition.owner
    if not isinstance(owner, Compare) or owner.kind == kind:
        raise IndexError
    compare = Compare(kind=kind, operands=list(owner.operands))
    compare.define(TileType(boolean))
    _insert(function, op, compare)
    return compare.result


def _compare(function: Function, op: Op, slot: int, kind: str) -> None:
    op.operands[slot] = _compared(function, op, op.operands[slot], kind)


def _only_where(function: Function, op: TmemMma, kind: str) -> None:
    """Starts the product only where a comparison of the first iteration with this one holds."""
    condition = _compared(function, op, op.accumulate, kind)
    ops = block_of(function, op).ops
    branch = If(operands=[condition], regions=[Block(ops=[op, Yield()]), Block(ops=[Yield()])])
    ops[ops.index(op)] = branch


def _swap(op: Op) -> None:
    op.operands[:4] = [*op.operands[2:4], *op.operands[:2]]


def _roles(function: Function) -> Roles:
    return next(op for op in function.body.ops if isinstance(op, Roles))


def _move_to_role(function: Function, op: TmemMma, number: int) -> None:
    """Moves a product after the last wait of another role, with constant stages."""
    block_of(function, op).ops.remove(op)
    region = _roles(function).regions[number]
    loops = [one for one in region.walk() if isinstance(one, For)]
    target = loops[-1].regions[0].ops if loops else region.ops
    constants: list[Constant] = []
    for value in (0, False):
        constant = Constant(value=value)
        constant.define(op.operands[1].type if value == 0 and value is not False else TileType(boolean))
        constants.append(constant)
    op.operands[1] = op.operands[3] = op.operands[5] = constants[0].result
    op.operands[6] = constants[1].result
    slot = len(target) - (bool(target) and isinstance(target[-1], Yield))
    target[slot:slot] = [*constants, op]


def _hoist(function: Function, op: TmemLoad) -> None:
    """Loads before the branch, whether a product was computed or not."""
    branch = next(one for one in function.body.walk() if isinstance(one, If) and op in one.regions[0].ops)
    branch.regions[0].ops.remove(op)
    _insert(function, branch, op)


def _into_loop(function: Function, op: CommitMma) -> None:
    ops = block_of(function, op).ops
    loop = next(one for one in ops[ops.index(op) :: -1] if isinstance(one, For))
    ops.remove(op)
    loop.regions[0].ops.insert(-1, op)


def _after_loop(function: Function, op: ReleaseMma) -> None:
    """Releases once after the loop, at its last position."""
    loop = next(one for one in function.body.walk() if isinstance(one, For) and op in one.regions[0].ops)
    loop.regions[0].ops.remove(op)
    op.operands[1] = loop.results[0]
    ops = block_of(function, loop).ops
    ops.insert(ops.index(loop) + 1, op)


def _second_buffer(function: Function, op: TmemAlloc, column: int) -> None:
    again = TmemAlloc(operands=list(op.operands), column=column)
    type_ = op.result.tmem
    again.define(TmemType(type_.dtype, (type_.shape[0], 16), type_.stages))
    ops = block_of(function, op).ops
    ops.insert(ops.index(op) + 1, again)


def _stages(op: TmemAlloc, count: int, *, ring: bool = False) -> None:
    """Another number of accumulators, of the buffer alone or of its ring too."""
    if count < 1:
        raise IndexError
    op.result.type = replace(op.result.tmem, stages=count)
    if ring:
        op.ring.type = RingType(count)


def _into_role(function: Function, op: Op, number: int) -> None:
    function.body.ops.remove(op)
    _roles(function).regions[number].ops.append(op)


def _first(function: Function, op: Op) -> None:
    function.body.ops.remove(op)
    ops = function.body.ops
    ops.insert(ops.index(_roles(function)), op)


def _allocate_again(function: Function, op: TmemReserve) -> None:
    again = TmemReserve(offset=op.offset - 4)
    again.define(op.result.type)
    _insert(function, op, again)


def _reorder(op: Roles, order: list[int]) -> None:
    for name in ("names", "warps", "registers", "alone"):
        setattr(op, name, tuple(getattr(op, name)[slot] for slot in order))
    op.regions = [op.regions[slot] for slot in order]


def _warps(function: Function, op: Roles, number: int, warps: int) -> None:
    """Another number of warps of a role, and of the block."""
    if op.warps[number] == warps:
        raise IndexError
    op.warps = (*op.warps[:number], warps, *op.warps[number + 1 :])
    function.num_warps = sum(op.warps)
