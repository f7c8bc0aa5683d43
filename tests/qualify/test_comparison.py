"""What is right within its tolerance, and the first element that is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit import samples
from tilec.ir.text.parser import parse_function
from tilec.qualify.comparison import NotComparable, compared, differs
from tilec.qualify.recipe import stored
from tilec.qualify.side_file import Expected
from tilec.qualify.tolerance import F32, Tolerance


def floats(values: list[float], *, relative: float = 0.01, absolute: float = 0.1, whole: bool = True) -> Expected:
    bits = np.array(values, np.float32)
    return Expected("out", "f32", relative, absolute, whole, np.array([[0, bits.size]], np.uint64), bits)


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=20), st.data())
def test_the_first_element_beyond_its_tolerance_is_wrong(values: list[float], data: st.DataObject) -> None:
    expected = floats(values)
    found = np.array(values, np.float32)
    assert compared(expected, found, (len(values),)) is None
    position = data.draw(st.integers(0, len(values) - 1))
    limit = 0.01 * abs(float(found[position])) + 0.1
    found[position] += np.float32(0.9 * limit)
    assert compared(expected, found, (len(values),)) is None
    found[position:] = np.array(values, np.float32)[position:] + np.float32(3)
    wrong = compared(expected, found, (len(values),))
    assert wrong is not None
    assert wrong.index == (position,)
    assert wrong.count == len(values) - position


def test_infinities_and_nan_must_be_the_same() -> None:
    expected = floats([1.0, np.inf, -np.inf, np.nan])
    assert compared(expected, np.array([1, np.inf, -np.inf, np.nan], np.float32), (4,)) is None
    for position, value in ((0, np.nan), (0, np.inf), (1, 1.0), (1, -np.inf), (2, np.nan), (3, 1.0), (3, np.inf)):
        found = np.array([1, np.inf, -np.inf, np.nan], np.float32)
        found[position] = value
        wrong = compared(expected, found, (4,))
        assert wrong is not None
        assert wrong.index == (position,)


def test_integers_must_be_equal() -> None:
    expected = Expected("n", "i32", 0.0, 0.0, True, np.array([[0, 4]], np.uint64), np.array([1, 2, 3, 4], np.int32))
    assert compared(expected, np.array([1, 2, 3, 4], np.int32), (2, 2)) is None
    wrong = compared(expected, np.array([1, 2, 4, 4], np.int32), (2, 2))
    assert str(wrong) == "`n[1, 0]` is 4, not 3; 1 elements are wrong"


def test_an_element_that_no_launch_wrote_is_wrong_though_it_is_not_sampled() -> None:
    expected = floats([1.0, 2.0], whole=False)
    found = np.ones(10, np.float32)
    found[:2] = 1, 2
    assert compared(expected, found, (10,)) is None
    found[7] = np.nan
    wrong = compared(expected, found, (10,))
    assert wrong is not None
    assert wrong.index == (7,)


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3"])
def test_poison_is_nan_in_every_float(dtype: str) -> None:
    bits = stored(dtype, np.ones(3, np.float32))
    expected = Expected("out", dtype, 0.1, 0.1, False, np.array([[0, 1]], np.uint64), bits[:1])
    assert compared(expected, bits, (3,)) is None
    bits[2:].view(np.uint8)[...] = 0xFF
    wrong = compared(expected, bits, (3,))
    assert wrong is not None
    assert wrong.index == (2,)


def test_a_side_file_of_another_size_is_refused() -> None:
    with pytest.raises(NotComparable, match="expects element 3"):
        compared(floats([1.0, 2.0, 3.0, 4.0]), np.ones(3, np.float32), (3,))
    with pytest.raises(NotComparable, match="expects 4 elements"):
        compared(floats([1.0, 2.0, 3.0, 4.0]), np.ones(5, np.float32), (5,))


def test_repetitions_are_compared_bit_by_bit() -> None:
    first = np.array([0.0, np.nan, 1.0], np.float32)
    assert differs(first, first.copy()) is None
    again = first.copy()
    again[0] = -0.0
    assert differs(first, again) == 0


def test_a_tolerance_is_that_of_the_narrowest_float_on_the_way() -> None:
    ones = stored("bf16", np.ones(8, np.float32))
    plain = Tolerance(parse_function(samples.text("rms_norm")))
    assert plain.inner == F32
    assert plain.of("bf16", ones) == (2.0**-7, F32)
    assert plain.of("i32", np.ones(3, np.int32)) == (0.0, 0.0)
    attention = Tolerance(parse_function(samples.text("flash_attention")))
    assert attention.inner == 2.0**-7
    assert attention.of("f32", np.ones(8, np.float32)) == (2.0**-7, 2.0**-7)


def test_an_outlier_does_not_widen_the_tolerance_of_the_rest() -> None:
    values = np.ones(1000, np.float32)
    values[3] = 1e30
    _, absolute = Tolerance(parse_function(samples.text("rms_norm"))).of("f32", values)
    assert absolute <= 16 * F32
