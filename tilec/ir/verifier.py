"""Structural rules of the tile IR, checked between passes: every use after its definition, every region closed, types fit.

A violation is a bug in tilec, never the kernel author's fault, so it is a `VerifyError`, not a diagnostic.
"""

from __future__ import annotations

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import Yield


def verify(function: Function) -> None:
    """Raise VerifyError at the first broken rule; the message names the operation and its place in the source."""
    if not 1 <= len(function.grid) <= 3:
        raise VerifyError(f"{function.name}: a grid has 1 to 3 extents, not {len(function.grid)}")
    symbols = set(function.dims) | set(function.strides) | {p.name for p in function.parameters if p.access is None}
    for expr in (*function.grid, *(precondition.condition for precondition in function.requires)):
        unknown = sorted(set(expr.symbols()) - symbols)
        if unknown:
            raise VerifyError(f"{function.name}: {expr} uses the unknown symbol {unknown[0]}")
    if [id(p.value) for p in function.parameters] != [id(value) for value in function.body.arguments]:
        raise VerifyError(f"{function.name}: the body's arguments are not the parameters' values")
    _verify_block(function.body, set(), outermost=True)


def _verify_block(block: Block, visible: set[int], *, outermost: bool) -> None:
    inside = visible | {id(argument) for argument in block.arguments}
    for position, op in enumerate(block.ops):
        _verify_op(op, inside)
        if isinstance(op, Yield) and (outermost or position != len(block.ops) - 1):
            raise VerifyError(_at(op, "yield ends the block of a region, and stands nowhere else"))
        inside |= {id(result) for result in op.results}


def _verify_op(op: Op, visible: set[int]) -> None:
    for value in op.operands:
        if id(value) not in visible:
            raise VerifyError(_at(op, f"operand {value.name or value.type} is used where it is not defined"))
    for result in op.results:
        if result.owner is not op:
            raise VerifyError(_at(op, "a result belongs to another operation"))
        _verify_layout(op, result)
    for region in op.regions:
        _verify_block(region, visible, outermost=False)
    op.verify()


def _verify_layout(op: Op, value: Value) -> None:
    layout = value.layout
    if layout is not None and layout.rank != value.tile.rank:
        raise VerifyError(_at(op, f"a layout of rank {layout.rank} on {value.type}"))


def _at(op: Op, rule: str) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}: {rule}"
