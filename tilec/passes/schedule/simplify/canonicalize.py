"""Canonicalization of proven functions: constant folding, hoisting of loop-invariant scalars, common subexpression elimination
and dead code elimination.

Later passes then see one value for each quantity, and loop-invariant offsets before their loop. Tiles are not hoisted, which
would lengthen their live ranges in registers. Operations that write memory stay in place; unused loads, and
unused results of atomics, are removed.
"""

from __future__ import annotations

from tilec.ir.core import Block, Effect, Function, Op, Value, attribute_text
from tilec.ir.ops import AtomicScatter, Decreases, For, If, Invariant
from tilec.ir.types import TileType
from tilec.passes.schedule.simplify.folding import folded, same_as

Key = tuple[object, ...]


def canonicalize(function: Function) -> Function:
    """Canonicalize the body, in place."""
    _drop_claims(function.body)
    _drop_unchanged(function.body)
    _fold(function.body, {})
    _share(function.body, {}, {})  # folds more, which may then leave its loop
    _hoist(function.body)
    _share(function.body, {}, {})
    _drop_dead(function.body)
    return function


def _drop_claims(block: Block) -> bool:
    """Remove the claims of loops, which are proven, with the branches that guard nothing else; whether there was any."""
    kept: list[Op] = []
    for op in block.ops:
        claimed = [_drop_claims(region) for region in op.regions]
        guards = isinstance(op, If) and any(claimed) and not op.results and all(_is_unused(region) for region in op.regions)
        if not guards and not isinstance(op, Invariant | Decreases):
            kept.append(op)
    found, block.ops = len(kept) < len(block.ops), kept
    return found


def _drop_unchanged(body: Block) -> None:
    """Replace values that a loop carries and no iteration changes by their initial value, such as names that only a branch on a
    constant sets, which is not taken."""
    renamed: dict[Value, Value] = {}

    def resolved(value: Value) -> Value:
        while value in renamed:
            value = renamed[value]
        return value

    for loop in reversed([op for op in body.walk() if isinstance(op, For)]):  # inner loops first
        arguments, yielded = loop.regions[0].arguments, loop.regions[0].ops[-1].operands
        for i in reversed(range(len(loop.results))):
            if resolved(yielded[i]) is arguments[1 + i]:
                renamed[arguments[1 + i]] = renamed[loop.results[i]] = loop.initial[i]
                del arguments[1 + i], yielded[i], loop.results[i], loop.operands[3 + i]
    for op in body.walk() if renamed else ():
        op.operands = [resolved(value) for value in op.operands]


def _is_unused(block: Block) -> bool:
    """Whether a block computes nothing that is used outside of it."""
    return not any(op.regions or op.effect not in (Effect.NONE, Effect.CONTROL) for op in block.ops)


def _fold(block: Block, renamed: dict[Value, Value]) -> None:
    """Fold constants, and replace operations whose result equals an operand."""
    kept: list[Op] = []
    for op in block.ops:
        op.operands = [renamed.get(value, value) for value in op.operands]
        same = same_as(op)
        if same is not None:
            renamed[op.result] = same
            continue
        constant = folded(op)
        if constant is not None:
            renamed[op.result] = constant.result
            kept.append(constant)
            continue
        for region in op.regions:
            _fold(region, renamed)
        kept.append(op)
    block.ops = kept


def _is_pure(op: Op) -> bool:
    return op.effect is Effect.NONE and not op.regions and bool(op.results)


def _is_scalar(op: Op) -> bool:
    return all(isinstance(value.type, TileType) and not value.type.rank for value in op.results)


def _hoist(block: Block) -> None:
    """Hoist loop-invariant scalar operations before their loop, innermost loops first."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _hoist(region)
        if isinstance(op, For):
            (body,) = op.regions
            local: set[Value] = {*body.arguments, *(value for inner in body.walk() for value in inner.results)}
            kept: list[Op] = []
            for inner in body.ops:
                if _is_pure(inner) and _is_scalar(inner) and local.isdisjoint(inner.operands):
                    ops.append(inner)
                    local -= set(inner.results)
                else:
                    kept.append(inner)
            body.ops = kept
        ops.append(op)
    block.ops = ops


def _share(block: Block, known: dict[Key, list[Value]], renamed: dict[Value, Value]) -> None:
    """Common subexpression elimination; `known` has the computations in scope. Folds again: the arms of a `select` may have
    become one value."""
    known = dict(known)
    kept: list[Op] = []
    for op in block.ops:
        op.operands = [renamed.get(value, value) for value in op.operands]
        if (same := same_as(op)) is not None:
            renamed[op.result] = same
            continue
        results = op.results
        if (constant := folded(op)) is not None:
            renamed[op.result] = constant.result
            op = constant
        if _is_pure(op):
            key = _key(op)
            if key in known:
                for value, first in zip(results, known[key], strict=True):
                    first.fits |= value.fits  # both are the same number, so a proof of either is one of both
                    renamed[value] = first
                continue
            known[key] = op.results
        for region in op.regions:
            _share(region, known, renamed)
        kept.append(op)
    block.ops = kept


def _key(op: Op) -> Key:
    attributes = tuple((name, attribute_text(value)) for name, value in op.attributes().items())
    return (type(op), attributes, *map(id, op.operands), *((value.type, value.layout) for value in op.results))


def _drop_dead(block: Block) -> None:
    used: set[Value] = set()

    def sweep(block: Block) -> None:
        kept: list[Op] = []
        for op in reversed(block.ops):
            removable = op.effect in (Effect.NONE, Effect.READ) and not op.regions
            if removable and used.isdisjoint(op.results):
                continue
            if isinstance(op, AtomicScatter) and used.isdisjoint(op.results):
                op.results = []  # one that returns nothing need not wait for memory
            used.update(op.operands)
            for region in reversed(op.regions):
                sweep(region)
            kept.append(op)
        block.ops = kept[::-1]

    sweep(block)
