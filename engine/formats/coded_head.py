"""The LM head as e4m3 codes with an f32 scale for each block of 128 x 128: takes a head of 16 bits in a file, returns both.

A block's scale is its largest magnitude divided by 448, the largest number of e4m3, and no less than `SMALLEST_SCALE`. Weights
divided by it are rounded to nearest, ties to even. e4m3 is a floating-point format, so finer blocks would change little: every
number above 2^-14 of its block's largest has a relative error of at most 2^-4.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.safetensors_file import SafetensorsFile
from engine.formats.codes import E4M3_MAX
from engine.formats.forms import Form, Fp8
from engine.formats.fp8 import BLOCK
from engine.formats.quantised import WEIGHT, Quantised
from engine.formats.stored import Stored

STRIP: Final = 8 * BLOCK[0]
"""Rows that a thread rounds at a time."""

SMALLEST_SCALE: Final = np.float32(2.0**-100)
"""The least scale: quotients of all numbers of 16 bits are finite, and of all that matter in a product."""

DTYPES: Final = ("BF16", "F16")


@dataclass(frozen=True, slots=True)
class CodedHead:
    """The scheme (`engine.formats.quantization.Scheme`); it has no options."""

    suffixes: tuple[str, ...] = ("weight",)
    unused: tuple[str, ...] = ()

    def check(self, stored: Stored) -> None:
        """ModelError unless the weight has 16 bits and its shape."""
        stored.check("weight", DTYPES, stored.shape)

    def form(self, stored: Stored) -> Form:
        """The head in the layout of its kind; ModelError for a number that is not finite."""
        return Fp8(self.codes(stored), self.scales(stored), BLOCK)

    def block(self, stored: Stored) -> tuple[int, int]:
        """Rows and columns with one scale."""
        return BLOCK

    def codes(self, stored: Stored) -> NDArray[np.uint8]:
        """(N, K); ModelError for a number that is not finite."""
        found = np.empty(stored.shape, np.uint8)

        def strip(begin: int) -> None:
            found[begin : begin + STRIP] = _codes(weights[begin : begin + STRIP], scales[begin // BLOCK[0] :])

        weights, scales = stored.array("weight"), self.scales(stored)
        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="head") as pool:
            for _ in pool.map(strip, range(0, stored.shape[0], STRIP)):
                pass
        return found

    def scales(self, stored: Stored) -> NDArray[np.float32]:
        """(ceil(N / 128), ceil(K / 128)); ModelError for a weight that is not finite."""
        weights = stored.array("weight")
        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="head") as pool:
            largest = np.concatenate([*pool.map(_largest, _strips(weights))])
        if not np.isfinite(largest).all():
            stored.refuse("weight", "holds a number that is not finite")
        scales = np.maximum(largest / np.float32(E4M3_MAX), SMALLEST_SCALE)
        return np.where(largest == 0, np.float32(1), scales)


def coded(shape: tuple[int, int], source: str, files: Mapping[str, SafetensorsFile]) -> Quantised:
    """A head of a shape (vocabulary, width), which files have in 16 bits as the weight `source`; ModelError if that does not
    fit."""
    stored, scheme = Stored(source.removesuffix(WEIGHT), shape, files), CodedHead()
    scheme.check(stored)
    return Quantised(stored, scheme)


def _strips(weights: NDArray[np.generic]) -> Iterator[NDArray[np.generic]]:
    return (weights[begin : begin + STRIP] for begin in range(0, len(weights), STRIP))


def _largest(strip: NDArray[np.generic]) -> NDArray[np.float32]:
    """The largest magnitude of each block; NaN if one is."""
    rows, columns = strip.shape
    magnitudes = np.abs(strip.astype(np.float32))
    of_columns = np.maximum.reduceat(magnitudes, range(0, columns, BLOCK[1]), axis=1)
    return np.maximum.reduceat(of_columns, range(0, rows, BLOCK[0]), axis=0)


def _codes(strip: NDArray[np.generic], scales: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes of some rows, the first of which begins a block, by the scales from that block on."""
    rows, columns = strip.shape
    each = np.repeat(scales[: -(-rows // BLOCK[0])], BLOCK[1], axis=1)[:, :columns]
    exact = strip.astype(np.float32)
    for first in range(0, rows, BLOCK[0]):
        exact[first : first + BLOCK[0]] /= each[first // BLOCK[0]]
    np.clip(exact, -E4M3_MAX, E4M3_MAX, out=exact)
    return exact.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
