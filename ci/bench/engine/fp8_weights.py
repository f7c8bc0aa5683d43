"""Random FP8 weights for the models of build.toml: as the engine keeps them, and dequantised in f32 for transformers."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.weights import DEVICE_TYPES, Piece, Weights
from engine.models.config import ModelConfig
from tilec.step.formats import SCALES
from tilec.target.dtypes import f8e4m3

SQUARE: Final = 128
"""Rows and columns of a block with one scale."""
CODE_DEVIATION: Final = 100.0
ELEMENTS: Final = 1 << 24


class Fp8Weights(Weights):
    """Weights cut from blocks of random numbers, at an offset derived from the tensor's name: fast, and no two rows are equal.
    Codes are normal, and scales lie between half and one and a half of what gives a projection the deviation
    `1 / sqrt(inputs)`, which preserves the scale of activations."""

    def __init__(self, config: ModelConfig, dtype: str) -> None:
        super().__init__(config, dtype, "fp8")
        random = np.random.default_rng(7)
        normal = random.standard_normal(ELEMENTS, dtype=np.float32)
        self._codes = np.clip(normal * CODE_DEVIATION, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        self._decoded = self._codes.astype(np.float32)
        self._scales = random.uniform(0.5, 1.5, ELEMENTS).astype(np.float32)
        self._normal = normal
        self._rounded: dict[tuple[float, float], NDArray[Any]] = {}

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Tensors in float32 by Hugging Face's names, (N, K) and (H,); codes times their scales, one rounding."""
        for name, piece in self._pieces.items():
            if piece.is_scales:
                continue
            if piece.dtype == f8e4m3.name:
                rows, columns = piece.shape
                blocks = self._cut(self._decoded, piece).reshape(rows // SQUARE, SQUARE, columns // SQUARE, SQUARE)
                scales = self._elements(self._pieces[name + SCALES]).reshape(rows // SQUARE, 1, columns // SQUARE, 1)
                yield name, (blocks * scales).reshape(piece.shape)
            else:
                yield name, self._elements(piece).astype(np.float32).reshape(piece.shape)

    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        elements = self._elements(piece)
        for begin in range(0, piece.elements, limit):
            yield elements[begin : begin + limit]

    def _elements(self, piece: Piece) -> NDArray[Any]:
        """The elements of a piece in order, in the NumPy dtype of the piece."""
        if piece.is_scales:
            inputs = piece.shape[1] * SQUARE
            return self._cut(self._scales, piece) * np.float32(inputs**-0.5 / CODE_DEVIATION)
        if piece.dtype == f8e4m3.name:
            return self._cut(self._codes, piece)
        if len(piece.shape) == 1:
            return self._cut(self._rounded_block(0.1, 1.0), piece)
        scale = 1.0 if "embed" in piece.name else piece.shape[1] ** -0.5
        return self._cut(self._rounded_block(scale, 0.0), piece)

    def _rounded_block(self, scale: float, shift: float) -> NDArray[Any]:
        """The normal numbers times a scale and with a shift, in the dtype of the model."""
        key = (scale, shift)
        if key not in self._rounded:
            self._rounded[key] = (self._normal * scale + shift).astype(DEVICE_TYPES[self.dtype])
        return self._rounded[key]

    @staticmethod
    def _cut(block: NDArray[Any], piece: Piece) -> NDArray[Any]:
        """As many elements of a block as a piece has, from an offset of its name on; the block repeats."""
        first, left = zlib.crc32(piece.name.encode()) % len(block), piece.elements
        parts = list[NDArray[Any]]()
        while left:
            parts.append(block[first : first + left])
            first, left = 0, left - len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
