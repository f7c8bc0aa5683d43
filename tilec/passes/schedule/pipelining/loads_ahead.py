"""Loads of the next iteration while the products of this one run: for loops whose threads compute an operand from what they
load, and, in persistent blocks, for those that scale their sums by what they load.

In: a function with layouts, in which a consumers' loop packs operands (`pack_pairs`) that follow from loads of the iteration,
or computes on the result of a product of the iteration and on such loads. Out: instead of the loop

    if there is an iteration:
        loads of the first iteration
        for each iteration: as before, on the values that were loaded; after the first product starts, loads of the next one

Past the last iteration the loads repeat those of the last, so that no access is made that the loop did not make. Loads move as
far as their offsets follow from the loop variable and values outside of the loop, of tensors that the kernel does not write;
loops stay unchanged if a thread would have too few registers for what it holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from tilec.ir.clone import clone
from tilec.ir.core import Block, Effect, Function, Op, Value
from tilec.ir.ops import For, Gather, If, Load, Yield
from tilec.ir.ops.staging_ops import GroupProduct, LoadAhead, PackPairs, WaitMma
from tilec.ir.types import TileType
from tilec.passes.schedule import register_need
from tilec.passes.schedule.pipelining.staged_loads import is_written, without_dead
from tilec.passes.schedule.pipelining.staged_products import Emitter
from tilec.passes.schedule.specialization.persistent import tile_loop

OTHER_REGISTERS: Final = 32
"""Registers per thread for addresses, scalars and temporaries in addition to tiles."""


def load(function: Function, registers: int) -> Function:
    """Move the loads of all such loops, in place; a thread has `registers`."""
    tiles = tile_loop(function)
    block, chosen = (function.body, _packed) if tiles is None else (tiles.regions[0], _scaling)
    for index, op in enumerate(block.ops):
        if not isinstance(op, For):
            continue
        body = op.regions[0]
        loads = chosen(body, [one for one in _movable(function, body) if isinstance(one, Load | Gather)])
        loaded = [one.result for one in loads]
        moved = _needed(body, loads)
        if loads and _in_registers(function, body, loaded) <= registers - OTHER_REGISTERS:
            block.ops[index : index + 1] = _ahead(op, moved, loaded)
    return function


def _movable(function: Function, body: Block) -> list[Op]:
    """The operations of an iteration that follow from its variable alone, and from memory that no other changes."""
    fixed: set[Value] = set(body.arguments[1:])
    candidates: list[Op] = []
    for op in body.ops[:-1]:
        reads = isinstance(op, Load | Gather) and not is_written(function, op.operands[0])
        if op.regions or not (op.effect is Effect.NONE or reads) or not fixed.isdisjoint(op.operands):
            fixed.update(op.results)
        else:
            candidates.append(op)
    return candidates


def _packed(body: Block, loads: Sequence[Op]) -> list[Op]:
    """Those loads that packed operands follow from, where these follow from no product of the iteration, for which the threads
    would wait in any case."""
    from_products: set[Value] = set()
    packs: list[Op] = []
    for op in body.ops:
        if isinstance(op, GroupProduct) or not from_products.isdisjoint(op.operands):
            from_products.update(op.results)
        if isinstance(op, PackPairs) and from_products.isdisjoint(op.operands):
            packs.append(op)
    needed = _needed(body, packs)
    return [op for op in loads if op in needed]


def _scaling(body: Block, loads: Sequence[Op]) -> list[Op]:
    """Those loads that are used together with the result of a product of the iteration, not as operands of one: without them
    the threads could compute once the product is complete."""
    from_products = {op.result for op in body.ops if isinstance(op, WaitMma)}
    using: list[Op] = []
    for op in body.ops:
        if not isinstance(op, GroupProduct) and not from_products.isdisjoint(op.operands):
            from_products.update(op.results)
            using.append(op)
    needed = _needed(body, using)
    return [op for op in loads if op in needed]


def _needed(body: Block, ops: list[Op]) -> list[Op]:
    """These operations and those of the body that they follow from."""
    needed: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(body.ops):
        if op in ops or not needed.isdisjoint(op.results):
            needed.update(op.operands)
            kept.append(op)
    return kept[::-1]


def _ahead_of_its_iteration(op: Op) -> Op:
    """The operation, or the load as one that is made ahead."""
    if not isinstance(op, Load):
        return op
    ahead = LoadAhead(**{field.name: getattr(op, field.name) for field in dataclasses.fields(op)})
    ahead.result.owner = ahead
    return ahead


def _in_registers(function: Function, body: Block, loaded: list[Value]) -> int:
    """Registers that a thread holds while products run: what the loop carries, sums, operands, and what was loaded. A product
    whose result the loop carries has the registers of the value before it, if that is used no more once the product starts."""
    made = [op.result for op in body.ops if isinstance(op, GroupProduct | PackPairs) and not _replaces(body, op)]
    values = (value for value in (*body.arguments[1:], *made, *loaded) if isinstance(value.type, TileType))
    return sum(map(register_need.Lifetimes(function).of, values))


def _replaces(body: Block, product: Op) -> bool:
    """Whether a value that the loop carries is used only before a product whose result takes its place."""
    waits = {op.operands[0]: op.result for op in body.ops if isinstance(op, WaitMma)}
    pairs = zip(body.arguments[1:], body.ops[-1].operands, strict=True)
    argument = next((argument for argument, value in pairs if value is waits.get(product.result)), None)
    later = Block(ops=body.ops[body.ops.index(product) :])
    return argument is not None and not any(argument in op.operands for op in later.walk())


def _ahead(loop: For, moved: list[Op], loaded: list[Value]) -> list[Op]:
    """The operations that replace a loop."""
    out, then, body = Emitter(), Emitter(), loop.regions[0]
    variable, kept = body.arguments[0], loop.results
    first = {variable: loop.lower}
    then.ops += clone(moved, first)
    in_registers = {value: body.add_argument(value.tile, value.name) for value in loaded}
    following = Emitter()
    after = following.binary("add", variable, loop.step)
    after.fits = True  # one step after an iteration that runs, for which the loop has an obligation
    position = following.select(following.compare("lt", after, loop.upper), after, variable)
    names = {variable: position}
    following.ops += map(_ahead_of_its_iteration, clone(moved, names))
    start = next(index for index, op in enumerate(body.ops) if isinstance(op, GroupProduct))
    rest = [op for op in body.ops if op not in moved or not isinstance(op, Load | Gather)]
    for op in Block(ops=rest).walk():
        op.operands = [in_registers.get(value, value) for value in op.operands]
    rest[rest.index(body.ops[start]) + 1 : rest.index(body.ops[start]) + 1] = following.ops
    rest[-1].operands += [names[value] for value in loaded]
    body.ops = without_dead(rest)
    initial = list(loop.initial)
    loop.operands += [first[value] for value in loaded]
    loop.results = [Value(value.type, value.name, loop, value.layout) for value in kept]
    loop.results += [Value(value.type, value.name, loop, value.layout) for value in loaded]
    for value, argument in in_registers.items():
        argument.layout = value.layout
    then.ops.append(loop)
    then.add(Yield(operands=loop.results[: len(kept)]))
    condition = out.compare("lt", loop.lower, loop.upper)
    branch = If(operands=[condition], regions=[Block(ops=then.ops), Block(ops=[Yield(operands=initial)])])
    branch.results = kept
    for value in kept:
        value.owner = branch
    return [*out.ops, branch]
