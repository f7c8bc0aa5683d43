"""Rounds weights to the published formats one element at a time, from the formats' descriptions and without the engine's code.

Numbers of a dtype are a sorted table of all its values; the nearest is found by comparing exact differences.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

RATIOS = [32 / 32, 34 / 32, 33 / 32, *(n / 32 for n in range(31, 19, -1))]


def e4m3_value(code: int) -> Fraction:
    exponent, mantissa = code >> 3 & 15, code & 7
    magnitude = Fraction(mantissa, 8) / 64 if exponent == 0 else (1 + Fraction(mantissa, 8)) * Fraction(2) ** (exponent - 7)
    return -magnitude if code & 0x80 else magnitude


E4M3 = [(e4m3_value(code), code) for code in range(0x7F)]
"""The 127 finite numbers that are not negative, with their codes, in order."""


def positive(dtype: str) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """All finite numbers of bf16 or f16 from 0 on, in order, and their bits."""
    last = 0x7F7F if dtype == "bf16" else 0x7BFF
    bits = np.arange(last + 1, dtype=np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else bits.view(np.float16).astype(
        np.float32
    ), bits


def nearest(table: list[tuple[Fraction, int]], value: Fraction) -> int:
    """The code of the nearest number of a sorted table; of two, the one whose code is even."""
    above = bisect_left(table, value, key=lambda entry: entry[0])
    return min(table[max(0, above - 1) : above + 1], key=lambda entry: (abs(entry[0] - value), entry[1] & 1))[1]


def to_fp8(weight: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.uint16]]:
    """Codes (N, K), and the bits of bf16 scales (ceil(N / 128), ceil(K / 128))."""
    numbers, all_bits = positive("bf16")
    rows, columns = weight.shape
    codes = np.zeros(weight.shape, np.uint8)
    scales = np.zeros((-(-rows // 128), -(-columns // 128)), np.uint16)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            block = weight[128 * i : 128 * i + 128, 128 * j : 128 * j + 128]
            largest = max(abs(float(value)) for value in block.ravel())
            exact = max(np.float32(np.float32(largest) / np.float32(448)), np.float32(2.0**-126))
            above = int(np.searchsorted(numbers, exact))
            around = [(Fraction(float(numbers[index])), index) for index in (above - 1, above)]
            index = nearest(around, Fraction(float(exact))) if largest else int(np.searchsorted(numbers, 1))
            scales[i, j] = all_bits[index]
            for (n, k), value in np.ndenumerate(block):
                quotient = Fraction(float(np.float32(value) / numbers[index]))
                magnitude = nearest(E4M3, min(abs(quotient), Fraction(448)))
                codes[128 * i + n, 128 * j + k] = magnitude | (0x80 if np.signbit(value) else 0)
    return codes, scales


def to_int4(weight: NDArray[np.float32], group: int, observer: str, dtype: str) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """Codes from -8 to 7 (N, K), and the bits of scales (N, K / group) in the dtype."""
    numbers, all_bits = positive(dtype)
    rows, columns = weight.shape
    codes = np.zeros(weight.shape, np.int64)
    scales = np.zeros((rows, columns // group), np.uint16)
    for n in range(rows):
        for j in range(columns // group):
            values = weight[n, group * j : group * j + group]
            largest = np.abs(values).max()
            best: tuple[Fraction, int, list[int]] | None = None
            for ratio in RATIOS if observer == "mse" else [1.0]:
                exact = max(np.float32(np.float32(largest / np.float32(7.5)) * np.float32(ratio)), np.float32(2.0**-126))
                index = int(np.searchsorted(numbers, exact)) if largest else int(np.searchsorted(numbers, 1))  # the next above
                scale = numbers[index]
                found = [max(-8, min(7, round(float(value / scale)))) for value in values]
                error = sum(
                    (
                        (Fraction(float(value)) - code * Fraction(float(scale))) ** 2
                        for value, code in zip(values, found, strict=True)
                    ),
                    Fraction(0),
                )
                if best is None or error < best[0]:
                    best = error, index, found
            assert best is not None
            scales[n, j] = all_bits[best[1]]
            codes[n, group * j : group * j + group] = best[2]
    return codes, scales
