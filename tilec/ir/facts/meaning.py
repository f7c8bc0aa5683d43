"""Integer operations on single values, total over all operands: the rows of `SEMANTICS.md` in plain Python.

In: a kind of operation, integers that fit a dtype, the dtype. Out: an integer that fits it. Nothing raises and nothing is
undefined, so a constant may replace any operation whose operands are known. The interpreter implements the same in NumPy,
and lowering in MLIR; `tests/lowering/test_meaning.py` compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tilec.ir.types import DType

_TOTAL: Final[dict[str, Callable[[int, int], int]]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}
INTEGER_KINDS: Final = frozenset({*_TOTAL, "shl", "shr", "mulhi"})
"""Binary operations that `integer_binary` computes."""


def wrapped(value: int, dtype: DType) -> int:
    """The low bits of `value` as a value of `dtype` (two's complement)."""
    low, high = dtype.integer_range()
    return (value - low) % (high - low + 1) + low


def integer_binary(kind: str, left: int, right: int, dtype: DType) -> int:
    """`left kind right`; division rounds toward minus infinity and gives 0 for a zero divisor; a shift amount that is negative
    or at least the width shifts everything out; `mulhi` is the upper half of the product."""
    if kind in ("shl", "shr"):
        amount = right if 0 <= right < dtype.bits else dtype.bits
        return wrapped(left << amount, dtype) if kind == "shl" else left >> amount
    if kind == "mulhi":
        return left * right >> dtype.bits
    return wrapped(_TOTAL[kind](left, right), dtype)


def integer_unary(kind: str, value: int, dtype: DType) -> int:
    """`neg`, `abs` or `not`; `neg` and `abs` of the smallest signed value give that value."""
    if kind == "not":
        return 1 - value if dtype.kind == "b" else wrapped(~value, dtype)
    return wrapped(abs(value) if kind == "abs" else -value, dtype)


def integer_cast(value: int, target: DType) -> int:
    """An integer or bool as another integer or bool."""
    return int(value != 0) if target.kind == "b" else wrapped(value, target)
