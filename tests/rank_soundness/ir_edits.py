"""Mistakes in the tile IR of a kernel of several ranks, past the frontend: only verifier and prover can refuse them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from tilec.ir import ops
from tilec.ir.core import Access, Block, Function, Op, Parameter, Value
from tilec.ir.types import TileType, i32

Edit = Callable[[random.Random, Function], bool]
EDITS: dict[str, Edit] = {}


def _edit(make: Edit) -> Edit:
    EDITS[make.__name__] = make
    return make


def edit_function(r: random.Random, function: Function, *names: str) -> str:
    """Makes one edit, one of those named if some are; its name, or `none` if there is no place for any."""
    for name in r.sample(names or sorted(EDITS), len(names or EDITS)):
        if EDITS[name](r, function):
            return name
    return "none"


def _meet(function: Function) -> ops.Meet | None:
    return next((op for op in function.body.ops if isinstance(op, ops.Meet)), None)


def _regions(block: Block) -> Iterator[Block]:
    for op in block.ops:
        for region in op.regions:
            yield region
            yield from _regions(region)


def _parts(function: Function) -> list[Parameter]:
    return [p for p in function.parameters if p.access is Access.PEER]


def _like(tensor: Value, others: list[Parameter]) -> list[Value]:
    """Tensors of the same type."""
    return [p.value for p in others if p.value is not tensor and p.value.type == tensor.type]


def _insert(r: random.Random, block: Block, op: Op) -> None:
    end = len(block.ops) - (1 if block.ops and isinstance(block.ops[-1], ops.Yield) else 0)
    block.ops.insert(r.randrange(end + 1), op)


@_edit
def moved_meet(r: random.Random, function: Function) -> bool:
    if (meet := _meet(function)) is None:
        return False
    function.body.ops.remove(meet)
    first = next((k + 1 for k, op in enumerate(function.body.ops) if op.results and op.results[0] is meet.rank), 0)
    function.body.ops.insert(r.randrange(first, len(function.body.ops) + 1), meet)
    return True


@_edit
def meet_in_a_region(r: random.Random, function: Function) -> bool:
    regions = list(_regions(function.body))
    if (meet := _meet(function)) is None or not regions:
        return False
    function.body.ops.remove(meet)
    _insert(r, r.choice(regions), meet)
    return True


@_edit
def meet_again(r: random.Random, function: Function) -> bool:
    if (meet := _meet(function)) is None:
        return False
    again = ops.Meet(operands=[*meet.operands], loc=meet.loc)
    _insert(r, r.choice([function.body, *_regions(function.body)]), again)
    return True


@_edit
def no_meet(r: random.Random, function: Function) -> bool:
    if (meet := _meet(function)) is None:
        return False
    function.body.ops.remove(meet)
    return True


@_edit
def signals_in_another_order(r: random.Random, function: Function) -> bool:
    if (meet := _meet(function)) is None:
        return False
    signals = meet.signals
    r.shuffle(signals)
    meet.operands = [*signals, meet.rank]
    return True


@_edit
def another_number(r: random.Random, function: Function) -> bool:
    if (meet := _meet(function)) is None:
        return False
    before = function.body.ops[: function.body.ops.index(meet)]
    numbers = [op.result for op in before if len(op.results) == 1 and op.result.type == TileType(i32)]
    if not numbers:
        return False
    meet.operands = [*meet.signals, r.choice(numbers)]
    return True


@_edit
def a_write_to_a_part(r: random.Random, function: Function) -> bool:
    writes = [op for op in function.body.walk() if isinstance(op, ops.WriteOp)]
    choices = [(op, part) for op in writes for part in _like(op.target, _parts(function))]
    if not choices:
        return False
    op, part = r.choice(choices)
    op.operands[op.operands.index(op.target)] = part
    return True


@_edit
def a_read_of_another_part(r: random.Random, function: Function) -> bool:
    reads = [op for op in function.body.walk() if isinstance(op, ops.Load | ops.Gather)]
    choices = [(op, part) for op in reads for part in _like(op.source, _parts(function))]
    if not choices:
        return False
    op, part = r.choice(choices)
    op.operands[0] = part
    return True


@_edit
def a_read_before(r: random.Random, function: Function) -> bool:
    """A load of the body moves before the meet, with what it needs, if that is of the body too."""
    if (meet := _meet(function)) is None:
        return False
    at = function.body.ops.index(meet)
    after = function.body.ops[at + 1 :]
    moved = next((op for op in after if isinstance(op, ops.Load | ops.Gather | ops.For | ops.If)), None)
    if moved is None:
        return False
    function.body.ops.remove(meet)
    function.body.ops.insert(function.body.ops.index(moved) + 1, meet)
    return True
