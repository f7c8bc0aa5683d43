"""Bounds of every integer value of a kernel: tile IR goes in, a minimum and a maximum per SSA value come out.

For a tile the bounds apply to each element. They include wrap-around, so they do not depend on a proof that nothing wraps: if
an exact result may leave its dtype, the bounds are those of the dtype. Loops are iterated and, if they do not converge,
widened to the dtype. The bounds limit values that `values` does not model, and select terms for case splits.
"""

from __future__ import annotations

from tilec.audit.contract import GRID_LIMITS, Contract
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.expr import Expr
from tilec.ir.ops import (
    Binary,
    Bitcast,
    BlockId,
    Broadcast,
    Butterfly,
    Cast,
    Compare,
    Constant,
    DimValue,
    For,
    Gather,
    If,
    Iota,
    Load,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Select,
    Sort,
    Take,
    Unary,
)  # fmt: skip
from tilec.ir.types import MAX_DIM, TileType

Bounds = tuple[int, int]
ROUNDS = 4
"""Iterations of a loop's analysis before widening."""


def bounds_of(function: Function, contract: Contract) -> dict[Value, Bounds]:
    """Bounds of every integer and bool value."""
    found: dict[Value, Bounds] = {}
    for parameter in function.parameters:
        if parameter.access is None and not parameter.value.tile.dtype.is_float:
            found[parameter.value] = contract.symbols[parameter.name]
    _block(function.body, found, contract)
    return found


def expression_bounds(expr: Expr, contract: Contract) -> Bounds:
    """Bounds of a launch expression; wide if a divisor may be zero or negative."""
    if expr.op == "const":
        return expr.value, expr.value
    if expr.op == "sym":
        return contract.symbols[expr.name]
    left, right = (expression_bounds(arg, contract) for arg in expr.args)
    kind = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}.get(expr.op, expr.op)
    return _arithmetic(kind, left, right) or (-(2**200), 2**200)


def _block(block: Block, found: dict[Value, Bounds], contract: Contract) -> None:
    for op in block.ops:
        if isinstance(op, For):
            _loop(op, found, contract)
        elif isinstance(op, If):
            for region in op.regions:
                _block(region, found, contract)
            for index, result in enumerate(op.results):
                sides = [region.ops[-1].operands[index] for region in op.regions]
                if all(side in found for side in sides):
                    _set(result, _join(found[sides[0]], found[sides[1]]), found)
        elif isinstance(op, Sort):
            for result, operand in zip(op.results, op.operands, strict=True):
                if not result.tile.dtype.is_float:
                    _set(result, found.get(operand), found)
        else:
            for result in op.results:
                if isinstance(result.type, TileType) and not result.type.dtype.is_float:
                    _set(result, _operation(op, found, contract), found)


def _loop(op: For, found: dict[Value, Bounds], contract: Contract) -> None:
    (body,) = op.regions
    lower, upper = found[op.lower], found[op.upper]
    found[body.arguments[0]] = (lower[0], max(lower[0], upper[1] - 1)) if found[op.step][0] >= 1 else _whole(body.arguments[0])
    carried = [(a, i, y) for a, i, y in zip(body.arguments[1:], op.initial, body.ops[-1].operands, strict=True) if i in found]
    for argument, initial, _ in carried:
        found[argument] = found[initial]
    iteration, settled = 0, False
    while not settled:  # each carried value is widened at most once
        _block(body, found, contract)
        settled, iteration = True, iteration + 1
        for argument, _, following in carried:
            joined = _join(found[argument], found[following])
            if joined != found[argument]:
                settled = False
                found[argument] = joined if iteration < ROUNDS else _whole(argument)
    for (argument, _, _), index in zip(carried, [body.arguments.index(a) - 1 for a, _, _ in carried], strict=True):
        found[op.results[index]] = found[argument]


def _set(value: Value, bounds: Bounds | None, found: dict[Value, Bounds]) -> None:
    dtype_range = _whole(value)
    found[value] = bounds if bounds is not None and dtype_range[0] <= bounds[0] and bounds[1] <= dtype_range[1] else dtype_range


def _whole(value: Value) -> Bounds:
    return value.tile.dtype.integer_range()


def _join(a: Bounds, b: Bounds) -> Bounds:
    return min(a[0], b[0]), max(a[1], b[1])


def _operation(op: Op, found: dict[Value, Bounds], contract: Contract) -> Bounds | None:
    known = [found.get(value) for value in op.operands]
    match op:
        case Constant():
            return int(op.value), int(op.value)
        case Iota():
            return 0, op.result.tile.shape[0] - 1
        case BlockId():
            return 0, max(0, min(_extent(op.axis, contract)[1], GRID_LIMITS[op.axis]) - 1)
        case NumBlocks():
            low, high = _extent(op.axis, contract)
            return max(1, low), max(1, min(high, GRID_LIMITS[op.axis]))
        case DimValue():
            return contract.symbols.get(op.symbol, (0, MAX_DIM))
        case Broadcast() | Butterfly() | Reshape() | Permute() | Take():
            return known[0]
        case Cast():
            return known[0] if op.operands[0].tile.dtype.kind != "f" and op.result.tile.dtype.kind != "b" else None
        case Bitcast():
            return known[0] if op.operands[0].tile.dtype.kind != "f" else None
        case Select():
            return _join(known[1], known[2]) if known[1] and known[2] else None
        case Binary() if known[0] and known[1] and op.result.tile.dtype.is_integer:
            return _arithmetic(op.kind, known[0], known[1], op.result.tile.dtype.bits)
        case Unary() if known[0] and op.kind == "neg":
            return -known[0][1], -known[0][0]
        case Unary() if known[0] and op.kind == "abs":
            low, high = known[0]
            return (0 if low <= 0 <= high else min(abs(low), abs(high))), max(abs(low), abs(high))
        case Reduce() if op.kind.startswith("arg"):
            return 0, op.operands[0].tile.shape[op.axis] - 1
        case Reduce() if known[0] and op.kind == "sum":
            extent = op.operands[0].tile.shape[op.axis]
            return known[0][0] * extent, known[0][1] * extent
        case Reduce():
            return known[0]
        case Load() | Gather() | Compare():
            return None
        case _:
            return None


def _extent(axis: int, contract: Contract) -> Bounds:
    return expression_bounds(contract.grid[axis], contract) if axis < len(contract.grid) else (1, 1)


def _arithmetic(kind: str, a: Bounds, b: Bounds, bits: int = 0) -> Bounds | None:
    match kind:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            corners = [x * y for x in a for y in b]
            return min(corners), max(corners)
        case "mulhi" if bits:
            corners = [(x * y) >> bits for x in a for y in b]
            return min(corners), max(corners)
        case "floordiv" if b[0] >= 1:
            corners = [x // y for x in a for y in b]
            return min(corners), max(corners)
        case "mod" if b[0] >= 1:
            return a if a[0] >= 0 and a[1] < b[0] else (0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case "shl" if b[0] == b[1] and 0 <= b[0] < 64:
            return a[0] << b[0], a[1] << b[0]
        case "shr" if b[0] == b[1] and b[0] >= 0:
            return a[0] >> min(b[0], 64), a[1] >> min(b[0], 64)
        case "and" if a[0] >= 0 or b[0] >= 0:
            return 0, min(x[1] for x in (a, b) if x[0] >= 0)
        case "or" | "xor" if a[0] >= 0 and b[0] >= 0:
            return 0, (1 << max(a[1].bit_length(), b[1].bit_length())) - 1
        case _:
            return None
