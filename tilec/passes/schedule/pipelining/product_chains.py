"""Loops whose products depend on each other, by the family that computes all: back-to-back products (`back_to_back`), or any
number (`fused_products`).

In: a loop and its MMAs (`staged_products`). Out: at most one chain for each family that copies by TMA can feed.
"""

from __future__ import annotations

from tilec.ir.core import Function, Value
from tilec.ir.ops import For
from tilec.passes.analysis.ranges import Range
from tilec.passes.schedule.pipelining import back_to_back, fused_products, tmem_attention
from tilec.passes.schedule.pipelining.back_to_back import BackToBack
from tilec.passes.schedule.pipelining.fused_products import FusedProducts
from tilec.passes.schedule.pipelining.staged_loads import Operand
from tilec.passes.schedule.pipelining.staged_products import Product
from tilec.passes.schedule.pipelining.warpgroups import suits

Chain = BackToBack | FusedProducts


def find(
    function: Function,
    loop: For,
    warps: int,
    products: list[Product],
    invariant: Operand | None,
    facts: dict[Value, Range],
    most_accumulators: int,
) -> tuple[Chain, ...]:
    """The chains that the loop is. `invariant`: the left operand of the first MMA, if one copy before the loop can load it;
    `most_accumulators`: per thread, of fused products."""
    wide = all(dtype.bits == 16 for product in products for dtype in product.dtypes)  # those that results are packed into
    pairs = back_to_back.find(function, loop, warps, products, invariant) if wide else ()
    fitting = tuple(one for one in pairs if not one.family.in_tensor_memory or tmem_attention.fits(one, warps))
    fused = fused_products.find(function, loop, warps, products, facts, most_accumulators)
    if fused is None or any(one.family is fused.family for one in fitting):
        return fitting
    if len(products) == 1 and suits(fused.family, loop, products, warps, most_accumulators):
        return fitting  # a product that only accumulates overlaps that of the next iteration
    return (*fitting, fused)
