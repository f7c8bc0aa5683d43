"""Loops of asynchronous MMAs on operands that a producer copies, whose results the iteration uses, such as the gradients of
attention, or a product whose sums are scaled.

In: a loop and its MMAs (`staged_products`). Out: a `FusedProducts`, or None. Every MMA of the loop is one of two kinds:

    group_mma            a @ b.T or a @ b, a copied once before the loop or in each iteration, b in each iteration
    register_group_mma   a @ b.T or a @ b, a computed in the iteration, in registers, b copied in each iteration

One copy of a load serves MMAs of both kinds: the instruction reads a 16-bit right operand K-major or MN-major (PTX ISA,
"Strides", `wgmma`). So `s = k @ q.T; ...; sum += p @ q` copies `q` once. `fused_staging` rewrites the loop.

Only the left operand of an instruction may be in registers. A product whose right operand is computed, such as weights of four
bits, is therefore the transpose of `b.T @ a.T`, whose left operand is computed (`is_flipped`).
"""

from __future__ import annotations

from dataclasses import dataclass

from tilec.atoms.products import ATOMS
from tilec.ir.core import Function, Value
from tilec.ir.ops import For, Load, Mma
from tilec.passes.analysis.ranges import Range
from tilec.passes.schedule.pipelining import tensor_staging
from tilec.passes.schedule.pipelining.staged_loads import Operand, invariant_operand, users_of
from tilec.passes.schedule.pipelining.staged_products import Product
from tilec.passes.schedule.pipelining.warpgroups import is_mn_major
from tilec.passes.schedule.specialization.persistent import tile_loop
from tilec.target.families import TMA, Family, MemorySpace, fed_by


@dataclass(eq=False, slots=True)
class FusedProducts:
    """A loop whose `products` instructions of `family` compute, in program order. `lefts`: the left operand of each that is in
    shared memory, None if it is computed. `invariants` are copied once, `streamed` in each iteration. `facts`: ranges of
    integers."""

    family: Family
    loop: For
    products: list[Product]
    lefts: list[Operand | None]
    invariants: list[Operand]
    streamed: list[Operand]
    facts: dict[Value, Range]

    def is_flipped(self, product: Product) -> bool:
        """Whether an instruction computes the transpose of the MMA's result, from its operands in the other order."""
        return product.right is None

    def shared_right(self, product: Product) -> Operand:
        """The right operand of the instruction, which is in shared memory."""
        operand = product.left if self.is_flipped(product) else product.right
        assert operand is not None
        return operand

    def is_mn_major(self, product: Product) -> bool:
        """Whether rows of the instruction's right operand lie along the depth."""
        return product.transposed[0] if self.is_flipped(product) else is_mn_major(product)

    def shape(self, product: Product) -> tuple[int, int]:
        """Rows and columns of what the instruction computes."""
        rows, columns = product.mma.result.tile.shape
        return (columns, rows) if self.is_flipped(product) else (rows, columns)

    @property
    def copied(self) -> list[Operand]:
        """The operands in shared memory."""
        return [*self.invariants, *self.streamed]

    @property
    def unstaged_bytes(self) -> int:
        """Bytes of shared memory for the `invariants`."""
        return sum(tensor_staging.staged_type(operand, 1).bytes for operand in self.invariants)

    def reads(self, product: Product) -> list[Operand]:
        """The operands that an MMA reads in shared memory."""
        left = self.lefts[self.products.index(product)]
        return [operand for operand in (left, self.shared_right(product)) if operand is not None]


def find(
    function: Function, loop: For, warps: int, products: list[Product], facts: dict[Value, Range], most_accumulators: int
) -> FusedProducts | None:
    """The loop as fused products of the family that `tma` feeds, whose accumulators are in registers: at most
    `most_accumulators` per thread of all MMAs together."""
    every = [op for op in loop.regions[0].walk() if isinstance(op, Mma)]
    tiles = tile_loop(function)
    block = function.body if tiles is None else tiles.regions[0]
    if loop not in block.ops or not products or every != [product.mma for product in products]:
        return None
    users, invariants = users_of(function.body), dict[Load, Operand]()
    lefts: list[Operand | None] = []
    for product in products:
        if product.right is None:
            if product.left is None or any(dtype.bits != 16 for dtype in product.dtypes):
                return None
            lefts.append(None)
            continue
        left = product.left or invariant_operand(function, product.mma.operands[0], users, facts)
        left = invariants.setdefault(left.load, left) if left is not None and product.left is None else left
        if left is product.right or product.transposed[0]:
            return None
        if any(dtype.bits != 16 for dtype in product.dtypes) and (left is None or is_mn_major(product)):
            return None
        lefts.append(left)
    streamed = list(dict.fromkeys(operand for product in products for operand in product.operands))
    for family in fed_by(TMA):
        fused = FusedProducts(family, loop, products, lefts, list(invariants.values()), streamed, facts)
        if family.runs_ahead and family.accumulators is MemorySpace.REGISTERS and _fits(fused, warps, most_accumulators):
            return fused
    return None


def _fits(fused: FusedProducts, warps: int, most_accumulators: int) -> bool:
    """Whether instructions of the family compute every MMA on so many warps."""
    family, shapes = fused.family, [fused.shape(product) for product in fused.products]
    depths = [(product.mma.operands[0].tile.shape[1], product.dtypes[0].bits) for product in fused.products]
    return (
        all(ATOMS[family.name].fits(rows, columns, warps) for rows, columns in shapes)
        and all(columns % family.shape.columns == 0 for _, columns in shapes)
        and all(depth % family.shape.depth_of(bits) == 0 for depth, bits in depths)
        and all(
            family.takes(dtype) and family.has_columns(fused.shape(product)[1], dtype)
            for product in fused.products
            for dtype in product.dtypes
        )
        and sum(rows * columns for rows, columns in shapes) <= most_accumulators * 32 * warps
        and all(_row_bytes(operand) % family.row_bytes == 0 for operand in fused.copied)
    )


def _row_bytes(operand: Operand) -> int:
    return operand.shape[1] * operand.load.result.tile.dtype.bytes
