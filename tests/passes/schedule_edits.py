"""Edits of one operation of a schedule, from which mistakes are made (`schedule_mutants`, `tmem_mutants`).

In: a parsed function, and an operation of it. Out: the function is changed in place; IndexError if there is nothing to change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, Constant, If
from tilec.ir.types import TileType, i32

Change = Callable[[Function, Any], None]
"""An edit of an operation, whose class the edit knows."""


def block_of(function: Function, op: Op) -> Block:
    return next(block for block in blocks(function.body) if op in block.ops)


def blocks(block: Block) -> Iterator[Block]:
    yield block
    for op in block.ops:
        for region in op.regions:
            yield from blocks(region)


def drop(function: Function, op: Op) -> None:
    block_of(function, op).ops.remove(op)


def double(function: Function, op: Op) -> None:
    block = block_of(function, op)
    block.ops.insert(block.ops.index(op), replace(op, operands=list(op.operands), results=[]))


def move(function: Function, op: Op, step: int) -> None:
    """Moves an operation by `step` neighbours; the yield of a region stays last."""
    block = block_of(function, op)
    index = block.ops.index(op) + step
    last = len(block.ops) - (block.ops[-1].opcode == "yield")
    if not 0 <= index < last:
        raise IndexError
    block.ops.remove(op)
    block.ops.insert(index, op)


def set_attribute(op: Op | Value, name: str, value: object) -> None:
    setattr(op, name, value)


def set_operand(function: Function, op: Op, operand: int, computed: Callable[[Function, Value], Value]) -> None:
    op.operands[operand] = computed(function, op.operands[operand])


def set_constant(function: Function, op: Op, operand: int, number: int) -> None:
    value = op.operands[operand]
    if value.type != TileType(i32) or (isinstance(value.owner, Constant) and value.owner.value == number):
        raise IndexError
    op.operands[operand] = constant(function, op, number)


def constant(function: Function, op: Op, number: int) -> Value:
    constant = Constant(value=number)
    constant.define(TileType(i32))
    block = block_of(function, op)
    block.ops.insert(block.ops.index(op), constant)
    return constant.result


def computed(function: Function, op: Op, kind: str, value: Value, number: int) -> Value:
    """`value + number` or `number - value`."""
    other = constant(function, op, number)
    operands = [value, other] if kind == "add" or number < 0 else [other, value]
    if number < 0:
        operands, kind = [value, constant(function, op, -number)], "sub"
    binary = Binary(kind=kind, operands=operands)
    binary.define(TileType(i32))
    block = block_of(function, op)
    block.ops.insert(block.ops.index(op), binary)
    return binary.result


def set_condition(function: Function, op: Op, step: int) -> None:
    """Takes the condition of the branch that is `step` branches away."""
    branches: list[Op] = [inner for inner in block_of(function, op).ops if isinstance(inner, If)]
    index = branches.index(op) + step
    if not 0 <= index < len(branches) or branches[index].operands == op.operands:
        raise IndexError
    op.operands = list(branches[index].operands)


def inline_first(function: Function, op: Op) -> None:
    """Inlines a branch's first region, whatever its condition."""
    block = block_of(function, op)
    index = block.ops.index(op)
    block.ops[index : index + 1] = op.regions[0].ops[:-1]
