"""A kernel's text for the prover, without what no proof depends on: which float dtype of a size it uses, and names of
constants.

In: the function from the front end. Out: the text of its tile IR, line by line that of the function, in which each float
dtype is replaced by the first of its size and no constant is named. If indices, bounds and conditions are computed from
integers alone, addresses depend only on element sizes. So the prover shows the same of both, and a kernel's specialisations for
bf16 and for f16 are proven once. Decisions of the front end on constants are in the operations.

Dtypes stay what they are in a kernel that converts floats to integers or compares narrow ones. The prover bounds such integers
and relates such comparisons by the numbers that the dtype has: 259 is one of f16, and rounds to 260 in bf16. They stay, too,
where two dtypes of one size would become one: a number that is rounded to either is not the same.
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
    constants, floats = function.constants, _floats(function)
    try:
        function.constants = {}
        if _are_exchangeable(function, {type_.dtype for type_ in floats.values()}):
            for value, type_ in floats.items():
                value.type = replace(type_, dtype=_first_float_of_size(type_.dtype))
        return print_function(function)
    finally:
        function.constants = constants
        for value, type_ in floats.items():
            value.type = type_


def _are_exchangeable(function: Function, dtypes: set[DType]) -> bool:
    """Whether no proof depends on which numbers the float dtypes have (`float_bounds` and `float_orders` of the prover), or on
    which of two dtypes of one size a value has (`same_values`)."""
    if len({dtype.bits for dtype in dtypes}) < len(dtypes):
        return False
    for op in function.body.walk():
        source = op.operands[0].tile.dtype if isinstance(op, Cast | Compare) else None
        if source is None or not source.is_float:
            continue
        if source.bits < _WIDEST if isinstance(op, Compare) else op.result.tile.dtype.is_integer:
            return False
    return True


def _first_float_of_size(dtype: DType) -> DType:
    return _FIRST_FLOAT[dtype.bits]


def _floats(function: Function) -> dict[Value, TileType | TensorType]:
    """The type of every tile and tensor of floats of a function: parameters, results and region arguments."""
    values = [*function.body.arguments]
    for op in function.body.walk():
        values += op.results
        values += [argument for region in op.regions for argument in region.arguments]
    types = ((value, value.type) for value in values)
    return {value: type_ for value, type_ in types if isinstance(type_, TileType | TensorType) and type_.dtype.is_float}
