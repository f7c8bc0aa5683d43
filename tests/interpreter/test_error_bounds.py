"""The running error analysis: a right kernel whose steps amplify rounding is right, a wrong one is wrong, and the bounds
contain what correct implementations compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.words.kernels import One
from tilec.artifact.records import TensorSpec
from tilec.interpreter.error_bounds import run_bounded
from tilec.ir import functions
from tilec.ir.text.parser import parse_function
from tilec.project.trial.comparison import VAGUE, Written, compared
from tilec.project.trial.trial import Trial, TrialRequest, trials

Array = NDArray[Any]
RECURRENCE = '''"""A recurrence whose steps lose bits."""

import tilec as tl


class N(tl.Dim):
    """elements"""


@tl.kernel
def recurrence(x: tl.In[tl.f32, N], out: tl.Out[tl.f32, N]):
    tl.grid(tl.cdiv(N, 64))
    v = tl.load(x, tl.bid(0), shape=64, pad=0)
    h = v
    for _ in range(8):
        h = (h * 0.5 + OFFSET) - OFFSET
    tl.store(out, tl.bid(0), h, mask=True)
'''
REFERENCE = '''"""The same in f64."""


def recurrence(x):
    h = x.astype("float64")
    for _ in range(8):
        h = h * 0.5 FACTOR
    return h
'''


def trial(folder: Path, offset: str, factor: str = "", tolerance: tuple[float | None, float | None] = (None, None)) -> Trial:
    kernel, reference = folder / "recurrence.py", folder / "reference.py"
    kernel.write_text(RECURRENCE.replace("OFFSET", offset), encoding="utf-8")
    reference.write_text(REFERENCE.replace("FACTOR", factor), encoding="utf-8")
    request = TrialRequest(kernel, folder, {}, {"N": 200}, reference=(reference, "recurrence"), tolerance=tolerance)
    (found,) = trials(request)
    return found


def test_a_right_recurrence_is_right(tmp_path: Path) -> None:
    found = trial(tmp_path, "8.0")
    assert found.right and not found.problem
    (only,) = trial(tmp_path, "8.0", tolerance=(1e-5, None)).written
    assert only.error is not None and only.error > 1, "the default tolerance alone would do"


def test_a_wrong_recurrence_is_wrong(tmp_path: Path) -> None:
    assert not trial(tmp_path, "8.0", "* 1.001").right


def test_a_tolerance_that_an_author_gives_is_meant(tmp_path: Path) -> None:
    assert not trial(tmp_path, "8.0", tolerance=(1e-6, 0.0)).right


def test_a_bound_that_accepts_almost_anything_counts_for_nothing(tmp_path: Path) -> None:
    assert not trial(tmp_path, "1e6").right


def test_where_a_bound_counts() -> None:
    spec = TensorSpec("out", "out", "f32", (), None, 16)
    truth = np.array([1.0, 1.0, 1.0, 1.0])
    found = (truth + 1e-3).astype(np.float32)

    def error(bound: float) -> float:
        one = compared(spec, found, truth, (None, None), np.full(4, bound))
        assert isinstance(one, Written) and one.error is not None
        return one.error

    assert error(2e-3) == pytest.approx(0.5, rel=1e-3) and error(0.9e-3) > 1
    assert error(VAGUE * 1.01) > 1 and error(float("inf")) > 1 and error(float("nan")) > 1


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None)
def test_bounds_contain_the_exact_result(dtype: str, seed: int) -> None:
    """Of a chain of functions, each once accurate and once fast, next to 80 bits."""
    random = np.random.default_rng(seed)
    kinds = random.permutation(["exp", "tanh", "sin", "sigmoid", "cos"])[:3].tolist()
    fast = random.random(3) < 0.5
    text = "a"
    for kind, approximate in zip(kinds, fast, strict=True):
        text = f"tl.{kind}({text} * 0.75 + 0.25, fast={bool(approximate)})"
    one = One(text, dtype, (64,), ((dtype, (64,)),))
    function = one.function()
    x = random.uniform(-2, 2, 64).astype(one.arrays((np.zeros(64, np.float32),))["out"].dtype)
    arrays = one.arrays((x,))
    bounds = run_bounded(function, arrays, {})["out"]
    exact = x.astype(np.longdouble)
    reference = {"exp": np.exp, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "sigmoid": lambda v: 1 / (1 + np.exp(-v))}
    for kind in kinds:
        exact = reference[kind](exact * 0.75 + 0.25)
    assert np.isfinite(bounds).all()
    assert (np.abs(arrays["out"].astype(np.longdouble) - exact) <= bounds).all()


def test_every_function_has_a_rule() -> None:
    from tilec.interpreter.error_rules import BINARY, UNARY
    from tilec.ir.ops import FLOAT_UNARY

    assert UNARY.keys() == {*FLOAT_UNARY, "neg", "abs"} and {"pow", "fast_pow"} <= BINARY.keys()
    assert set(functions.UNARY) <= UNARY.keys()


def test_a_bound_of_each_accurate_function_is_more_than_its_error() -> None:
    text = "kernel @k(%x: in tensor<f32, [64], align 16>, %out: out tensor<f32, [64], align 16>) {\n  constants {}\n  dims []\n"
    text += "  strides []\n  grid [1]\n  %0 = constant {value = 0} : i32\n"
    text += '  %1 = load %x, %0 {pad = none, unsafe = none, vector = 0} : f32[64]\n  %2 = unary %1 {kind = "KIND"} : f32[64]\n'
    text += "  store %out, %2, %0 {mask = false, unsafe = none, vector = 0}\n}\n"
    x = np.linspace(0.5, 3, 64, dtype=np.float32)
    for kind in functions.UNARY:
        arrays = {"x": x.copy(), "out": np.zeros(64, np.float32)}
        bounds = run_bounded(parse_function(text.replace("KIND", kind)), arrays, {})["out"]
        spacing = np.spacing(np.abs(arrays["out"])).astype(np.float64)
        assert (bounds >= 2 * spacing).all() and (bounds <= 16 * spacing).all(), kind


SORTED = '''"""The order of ids, padded."""

import tilec as tl


class N(tl.Dim):
    """elements"""


@tl.kernel
def ordered(ids: tl.In[tl.i32, N], out: tl.Out[tl.i32, N]):
    tl.grid(tl.cdiv(N, 64))
    _, order = tl.sort((tl.load(ids, tl.bid(0), shape=64, pad=2147483647), tl.arange(64)), 0)
    tl.store(out, tl.bid(0), order, mask=True)
'''


@pytest.mark.parametrize("sign", ["", "-"])
def test_padding_is_exact(sign: str, tmp_path: Path) -> None:
    """So that padded keys of a sort determine an order, and a wrong order is wrong."""
    kernel, reference = tmp_path / "ordered.py", tmp_path / "reference.py"
    kernel.write_text(SORTED, encoding="utf-8")
    reference.write_text(f"def ordered(ids):\n    return ({sign}ids).argsort(kind='stable')\n", encoding="utf-8")
    (found,) = trials(TrialRequest(kernel, tmp_path, {}, {"N": 40}, reference=(reference, "ordered")))
    assert found.right == (not sign), found
