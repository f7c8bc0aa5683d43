"""Scalars of u64 in PyTorch's schemas, whose integers are signed: from 2^63 on, the number with the same bits stands for one.

An op's own call checks its arguments first, so a negative number from it is refused. `torch.ops.NAMESPACE.NAME` takes bits: a
negative number given there is the scalar 2^64 above it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tilec.artifact.records import ScalarSpec
from tilec.ir.types import DTYPES

LIMIT: Final = 1 << 63
"""One more than the largest integer of a schema."""
MODULUS: Final = 1 << 64


def is_unsigned(dtype: str) -> bool:
    """Whether some values of a dtype exceed a schema's integers."""
    return not DTYPES[dtype].is_float and DTYPES[dtype].integer_range()[1] >= LIMIT


def unsigned_names(scalars: Mapping[str, ScalarSpec]) -> frozenset[str]:
    """The names of these scalars."""
    return frozenset(name for name, spec in scalars.items() if is_unsigned(spec.dtype))


def to_schema(number: int) -> int:
    """A checked scalar as an integer of a schema."""
    return number - MODULUS if number >= LIMIT else number


def from_schema(number: Any) -> Any:
    """The scalar that an integer of a schema stands for; anything but an integer as it is."""
    return number + MODULUS if type(number) is int and -LIMIT <= number < 0 else number


def all_from_schema(arguments: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Arguments of a schema as the op has them."""
    return {name: from_schema(value) if name in names else value for name, value in arguments.items()}
