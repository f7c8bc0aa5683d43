"""Kernel texts for tests: a header with the whole vocabulary, and helpers that compile a body to a function or to
diagnostics."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

import pytest

from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.ir.core import Function, Op

HEADER = '''"""A kernel under test."""
import math

import tilec
from tilec import (Align, Atomic, Const, Dim, Element, In, InOut, Out, Scratch, Strides, abs, arange, argmax, argmin, astype,
    atomic_add, atomic_max, atomic_min, bf16, bid, boolean, broadcast_to, cdiv, ceil, cos, ensures, exp, exp2, f8e4m3, f8e5m2,
    f16, f32, floor, full, gather, grid, i8, i16, i32, i64, inf, load, log, log2, max, maximum, min, minimum, mma, nan,
    num_blocks, permute, requires, reshape, rsqrt, scatter, sigmoid, sin, sqrt, store, sum, tanh, u8, u16, u32, unsafe, values,
    where, zeros)

class E(Element):
    """dtype"""
class N(Dim):
    """extent"""
class M(Dim):
    """extent"""
class S(Dim):
    """stride"""

'''
SIGNATURE = "x: In[f32, N], ids: In[i32, N], out: Out[f32, N], pos: i32, eps: f32"


def text_of(body: str, signature: str = SIGNATURE, before: str = "") -> str:
    """A kernel file with one kernel `k`."""
    head = HEADER + textwrap.dedent(before) + f"\n@tilec.kernel\ndef k({signature}):\n"
    return head + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"


def compile_text(tmp_path: Path, text: str, constants: Mapping[str, int | float | bool | str] | None = None) -> Function:
    """Compile a file of this text."""
    path = tmp_path / "k.py"
    path.write_text(text, encoding="utf-8")
    return load_kernel(path, constants or {})


def compile_body(
    tmp_path: Path,
    body: str,
    signature: str = SIGNATURE,
    constants: Mapping[str, int | float | bool | str] | None = None,
    before: str = "",
) -> Function:
    """Compile a kernel with this body."""
    return compile_text(tmp_path, text_of(body, signature, before), constants)


def refusals(
    tmp_path: Path,
    body: str,
    signature: str = SIGNATURE,
    constants: Mapping[str, int | float | bool | str] | None = None,
    before: str = "",
) -> tuple[Diagnostic, ...]:
    """Diagnostics of a kernel with this body, which must be refused."""
    with pytest.raises(CompileError) as caught:
        compile_body(tmp_path, body, signature, constants, before)
    return caught.value.diagnostics


def ops_of(function: Function, kind: type[Op]) -> list[Op]:
    """Operations of a class in program order."""
    return [op for op in function.body.walk() if isinstance(op, kind)]
