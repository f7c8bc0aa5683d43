"""Roofline bound of a launch: its bytes and MMA operations over the rates of a GPU.

In: a launch contract, the tile IR if available, and launch values. Out: `Work`, and its lower bound in microseconds for
measured, nominal or published rates. Every tensor counts once and completely (twice if it is both read and written). For a
tensor that a launch reads only partly, this overestimates the bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tilec.cost_model.cards import CARDS
from tilec.ir.types import DTYPES
from tilec.project.trial.launches import Contract, span_of

if TYPE_CHECKING:
    from tilec.ir.core import Function, Op, Value

PRODUCTS: Final = {card.arch: 2 * card.tensor for card in CARDS.values()}
"""bf16 MMA operations (f32 accumulator) per multiprocessor and clock; a multiply-add counts as two."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Memory bandwidth and MMA operations per second, and the `source` of the numbers."""

    name: str
    arch: str
    bytes_per_second: float
    products_per_second: float
    source: str


PUBLISHED: Final[Mapping[str, Rates]] = {
    name: Rates(card.name, card.arch, card.memory, card.products, f"{card.datasheet}, dense bf16")
    for name, card in CARDS.items()
}
"""Published rates by the names that `--gpu` accepts, for bounds without a GPU."""


@dataclass(frozen=True, slots=True)
class Work:
    """Bytes to move, and MMA operations; `products` is None if their number depends on more than the launch values. One on 8
    bits counts as half, one on tf32 as two, as datasheets have their rates; INT8 is faster still on consumer cards."""

    bytes: int
    products: int | None

    def floor(self, bytes_per_second: float, products_per_second: float) -> float:
        """Lower bound of a launch in microseconds."""
        return 1e6 * max(self.bytes / bytes_per_second, (self.products or 0) / products_per_second)


def work(contract: Contract, values: Mapping[str, float], function: Function | None) -> Work:
    """The work of one launch; without `function` the MMA operations are unknown."""
    env = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    moved = 0
    for spec in contract.tensors:
        if spec.access != "scratch":
            size = math.prod(dim.evaluate(env) for dim in spec.dims) if spec.strides else span_of(spec, env)
            moved += size * DTYPES[spec.dtype].bytes * (2 if spec.access in ("inout", "atomic") else 1)
    if function is None:
        return Work(moved, None)
    blocks = math.prod(axis.evaluate(env) for axis in contract.grid)
    each = _products(function.body.ops, env)
    return Work(moved, None if each is None else each * blocks)


def _products(ops: Sequence[Op], env: Mapping[str, int]) -> int | None:
    """MMA operations of one block; None if they depend on a branch, or on trip counts that vary by block or data."""
    from tilec.ir.ops import For, Mma

    total = 0
    for op in ops:
        if isinstance(op, Mma):
            left, right = (operand.tile.shape for operand in op.operands[:2])  # with three axes a batch of matrices
            total += 2 * math.prod(left) * right[-1] * op.operands[0].tile.dtype.bits // 16
        inner = [_products(region.ops, env) for region in op.regions]
        if not any(part != 0 for part in inner):
            continue
        if isinstance(op, For):
            lower, upper, step = (_scalar(value, env) for value in (op.lower, op.upper, op.step))
            if lower is None or upper is None or step is None or inner[0] is None:
                return None
            total += inner[0] * max(0, -(-(upper - lower) // step))
        else:
            return None  # it is unknown which arm of a branch runs
    return total


def _scalar(value: Value, env: Mapping[str, int]) -> int | None:
    """The value of a scalar if it depends only on launch values and constants, else None."""
    from tilec.ir.core import Parameter
    from tilec.ir.ops import Binary, Constant, DimValue

    op: Any = value.owner
    if isinstance(op, Parameter):
        return env.get(op.name)
    if isinstance(op, Constant):
        return int(op.value)
    if isinstance(op, DimValue):
        return env.get(op.symbol)
    if isinstance(op, Binary):
        left, right = (_scalar(one, env) for one in op.operands)
        if left is None or right is None or (op.kind in ("floordiv", "mod") and right <= 0):
            return None
        return _computed(op.kind, left, right)
    return None


def _computed(kind: str, left: int, right: int) -> int | None:
    match kind:
        case "add":
            return left + right
        case "sub":
            return left - right
        case "mul":
            return left * right
        case "floordiv":
            return left // right
        case "mod":
            return left % right
        case "min" | "max":
            return min(left, right) if kind == "min" else max(left, right)
        case _:
            return None
