"""Integers from bounded floats: kernels that clamp are accepted, near misses refused, and the bounds hold for all floats."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.passes.texts import verdict_of
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.passes.prover.float_bounds import converted_floats

HEAD = '''"""An index from a float."""

from tilec import Dim, In, Out, abs, bf16, bid, clamp, cos, erf, f16, f32, f8e4m3, floor, grid, i32, kernel, load, max, maximum
from tilec import minimum, nan, requires, sigmoid, store, tanh, u8, where


class M(Dim):
    """entries of a table"""


class N(Dim):
    """numbers"""


@kernel
def k(x: In[{dtype}, N], t: In[f32, M], out: Out[f32, N]):
    requires(M >= 8)
    grid(N)
    v = load(x, bid(0))
    store(out, bid(0), load(t, {index}))
'''
RIGHT = {
    "clamped": "clamp(v, 0.0, 7.0).astype(i32)",
    "clamped the other way": "maximum(minimum(v, 7.0), 0.0).astype(i32)",
    "clamped between fractions": "clamp(v, 0.3, 7.0).astype(i32)",
    "clamped below 8": "clamp(v, -0.75, 7.5).astype(i32)",
    "selected": "where(v > 2.0, minimum(v, 7.0), 3.0).astype(u8).astype(i32) & 7",
    "two arms": "where(v > 2.0, clamp(v, 1.0, 5.0), 7.0).astype(i32)",
    "scaled": "(sigmoid(v.astype(f32)) * 7.0).astype(i32)",
    "shifted": "((tanh(v.astype(f32)) + 1.0) * 3.5).astype(i32)",
    "negated": "(0.0 - clamp(v, -7.0, 0.0)).astype(i32)",
    "of a tile": "max(clamp(load(x, 0, shape=4, pad=0.0), 0.0, 7.0), axis=0).astype(i32)",
    "cos": "(cos(v.astype(f32)) * 0.5 + 1.0).astype(i32)",
}
WRONG = {
    "not below": "minimum(v, 7.0).astype(i32)",
    "not above": "maximum(v, 0.0).astype(i32)",
    "up to 8": "clamp(v, 0.0, 8.0).astype(i32)",
    "from -1": "clamp(v, -1.0, 7.0).astype(i32)",
    "one arm": "where(v > 2.0, v, 7.0).astype(i32)",
    "scaled too far": "(sigmoid(v.astype(f32)) * 8.0).astype(i32)",
    "shifted too little": "((tanh(v.astype(f32)) + 0.5) * 3.0).astype(i32)",
    "NaN is 0": "clamp(v, 1.0, 7.0).astype(i32) - 1 - where(v == v, 0, 1)",
}


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("name", RIGHT)
def test_bounded_floats_are_indices(name: str, dtype: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD.format(dtype=dtype, index=RIGHT[name]), 5)
    assert verdict.kind == "accepted", verdict


@pytest.mark.parametrize("name", WRONG)
def test_others_are_refused(name: str, tmp_path: Path) -> None:
    verdict = verdict_of(tmp_path, HEAD.format(dtype="f32", index=WRONG[name]), 5)
    assert verdict.codes, verdict


STORED = '''"""What a float is as an integer."""

from tilec import Dim, In, Out, abs, bf16, bid, clamp, cos, erf, f16, f32, f8e4m3, f8e5m2, grid, i32, kernel, load, maximum
from tilec import minimum, sigmoid, sin, store, tanh, u8, where


class N(Dim):
    """numbers"""


@kernel
def k(x: In[{dtype}, N], out: Out[i32, N]):
    grid(1)
    v = load(x, 0, shape=N, pad=0.0)
'''
NUMPY = {
    "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16), "f8e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8e5m2": np.dtype(ml_dtypes.float8_e5m2),
}  # fmt: skip
EXPRESSIONS = (
    "clamp(v, 0.3, 7.7)", "clamp(v, -2000.5, 2049.0)", "maximum(v, -3.0)", "minimum(v, 0.1)", "clamp(v, 0.0, 1.0) * 7.0",
    "clamp(v, -1.5, 1.5) * clamp(v, -3.0, 5.0)", "clamp(v, -0.7, 9.0) - clamp(v, 1.0, 17.0)",
    "where(v > 1.0, minimum(v, 100.0), 3.0)", "clamp(v, 5.0, 3.0)", "tanh(v.astype(f32)) * 3.0", "sin(v.astype(f32)) * 9.5",
)  # fmt: skip


@pytest.mark.parametrize("dtype", NUMPY)
def test_the_bounds_hold_for_every_float(dtype: str, tmp_path: Path) -> None:
    """All numbers of a dtype, through the interpreter."""
    width = NUMPY[dtype].itemsize
    bits = np.arange(1 << 8 * width, dtype=f"u{width}")
    numbers = bits.view(NUMPY[dtype])
    bounded = 0
    for number, expression in enumerate(EXPRESSIONS):
        path = tmp_path / f"k{number}.py"
        text = (
            STORED.format(dtype=dtype).replace("shape=N", f"shape={len(bits)}").replace("Out[i32, N]", f"Out[i32, {len(bits)}]")
        )
        path.write_text(text + f"    store(out, 0, ({expression}).astype(i32))\n", encoding="utf-8")
        try:
            function = load_kernel(path, {})
        except CompileError:
            assert "0" in expression and width == 1, "a number that 8 bits do not have"
            continue
        (range_,) = converted_floats(function).values() or [None]
        if range_ is None:
            continue
        out = np.zeros(len(bits), np.int32)
        run(function, {"x": numbers, "out": out})
        assert range_.low <= out.min() and out.max() <= range_.high, (expression, range_, out.min(), out.max())
        bounded += range_.low > -(1 << 31) or range_.high < (1 << 31) - 1
    assert bounded > 4
