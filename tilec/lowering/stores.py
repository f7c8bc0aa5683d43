"""Stores of tiles through shared memory: writing the tile to scratch, and TMA stores that one thread of a role issues."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from tilec.atoms import stmatrix, tma
from tilec.ir.ops.store_ops import ELEMENT_BYTES, ScratchStoreRows, TensorStore, WaitStores
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers


@lowers(ScratchStoreRows)
def lower_scratch_store_rows(context: Context, op: ScratchStoreRows) -> None:
    """`stmatrix` of this operation's columns from the threads' registers."""
    thread = context.thread()
    lane, warp = context.bit_and(thread, 31), context.lshr(thread, 5)
    pointer = context.scratch(op.operands[0], op.rows.bytes)
    tile, layout = op.tile, op.tile.layout
    assert layout is not None
    registers, columns = context.registers(tile), tile.tile.shape[1]
    stmatrix.store_rows(
        context, op.rows, pointer, registers, layout, columns, op.column, lane, warp, context.threads // 32
    )  # fmt: skip


@lowers(TensorStore)
def lower_tensor_store(context: Context, op: TensorStore) -> None:
    """One thread issues the copy."""
    row_bytes = op.columns * ELEMENT_BYTES
    map_ = context.tensor_map(op.target, tma.Box((op.rows, op.columns), row_bytes))
    *outer, inner = [context.scalar(value) for value in op.offsets]
    coordinates = [*outer, context.add(inner, op.column) if op.column else inner]
    source = context.scratch(op.scratch, op.rows * row_bytes)
    with _first_thread(context):
        tma.store_box(context, map_, coordinates, source)


@lowers(WaitStores)
def lower_wait_stores(context: Context, op: WaitStores) -> None:
    """The thread that issued the copies waits; a barrier for the others is a separate operation."""
    with _first_thread(context):
        tma.wait_stores(context, op.pending, complete=op.complete)


@contextmanager
def _first_thread(context: Context) -> Generator[None]:
    with context.where(context.compare("eq", context.thread(), context.constant(0))):
        yield
