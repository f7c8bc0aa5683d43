"""Arrays for a launch of a random program: random numbers, the ends of each range, both zeros, NaN, infinity."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.programs.generate import Program
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.core import Access, Function
from tilec.ir.types import DType

Array = NDArray[Any]
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 65504.0, -3e38, 1e-40, 2.0**31, -(2.0**63), *map(float, ("nan", "inf", "-inf")))


def arrays(function: Function, program: Program) -> dict[str, Array]:
    """An array per tensor, the same for the same program; tensors that are only written start as a pattern."""
    random = np.random.default_rng(program.number)
    found: dict[str, Array] = {}
    for parameter in function.parameters:
        if parameter.access is None:
            continue
        tensor = parameter.value.tensor
        shape = tuple(d.evaluate(program.dims) for d in tensor.dims)
        if parameter.name in program.small:
            found[parameter.name] = random.integers(-2, 3, shape).astype(numpy_dtype(tensor.dtype))
        elif parameter.access in (Access.OUT, Access.SCRATCH):
            found[parameter.name] = np.full(shape, 1).astype(numpy_dtype(tensor.dtype))
        else:
            found[parameter.name] = filled(random, tensor.dtype, shape)
    return found


def filled(random: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    """Random contents of a dtype."""
    numpy_type = numpy_dtype(dtype)
    if dtype.kind == "b":
        return random.random(shape) < 0.5
    if dtype.is_float:
        numbers = np.where(random.random(shape) < 0.1, random.choice(SPECIAL, shape), random.uniform(-4, 4, shape))
        with np.errstate(all="ignore"):
            return numbers.astype(np.float32).astype(numpy_type)
    low, high = dtype.integer_range()
    edges = random.choice(np.array([low, high, 0, 1, high // 2, low + 1], numpy_type), shape)
    small = random.integers(max(low, -9), 10, shape).astype(numpy_type)
    spread = random.integers(low, high, shape, dtype=numpy_type, endpoint=True)
    roll = random.random(shape)
    return np.where(roll < 0.2, edges, np.where(roll < 0.7, small, spread)).astype(numpy_type)
