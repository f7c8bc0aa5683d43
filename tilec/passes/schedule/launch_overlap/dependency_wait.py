"""Inserts the grid dependency wait of programmatic dependent launch (PTX ISA, `griddepcontrol.wait`) before the first access to
memory that preceding kernels may write. The launch, block index arithmetic and loads of resident tensors overlap those kernels.

Preceding kernels run concurrently with this one only up to its wait, which returns once they are complete and their writes are
visible. These writes may thus happen while this kernel runs, so only resident tensors are read by the read-only path or by
invariant loads (`tilec.lowering.context.Path`). A later kernel may start early, but it too waits before it touches memory, and
this kernel is not complete while any of its blocks still reads. The kernel never writes an `In` tensor, and the launch contract
refuses one that aliases a written tensor (`no_alias`). The verifier refuses an access before the wait, and a path without a
wait.

Only loads of `resident` tensors precede the wait: by contract, no kernel that a launch overlaps writes those. If a loop has
such loads, its first iterations are peeled so that theirs precede it too: as many as the schedule says, or as registers allow.
For copies into shared memory, see `prologue_rings` and `prologue_stages`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Access, Block, Effect, Function, Op, Value
from tilec.ir.ops import Constant, For, Load, Mma
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.types import TileType
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.schedule import BEFORE, Schedule

PROLOGUE_REGISTERS: Final = 80
"""Maximum registers per thread for values loaded before the wait."""


def insert(function: Function, schedule: Schedule) -> Function:
    """Insert `wait_prior` after the scalars computed from launch values and the loads of resident tensors, in place."""
    if function.residents and len(schedule.roles) == 1 and not schedule.pipelines:
        _peel(function, schedule)
        canonicalize(function)
    prologue = set(_prologue_ops(function, function.body.ops, launch_values(function)))
    start = [op for op in function.body.ops if op in prologue]
    rest = [op for op in function.body.ops if op not in prologue]
    function.body.ops = [*start, DependencyWait(before=schedule.next == BEFORE), *rest]
    return function


def launch_values(function: Function, block: Block | None = None, given: set[Value] | None = None) -> set[Value]:
    """Scalars computed from scalar parameters, dims and the block index alone, in the body or in a nested `block`; `given` are
    further known values."""
    known = {parameter.value for parameter in function.parameters if parameter.access is None} | (given or set())
    for op in (block or function.body).ops:
        if _is_scalar(op) and set(op.operands) <= known:
            known |= set(op.results)
    return known


def block_values(function: Function, block: Block | None = None, given: set[Value] | None = None) -> set[Value]:
    """`launch_values`, elements of `In` tensors at positions that are such values, and scalars computed from them: what every
    role of a block may know. Without the elements if a tensor is resident: then a role may run before the wait."""
    known = launch_values(function, block, given)
    if function.residents:
        return known
    for op in (block or function.body).ops:
        if (_is_scalar(op) or is_element(function, op)) and set(op.operands[isinstance(op, Load) :]) <= known:
            known |= set(op.results)
    return known


def is_element(function: Function, op: Op) -> bool:
    """Whether an operation loads one element of a tensor that no kernel in flight writes once this one is past its wait."""
    return isinstance(op, Load) and op.result.tile.size == 1 and function.parameter_of(op.source).access is Access.IN


def _is_scalar(op: Op) -> bool:
    scalar = all(isinstance(value.type, TileType) and not value.type.rank for value in op.results)
    return bool(op.results) and scalar and op.effect is Effect.NONE and not op.regions


def _is_only_read(function: Function, tensor: Value) -> bool:
    """Whether a tensor is resident and never written by the kernel, so that its loads may move before any store."""
    return function.is_resident(tensor) and function.parameter_of(tensor).access is Access.IN


def _prologue_ops(function: Function, ops: Iterable[Op], known: set[Value]) -> list[Op]:
    """The operations that may precede the wait if the values `known` do: loads of resident tensors whose offsets are computed
    from these values or from other such loads, and the scalars in between."""
    known = set(known)
    found: list[Op] = []
    for op in ops:
        only_read = isinstance(op, Load) and op.pad is None and _is_only_read(function, op.source)
        is_prologue_load = isinstance(op, Load) and only_read and set(op.offsets) <= known
        if is_prologue_load or (_is_scalar(op) and set(op.operands) <= known):
            known |= set(op.results)
            found.append(op)
    return found


def _peel(function: Function, schedule: Schedule) -> None:
    """Peel the first iterations of loops that load resident tensors."""
    known = launch_values(function)
    ops: list[Op] = []
    mapping: dict[Value, Value] = {}
    registers_left = PROLOGUE_REGISTERS
    for op in function.body.ops:
        for inner in (op, *(inner for region in op.regions for inner in region.walk())):
            inner.operands = [mapping.get(value, value) for value in inner.operands]
        iterations, per_iteration = _peelable_iterations(function, op, known, 32 * schedule.warps)
        count = (
            0
            if not iterations
            else min(iterations, registers_left // per_iteration)
            if schedule.early is None
            else min(iterations, schedule.early)
        )
        if isinstance(op, For) and count:
            registers_left -= count * per_iteration
            ops += _peel_iterations(op, count, iterations, mapping)
        else:
            ops.append(op)
    function.body.ops = ops


def _peelable_iterations(function: Function, op: Op, known: set[Value], threads: int) -> tuple[int, int]:
    """Iteration count of a loop whose loads may precede the wait, and registers per thread for one iteration's loads; (0, 1)
    for every other operation."""
    bounds = (
        [value.owner.value for value in op.operands[:3] if isinstance(value.owner, Constant)] if isinstance(op, For) else []
    )
    if len(bounds) < 3 or any(isinstance(inner, Mma) and inner.result.tile.rank == 2 for inner in op.regions[0].walk()):
        return 0, 1
    (body,) = op.regions
    loads = [load for load in _prologue_ops(function, body.ops, known | {body.arguments[0]}) if isinstance(load, Load)]
    if not loads:
        return 0, 1
    lower, upper, step = (int(bound) for bound in bounds)
    size = sum(load.result.tile.dtype.bytes_of(load.result.tile.size) for load in loads)
    return max(0, -(-(upper - lower) // step)), max(1, size // (4 * threads))


def _peel_iterations(loop: For, count: int, iterations: int, mapping: dict[Value, Value]) -> list[Op]:
    """The first `count` of a loop's `iterations` iterations in sequence, then the remaining loop. If none remains, `mapping`
    maps the loop's results to the final values."""
    (body,) = loop.regions
    lower, step = (int(value.owner.value) for value in (loop.lower, loop.step) if isinstance(value.owner, Constant))
    carried, ops = list(loop.initial), list[Op]()

    def number(value: int) -> Value:
        ops.append(Constant(value=value))
        ops[-1].define(loop.lower.type)
        return ops[-1].result

    for iteration in range(count):
        iteration_values = dict(zip(body.arguments, [number(lower + step * iteration), *carried], strict=True))
        ops += clone(body.ops[:-1], iteration_values)
        carried = [iteration_values.get(value, value) for value in body.ops[-1].operands]
    if count == iterations:
        mapping |= zip(loop.results, carried, strict=True)
        return ops
    loop.operands = [number(lower + step * count), loop.upper, loop.step, *carried]
    return [*ops, loop]
