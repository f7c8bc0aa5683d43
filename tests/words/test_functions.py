"""The accurate functions: the same bits in the interpreter and in the PTX of every architecture, and within 2 units in the last
place of f64 and 80-bit references; `fast=True` asks for the chip's approximation.

`ci/bench/judges/function_errors.py` measures the errors over far more arguments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ci.bench.judges.function_errors import REFERENCES, SPECIAL, difference_in_units, exact_power
from tests.campaign import in_turn
from tests.words.kernels import One, refusal
from tilec.cost_model.demand import STEPS
from tilec.interpreter.dtypes import numpy_dtype
from tilec.interpreter.steps import ArrayArithmetic, fused
from tilec.ir import functions
from tilec.ir.functions import exponentials, logarithms, trigonometry
from tilec.ir.types import DTYPES
from tilec.target.targets import SM_90A

Array = NDArray[Any]
ALLOWED = 2.0
"""Units in the last place, as the words' docstrings promise."""
EVERY_BITS = st.integers(0, 2**32 - 1)


def computed(kind: str, x: Array) -> Array:
    with np.errstate(all="ignore"):
        return functions.unary(ArrayArithmetic(x.shape), kind, x)


def power(x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        return functions.power(ArrayArithmetic(x.shape), x, y)


def floats_of(bits: list[int]) -> Array:
    return np.array(bits, np.uint32).view(np.float32)


def dense(step: int = 40009) -> Array:
    """Every float whose bits differ by multiples of the step, and special numbers with their neighbors."""
    special = np.array(SPECIAL, np.float32)
    with np.errstate(all="ignore"):
        neighbors = [np.nextafter(special, np.float32(side)) for side in (-np.inf, np.inf)]
    every = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([special, *neighbors, every])


@pytest.mark.parametrize("kind", functions.UNARY)
def test_a_function_is_accurate_for_all_arguments(kind: str) -> None:
    x = dense()
    found = computed(kind, x)
    assert difference_in_units(found, REFERENCES[kind](x)).max() <= ALLOWED
    if kind in ("tanh", "sin", "cos", "sigmoid"):
        assert not (np.abs(found) > 1).any()
    if kind in ("exp", "exp2", "sigmoid"):
        assert not (found < 0).any()


@pytest.mark.parametrize("kind", functions.UNARY)
@given(bits=st.lists(EVERY_BITS, min_size=1, max_size=200))
@settings(max_examples=20, deadline=None)
def test_a_function_is_accurate_for_any_bits(kind: str, bits: list[int]) -> None:
    x = floats_of(bits)
    assert difference_in_units(computed(kind, x), REFERENCES[kind](x)).max() <= ALLOWED


@given(pairs=st.lists(st.tuples(EVERY_BITS, EVERY_BITS), min_size=1, max_size=200))
@settings(max_examples=40, deadline=None)
def test_a_power_is_accurate_for_any_bits(pairs: list[tuple[int, int]]) -> None:
    x, y = (floats_of(list(side)) for side in zip(*pairs, strict=True))
    assert difference_in_units(power(x, y), exact_power(x, y)).max() <= ALLOWED


def test_powers_within_the_range_of_f32_and_at_its_ends() -> None:
    random = np.random.default_rng(3)
    x = np.concatenate([np.exp(random.uniform(-88, 88, 40000)), 1 + random.uniform(-1e-3, 1e-3, 40000)]).astype(np.float32)
    with np.errstate(all="ignore"):
        y = (random.uniform(-150, 129, x.size) / np.log2(x.astype(np.float64))).astype(np.float32)
    finite = np.isfinite(y)
    assert difference_in_units(power(x[finite], y[finite]), exact_power(x[finite], y[finite])).max() <= ALLOWED
    special = np.array(SPECIAL, np.float32)
    x, y = (side.ravel() for side in np.meshgrid(special, special))
    assert difference_in_units(power(x, y), exact_power(x, y)).max() <= ALLOWED


@given(bits=st.lists(st.tuples(EVERY_BITS, EVERY_BITS, EVERY_BITS), min_size=1, max_size=50), near=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_fused_product_is_rounded_once(bits: list[tuple[int, int, int]], near: bool) -> None:
    """Against Python's fractions; `near`: an addend that cancels most of the product."""
    from fractions import Fraction

    for a, b, c in bits:
        x, y, z = floats_of([a, b, c])
        with np.errstate(all="ignore"):
            z = np.float32(-(x * y)) * np.float32(1 + (c & 1) * 2.0**-23) if near else z
            if not np.isfinite([x, y, z]).all():
                continue
            found = fused(*(np.array([side], np.float32) for side in (x, y, z)))[0]
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103:
            assert np.isinf(found)
            continue
        assert np.isfinite(found)
        error = abs(Fraction(float(found)) - exact)
        for side in (-np.inf, np.inf):
            neighbor = np.nextafter(found, np.float32(side))
            assert not np.isfinite(neighbor) or error <= abs(Fraction(float(neighbor)) - exact)


def arguments(count: int) -> Array:
    random = np.random.default_rng(count)
    special = np.array(SPECIAL, np.float32)
    anything = floats_of(random.integers(0, 1 << 32, (count - special.size) // 2, dtype=np.uint64).tolist())
    rest = random.uniform(-100, 100, count - special.size - anything.size).astype(np.float32)
    return np.concatenate([special, anything, rest])


@pytest.mark.parametrize("kind", functions.UNARY)
def test_every_architecture_has_the_bits_of_the_interpreter(kind: str) -> None:
    shape = (4, 128)
    One(f"tl.{kind}(a)", "f32", shape, (("f32", shape),)).agreed(arguments(512).reshape(shape), warps=4)


def test_every_architecture_has_the_bits_of_a_power() -> None:
    shape = (4, 128)
    x = arguments(512)
    y = np.random.default_rng(1).permutation(np.concatenate([np.array(SPECIAL, np.float32), np.linspace(-9, 9, 512)])[:512])
    one = One("a ** b", "f32", shape, (("f32", shape), ("f32", shape)))
    found = one.agreed(x.reshape(shape), y.astype(np.float32).reshape(shape), warps=4)
    word = One("tl.pow(a, b)", "f32", shape, (("f32", shape), ("f32", shape)))
    assert word.ptx(SM_90A)[0] == one.ptx(SM_90A)[0] and found.shape == shape


@pytest.mark.parametrize(("kind", "dtype"), in_turn((*functions.UNARY, "pow"), ("f16", "bf16")))
def test_narrower_floats_are_computed_in_f32(kind: str, dtype: str) -> None:
    random, narrow = np.random.default_rng(2), numpy_dtype(DTYPES[dtype])
    x = random.integers(0, 1 << 16, 256).astype(np.uint16).view(narrow)
    text = "tl.pow(a, a)" if kind == "pow" else f"tl.{kind}(a)"
    found = One(text, dtype, (256,), ((dtype, (256,)),)).agreed(x)
    wide = x.astype(np.float32)
    with np.errstate(all="ignore"):
        expected = (power(wide, wide) if kind == "pow" else computed(kind, wide)).astype(narrow)
    np.testing.assert_array_equal(found.astype(np.float32), expected.astype(np.float32))


FAST = {
    "exp": ("ex2.approx.ftz.f32", "mul.rn.f32"), "exp2": ("ex2.approx.ftz.f32",), "log": ("lg2.approx.f32", "mul.rn.f32"),
    "log2": ("lg2.approx.f32",), "sqrt": ("sqrt.approx.f32",), "rsqrt": ("rsqrt.approx.f32",), "tanh": ("tanh.approx.f32",),
    "sigmoid": ("mul.rn.f32", "ex2.approx.ftz.f32", "add.rn.f32", "rcp.approx.f32"), "sin": ("sin.approx.f32",),
    "cos": ("cos.approx.f32",),
}  # fmt: skip
"""Instructions of one element with `fast=True`."""
ELEMENTS = 8
"""Of a thread, of 64 f32."""


@pytest.mark.parametrize("kind", FAST)
@pytest.mark.parametrize("fast", [True, False])
def test_fast_asks_for_the_approximation(kind: str, fast: bool) -> None:
    one = One(f"tl.{kind}(a, fast={fast})", "f32", (64,), (("f32", (64,)),))
    text, _ = one.ptx(SM_90A)
    found = Counter(re.findall(r"^\s+((?:\w+\.approx|mul|add)[\w.]*\.f32)", text, re.M))
    one_element = {name: count / ELEMENTS for name, count in found.items()}
    assert (one_element == Counter(FAST[kind])) == fast
    if fast:
        x = np.linspace(0.1, 3, 64, dtype=np.float32)
        np.testing.assert_allclose(one.emulated(SM_90A, x), one.interpreted(x), rtol=2.0**-20)
    else:
        assert ".approx" not in text
        assert text == One(f"tl.{kind}(a)", "f32", (64,), (("f32", (64,)),)).ptx(SM_90A)[0]


def test_a_fast_power() -> None:
    one = One("tl.pow(a, b, fast=True)", "f32", (64,), (("f32", (64,)), ("f32", (64,))))
    text, _ = one.ptx(SM_90A)
    assert len(re.findall("approx", text)) == 2 * ELEMENTS
    x, y = np.linspace(0.1, 3, 64, dtype=np.float32), np.linspace(-3, 3, 64, dtype=np.float32)
    np.testing.assert_allclose(one.emulated(SM_90A, x, y), x.astype(np.float64) ** y, rtol=2.0**-19)


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.exp(a, fast=1)", "E0203: `fast` is `True` or `False`, found `1`; write `fast=True`"),
     ("tl.erf(a, fast=True)", "E0113: `fast` is not a parameter of `erf`"),
     ("tl.pow(a)", "E0113: `pow` needs an argument for `y`"),
     ("tl.pow(a, tl.arange(32))", "E0201: the operands have different dtypes: f32 and i32"),
     ("tl.pow(tl.arange(32), 2.5)", "E0204")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (32,), (("f32", (32,)),)).text).startswith(message)


PLANTED: dict[str, tuple[Any, str, Any]] = {
    "exp": (exponentials, "LN2_LOW", 0.0), "exp2": (exponentials, "EXP2", (0.2402, *exponentials.EXP2[1:])),
    "tanh": (exponentials, "TANH_SMALL", 0.05), "sigmoid": (exponentials, "EXP", (0.4999, *exponentials.EXP[1:])),
    "log": (logarithms, "LOG", logarithms.LOG[:-2]), "log2": (logarithms, "LOG2E_LOW", 2e-7),
    "sin": (trigonometry, "WORDS", (0, 0xA2F9836F, *trigonometry.WORDS[2:])),
    "cos": (trigonometry, "QUARTER", (*trigonometry.QUARTER[:2], 2e-13)),
}  # fmt: skip
"""A wrong constant in each."""


@pytest.mark.parametrize("kind", PLANTED)
def test_a_wrong_constant_exceeds_the_bound(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*PLANTED[kind])
    x = dense()
    assert difference_in_units(computed(kind, x), REFERENCES[kind](x)).max() > ALLOWED


class Counted:
    """Counts the operations of a function."""

    def __init__(self) -> None:
        self.count = Counter[str]()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def operation(*_: Any) -> int:
            if name not in ("number", "integer", "bits", "from_bits"):
                unit = "fma" if name in ("add", "sub", "mul", "fma") else "division" if name in ("div", "sqrt") else "alu"
                self.count[unit] += 1
            return 0

        def branch(_: Any, then: Callable[[], Any], __: Any) -> Any:
            return then()

        return branch if name == "branch" else operation


def test_the_model_of_time_has_the_steps() -> None:
    counts: dict[str, tuple[int, int, int]] = {}
    for kind in (*functions.UNARY, "pow"):
        counted = Counted()
        on: Any = counted
        _ = functions.power(on, 0, 0) if kind == "pow" else functions.unary(on, kind, 0)
        counts[kind] = (counted.count["fma"], counted.count["alu"], counted.count["division"])
    assert counts == STEPS
