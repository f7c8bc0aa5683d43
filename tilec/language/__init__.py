"""The names that kernel authors use: decorators, parameter types, dtypes and tile operations.

Kernel files are parsed by `tilec.frontend`, never executed. These stubs exist so that a kernel file imports as plain Python,
and an editor completes, documents and type-checks it. Calling one of the functions from plain Python raises `NotCompiled`.
"""

from tilec.language import words
from tilec.language.parameters import (
    Align,
    Atomic,
    Const,
    Dim,
    Element,
    In,
    InOut,
    Out,
    Peer,
    Scratch,
    Signal,
    Strides,
    Tensor,
)
from tilec.language.tiles import (
    DTypeBase,
    NotCompiled,
    Tile,
    bf16,
    boolean,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from tilec.language.words import *  # noqa: F403

__all__: list[str] = [
    "Align",
    "Atomic",
    "Const",
    "DTypeBase",
    "Dim",
    "Element",
    "In",
    "InOut",
    "NotCompiled",
    "Out",
    "Peer",
    "Scratch",
    "Signal",
    "Strides",
    "Tensor",
    "Tile",
    "bf16",
    "boolean",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "i8",
    "i16",
    "i32",
    "i64",
    "u8",
    "u16",
    "u32",
    "u64",
]
__all__ += words.__all__
