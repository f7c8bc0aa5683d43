"""Batched MMAs (`mma` of rank 3) whose operands are loaded from global memory directly into the fragment registers.

They are for GEMMs of small M, where only one warp uses each weight element, so staging through shared
memory gains nothing. Each warp computes whole products, or several share the rows of one; with split-K, the kernel sums the
products.

A fragment wants words of adjacent elements along K, but a thread loads 16 bytes at once most efficiently. A dot product does
not depend on the order of its terms, so K of both operands is permuted: a thread's 16 adjacent bytes are its fragments of two
instructions. Of 16-bit elements, with k = 32 j + 8 p + 4 s + 2 h + l, lane p of four loads all s, h, l; the instruction's order
is 16 s + 8 h + 2 p + l. The load gets the layout that results from the permutation, so no element moves between threads.

An operand may be cast from what is loaded, in this iteration of a loop or in the one before: threads convert their own
fragments. Of 8-bit elements that become 16-bit ones, 16 bytes are the fragments of four instructions: k = 64 j + 16 p + 4 s +
2 h + l, with s up to 3. An operand that threads compute from several tiles has the fragments' layout too;
`layouts.propagation` sets those of the loads that it follows from.

In: an `mma` of rank 3. Out: operations to insert before it; layouts on it and on the loads that feed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from typing import Final

from tilec.atoms import mma_sync
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label
from tilec.ir.core import Op, Value
from tilec.ir.layouts.blocked_layouts import vectors_first
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Broadcast, Load, Mma, Permute, Reshape
from tilec.ir.types import DType, TileType
from tilec.passes.schedule.layouts.propagation import moves_of, origin_of, source_layout
from tilec.passes.schedule.pipelining.staged_products import Emitter, relayout

Carried = Mapping[Value, tuple[Value, ...]]
"""Loads that loops carry (`carried_loads`)."""

VECTOR_BYTES: Final = 16
"""What a thread loads at once."""

GROUP_LANES: Final = 4
"""Lanes that load a group of adjacent elements along K, each a vector of it."""

MMA_ORDER: Final = (1, 2, 0, 3)
"""The permutation of `_memory_extents` to the order s, h, p, l."""


def _memory_extents(dtype: DType, vector: int) -> tuple[int, int, int, int]:
    """Extents of p, s, h and l, outermost first, of threads that have `vector` adjacent elements of an operand."""
    word = mma_sync.word_of(dtype)
    return GROUP_LANES, vector // (2 * word), 2, word


def _vector(dtype: DType) -> int:
    """Elements that a thread loads at once."""
    return VECTOR_BYTES // dtype.bytes


def _vectors(op: Mma, carried: Carried) -> list[int]:
    """Adjacent elements along K that a thread may have of both operands, most first: as many as it loads at once of the
    narrowest dtype that one is cast from, or of their own."""
    own = _vector(op.operands[0].tile.dtype)
    return sorted({own, *(max(own, _vector(_loaded(value, carried).tile.dtype)) for value in op.operands[:2])}, reverse=True)


def _loaded(value: Value, carried: Carried) -> Value:
    """The loaded tile whose elements `value` has, cast and moved; `value` itself if it is none of these."""
    source = origin_of(value)
    return source if isinstance(source.owner, Load) or source in carried else value


def default_warps(shape: tuple[int, ...]) -> int:
    """Warps for a result (S, M, N): one for each of the S products, at most 16."""
    return min(shape[0], 16)


def assign_layouts(op: Mma, warps: int, carried: Carried) -> list[Op]:
    """Convert the operands to the instruction's layouts; E0506 if its shape does not fit."""
    products, rows, columns = op.result.tile.shape
    depth, products_per_step = op.operands[0].tile.shape[2], gcd(products, warps)
    grid = mma_sync.choose_warps(rows, columns, warps // products_per_step)
    dtypes = [operand.tile.dtype for operand in op.operands[:2]]
    step = mma_sync.depth_of(dtypes[0])
    if grid is None or depth % step:
        message = f"no {products} products of shape {(rows, columns, depth)} side by side on {warps} warps"
        hint = f"tensor cores multiply 16 x 8 x {step} of {dtypes[0]}; let the warps be as many as the products"
        raise CompileError(Diagnostic("E0506", message, Label(op.loc) if op.loc else None, hint=hint))
    out = Emitter()
    operands: list[Value] = []
    layouts = mma_sync.operand_a(rows, depth, grid, dtypes[0]), mma_sync.operand_b(depth, columns, grid, dtypes[1])
    vector = next((vector for vector in _vectors(op, carried) if depth % (GROUP_LANES * vector) == 0), 0)
    for index, layout in enumerate(mma_sync.beside(layout, products, products_per_step) for layout in layouts):
        value = op.operands[index]
        if vector:
            value = _permute_k(out, value, 2 - index, vector)
        _set_load_layout(value, layout, vector, carried)
        operands.append(relayout(out, value, layout))
    op.result.layout = mma_sync.beside(mma_sync.accumulator(rows, columns, grid), products, products_per_step)
    op.operands = [*operands, relayout(out, op.operands[2], op.result.layout)]
    return out.ops


def _permute_k(out: Emitter, value: Value, axis: int, vector: int) -> Value:
    """An operand with K, its axis `axis`, permuted to the instruction's order; a thread has `vector` adjacent elements."""
    shape, dtype = value.tile.shape, value.tile.dtype
    extents = _memory_extents(dtype, vector)
    cut = (*shape[:axis], shape[axis] // prod(extents), *extents, *shape[axis + 1 :])
    axes = (*range(axis + 1), *(axis + 1 + axis_index for axis_index in MMA_ORDER), *range(axis + 5, len(cut)))
    parts = out.add(Reshape(operands=[value]), TileType(dtype, cut))
    permuted = out.add(Permute(operands=[parts], axes=axes), TileType(dtype, tuple(cut[axis_index] for axis_index in axes)))
    return out.add(Reshape(operands=[permuted]), value.tile)


def _set_load_layout(value: Value, layout: Layout | None, vector: int, carried: Carried) -> None:
    """Propagate `layout` back through reshapes, permutations, broadcasts and casts to the load that defines `value`, or those
    that a loop carries, if threads can load 16-byte vectors then, or all their `vector` adjacent elements at once."""
    repeated: list[tuple[Value, Layout]] = []
    for op in moves_of(value):
        if layout is None:
            return
        if isinstance(op, Broadcast):
            repeated.append((op.result, layout))
        value = op.operands[0]
        layout = source_layout(op, value, layout)
    if not (isinstance(value.owner, Load) or value in carried) or layout is None or value.layout is not None:
        return
    widest = vectors_first(layout)
    most = _vector(value.tile.dtype)
    least = min(most, vector or most)
    if widest.registers and widest.registers[0].axis == widest.rank - 1 and widest.registers[0].extent >= least:
        for one in (value, *carried.get(value, ())):
            one.layout = widest
        for result, result_layout in repeated:
            result.layout = result_layout
