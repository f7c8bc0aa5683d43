"""Random weights of eight or four bits for the models of build.toml: as the engine keeps them, and dequantised in f32 for
transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from ci.bench.engine.weights import BLOCK, BlockWeights, cut
from engine.checkpoint.weights import NUMPY_TYPES, Piece, Weights
from engine.models.config import ModelConfig
from tilec.step.formats import SCALES, ZEROS
from tilec.target.dtypes import f8e4m3, f32, u32

RUN: Final = 128
"""Columns with one scale; in FP8 as many rows share it."""
DEVIATION: Final = {f8e4m3.name: 100.0, u32.name: 4.6}
"""Of codes by their dtype; of those of four bits, which are equally likely, minus their mean of 7.5."""


class LowBitWeights(Weights):
    """Weights cut from blocks of random numbers as those of 16 bits (`BlockWeights`), the linear ones in a format. Codes are
    normal in FP8. In INT4 all are equally likely, and zero points are 6 to 9. Scales lie between half and one and a half of
    what gives a projection the deviation `1 / sqrt(inputs)`, which preserves the scale of activations."""

    def __init__(self, config: ModelConfig, dtype: str, weight_format: str) -> None:
        super().__init__(config, dtype, weight_format)
        self._plain, random = BlockWeights(config, dtype), np.random.default_rng(8)
        normal = self._plain.normal * DEVIATION[f8e4m3.name]
        self._blocks: dict[str, NDArray[Any]] = {
            f8e4m3.name: np.clip(normal, -448, 448).astype(ml_dtypes.float8_e4m3fn),
            u32.name: random.integers(0, 1 << 32, BLOCK, np.uint32),
            ZEROS: random.integers(6, 10, BLOCK, np.uint8),
            SCALES: random.uniform(0.5, 1.5, BLOCK).astype(np.float32),
        }

    def tensors(self, stacked: bool = False) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Tensors in float32 by Hugging Face's names, (N, K) and (H,); codes times their scales, one rounding. `stacked`: those
        of a layer's experts in one, (experts, rows, columns), as `BlockWeights.tensors` has them."""
        for destination in self.destinations:
            pieces = [piece for piece in destination.pieces if not piece.suffix]
            if pieces and stacked and destination.items:
                rows = [self._exact(piece) for piece in pieces]
                name = destination.name.removesuffix(".weight")
                yield name, np.concatenate(rows).reshape(destination.items, -1, rows[0].shape[-1])
            else:
                yield from ((piece.name, self._exact(piece)) for piece in pieces)

    def _exact(self, piece: Piece) -> NDArray[np.float32]:
        """A tensor in float32."""
        if piece.dtype not in DEVIATION:
            return self.tensor(piece.name).astype(np.float32)
        codes, scales = self.tensor(piece.name), self.tensor(piece.name + SCALES).astype(np.float32)
        if piece.dtype == f8e4m3.name:
            rows, columns = piece.shape
            blocks = codes.astype(np.float32).reshape(rows // RUN, RUN, columns // RUN, RUN)
            return (blocks * scales[:, None, :, None]).reshape(piece.shape)
        fields = codes.view(np.uint8)[..., None] >> np.array([0, 4], np.uint8) & np.uint8(15)
        groups = fields.reshape(len(codes), -1, RUN).astype(np.float32)
        groups -= self.tensor(piece.name + ZEROS).T[..., None]
        groups *= scales.T[..., None]
        return groups.reshape(len(codes), -1)

    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        for begin in range(0, piece.elements, limit):
            yield self._elements(piece, begin, min(limit, piece.elements - begin))

    def _elements(self, piece: Piece, begin: int, count: int) -> NDArray[Any]:
        """Elements `begin .. begin + count` of a piece, in its NumPy dtype."""
        if piece.is_scales:
            of_blocks = piece.dtype == f32.name
            inputs, codes = piece.shape[-1 if of_blocks else -2] * RUN, f8e4m3.name if of_blocks else u32.name
            scales = cut(self._blocks[SCALES], piece.name, begin, count) * np.float32(inputs**-0.5 / DEVIATION[codes])
            return scales if of_blocks else scales.astype(NUMPY_TYPES[piece.dtype])
        block = self._blocks.get(piece.suffix or piece.dtype)
        if block is None:
            return self._plain.values(piece.name, piece.shape, begin, count)
        return cut(block, piece.name, begin, count)
