"""The weights of a rank: of every sliced tensor only the bytes of its own part are read, scales and zero points too.

The whole checkpoint is validated from its headers first (`engine.checkpoint.weights`), by every rank alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from os import PathLike
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.checkpoint.weights import FILE_DTYPES, NUMPY_TYPES, Piece, WeightPlan, Weights, destinations_of
from engine.errors import UsageError
from engine.formats.kept import BlockScheme
from engine.formats.quantised import Quantised
from engine.formats.quantization import Quantization
from engine.formats.stored import Stored
from engine.models.config import ModelConfig
from engine.ranks.shards import Shard, Shards, shards_of
from engine.ranks.step import RankStep, rank_step
from engine.tools.dummy_weights import dummy_weights
from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT

TRANSPOSED: Final = ("qweight", "qzeros", "scales")
"""Tensors of AWQ and GPTQ that have columns of the weight first."""
BY_COLUMN: Final = "g_idx"
"""Ends the name of a tensor with the group of each column."""
SHAPE: Final = "weight_shape"
"""A tensor of compressed-tensors that holds the weight's rows and columns."""


@dataclass(frozen=True, slots=True)
class StoredPart(Stored):
    """A part of a quantised module. Every tensor is sliced where its file has the elements of the part."""

    of: Shard

    def array(self, suffix: str) -> NDArray[Any]:
        """A rank's part of a tensor, a read-only view of its file; ModelError if a block, a group or a word is cut."""
        whole, shard = Stored.array(self, suffix), self.of
        assert shard.axis is not None  # only sliced weights have a StoredPart
        if suffix == SHAPE:
            return np.array(self.shape, whole.dtype) if tuple(whole) == shard.shape else whole
        if suffix.endswith(BY_COLUMN):
            return self._groups(suffix, whole)
        if whole.ndim == 1 and shard.axis == 0 and whole.size == shard.shape[0]:  # one scale for each row
            return whole[shard.begin : shard.end]
        if whole.ndim != 2 or whole.size == 1:
            return whole
        axis = 1 - shard.axis if suffix in TRANSPOSED else shard.axis
        if whole.shape[axis] == 1:  # one scale for all of them
            return whole
        first, last = self._index(suffix, shard.begin, whole.shape[axis]), self._index(suffix, shard.end, whole.shape[axis])
        return whole[first:last] if axis == 0 else whole[:, first:last]

    def _index(self, suffix: str, boundary: int, extent: int) -> int:
        """Where a boundary of the weight is in a tensor with `extent` blocks, groups or words along that axis."""
        shard = self.of
        assert shard.axis is not None
        each = -(-shard.shape[shard.axis] // extent)
        self.refuse_cut(suffix, boundary, each)
        return -(-boundary // each)

    def refuse_cut(self, suffix: str, boundary: int, each: int) -> None:
        """ModelError if a boundary of the weight is inside one of what a tensor has for each `each` rows or columns."""
        axis = self.of.axis or 0
        if boundary % each and boundary != self.of.shape[axis]:
            name = ("row", "column")[axis]
            what = f"has one entry for each {each} {name}s, and the part of a rank ends at {name} {boundary}, inside of one"
            self.refuse(suffix, what, "take fewer GPUs, or the 16-bit model")

    def _groups(self, suffix: str, whole: NDArray[Any]) -> NDArray[Any]:
        """The groups of the part's columns, numbered from its first."""
        shard = self.of
        if shard.axis == 0:
            return whole
        part = whole[shard.begin : shard.end]
        first = part.min() if part.size else 0
        if part.size and (np.diff(part.astype(np.int64)) < 0).any():
            what = "has groups of columns in another order, so the columns of a rank are not whole groups"
            self.refuse(suffix, what, "take one GPU, or a model without `desc_act`")
        return part - first


class RankPlan(WeightPlan):
    """A rank's part of the weights of a model folder."""

    def __init__(
        self, config: ModelConfig, dtype: str, files: Mapping[str, SafetensorsFile], folder: str, convert: bool,
        quantization: Quantization | None = None, weight_format: str | None = None, rank: int = 0, ranks: int = 1,
    ) -> None:  # fmt: skip
        super().__init__(config, dtype, files, folder, convert, quantization, weight_format)
        step = step_of_ranks(config, dtype, ranks, self.weight_format)
        self.shards: Shards = shards_of(step, rank)
        self.quantised = {name: _part(weight, self.shards[name]) for name, weight in self.quantised.items()}
        self.destinations = destinations_of(step)
        self._by_name = {destination.name: destination for destination in self.destinations}
        self._pieces = {piece.name: piece for destination in self.destinations for piece in destination.pieces}

    def _read(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        """As `_parts`, of a weight that has 16 bits in the file: rows one after the other, a few at a time."""
        shard = self.shards[piece.name]
        if shard.axis is None:
            yield from super()._read(piece, limit)
            return
        file = self._files[piece.name]
        dtype = FILE_DTYPES[file.tensors[piece.name].dtype]
        whole = np.frombuffer(file.data(piece.name), NUMPY_TYPES[dtype]).reshape(shard.shape)
        yield from (
            part if dtype == self.dtype else self._converted(part, file, piece.name)
            for part in _in_order(whole[shard.slices], limit)
        )


class _SlicedWeights(Weights):
    """A rank's part of weights that are not in files."""

    def __init__(self, source: Weights, step: RankStep, rank: int) -> None:
        self.dtype, self.weight_format, self._source = source.dtype, source.weight_format, source
        self._shards = shards_of(step, rank)
        self.destinations = destinations_of(step)
        self._by_name = {destination.name: destination for destination in self.destinations}
        self._pieces = {piece.name: piece for destination in self.destinations for piece in destination.pieces}

    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        yield from _in_order(self._source.tensor(piece.name)[self._shards[piece.name].slices], limit)


def rank_weights(
    config: ModelConfig, folder: str | PathLike[str], rank: int, ranks: int, *, dtype: str | None = None,
    dummy: int | None = None, weight_format: str | None = None, convert: bool = False,
) -> Weights:  # fmt: skip
    """The weights of a rank from a model folder, or with `dummy` those of `dummy_weights`, as `WeightPlan.for_model`.
    UsageError if the ranks cannot have equal parts, or a part would end inside a block of the format."""
    if dummy is None:
        return RankPlan.for_model(config, folder, dtype, convert=convert, weight_format=weight_format, rank=rank, ranks=ranks)
    dtype = dtype or ("f16" if config.dtype == "f16" else "bf16")
    source = dummy_weights(config, dtype, dummy, weight_format or SIXTEEN_BIT)
    return _SlicedWeights(source, step_of_ranks(config, dtype, ranks, source.weight_format), rank)


def step_of_ranks(config: ModelConfig, dtype: str, ranks: int, weight_format: str) -> RankStep:
    """A model's step for ranks; UsageError if they cannot have equal parts of it, with whole blocks of the format."""
    try:
        return rank_step(config, 1, dtype, ranks, weight_format=weight_format)
    except StepError as error:
        raise UsageError(f"{ranks} GPUs cannot share this model: {error}", fix="take another number of GPUs") from None


def _part(weight: Quantised, shard: Shard) -> Quantised:
    """A quantised weight of a rank; `shard` is in units of its codes as the device has them, of which a word holds several."""
    if shard.axis is None:
        return weight
    stored = weight.stored
    each = stored.shape[shard.axis] // shard.shape[shard.axis]
    of = Shard(stored.shape, shard.axis, shard.begin * each, shard.end * each)
    rows, columns = of.of_rank
    part = StoredPart(stored.name, (rows, columns), stored.files, of)
    scales = next(suffix for suffix in weight.scheme.suffixes if "scale" in suffix)
    for boundary in (of.begin, of.end):
        part.refuse_cut(scales, boundary, _block(weight, shard.axis))
    return replace(weight, stored=part)


def _block(weight: Quantised, axis: int) -> int:
    """Rows or columns that share a scale in blocks or groups of a size that does not depend on the weight's; else 1."""
    scheme = weight.scheme
    if isinstance(scheme, BlockScheme):
        return scheme.block(weight.stored)[axis] if getattr(scheme, "strategy", "block") == "block" else 1
    return max(1, getattr(scheme, "group", 1)) if axis == 1 else 1


def _in_order(array: NDArray[Any], limit: int) -> Iterator[NDArray[Any]]:
    """The elements of an array in order, as flat arrays of at most `limit`; a view if they are consecutive."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        yield from (flat[begin : begin + limit] for begin in range(0, flat.size, limit))
        return
    row = prod(array.shape[1:])
    strip = max(1, limit // row)
    for begin in range(0, array.shape[0], strip):
        flat = np.ascontiguousarray(array[begin : begin + strip]).reshape(-1)
        yield from (flat[first : first + limit] for first in range(0, flat.size, limit))
