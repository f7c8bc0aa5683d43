"""What is to be proven of a kernel, without what no proof depends on: the names of floats of one size, and of constants.

In: the function that the front end made. Out: the text of its tile IR in which each float is the first of its size and no
constant is named, line by line that of the function. An index, a bound or a condition is computed from integers alone, and a
place in memory from the size of an element, so the prover shows the same of both: a kernel's specialisations for bf16 and for
f16 are proven once. What the front end decides by a constant is in the operations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tilec.ir.core import Function, Value
from tilec.ir.printer import print_function
from tilec.ir.types import DTYPES, DType, TensorType, TileType

_FIRST: Final = {size: next(one for one in DTYPES.values() if one.is_float and one.bits == size) for size in (32, 16, 8)}


def claims(function: Function) -> str:
    """The text; the function is left as it was."""
    values = _values(function)
    types, constants = [value.type for value in values], function.constants
    try:
        function.constants = {}
        for value in values:
            if isinstance(value.type, TileType | TensorType) and value.type.dtype.is_float:
                value.type = replace(value.type, dtype=_first(value.type.dtype))
        return print_function(function)
    finally:
        function.constants = constants
        for value, type_ in zip(values, types, strict=True):
            value.type = type_


def _first(dtype: DType) -> DType:
    return _FIRST[dtype.bits]


def _values(function: Function) -> list[Value]:
    """Every value of a function: its parameters', what operations make, and what regions are given."""
    found = [*function.body.arguments]
    for op in function.body.walk():
        found += op.results
        found += [argument for region in op.regions for argument in region.arguments]
    return found
