"""GPTQ: integer codes of a weight that keep the outputs of its layer, rather than the weight itself, near to what they were
(Frantar, Ashkboos, Hoefler, Alistarh: GPTQ, 2022, arXiv:2210.17323, Algorithm 1).

For inputs X (tokens, K) the error of the outputs is `D H D^T` for the errors D of a row, with `H = X^T X`. Columns are rounded
one after the other; what rounding column k errs by is made up for in the columns after it, by the least squares that H gives:
`W[:, k:] -= (w_k - q_k) / U[k, k] * U[k, k:]`, where U is the upper triangular matrix with `H^-1 = U^T U` (step 3 there). To
the columns of a block this is applied at once, to those after it when the block is done (step 2). Scales of a group are chosen
when its first column is reached. The sum of squares of `(w_k - q_k) / U[k, k]` is `D H D^T`.

H is damped: a share of its mean diagonal is added to the diagonal. Everything is in f32, as in the authors' code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.tools.quantize.integers import IntegerFormat, codes_of
from engine.tools.quantize.rounding import Arrays, Errors, Strip, check_strip, errors_of

BLOCK: Final = 128
"""Columns of a block, at most."""
ROWS: Final = 512
"""Rows that are rounded together; their order of sums does not depend on the number of threads."""
DAMPING: Final = 0.01
"""The share of the mean diagonal; ten times as much, up to all of it, where H is not positive definite in f32."""
SMALL: Final = 64
"""Size of triangles that are inverted as they are."""


def second_moments(inputs: Iterable[Strip]) -> Strip:
    """`H = X^T X` (K, K) of inputs, some tokens (T, K) at a time; there is at least one. It is infinite or NaN if they are."""
    iterator = iter(inputs)
    first = next(iterator)
    total = first.T @ first
    for part in iterator:
        total += part.T @ part
    return total


def root_of_inverse(moments: Strip) -> Strip:
    """U, upper triangular with a positive diagonal and `U^T U = (H + d I)^-1`; overwrites `moments`. H must be finite.

    The Cholesky factor of the inverse, without the inverse: with the rows and columns of H in reverse order, `H = R R^T` for an
    upper triangular R, and then `U = R^-1`."""
    size = len(moments)
    diagonal = np.einsum("ii->i", moments)  # a view
    mean = float(diagonal.mean(dtype=np.float64)) or 1.0  # inputs that are all zero: any columns are equally good
    added = 0.0
    for share in (DAMPING, 10 * DAMPING, 100 * DAMPING):
        diagonal += np.float32(share * mean - added)
        added = share * mean
        try:
            lower = np.linalg.cholesky(moments[::-1, ::-1])
        except np.linalg.LinAlgError:
            continue
        root = np.ascontiguousarray(lower[::-1, ::-1])
        del lower
        _invert(root, 0, size)
        if np.isfinite(root).all():
            return root
    raise FloatingPointError("the second moments of the inputs are not positive definite")


def _invert(upper: Strip, begin: int, end: int) -> None:
    """Replace the upper triangular block on the diagonal by its inverse: that of [[A, B], [0, D]] is [[A^-1, -A^-1 B D^-1],
    [0, D^-1]]."""
    if end - begin <= SMALL:
        upper[begin:end, begin:end] = np.triu(np.linalg.inv(upper[begin:end, begin:end]))
        return
    middle = (begin + end) // 2
    _invert(upper, begin, middle)
    _invert(upper, middle, end)
    corner = upper[begin:middle, begin:middle] @ upper[begin:middle, middle:end]
    upper[begin:middle, middle:end] = -(corner @ upper[middle:end, middle:end])


def quantise(weight: NDArray[Any], root: Strip, form: IntegerFormat) -> tuple[Arrays, Strip, Errors]:
    """The tensors of a weight (N, K) in bf16 or f16, the values (N, K) that they stand for, and their errors, with those of the
    outputs. `root` is that of the inputs (`root_of_inverse`). NoWeight as in `rounding.round_weight`."""
    rows, columns = weight.shape
    stored, whole = form.stored((rows, columns), weight.dtype), form.whole((rows, columns))
    result = {end: np.empty(shape, dtype) for end, (dtype, shape) in stored.items() if end not in whole}
    values = np.empty((rows, columns), np.float32)

    def one(begin: int) -> Errors:
        strip = weight[begin : begin + ROWS].astype(np.float32)
        check_strip(strip, begin)
        codes, scales, lost = _codes_of_strip(strip, root, form, weight.dtype)
        for end, array in form.packed(codes, scales).items():
            result[end][begin : begin + len(array)] = array
        each = scales.astype(np.float32)[:, :, None]
        values[begin : begin + len(strip)] = (codes.reshape(*scales.shape, -1) * each).reshape(strip.shape)
        return errors_of(strip, values[begin : begin + len(strip)]) + Errors(output_errors=lost)

    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="quantise") as pool:
        total = sum(pool.map(one, range(0, rows, ROWS)), Errors())
    return {**result, **whole}, values, total


def _codes_of_strip(strip: Strip, root: Strip, form: IntegerFormat, dtype: np.dtype[Any]) -> tuple[Strip, NDArray[Any], float]:
    """Codes (N, K) as whole numbers, scales (N, groups), and the sum of squared errors of the outputs."""
    left = np.ascontiguousarray(strip.T)  # (K, N): what is left of each column, contiguous
    columns, rows = left.shape
    group = form.columns(columns)
    scales = np.empty((rows, columns // group), dtype)
    codes = np.empty_like(left)
    lost = 0.0
    for begin, end in _blocks(columns, group):
        erred = np.empty((end - begin, rows), np.float32)
        for k in range(begin, end):
            if k % group == 0:
                members = np.ascontiguousarray(left[k : k + group].T)[:, None, :]
                scales[:, k // group] = form.scales(members, dtype)[:, 0]
            scale = scales[:, k // group]
            codes[k] = codes_of(left[k][:, None, None], scale[:, None], form.bits)[:, 0, 0]
            difference = left[k] - codes[k] * scale.astype(np.float32)
            np.divide(difference, root[k, k], out=erred[k - begin])
            left[k + 1 : end] -= root[k, k + 1 : end, None] * erred[k - begin]
        left[end:] -= root[begin:end, end:].T @ erred
        lost += float(np.square(erred, dtype=np.float64).sum())
    return np.ascontiguousarray(codes.T), scales, lost


def _blocks(columns: int, group: int) -> Iterator[tuple[int, int]]:
    """Blocks of columns. One begins where a group does, or within a group that has a whole block before: the columns of a group
    are up to date when its scales are chosen."""
    unit = group * max(1, BLOCK // group)
    for first in range(0, columns, unit):
        last = min(first + unit, columns)
        for begin in range(first, last, BLOCK):
            yield begin, min(begin + BLOCK, last)
