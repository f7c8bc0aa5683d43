"""Products of register fragments: the 32-bit registers of `mma.sync` and `wgmma` operands in, registers of the result out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.matrices.formats import decode, encode, is_integer, join, multiply_add, split
from tilec.emulator.matrices.fragments import accumulator, gather, operand_a, operand_b

Words = NDArray[np.uint32]
Bits = NDArray[Any]


def warp_product(a: Words, b: Words, c: Words, depth: int, kinds: tuple[str, str, str]) -> Words:
    """`mma.sync.m16n8k<depth>`; `kinds` are the formats of A, B and of C and D.

    a: (warps, 32, A registers), b: (warps, 32, B registers), c: (warps, 32, C registers); the result is like `c`."""
    kind_a, kind_b, kind_c = kinds
    left = gather(decode(split(a, kind_a), kind_a), *operand_a(depth, kind_a), (16, depth))
    right = gather(decode(split(b, kind_b), kind_b), *operand_b(depth, kind_b), (depth, 8))
    rows, columns = accumulator(8)
    sums = multiply_add(left, right, gather(unpacked(c, kind_c), rows, columns, (16, 8)))
    return packed(sums[..., rows, columns], kind_c)


def left_of_group(words: Words, depth: int, kind: str) -> Bits:
    """Values of a register-resident operand A of `wgmma`: (4 warps, 32, registers) -> (64, depth)."""
    tiles = gather(decode(split(words, kind), kind), *operand_a(depth, kind), (16, depth))
    return tiles.reshape(64, depth)


def group_product(left: Bits, right: Bits, c: Words | None, kind: str) -> Words:
    """`wgmma.mma_async.m64n<N>`: values (64, K) and (N, K), accumulators (4 warps, 32, registers) in the format `kind`, or
    None for zero; the result has the accumulators' shape."""
    columns = right.shape[0]
    rows, cells = accumulator(columns)
    start = np.zeros((4, 16, columns), np.int64 if is_integer(kind) else np.float64)
    if c is not None:
        start = gather(unpacked(c, kind), rows, cells, (16, columns))
    sums = multiply_add(left.reshape(4, 16, -1), right.T, start)
    return packed(sums[:, rows, cells], kind)


def unpacked(words: Words, kind: str) -> Bits:
    """Values of accumulators, two in a register for f16: (..., registers) -> (..., elements)."""
    values = decode(split(words, kind), kind)
    return values.reshape(*words.shape[:-1], -1)


def packed(values: Bits, kind: str) -> Words:
    """The inverse of `unpacked`, rounding to the format."""
    bits = encode(values, kind)
    per = 2 if kind == "f16" else 1
    return join(bits.reshape(*bits.shape[:-1], -1, per), kind)
