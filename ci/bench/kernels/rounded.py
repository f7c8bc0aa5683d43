"""Floats with a bound of their error: what a right kernel may compute, element by element.

Part of `cases`. A `Rounded` has a value in float64 and a bound of the distance of any right f32 result from it: a running error
analysis (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.3). Every operation in f32 may be off by
two units of roundoff, twice what rounding to nearest needs; documented errors of approximations count as in
`tilec.interpreter.error_rules`. Rounding to 16 bits is monotone, so its bound is the distance between the rounded ends of an
interval: zero unless a middle of two numbers of 16 bits lies inside. That keeps the bounds of a later step small.

A sum of n terms in any order has an error of at most about n units of the sum of magnitudes, and, if its roundings are
independent, of `CONFIDENCE * sqrt(n)` units but for a probability below n * exp(-CONFIDENCE ** 2 / 2) (Higham and Mary, "A New
Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci. Comput. 41(5), 2019). The smaller of both counts.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from typing import Any, Final

torch: Any = importlib.import_module("torch")

UNIT: Final = 2.0**-23
"""Two units of roundoff of f32: also what tensor cores lose that cut their sums."""
FLUSHED: Final = 2.0**-126
"""The smallest normal number of f32: arithmetic that flushes smaller ones to zero is off by at most this."""
CONFIDENCE: Final = 8.0
LOG_2: Final = math.log(2)


@dataclass(frozen=True, slots=True)
class Rounded:
    """Values and bounds of their errors, float64 tensors of one shape; without an error, values are exact."""

    value: Any
    error: Any = None

    @property
    def bound(self) -> Any:
        """The bound, also of exact values."""
        return self.value.abs() * 0 if self.error is None else self.error

    def __getitem__(self, index: Any) -> Rounded:
        return Rounded(self.value[index], None if self.error is None else self.error[index])

    def __add__(self, operand: Rounded | float) -> Rounded:
        other = _number(operand)
        return _single(self.value + other.value, self.bound + other.bound)

    def __sub__(self, other: Rounded) -> Rounded:
        return _single(self.value - other.value, self.bound + other.bound)

    def __mul__(self, operand: Rounded | float) -> Rounded:
        other = _number(operand)
        left, right = self.bound, other.bound
        return _single(self.value * other.value, self.value.abs() * right + other.value.abs() * left + left * right)

    def __truediv__(self, other: Rounded) -> Rounded:
        """A quotient; without a bound where the divisor may be zero."""
        value, size, right = self.value / other.value, other.value.abs(), other.bound
        return _single(value, torch.where(size > 2 * right, 2 * (self.bound + value.abs() * right) / size, math.inf))

    def sum(self, axis: int) -> Rounded:
        """The sum along an axis, in any order."""
        bound, size = self.bound.sum(axis), self.value.abs().sum(axis)
        return _single(self.value.sum(axis), bound + _terms(self.value.shape[axis]) * UNIT * (size + bound))

    def max(self, axis: int) -> Rounded:
        """The greatest along an axis, which is kept with one element."""
        top = self.value.max(axis, keepdim=True)[0]
        upper, lower = ((self.value + side * self.bound).max(axis, keepdim=True)[0] for side in (1, -1))
        return Rounded(top, torch.maximum(upper - top, top - lower))

    def exp2(self) -> Rounded:
        """`exp2(fast=True)`: about 2^-21 of the result for each unit of the argument."""
        value = torch.exp2(self.value)
        return Rounded(value, value * (torch.expm1(self.bound * LOG_2) + 2.0**-20 + self.value.abs() * 2.0**-21) + FLUSHED)

    def rsqrt(self) -> Rounded:
        """`rsqrt(fast=True)` of positive numbers."""
        value = self.value**-0.5
        ratio = self.bound / self.value
        return Rounded(value, torch.where(ratio < 0.5, value * (2 * ratio + 2.0**-20), math.inf))

    def sigmoid(self) -> Rounded:
        """`sigmoid(fast=True)`, whose slope is at most a quarter."""
        return Rounded(1 / (1 + torch.exp2(self.value / -LOG_2)), self.bound / 4 + 2.0**-18)

    def stored(self, dtype: str) -> Rounded:
        """Rounded to a dtype of 16 bits, or as it is for f32."""
        if dtype == "f32":
            return self
        element = {"bf16": torch.bfloat16, "f16": torch.float16}[dtype]
        near, upper, lower = (
            (self.value + side * self.bound).to(torch.float32).to(element).double() for side in (0, 1, -1)
        )  # fmt: skip
        # An equal end has no distance, also where both are infinite.
        above, below = (torch.where(end == near, 0.0, (end - near).abs()) for end in (upper, lower))
        return Rounded(near, torch.maximum(above, below))

    def allows(self, found: Any) -> bool:
        """Whether each element is within its bound; NaN never is, an infinity only where the value is the same."""
        found = found.double()
        near = ((found - self.value).abs() <= self.bound) & ~self.value.isinf()
        return tuple(found.shape) == tuple(self.value.shape) and bool((near | (found == self.value)).all())


def exact(tensor: Any) -> Rounded:
    """A stored tensor, which is exact."""
    return Rounded(tensor.double())


def product(spec: str, left: Rounded, right: Rounded, terms: int, unit: float = 0.0) -> Rounded:
    """The einsum of two operands, a sum of this number of products for each element, in any order.

    `unit`: the largest relative error of rounding the left operand first, each element for itself, so that their sum is bounded
    like that of other independent roundings."""
    size = torch.einsum(spec, left.value.abs(), right.value.abs())
    error = _terms(terms) * UNIT * size
    if unit:
        spread = torch.einsum(spec, left.value**2, right.value**2) ** 0.5
        error = error + unit * torch.minimum(size, CONFIDENCE * spread)
    if left.error is not None:
        error = error + torch.einsum(spec, left.error, right.value.abs())
    if right.error is not None:
        error = error + torch.einsum(spec, left.value.abs() + left.bound, right.error)
    return _single(torch.einsum(spec, left.value, right.value), error)


def joined(parts: list[Rounded], axis: int) -> Rounded:
    """Values after one another along an axis."""
    return Rounded(torch.cat([one.value for one in parts], axis), torch.cat([one.bound for one in parts], axis))


def _terms(count: int) -> float:
    """How many units of the sum of magnitudes a sum of `count` terms may be off."""
    return min(float(count), CONFIDENCE * math.sqrt(count))


def _single(value: Any, bound: Any) -> Rounded:
    """After an operation in f32; the factor covers products of errors."""
    return Rounded(value, bound * (1 + 2.0**-20) + UNIT * value.abs() + FLUSHED)


class _Constant:
    """A number that a kernel has in f32, from at most four roundings."""

    def __init__(self, number: float) -> None:
        self.value, self.bound = _Scalar(number), 2 * UNIT * abs(number)


class _Scalar(float):
    def abs(self) -> float:
        return abs(self)


def _number(value: Rounded | float) -> Any:
    return value if isinstance(value, Rounded) else _Constant(value)
