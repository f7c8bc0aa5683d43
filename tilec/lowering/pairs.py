"""Pairs of blocks: the rank of a block, and the index and number of pairs in the grid.

A cluster has consecutive blocks of the first axis of the grid, which is launched with as many blocks for each of the kernel's.
"""

from __future__ import annotations

from tilec.ir.ops.pair_ops import ClusterRank
from tilec.lowering.context import Context
from tilec.lowering.rules import lowers
from tilec.mlir.types import SsaValue
from tilec.target.schedule import PAIR


@lowers(ClusterRank)
def lower_cluster_rank(context: Context, op: ClusterRank) -> None:
    """`%cluster_ctarank`."""
    context.assign(op.result, [cluster_rank(context)])


def cluster_rank(context: Context) -> SsaValue:
    """Rank of this block in its cluster (i32)."""
    return context.special_register("cluster.ctarank")


def tile_blocks(context: Context, register: str, axis: int) -> SsaValue:
    """The special register `ctaid` or `nctaid` of an axis (i32), counted in pairs on the first axis if blocks form pairs."""
    value = context.special_register(f"{register}.{'xyz'[axis]}")
    return context.lshr(value, PAIR.bit_length() - 1) if context.function.cluster > 1 and axis == 0 else value
