"""`python -m ci.bench.engine.ranks_worker DESCRIPTOR [OPTION ...]`: the process of a rank, with weights cut from blocks.

It is `engine.ranks.worker` with other weights: those of `LowBitWeights`, of which a rank's part is copied at the speed of
memory, where `engine.tools.dummy_weights` would compute every number of the model in each rank. Options: `one-gpu`, both ranks
take turns on GPU 0; `mistake`, every rank takes the part of rank 0, which a comparison of logits has to see.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ci.bench.engine.low_bit_weights import LowBitWeights
from engine.checkpoint.weights import Piece, destinations_of
from engine.models.config import ModelConfig
from engine.ranks import worker
from engine.ranks.peers import DriverCalls, open_rank
from engine.ranks.shards import shards_of
from engine.ranks.step import rank_step
from tilec.runtime import Device
from tilec.step.formats import SIXTEEN_BIT

ONE_GPU: Final = "one-gpu"
MISTAKE: Final = "mistake"


class RankBlocks(LowBitWeights):
    """The part of a rank of the weights that `LowBitWeights` has of the whole model."""

    def __init__(self, config: ModelConfig, dtype: str, weight_format: str, rank: int, ranks: int) -> None:
        super().__init__(config, dtype, weight_format)
        step = rank_step(config, 1, dtype, ranks, weight_format=weight_format)
        self._shards, self._wholes = shards_of(step, rank), self._pieces
        self.destinations = destinations_of(step)
        self._by_name = {destination.name: destination for destination in self.destinations}
        self._pieces = {piece.name: piece for destination in self.destinations for piece in destination.pieces}

    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        shard, whole = self._shards[piece.name], self._wholes[piece.name]
        row = int(np.prod(whole.shape[1:]))
        if shard.axis in (None, 0):  # elements that follow each other
            first = shard.begin * row
            for begin in range(0, piece.elements, limit):
                yield self._elements(whole, first + begin, min(limit, piece.elements - begin))
            return
        own = shard.end - shard.begin
        strip = max(1, limit // row)
        for begin in range(0, whole.shape[0], strip):
            rows = min(strip, whole.shape[0] - begin)
            block = self._elements(whole, begin * row, rows * row).reshape(rows, row)
            part = np.ascontiguousarray(block[:, shard.begin : shard.end]).reshape(rows * own)
            for start in range(0, part.size, limit):
                yield part[start : start + limit]


def block_weights(
    config: ModelConfig, folder: str, rank: int, ranks: int, *, dtype: str | None = None, dummy: int | None = None,
    weight_format: str | None = None,
) -> RankBlocks:  # fmt: skip
    """What `engine.ranks.weights.rank_weights` is replaced by; `folder` and `dummy` name nothing here."""
    return RankBlocks(config, dtype or "bf16", weight_format or SIXTEEN_BIT, rank, ranks)


def _mistaken(config: ModelConfig, folder: str, rank: int, ranks: int, **given: Any) -> RankBlocks:
    return block_weights(config, folder, 0, ranks, **given)


def _first_gpu(rank: int, ranks: int) -> tuple[DriverCalls, Device]:
    """As `engine.ranks.worker.open_gpu`, of ranks that share a GPU: a time slice ends the wait of one for the other."""
    calls = DriverCalls()
    open_rank(0, 1, calls)
    return calls, Device()


def command(options: Sequence[str]) -> list[str]:
    """The command line of a rank's process, but for its descriptor."""
    return [sys.executable, "-m", __name__, *options]


def prepare(options: Sequence[str]) -> None:
    """Change `engine.ranks.worker` as the options say."""
    worker.rank_weights = _mistaken if MISTAKE in options else block_weights
    if ONE_GPU in options:
        worker.open_gpu = _first_gpu


if __name__ == "__main__":
    prepare(sys.argv[1:-1])
    worker.run(int(sys.argv[-1]))
