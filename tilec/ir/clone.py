"""Copies operations and their regions, for passes that need the same code twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilec.ir.core import Block, Function, Op, Value


def copy_of(function: Function) -> Function:
    """The same function with operations of its own."""
    return replace(function, body=Block(arguments=function.body.arguments, ops=clone(function.body.ops, {})))


def clone(ops: Iterable[Op], names: dict[Value, Value]) -> list[Op]:
    """Copies in the same order. `names` maps outside values to their replacements, and gains every value that the copies
    define; operands that it does not contain stay."""
    return [_clone(op, names) for op in ops]


def _clone(op: Op, names: dict[Value, Value]) -> Op:
    operands = [names.get(value, value) for value in op.operands]
    regions = [_clone_block(region, names) for region in op.regions]
    copy = replace(op, operands=operands, results=[], regions=regions)
    copy.results = [_clone_value(value, copy, names) for value in op.results]
    return copy


def _clone_block(block: Block, names: dict[Value, Value]) -> Block:
    copy = Block()
    copy.arguments = [_clone_value(value, copy, names) for value in block.arguments]
    copy.ops = clone(block.ops, names)
    return copy


def _clone_value(value: Value, owner: Op | Block, names: dict[Value, Value]) -> Value:
    names[value] = Value(value.type, value.name, owner, value.layout, value.fits)
    return names[value]
