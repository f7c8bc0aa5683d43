"""Products side by side (`mma` of three axes), whose operands come from memory straight into the registers that multiply them.

They are for weights that meet a few rows of activations: each element is used by one warp alone, so that a trip through shared
memory would gain nothing. Warps take a product each, or share its rows; what they make of one sum is added by the kernel.

An instruction wants of each thread pairs of neighbours along K; memory gives 16 bytes at once best. A sum does not mind the
order of its terms, so both operands are taken with K in an order in which a thread's eight neighbours in memory are what it
needs for two instructions. With k = 32 j + 8 p + 4 s + 2 h + l, lane p of four holds all s, h, l; the instruction wants
16 s + 8 h + 2 p + l. The load then gets the layout that this makes of it, and nothing is exchanged between threads.

In: an `mma` of three axes. Out: what goes in front of it; layouts on it, and on the loads that feed it.
"""

from __future__ import annotations

from math import gcd
from typing import Final

from tilec.atoms import mma_sync
from tilec.diagnostics import CompileError, Diagnostic, Label
from tilec.ir.blocked_layouts import hidden, reshaped, with_axes
from tilec.ir.core import Op, Value
from tilec.ir.layout import Digit, Layout
from tilec.ir.ops import Broadcast, Load, Mma, Permute, Reshape
from tilec.ir.types import TileType
from tilec.passes.schedule.staged_products import Emitter, relayout

GROUP: Final = 32
"""Columns that four lanes hold with 16 bytes each."""

IN_MEMORY: Final = (4, 2, 2, 2)
"""p, s, h and l, from the outermost."""

AS_MULTIPLIED: Final = (1, 2, 0, 3)
"""s, h, p and l among those."""

VECTOR: Final = 8
"""Elements of 16 bytes."""


def default_warps(shape: tuple[int, ...]) -> int:
    """Warps for a result (S, M, N): one a product."""
    return min(shape[0], 16)


def lay_out(op: Mma, warps: int) -> list[Op]:
    """Bring the operands into the instruction's layouts; E0506 where it does not fit them."""
    products, rows, columns = op.result.tile.shape
    depth, each = op.operands[0].tile.shape[2], gcd(products, warps)
    grid = mma_sync.choose_warps(rows, columns, warps // each)
    if grid is None or depth % mma_sync.K or op.operands[0].tile.dtype.bits != 16:
        message = f"no {products} products of shape {(rows, columns, depth)} side by side on {warps} warps"
        hint = "tensor cores multiply 16 x 8 x 16 of 16-bit floats; let the warps be as many as the products"
        raise CompileError(Diagnostic("E0506", message, Label(op.loc) if op.loc else None, hint=hint))
    out = Emitter()
    operands: list[Value] = []
    wanted = mma_sync.operand_a(rows, depth, grid), mma_sync.operand_b(depth, columns, grid)
    for place, layout in enumerate(mma_sync.beside(one, products, each) for one in wanted):
        value = op.operands[place]
        if depth % GROUP == 0:
            value = _in_order(out, value, axis=2 - place)
        _load_as(value, layout)
        operands.append(relayout(out, value, layout))
    op.result.layout = mma_sync.beside(mma_sync.accumulator(rows, columns, grid), products, each)
    op.operands = [*operands, relayout(out, op.operands[2], op.result.layout)]
    return out.ops


def _in_order(out: Emitter, value: Value, axis: int) -> Value:
    """An operand with K, which is its `axis`, in the order in which it is multiplied."""
    shape, dtype = value.tile.shape, value.tile.dtype
    cut = (*shape[:axis], shape[axis] // GROUP, *IN_MEMORY, *shape[axis + 1 :])
    axes = (*range(axis + 1), *(axis + 1 + one for one in AS_MULTIPLIED), *range(axis + 5, len(cut)))
    parts = out.add(Reshape(operands=[value]), TileType(dtype, cut))
    turned = out.add(Permute(operands=[parts], axes=axes), TileType(dtype, tuple(cut[one] for one in axes)))
    return out.add(Reshape(operands=[turned]), value.tile)


def _load_as(value: Value, layout: Layout | None) -> None:
    """Let the load that `value` is, reshaped or repeated, be done so that threads have what they need of it in `layout`."""
    repeated: list[tuple[Value, Layout]] = []
    while isinstance(op := value.owner, Reshape | Permute | Broadcast) and op.operands[0].tile.rank and layout is not None:
        value = op.operands[0]
        if isinstance(op, Permute):
            layout = with_axes(layout, dict(enumerate(op.axes)), value.tile.rank)
        elif isinstance(op, Broadcast):
            repeated.append((op.result, layout))
            pairs = enumerate(zip(value.tile.shape, op.result.tile.shape, strict=True))
            layout = hidden(layout, {axis for axis, (before, after) in pairs if before < after})
        else:
            layout = reshaped(layout, op.result.tile.shape, value.tile.shape)
    if not isinstance(value.owner, Load) or layout is None or value.layout is not None:
        return
    made = _vectors_first(layout)
    if made.registers and made.registers[0].axis == made.rank - 1 and made.registers[0].extent >= VECTOR:
        value.layout = made
        for result, wanted in repeated:
            result.layout = wanted


def _vectors_first(layout: Layout) -> Layout:
    """The same elements in each thread, those that are neighbours on the last axis first."""
    last, run = layout.rank - 1, 1
    others = list(layout.registers)
    while found := next((d for d in others if d.axis == last and d.stride == run and d.extent > 1), None):
        others.remove(found)
        run *= found.extent
    return Layout(layout.rank, (Digit(run, last, 1), *others), layout.lanes, layout.warps)
