"""The parts of the language that a kernel uses: its operations by dtype, its parameters, and its control flow."""

from __future__ import annotations

from collections.abc import Iterator

from tests.soundness.dependence import deciding_values
from tilec.ir import ops
from tilec.ir.core import Function, Op


def operations(function: Function) -> set[tuple[str, str]]:
    """Pairs of operation and dtype; a cast is `cast from ...` to its dtype; `index: ...` if it determines an access."""
    deciding = deciding_values(function)
    found: set[tuple[str, str]] = set()
    for op in function.body.walk():
        name, dtype = _operation(op)
        if dtype:
            found.add((name, dtype))
            if op.results and op.results[0] in deciding:
                found.add((f"index: {name}", dtype))
    return found


def _operation(op: Op) -> tuple[str, str]:
    if isinstance(op, ops.Load | ops.Gather):
        return op.opcode, op.operands[0].tensor.dtype.name
    if isinstance(op, ops.WriteOp):
        kind = f" {op.kind}" if isinstance(op, ops.AtomicUpdate | ops.AtomicScatter) else ""
        return op.opcode + kind, op.operands[0].tensor.dtype.name
    if isinstance(op, ops.Cast):
        return f"cast from {op.operands[0].tile.dtype}", op.result.tile.dtype.name
    if isinstance(op, ops.Reduce | ops.Compare | ops.Unary | ops.Binary):
        return f"{op.opcode} {op.kind}", op.operands[0].tile.dtype.name
    if isinstance(op, ops.Sort | ops.Butterfly | ops.Take):
        return op.opcode, op.operands[0].tile.dtype.name
    if isinstance(op, ops.Select | ops.Permute | ops.Reshape | ops.Broadcast | ops.Mma):
        return op.opcode, op.operands[-1].tile.dtype.name
    return "", ""


def features(function: Function) -> set[str]:
    """Names of the larger constructs of a kernel."""
    return set(_features(function))


def _features(function: Function) -> Iterator[str]:
    deciding = deciding_values(function)
    for parameter in function.parameters:
        if parameter.access is None:
            yield f"scalar parameter {parameter.value.tile.dtype}"
        else:
            tensor = parameter.value.tensor
            yield f"{parameter.access.value} tensor"
            yield from ["strides"] if tensor.strides is not None else []
            yield from ["extent that may be 0"] if any(d.op == "-" for d in tensor.dims) else []
    for fact in function.values:
        yield "values distinct" if fact.distinct else "values distinct in rows" if fact.distinct_in_rows else "values"
    for precondition in function.requires:
        yield "requires with a product" if " * " in str(precondition.condition) else "requires"
    for op in function.body.walk():
        yield from _control(op, deciding)
        if getattr(op, "unsafe", None) is not None:
            yield "unsafe access"
        if getattr(op, "pad", None) is not None or getattr(op, "mask", False):
            yield "pad or mask"
        if isinstance(op, ops.Load | ops.Gather) and op.result in deciding:
            yield f"index read from {op.source.tensor.dtype}"
        if isinstance(op, ops.Load | ops.Store) and any(
            v.tile.dtype.name == "i64" for v in op.operands[-op.operands[0].tensor.rank :]
        ):
            yield "i64 offset"


def _control(op: Op, deciding: set[object]) -> Iterator[str]:
    if isinstance(op, ops.For | ops.If):
        word = "loop" if isinstance(op, ops.For) else "branch"
        yield word
        for result in op.results:
            if result in deciding:
                yield f"index {'tile' if result.tile.rank else 'scalar'} carried by a {word}"
    if isinstance(op, ops.Permute | ops.Reshape | ops.Reduce) and op.result in deciding and op.operands[0].tile.rank:
        yield f"index tile through {op.opcode}"
    if isinstance(op, ops.Binary) and op.kind in ("floordiv", "mod") and not isinstance(op.operands[1].owner, ops.Constant):
        yield "division by a value that decides" if op.result in deciding else "division by data"
