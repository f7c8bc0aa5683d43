"""The lines of a `print` on NumPy values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilec.interpreter.dtypes import Array
from tilec.ir.core import Value
from tilec.ir.ops import Print
from tilec.ir.printed_text import pieces, significant_digits
from tilec.ir.types import DType


def lines(op: Print, block: Sequence[int], value_of: Callable[[Value], Array]) -> Iterator[str]:
    """The lines of one execution by the block of this index, in row-major order."""
    texts, values = pieces(op.text), [value_of(value) for value in op.values]
    condition = None if op.condition is None else value_of(op.condition)
    for index in np.ndindex(op.shape):
        if condition is not None and not condition[index]:
            continue
        fields = [_field(value[index], one.tile.dtype) for value, one in zip(values, op.values, strict=True)]
        text = texts[0] + "".join(field + piece for field, piece in zip(fields, texts[1:], strict=True))
        yield f"bid ({_listed(block)}){f' at ({_listed(index)})' if index else ''}: {text}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _field(value: Array, dtype: DType) -> str:
    return f"%.{significant_digits(dtype)}g" % float(value) if dtype.is_float else str(int(value))
