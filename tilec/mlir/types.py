"""Types of the LLVM dialect that kernels use, and the SSA value: a name with its type.

Each type exists once, so they are compared with `is`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, NamedTuple

from tilec.ir.core import VerifyError


@dataclass(frozen=True, slots=True, eq=False)
class Type:
    """`text` is its MLIR syntax. `bits` is the width of integers, floats and vectors, 0 for others; `parts` are the types of a
    structure's fields, or the one type of a vector's elements."""

    text: str
    kind: Literal["integer", "float", "pointer", "vector", "structure"]
    bits: int = 0
    parts: tuple[Type, ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes of a value in memory: whole ones."""
        return -(-self.bits // 8)

    def __str__(self) -> str:
        return self.text


class SsaValue(NamedTuple):
    """A result of an operation or an argument of a block; `name` begins with `%`."""

    name: str
    type: Type


i1: Final = Type("i1", "integer", 1)
i8: Final = Type("i8", "integer", 8)
i16: Final = Type("i16", "integer", 16)
i32: Final = Type("i32", "integer", 32)
i64: Final = Type("i64", "integer", 64)
f16: Final = Type("f16", "float", 16)
bf16: Final = Type("bf16", "float", 16)
f32: Final = Type("f32", "float", 32)
f64: Final = Type("f64", "float", 64)
GLOBAL: Final = Type("!llvm.ptr<1>", "pointer")
SHARED: Final = Type("!llvm.ptr<3>", "pointer")
PARAMETER: Final = Type("!llvm.ptr", "pointer")
"""Pointer to an argument that is passed by value as bytes."""
GENERIC: Final = Type("!llvm.ptr", "pointer")
"""Pointer whose value tells the state space."""

_INTEGERS: Final = {type.bits: type for type in (i1, i8, i16, i32, i64)}
_FLOATS: Final = {type.text: type for type in (f16, bf16, f32)}


def integer(bits: int) -> Type:
    """The integer type of a width; VerifyError if kernels use none of that width."""
    if bits not in _INTEGERS:
        raise VerifyError(f"MLIR: no integers of {bits} bits are used")
    return _INTEGERS[bits]


def floating(name: str) -> Type:
    """The float called `name` (`f16`, `bf16`, `f32`); VerifyError for others."""
    if name not in _FLOATS:
        raise VerifyError(f"MLIR: `{name}` is not a float of the LLVM dialect that is used")
    return _FLOATS[name]


@cache
def vector(count: int, element: Type) -> Type:
    """`count` elements of a type."""
    if element.kind not in ("integer", "float"):
        raise VerifyError(f"MLIR: there are no vectors of {element}")
    return Type(f"vector<{count}x{element.text}>", "vector", count * element.bits, (element,))


@cache
def structure(*parts: Type) -> Type:
    """Result type of inline PTX and intrinsics with several results."""
    return Type(f"!llvm.struct<({', '.join(part.text for part in parts)})>", "structure", 0, parts)
