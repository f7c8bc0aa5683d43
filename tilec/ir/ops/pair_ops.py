"""Operations of pairs: clusters of two blocks that compute one tile together. Made by passes, never by an author.

Each block of a pair has half of the tile's rows, of the left operand and of the result; it copies these and half of the right
operand's rows. One thread of the *leader*, the block of rank 0, starts products that read the shared memory of both blocks and
write the tensor memory of both (PTX ISA, `.cta_group::2`). Both blocks run the same code; only a role that starts
products runs in the leader alone.

    cluster_rank    which block of the pair this is
    pair_ring       a ring whose stages lie in both blocks
    pair_mma        one thread starts the product of a pair

Operations on a `pair_ring` are those of any ring (`sync_ops`, `tmem_ops`); a signal to the other block crosses over. A barrier
of scope `cluster` synchronizes the threads of both blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilec.ir.core import Effect, Function, Op
from tilec.ir.facts.range_facts import Range
from tilec.ir.ops.sync_ops import Ring
from tilec.ir.ops.tmem_ops import TmemMma
from tilec.ir.types import TileType, i32
from tilec.target.schedule import PAIR


@dataclass(eq=False, kw_only=True)
class ClusterRank(Op, opcode="cluster_rank"):
    """Rank of this block in its pair (PTX ISA, `%cluster_ctarank`), 0 or 1; i32 scalar. No operands."""

    num_operands = 0

    def verify_in(self, function: Function) -> None:
        self.require(self.result.type == TileType(i32), "the result is an i32 scalar")
        self.require(function.cluster == PAIR, "the blocks form no pairs")

    def result_range(self, operands: Sequence[Range]) -> Range | None:
        return Range(0, PAIR - 1)


@dataclass(eq=False, kw_only=True)
class PairRing(Ring, opcode="pair_ring", effect=Effect.SHARED):
    """A ring of mbarriers of a pair. Each block has the mbarriers of every stage, and a part of the stage's contents.

    A ring that copies fill has a full phase of `producers` 2: the thread that copies, in each block, expects its bytes at the
    leader's full barrier, and so do its copies; the leader's thread that starts products waits there. Once these products are
    complete, they release the stage in both blocks. A ring that products fill has `producers` 1: they complete the full barrier
    of each block, and the warps of both blocks, `readers` in all, release the stage at the leader's empty barrier."""

    producers: int

    def verify(self) -> None:
        super().verify()
        self.require(self.sync == "mbarriers" and self.consumer_roles == 1, "blocks of a pair signal each other by mbarriers")
        self.require(self.producers in (1, PAIR), f"a stage is filled by one block, or by both, not by {self.producers}")

    def verify_in(self, function: Function) -> None:
        self.require(function.cluster == PAIR, "the blocks form no pairs")


@dataclass(eq=False, kw_only=True)
class PairMma(TmemMma, opcode="pair_mma", effect=Effect.SHARED):
    """Start `acc + a @ b.T` of a pair, as `tmem_mma` does for a block. The buffer of a has this block's rows of a, the buffer
    of b this block's half of the rows of b, and that of acc the rows of a, with columns for all rows of b. The other block's
    buffers lie at the same offsets."""

    blocks = PAIR

    def verify_in(self, function: Function) -> None:
        self.require(function.cluster == PAIR, "the blocks form no pairs")
