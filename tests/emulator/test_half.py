"""f16 and bf16 arithmetic against exact fractions, conversions to narrow formats against tables, approximations against f64."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.emulator.tiny import evaluate

NUMPY: dict[str, Any] = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
EIGHT: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def patterns(count: int, seed: int) -> Any:
    """Random 16-bit patterns with all classes of values."""
    return np.random.default_rng(seed).integers(0, 1 << 16, count).astype(np.uint16)


def nearest(kind: str, exact: Fraction) -> int:
    """The bits of the value nearest to `exact`, ties to even, by search over all values."""
    table, values = _table(kind)
    at = int(np.searchsorted(values, float(exact)))
    around = range(max(0, at - 2), min(len(table), at + 3))
    best = min(around, key=lambda k: (abs(Fraction(float(values[k])) - exact), int(table[k]) & 1))
    top = Fraction(float(values[-1])) + (Fraction(float(values[-1])) - Fraction(float(values[-2]))) / 2
    if abs(exact) >= top:
        return {"f16": 0x7C00, "bf16": 0x7F80}[kind] | (0x8000 if exact < 0 else 0)
    return int(table[best])


def _table(kind: str) -> tuple[Any, Any]:
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        values = bits.view(NUMPY[kind]).astype(np.float64)
    keep = np.isfinite(values) & (bits != 0x8000)
    order = np.argsort(values[keep], kind="stable")
    return bits[keep][order], values[keep][order]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma"])
def test_narrow_arithmetic_rounds_once(kind: str, name: str) -> None:
    a, b, c = (patterns(300, seed) for seed in range(3))
    operands = [(kind, a), (kind, b), *([(kind, c)] if name == "fma" else [])]
    text = f"{name}.rn.{kind} {{d}}, {{a}}, {{b}}{', {c}' if name == 'fma' else ''};"
    actual = evaluate(text, kind, operands)
    with np.errstate(invalid="ignore"):
        wide = [x.view(NUMPY[kind]).astype(np.float64) for x in (a, b, c)]
    tested = 0
    for k in range(len(a)):
        x, y, z = (float(w[k]) for w in wide)
        if not np.isfinite([x, y, z]).all():
            continue
        fx, fy, fz = Fraction(x), Fraction(y), Fraction(z)
        exact = {"add": fx + fy, "sub": fx - fy, "mul": fx * fy, "fma": fx * fy + fz}[name]
        if exact:
            result = nearest(kind, exact)
            assert int(actual[k]) & (0x7FFF if not result & 0x7FFF else 0xFFFF) == result, (x, y, z)
            tested += 1
    assert tested > 100


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_packed_is_two_at_once(kind: str) -> None:
    a, b = patterns(400, 5), patterns(400, 6)
    single = evaluate(f"mul.rn.{kind} {{d}}, {{a}}, {{b}};", kind, [(kind, a), (kind, b)])
    packed = evaluate(
        f"mul.rn.{kind}x2 {{d}}, {{a}}, {{b}};",
        f"{kind}x2",
        [(f"{kind}x2", a.view(np.uint32)), (f"{kind}x2", b.view(np.uint32))],
    )
    assert (packed.view(np.uint16) == single).all()


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_narrowing_takes_the_nearest(kind: str) -> None:
    random = np.random.default_rng(7)
    a = np.concatenate(
        [random.normal(size=500), random.normal(size=200) * 2.0**-20, [65519.9, 65520.0, -65520.0, 1e38, 3.4e38]]
    )
    a = a.astype(np.float32)
    actual = evaluate(f"cvt.rn.{kind}.f32 {{d}}, {{a}};", kind, [("f32", a)])
    with np.errstate(over="ignore"):
        assert (actual == a.astype(NUMPY[kind]).view(np.uint16)).all()
    both = evaluate(f"cvt.rn.{kind}x2.f32 {{d}}, {{a}}, {{b}};", f"{kind}x2", [("f32", a), ("f32", a[::-1].copy())])
    assert (both == (actual.astype(np.uint32) << 16 | actual[::-1])).all()
    back = evaluate(f"cvt.f32.{kind} {{d}}, {{a}};", "f32", [(kind, actual)])
    assert (back.view(np.float32) == actual.view(NUMPY[kind]).astype(np.float32)).all()


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
def test_eight_bit_floats(kind: str) -> None:
    codes = np.arange(256, dtype=np.uint16)
    wide = evaluate(f"cvt.rn.f16x2.{kind}x2 {{d}}, {{a}};", "f16x2", [("b16", codes)]).view(np.float16)[::2].astype(np.float64)
    table = codes.astype(np.uint8).view(EIGHT[kind]).astype(np.float64)
    assert np.array_equal(wide, table, equal_nan=True)
    top = float(np.nanmax(table[np.isfinite(table)]))
    a = np.random.default_rng(3).uniform(-1.5 * top, 1.5 * top, 600).astype(np.float32)
    a[::2] *= 2.0**-9
    actual = evaluate(f"cvt.rn.satfinite.{kind}x2.f32 {{d}}, {{a}}, {{a}};", "b16", [("f32", a)])
    expected = np.clip(a, -top, top).astype(EIGHT[kind]).view(np.uint8).astype(np.uint16)
    assert (actual == expected << 8 | expected).all()


BOUNDS: list[tuple[str, Any, float, float, float]] = [
    # instruction, function, operands from and to, relative error that the PTX ISA allows (absolute for sin, cos, lg2)
    ("rcp.approx.f32", lambda x: 1 / x, 2.0**-60, 2.0**60, 2.0**-23),
    ("sqrt.approx.f32", np.sqrt, 2.0**-60, 2.0**60, 2.0**-23),
    ("rsqrt.approx.f32", lambda x: 1 / np.sqrt(x), 2.0**-60, 2.0**60, 2.0**-22.9),
    ("ex2.approx.f32", np.exp2, -100, 100, 2.0**-22.5),
    ("tanh.approx.f32", np.tanh, -10, 10, 2.0**-10.9),
    ("sin.approx.f32", np.sin, -3.14, 3.14, 2.0**-20.5),
    ("cos.approx.f32", np.cos, -3.14, 3.14, 2.0**-20.5),
    ("lg2.approx.f32", np.log2, 0.5, 2.0, 2.0**-22),
]


@pytest.mark.parametrize(("name", "function", "low", "high", "bound"), BOUNDS, ids=[row[0] for row in BOUNDS])
def test_approximations_stay_within_the_stated_error(name: str, function: Any, low: float, high: float, bound: float) -> None:
    a = np.random.default_rng(1).uniform(low, high, 1000).astype(np.float32)
    actual = evaluate(f"{name} {{d}}, {{a}};", "f32", [("f32", a)]).view(np.float32).astype(np.float64)
    exact = function(a.astype(np.float64))
    scale = 1.0 if name[:3] in ("sin", "cos", "lg2") else np.abs(exact)
    assert (np.abs(actual - exact) <= bound * scale).all()


@pytest.mark.parametrize(
    ("name", "given", "result"),
    [
        ("ex2.approx.f32", -np.inf, 0.0), ("ex2.approx.f32", np.inf, np.inf), ("lg2.approx.f32", 0.0, -np.inf),
        ("lg2.approx.f32", -1.0, np.nan), ("rcp.approx.f32", 0.0, np.inf), ("rcp.approx.f32", -0.0, -np.inf),
        ("rsqrt.approx.f32", 0.0, np.inf), ("rsqrt.approx.f32", -1.0, np.nan), ("sqrt.approx.f32", -1.0, np.nan),
        ("tanh.approx.f32", np.inf, 1.0), ("sin.approx.f32", np.inf, np.nan), ("ex2.approx.f32", np.nan, np.nan),
    ],
)  # fmt: skip
def test_approximations_of_special_values(name: str, given: float, result: float) -> None:
    actual = evaluate(f"{name} {{d}}, {{a}};", "f32", [("f32", np.array([given], np.float32))]).view(np.float32)
    assert np.array_equal(actual, np.array([result], np.float32), equal_nan=True)
    assert np.isnan(result) or np.signbit(actual[0]) == np.signbit(result)


def test_f16_to_bf16_rounds_to_nearest_without_a_rounding_modifier() -> None:
    values = np.arange(1 << 16, dtype=np.uint16)
    wide = values.view(np.float16).astype(np.float32)
    plain, rounded = (evaluate(f"cvt{mode}.bf16.f16 {{d}}, {{a}};", "bf16", [("f16", values)]) for mode in ("", ".rn"))
    defined = ~np.isnan(wide)
    assert (plain == rounded).all()
    assert (plain[defined] == wide[defined].astype(ml_dtypes.bfloat16).view(np.uint16)).all()
