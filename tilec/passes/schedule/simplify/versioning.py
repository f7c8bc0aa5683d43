"""Code versioning: blocks that lie fully in bounds run code without masks, edge blocks run the code as written.

One test at the start of a block replaces the bounds checks of every padded load and masked store whose box is known there, so a
full block issues its loads back to back. No element is accessed that was not before, so the proofs, which are of the
function as it was before, still hold. Random programs at edges test that (`tests/programs/edge_programs.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from tilec.ir.clone import clone
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.ops import Binary, Compare, Constant, DimValue, For, If, Load, Store, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.rank_ops import Meet
from tilec.ir.ops.staging_ops import StageCopy
from tilec.ir.types import TileType, boolean, i32
from tilec.passes.analysis.divisibility import aligned_ranges
from tilec.passes.analysis.ranges import Range
from tilec.passes.schedule.launch_overlap.dependency_wait import launch_values
from tilec.passes.schedule.simplify import full_masks

Edge = tuple[Value, int, int | str | Value]  # offset, extent of the box; extent of the tensor: a number, a dim or a scalar


def version(function: Function) -> Function:
    """Split the body, in place, if some masked access can be decided at the start of the block. Pipelined kernels, which mask
    each copy instead, stay unchanged."""
    ops = list(function.body.walk())
    if any(isinstance(op, StageCopy) for op in ops):
        return function
    launch_scalars = launch_values(function)
    facts = aligned_ranges(function)
    parts = [index + 1 for index, op in enumerate(function.body.ops) if isinstance(op, DependencyWait | Meet)]
    start_index = max(parts, default=0)  # neither may be in a branch
    masked = [op for op in Block(ops=function.body.ops[start_index:]).walk() if _is_masked(op)]
    decided = {op: edges for op in masked if (edges := _edges(function, op, launch_scalars, facts)) is not None}
    tests = list(dict.fromkeys(edge for edges in decided.values() for edge in edges))
    if not tests:
        for op in decided:
            _unmask(op)
        return function
    prologue = [
        *function.body.ops[:start_index],
        *(op for op in function.body.ops[start_index:] if _is_launch_scalar(op, launch_scalars)),
    ]
    rest = [op for op in function.body.ops[start_index:] if not _is_launch_scalar(op, launch_scalars)]
    condition = _condition(prologue, tests)
    mapping: dict[Value, Value] = {}
    edge_code = clone(rest, mapping)
    for op in decided:
        _unmask(op)
    inside = Block(ops=[*rest, Yield()])
    full_masks.drop(inside, [(offset, extent, dim) for offset, extent, dim in tests if isinstance(dim, str)], facts)
    branch = If(operands=[condition], regions=[inside, Block(ops=[*edge_code, Yield()])])
    function.body.ops = [*prologue, branch]
    return function


def _is_masked(op: Op) -> bool:
    return (isinstance(op, Load) and op.pad is not None) or (isinstance(op, Store) and op.mask)


def _unmask(op: Op) -> None:
    if isinstance(op, Load):
        op.pad = None
    elif isinstance(op, Store):
        op.mask = False


def _is_launch_scalar(op: Op, launch_scalars: set[Value]) -> bool:
    return bool(op.results) and set(op.results) <= launch_scalars


def _edges(function: Function, op: Op, launch_scalars: set[Value], facts: dict[Value, Range]) -> list[Edge] | None:
    """The tests that show an access' box to be in bounds; None if they cannot be evaluated at the start of the block. Ranges
    are not used for accesses in `unsafe` blocks, since nothing proves that their index arithmetic does not wrap."""
    trusted = op.attributes()["unsafe"] is None
    scalars = {p.name: p.value for p in function.parameters if p.access is None and p.value.type == TileType(i32)}
    if isinstance(op, Load):
        tensor, offsets, shape = op.source.tensor, op.offsets, op.result.tile.shape
    else:
        assert isinstance(op, Store)
        tensor, offsets, shape = op.target.tensor, op.offsets, op.tile.tile.shape
    edges: list[Edge] = []
    counted = _counted(function)  # not negative, by the ranges, and an iteration's is below
    for offset, extent, dim in zip(offsets, shape, tensor.dims, strict=True):
        fact = facts[offset]
        if trusted and extent == 1 and fact.low >= 0 and dim.op == "sym" and counted.get(offset) == dim.name:
            continue
        if trusted and dim.constant is not None and fact.low >= 0 and fact.high + extent <= dim.constant:
            continue
        if offset not in launch_scalars or offset.tile.dtype != i32:
            return None
        if dim.op == "const":
            edges.append((offset, extent, dim.value))
        elif dim.op == "sym" and dim.name in scalars:
            edges.append((offset, extent, scalars[dim.name]))
        elif dim.op == "sym" and dim.name in function.dims and dim.name not in function.strides:
            edges.append((offset, extent, dim.name))
        else:
            return None
    return edges


def _counted(function: Function) -> dict[Value, str]:
    """Variables of loops over all of a dim, from a constant on, with that dim: below it in every iteration."""
    found: dict[Value, str] = {}
    for op in function.body.walk():
        if isinstance(op, For) and isinstance(op.lower.owner, Constant) and isinstance(op.step.owner, Constant):
            bound = op.upper.owner
            found |= {op.regions[0].arguments[0]: bound.symbol} if isinstance(bound, DimValue) else {}
    return found


def _condition(prologue: list[Op], tests: Sequence[Edge]) -> Value:
    """The conjunction of `0 <= offset <= dim - extent`. The launch contract requires positive dims, including scalars used as
    extents, so the difference does not wrap."""
    scalar = TileType(i32)

    def add(op: Op, type_: TileType = scalar) -> Value:
        op.define(type_)
        prologue.append(op)
        return op.result

    def constant(value: int) -> Value:
        return add(Constant(value=value))

    def compare(kind: str, left: Value, right: Value) -> Value:
        return add(Compare(operands=[left, right], kind=kind), TileType(boolean))

    found: Value | None = None
    zero = constant(0)
    for offset, extent, dim in tests:
        if isinstance(dim, int):
            last = constant(dim - extent)
        else:
            size = dim if isinstance(dim, Value) else add(DimValue(symbol=dim))
            last = add(Binary(operands=[size, constant(extent)], kind="sub"))
            last.fits = True
        for inside in (compare("ge", offset, zero), compare("le", offset, last)):
            found = add(Binary(operands=[found, inside], kind="and"), TileType(boolean)) if found else inside
    assert found is not None
    return found
