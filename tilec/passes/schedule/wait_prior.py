"""Where a kernel waits for the kernel before it, so that it may begin while that one ends.

Every kernel waits for its predecessors itself, before its first access to memory that they may write, so that its launch may
overlap them: their last blocks then cost neither the launch, nor the arithmetic on block ids that comes first, nor the way of
what is resident from memory.

A kernel before this one may run beside it only up to this one's wait, which lets it go on when those before are complete and
what they wrote is visible (PTX ISA, `griddepcontrol.wait`). What they wrote was so written while this kernel ran, therefore the
read-only path and loads marked invariant are for resident tensors alone (`tilec.lowering.context.Path`). A kernel behind this
one may begin early, but waits likewise before it touches memory, and this one is not complete while any of its blocks still
reads. Within the kernel an `In` tensor is never written, and the launch contract refuses one that shares memory with a tensor
that is (`no_alias`). The verifier refuses an access in front of the wait, and a wait that some path skips.

Loads of `resident` tensors alone stand in front of the wait: nothing that a launch overlaps writes those, which is part of the
contract. Where a loop makes them, its first turns are written out, so that theirs can go there too; as many turns as the
schedule says, or as registers are there for. Copies into shared memory: `early_rings`, `early_stages`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Access, Block, Effect, Function, Op, Value
from tilec.ir.ops import Constant, For, Load, Mma
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.types import TileType
from tilec.passes.schedule.canonicalize import canonicalize
from tilec.schedule import Schedule

EARLY_REGISTERS: Final = 80
"""Registers of a thread that hold what is loaded in front of the wait, at most."""


def insert(function: Function, schedule: Schedule) -> Function:
    """Insert `wait_prior` behind what follows from launch values alone and loads of what is resident, in place."""
    if function.residents and len(schedule.roles) == 1 and not schedule.pipelines:
        _peel(function, schedule)
        canonicalize(function)
    early = set(_early(function, function.body.ops, launch_values(function)))
    start = [op for op in function.body.ops if op in early]
    rest = [op for op in function.body.ops if op not in early]
    function.body.ops = [*start, WaitPrior(before=schedule.next == "before"), *rest]
    return function


def launch_values(function: Function, block: Block | None = None, given: set[Value] | None = None) -> set[Value]:
    """Scalars that follow from launch values and the block's place alone: those of the body, or of a `block` in it, where
    `given` are known."""
    known = {parameter.value for parameter in function.parameters if parameter.access is None} | (given or set())
    for op in (block or function.body).ops:
        if _is_scalar(op) and set(op.operands) <= known:
            known |= set(op.results)
    return known


def _is_scalar(op: Op) -> bool:
    scalar = all(isinstance(value.type, TileType) and not value.type.rank for value in op.results)
    return bool(op.results) and scalar and op.effect is Effect.NONE and not op.regions


def _is_only_read(function: Function, tensor: Value) -> bool:
    """Whether a tensor is resident and the kernel does not write it, so that its loads may go in front of any store."""
    return function.is_resident(tensor) and function.parameter_of(tensor).access is Access.IN


def _early(function: Function, ops: Iterable[Op], known: set[Value]) -> list[Op]:
    """Those of some operations that may stand in front of the wait where the values `known` do: loads of resident tensors at
    places that follow from them or from such loads, and the scalars in between."""
    known = set(known)
    found: list[Op] = []
    for op in ops:
        read = isinstance(op, Load) and op.pad is None and _is_only_read(function, op.source)
        loads = isinstance(op, Load) and read and set(op.offsets) <= known
        if loads or (_is_scalar(op) and set(op.operands) <= known):
            known |= set(op.results)
            found.append(op)
    return found


def _peel(function: Function, schedule: Schedule) -> None:
    """Write out the first turns of loops that load what is resident."""
    known = launch_values(function)
    made: list[Op] = []
    names: dict[Value, Value] = {}
    left = EARLY_REGISTERS
    for op in function.body.ops:
        for inner in (op, *(inner for region in op.regions for inner in region.walk())):
            inner.operands = [names.get(value, value) for value in inner.operands]
        turns, each = _turns(function, op, known, 32 * schedule.warps)
        count = 0 if not turns else min(turns, left // each) if schedule.early is None else min(turns, schedule.early)
        if isinstance(op, For) and count:
            left -= count * each
            made += _first_turns(op, count, turns, names)
        else:
            made.append(op)
    function.body.ops = made


def _turns(function: Function, op: Op, known: set[Value], threads: int) -> tuple[int, int]:
    """How many turns a loop takes that loads what is resident early, and registers of a thread for the loads of a turn; 0 and
    1 of every other operation."""
    bounds = (
        [value.owner.value for value in op.operands[:3] if isinstance(value.owner, Constant)] if isinstance(op, For) else []
    )
    if len(bounds) < 3 or any(isinstance(inner, Mma) and inner.result.tile.rank == 2 for inner in op.regions[0].walk()):
        return 0, 1
    (body,) = op.regions
    loads = [one for one in _early(function, body.ops, known | {body.arguments[0]}) if isinstance(one, Load)]
    if not loads:
        return 0, 1
    lower, upper, step = (int(bound) for bound in bounds)
    size = sum(load.result.tile.size * load.result.tile.dtype.bytes for load in loads)
    return max(0, -(-(upper - lower) // step)), max(1, size // (4 * threads))


def _first_turns(loop: For, count: int, turns: int, names: dict[Value, Value]) -> list[Op]:
    """The first `count` turns of a loop one after the other, and the loop that is left; `names` gains its results where none
    is."""
    (body,) = loop.regions
    lower, step = (int(value.owner.value) for value in (loop.lower, loop.step) if isinstance(value.owner, Constant))
    held, made = list(loop.initial), list[Op]()

    def number(value: int) -> Value:
        made.append(Constant(value=value))
        made[-1].define(loop.lower.type)
        return made[-1].result

    for turn in range(count):
        inside = dict(zip(body.arguments, [number(lower + step * turn), *held], strict=True))
        made += clone(body.ops[:-1], inside)
        held = [inside.get(value, value) for value in body.ops[-1].operands]
    if count == turns:
        names |= zip(loop.results, held, strict=True)
        return made
    loop.operands = [number(lower + step * count), loop.upper, loop.step, *held]
    return [*made, loop]
