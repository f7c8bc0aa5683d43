"""Which part of each tensor of a checkpoint a rank has, and the check that the parts of all ranks are the tensor, each element
once.

A tensor is sliced along one axis, or whole in every rank. The step's text says which weights are sliced (`shards`); where a
rank's part begins follows from its number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from engine.errors import EngineError
from engine.ranks.step import RankStep

LAYER: Final = re.compile(r"(?<=\.layers\.)\d+(?=\.)")
NAMES: Final = ("rows", "columns")


class ShardError(EngineError):
    """The parts of ranks are not the whole: an internal error, or a step's text that does not say what it shares."""


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a tensor of `shape`: [`begin`, `end`) along `axis`, or all of it if that is None."""

    shape: tuple[int, ...]
    axis: int | None = None
    begin: int = 0
    end: int = 0

    @property
    def slices(self) -> tuple[slice, ...]:
        """The index of the part in the tensor."""
        return tuple(slice(self.begin, self.end) if axis == self.axis else slice(None) for axis in range(len(self.shape)))

    @property
    def of_rank(self) -> tuple[int, ...]:
        """The shape of the part."""
        return tuple(self.end - self.begin if axis == self.axis else size for axis, size in enumerate(self.shape))


Shards = Mapping[str, Shard]


def shards_of(step: RankStep, rank: int) -> dict[str, Shard]:
    """A rank's part of each tensor of a checkpoint, by name; scales and zero points have the names of their weights with a
    suffix. ShardError if the step's extents are not those that its `shards` give."""
    found: dict[str, Shard] = {}
    for own, whole in zip(step.weights(), step.whole.weights(), strict=True):
        declared = step.declaration.shards.get(_declared(step, own.name))
        axis = None if declared is None else declared.axis if own.axis == 0 else 1 - declared.axis
        for (name, part), (_, shape) in zip(own.rows, whole.rows, strict=True):
            shard = Shard(shape, axis, rank * part[axis], (rank + 1) * part[axis]) if axis is not None else Shard(shape)
            if shard.of_rank != part:
                share = "whole" if declared is None else f"a part of the {NAMES[declared.axis]}"
                what = f"`{name}` is {list(shape)} and {list(part)} in a rank, and `shards` says that it is {share}"
                raise ShardError(what)
            found[name] = shard
    verify_shards(
        {name: shard.shape for name, shard in found.items()}, [_moved(found, rank, other) for other in range(step.ranks)]
    )
    return found


def _declared(step: RankStep, name: str) -> str:
    """The name in the text of a weight, or of the weight that it is scales or zero points of."""
    pattern = LAYER.sub("*", name)
    return next((one for one in step.declaration.shards if pattern.startswith(one)), pattern)


def _moved(shards: Shards, rank: int, other: int) -> dict[str, Shard]:
    """The shards of another rank."""
    found: dict[str, Shard] = {}
    for name, shard in shards.items():
        away = (other - rank) * (shard.end - shard.begin)
        found[name] = Shard(shard.shape, shard.axis, shard.begin + away, shard.end + away)
    return found


def verify_shards(shapes: Mapping[str, tuple[int, ...]], ranks: Sequence[Shards]) -> None:
    """ShardError unless each tensor is whole in every rank, or each of its elements in exactly one."""
    for name, shape in shapes.items():
        absent = next((rank for rank, shards in enumerate(ranks) if name not in shards), None)
        if absent is not None:
            raise ShardError(f"rank {absent} has no part of `{name}`")
        parts = [shards[name] for shards in ranks]
        odd = next((rank for rank, part in enumerate(parts) if part.shape != shape or part.axis != parts[0].axis), None)
        if odd is not None:
            raise ShardError(f"rank {odd} has a part of another `{name}`, or along another axis, than rank 0")
        axis = parts[0].axis
        if axis is not None:
            _verify_axis(name, shape[axis], NAMES[axis] if axis < len(NAMES) else f"axis {axis}", parts)


def _verify_axis(name: str, extent: int, along: str, parts: Sequence[Shard]) -> None:
    """Check that parts follow each other from the first element to the last."""
    at, before = 0, -1
    for part, rank in sorted((((part.begin, part.end), rank) for rank, part in enumerate(parts))):
        begin, end = part
        if not 0 <= begin < end <= extent:
            raise ShardError(f"rank {rank} has the {along} {begin}..{end} of `{name}`, which has {extent}")
        if begin < at:
            raise ShardError(f"the {along} {begin}..{min(at, end)} of `{name}` are of rank {before} and of rank {rank} too")
        if begin > at:
            raise ShardError(f"the {along} {at}..{begin} of `{name}` are of no rank")
        at, before = end, rank
    if at < extent:
        raise ShardError(f"the {along} {at}..{extent} of `{name}` are of no rank")
