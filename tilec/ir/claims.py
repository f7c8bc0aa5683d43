"""A kernel's text for the prover, without what no proof depends on: which float dtype of a size it uses, and names of
constants.

In: the function from the front end. Out: the text of its tile IR, line by line that of the function, in which each float
dtype is replaced by the first of its size and no constant is named. If indices, bounds and conditions are computed from
integers alone, addresses depend only on element sizes. So the prover shows the same of both, and a kernel's specialisations for
bf16 and for f16 are proven once. Decisions of the front end on constants are in the operations.

Dtypes stay what they are in a kernel that converts floats to integers or compares narrow ones. The prover bounds such integers
and relates such comparisons by the numbers that the dtype has: 259 is one of f16, and rounds to 260 in bf16.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilec.ir.core import Function, Value
from tilec.ir.ops import Cast, Compare
from tilec.ir.text.printer import print_function
from tilec.ir.types import DTYPES, DType, TensorType, TileType

_FIRST_FLOAT: Final = {
    size: next(dtype for dtype in DTYPES.values() if dtype.is_float and dtype.bits == size) for size in (32, 16, 8)
}
_WIDEST: Final = max(_FIRST_FLOAT)
"""Bits of the floats of which there is one dtype."""


def claims(function: Function) -> str:
    """The text; the function is unchanged afterwards."""
    values = _values(function)
    types, constants = [value.type for value in values], function.constants
    try:
        function.constants = {}
        for value in () if _numbers_decide(function) else values:
            if isinstance(value.type, TileType | TensorType) and value.type.dtype.is_float:
                value.type = replace(value.type, dtype=_first_float_of_size(value.type.dtype))
        return print_function(function)
    finally:
        function.constants = constants
        for value, type_ in zip(values, types, strict=True):
            value.type = type_


def _numbers_decide(function: Function) -> bool:
    """Whether a proof may depend on which numbers a float dtype has (`float_bounds` and `float_orders` of the prover)."""
    for op in function.body.walk():
        source = op.operands[0].tile.dtype if isinstance(op, Cast | Compare) else None
        if source is None or not source.is_float:
            continue
        if source.bits < _WIDEST if isinstance(op, Compare) else op.result.tile.dtype.is_integer:
            return True
    return False


def _first_float_of_size(dtype: DType) -> DType:
    return _FIRST_FLOAT[dtype.bits]


def _values(function: Function) -> list[Value]:
    """Every value of a function: parameters, results and region arguments."""
    values = [*function.body.arguments]
    for op in function.body.walk():
        values += op.results
        values += [argument for region in op.regions for argument in region.arguments]
    return values
