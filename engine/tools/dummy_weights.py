"""Random weights from a config alone, the same on every machine, to run and measure a model without its files.

Elements are normally distributed with deviation 0.02, as in initialized models; those of norms have mean 1. Each element is a
table look-up: 16 random bits select one of 65536 quantiles of the normal distribution, already rounded to the dtype. That is
faster than sampling and independent of NumPy's version, which may change distributions but not raw bits (NEP 19). The bits
depend on the seed, the tensor's name in the checkpoint and the block number, so tensors can be generated in any order by
several threads.

Codes of FP8 weights are normal too, none is NaN, and their scales differ by up to a factor of three; products have about the
deviation above. So have those of INT4 weights, whose codes are all equally likely, and whose zero points are 7 and 8.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from statistics import NormalDist
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.weights import DEVICE_TYPES, Piece, Weights
from engine.errors import UsageError
from engine.models.config import ModelConfig
from tilec.step.formats import SIXTEEN_BIT
from tilec.target.dtypes import f8e4m3, f32, u8, u32

DEVIATION: Final = 0.02
CODE_DEVIATION: Final = 100.0
"""Of the values of codes; the greatest of 65536 quantiles is then below 448, the greatest e4m3 number."""
FIELD_DEVIATION: Final = 4.6
"""Of codes of four bits, all equally likely, minus 7 or 8."""
BLOCK: Final = 1 << 20
"""Elements generated at a time, independent of the chunk size."""


def dummy_weights(config: ModelConfig, dtype: str, seed: int = 0, weight_format: str = SIXTEEN_BIT) -> Weights:
    """Weights for a config in bf16 or f16, and the linear ones in a format of its step, deterministic. UsageError for another
    dtype, a format that does not fit the config, or a negative seed."""
    return _DummyWeights(config, dtype, seed, weight_format)


class _DummyWeights(Weights):
    def __init__(self, config: ModelConfig, dtype: str, seed: int, weight_format: str) -> None:
        super().__init__(config, dtype, weight_format)
        if seed < 0:
            raise UsageError(f"the seed is {seed}, and must not be negative")
        self._seed = seed

    def _parts(self, piece: Piece, limit: int) -> Iterator[NDArray[Any]]:
        mean = 1.0 if len(piece.shape) == 1 else 0.0  # only norm weights are vectors
        quantiles = _scales(piece.dtype) if piece.is_scales else _quantiles(mean, piece.dtype)
        for first in range(0, piece.elements, BLOCK):
            block = np.take(quantiles, self._bits(piece.name, first // BLOCK, min(BLOCK, piece.elements - first)))
            for begin in range(0, len(block), limit):
                yield block[begin : begin + limit]

    def _bits(self, name: str, block: int, elements: int) -> NDArray[np.uint16]:
        """16 random bits for each element of a block."""
        key = int.from_bytes(blake2b(name.encode(), digest_size=16).digest(), "little")
        raw = np.random.SFC64(np.random.SeedSequence([self._seed, key, block])).random_raw((elements + 3) // 4)
        return raw.astype("<u8", copy=False).view("<u2")[:elements]


@cache
def _quantiles(mean: float, dtype: str) -> NDArray[Any]:
    """65536 equally likely values, ascending, in the NumPy dtype of `dtype`: zero points of u8, fields of u32."""
    if dtype == u8.name:
        return np.repeat(np.array([7, 8], np.uint8), 1 << 15)
    if dtype == u32.name:
        return _words()
    normal = NormalDist(mean, CODE_DEVIATION if dtype == f8e4m3.name else DEVIATION)
    values = np.array([normal.inv_cdf((index + 0.5) / 65536) for index in range(65536)])
    return values.astype(np.float32).astype(DEVICE_TYPES[dtype])


@cache
def _scales(dtype: str) -> NDArray[Any]:
    """65536 equally likely scales, ascending: from half to one and a half of what gives products `DEVIATION`. Those of f32
    multiply e4m3 codes, others fields of four bits."""
    of_codes = CODE_DEVIATION if dtype == f32.name else FIELD_DEVIATION
    return ((np.arange(65536) + 32768) / 65536 * (DEVIATION / of_codes)).astype(np.float32).astype(DEVICE_TYPES[dtype])


def _words() -> NDArray[np.uint32]:
    """65536 words of eight fields: all of their upper halves, with other lower ones."""
    upper = np.arange(65536, dtype=np.uint32)
    return upper << np.uint32(16) | (upper * np.uint32(40503) + np.uint32(12829)) & np.uint32(0xFFFF)
