"""Addresses in tensor memory (i32): of a stage, of a tile in it, and of the lanes that a warp accesses there."""

from __future__ import annotations

from tilec.atoms import tcgen05_rows
from tilec.ir.core import Value
from tilec.lowering.context import Context
from tilec.mlir.types import SsaValue


def stage_address(context: Context, buffer: Value, stage: Value) -> SsaValue:
    """Address of a stage."""
    return context.add(context.pointer(buffer), context.mul(context.scalar(stage), buffer.tmem.stage_columns))


def tile_address(context: Context, buffer: Value, stage: Value, tile: int) -> SsaValue:
    """Address of a tile, 128 rows, of a stage."""
    return context.add(stage_address(context, buffer, stage), tile * buffer.tmem.shape[1])


def own_lanes(context: Context, buffer: Value, stage: Value) -> SsaValue:
    """Address of the lanes of this thread's warp in its tile of a stage."""
    warp = context.lshr(context.thread(), 5)
    return tcgen05_rows.own_lanes(context, stage_address(context, buffer, stage), buffer.tmem.shape[1], warp)
