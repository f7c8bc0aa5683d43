"""The values of a form in f32, by the formula of its class: exactly what the producers' own code computes in f32.

Whole weights (`dequantise`) or some of their rows (`rows`), so that a caller can bound its memory.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.formats.codes import E2M1, E4M3, pairs
from engine.formats.forms import Form, Fp8, Int4, Int8, Nvfp4

Values = NDArray[np.float32]

COUNT_PAIRS: Final = pairs(np.arange(16, dtype=np.float32)).view(np.complex64).ravel()
E2M1_PAIRS: Final = pairs(E2M1).view(np.complex64).ravel()
"""Two values of a byte as one element of 8 bytes: a table is read once for both. No arithmetic is done in complex numbers."""


def dequantise(form: Form) -> Values:
    """All values, (N, K)."""
    return rows(form, 0, form.shape[0])


def rows(form: Form, begin: int, end: int) -> Values:
    """The values of the rows from `begin` to before `end`, (end - begin, K)."""
    match form:
        case Int4():
            counts = COUNT_PAIRS[form.packed[begin:end].view(np.uint8)].view(np.float32)
            counts -= 8 if form.zeros is None else np.repeat(form.zeros[begin:end], form.group, axis=1)
            return _in_order(_scaled(counts, form.scales[begin:end]), form.order)
        case Int8():
            counts = form.values[begin:end].astype(np.float32)
            if form.zeros is not None:
                counts -= np.repeat(form.zeros[begin:end], form.group, axis=1)
            return _in_order(_scaled(counts, form.scales[begin:end]), form.order)
        case Fp8():
            return _blocks(form, begin, end)
        case Nvfp4():
            values = E2M1_PAIRS[form.packed[begin:end]].view(np.float32)
            scales = E4M3[form.scales[begin:end]]
            scales = scales / form.global_scale if form.divides else scales * form.global_scale
            return _scaled(values, scales)


def _scaled(values: Values, scales: NDArray[Any]) -> Values:
    """`values` multiplied in place by the scales of groups of their columns."""
    count, columns = values.shape
    groups = values.reshape(count, scales.shape[1], columns // scales.shape[1])
    groups *= scales.astype(np.float32)[:, :, None]
    return values


def _in_order(values: Values, order: NDArray[np.int32] | None) -> Values:
    if order is None:
        return values
    result = np.empty_like(values)
    result[:, order] = values
    return result


def _blocks(form: Fp8, begin: int, end: int) -> Values:
    values = E4M3[form.codes[begin:end]]
    height, width = form.block
    of_rows = form.scales.astype(np.float32)[np.arange(begin, end) // height]
    if values.shape[1] % width == 0:
        return _scaled(values, of_rows)
    values *= np.repeat(of_rows, width, axis=1)[:, : values.shape[1]]
    return values
