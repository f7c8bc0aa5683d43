"""The classes of floats among constants: comparisons of the class against those of NumPy, for every float and constant."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from tests.passes.texts import function_of
from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError
from tilec.passes.prover import prove, terms
from tilec.passes.prover.float_orders import Orders, class_count, condition, float_orders
from tilec.passes.prover.replayed_floats import LARGEST
from tilec.passes.prover.same_values import same_values

COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip
FLOATS = (-np.inf, -9.0, -8.0, -1.0, -0.5, -0.0, 0.0, 1e-40, 1.0, 1.5, 2.0, 7.5, 8.0, 300.0, np.inf, np.nan)


def class_of(number: float, constants: tuple[int, ...]) -> int:
    if np.isnan(number):
        return 2 * len(constants) + 1
    return sum(2 if number > constant else int(number == constant) for constant in constants)


@pytest.mark.parametrize("constants", [*combinations((-8, -1, 0, 1, 2, 8), 2), (0,), (-1, 0, 1)])
def test_a_comparison_is_one_of_the_class(constants: tuple[int, ...]):
    for number in map(np.float32, FLOATS):
        found = class_of(float(number), constants)
        assert 0 <= found < class_count(constants)
        for kind, compare in COMPARE.items():
            for constant in constants:
                claimed = condition(kind, constant, constants, terms.const(found)) == terms.TRUE
                assert claimed == bool(compare(number, np.float32(constant))), (number, kind, constant)


def test_every_float_dtype_has_the_constants():
    import ml_dtypes

    for dtype in (ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fn, ml_dtypes.bfloat16, np.float16, np.float32):
        for number in range(-LARGEST, LARGEST + 1):
            assert float(np.asarray(number, dtype)) == number


KERNEL = '''"""Rows without what a comparison leaves out."""

from tilec import Dim, In, InOut, arange, bid, cumsum, f32, grid, kernel, load, scatter, where, zeros


class N(Dim):
    """rows"""


@kernel
def k(x: In[f32, N, 4], kept: InOut[f32, N, 4]):
    grid(N)
    t = load(x, (bid(0), 0), shape=(1, 4)).reshape((4,))
    scatter(kept, (bid(0), where({taken}, cumsum(where({counted}, 1, 0), 0, exclusive=True), 4)), zeros((4,), f32), mask=True)
'''
IMPLIED = [
    ("t > 0", "t >= 0"),
    ("t > 0", "t != 0"),
    ("t < 1", "t <= 1"),
    ("t == 2", "t > 1"),
    ("t > 0", "0 < t"),
    ("t <= 0", "t < 1"),
]
NOT_IMPLIED = [  # the last three because of NaN, or of a constant that other dtypes round
    ("t >= 0", "t > 0"), ("t != 0", "t > 0"), ("t > 0", "t >= 1"),
    ("t != 0", "t <= 8"), ("t != 1", "t == t"), ("t >= 0", "t >= 0.1"),
]  # fmt: skip


@pytest.mark.parametrize(("taken", "counted"), IMPLIED)
def test_accepts_what_is_counted_wherever_it_is_taken(taken: str, counted: str, tmp_path: Path):
    function = function_of(tmp_path, KERNEL.format(taken=taken, counted=counted))
    assert prove(function)
    assert examine_function(function).kind == "accepted"


@pytest.mark.parametrize(("taken", "counted"), NOT_IMPLIED)
def test_refuses_what_may_not_be_counted(taken: str, counted: str, tmp_path: Path):
    with pytest.raises(CompileError):
        prove(function_of(tmp_path, KERNEL.format(taken=taken, counted=counted)))


def test_one_way_to_compare_needs_no_class(tmp_path: Path):
    function = function_of(tmp_path, KERNEL.format(taken="t > 0", counted="t > 0"))
    assert float_orders(function, same_values(function)) == Orders()


CONVERTED = '''"""An element at an index that a comparison of a converted integer chooses."""

from tilec import Dim, In, Out, bid, f32, grid, i32, kernel, load, requires, store, values, where


class N(Dim):
    """numbers"""


@kernel
def k(ids: In[i32, N], w: In[f32, N], t: In[f32, 1], out: Out[f32, N], n: i32):
    grid(N)
    values(ids, 100, 200)
    requires(n >= 100)
    u = load(w, bid(0))
    v = {converted}
    at = where({taken}, {past}, 0)
    store(out, bid(0), load(t, at) + where({also}, 1.0, 0.0))
'''


@pytest.mark.parametrize("converted", ["load(ids, bid(0)).astype(f32)", "f32(n)"])
@pytest.mark.parametrize(("taken", "also"), [("v > 6.5", "v > 7.5"), ("v > u", "v >= u")])
def test_a_range_of_a_converted_integer_says_nothing_of_its_class(converted: str, taken: str, also: str, tmp_path: Path):
    text = CONVERTED.format(converted=converted, taken=taken, also=also, past="{past}")
    prove(function_of(tmp_path, text.format(past=0)))
    with pytest.raises(CompileError):
        prove(function_of(tmp_path, text.format(past=1)))
