"""Float instructions against exact rational arithmetic rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.emulator.tiny import evaluate


def values(count: int, seed: int) -> np.ndarray:
    """f32 of every magnitude, including subnormals, and pairs that nearly cancel."""
    random = np.random.default_rng(seed)
    bits = random.integers(0, 1 << 32, count, dtype=np.uint32)
    found = bits.view(np.float32)
    small = random.normal(size=count).astype(np.float32) * np.float32(2) ** random.integers(-20, 20, count).astype(np.float32)
    return np.where(np.isfinite(found) & (random.random(count) < 0.4), found, small).astype(np.float32)


def rounded(exact: Fraction, mode: str) -> float:
    """The f32 that rounding `mode` gives for an exact value within range."""
    if exact == 0:
        return 0.0
    magnitude, exponent = abs(exact), 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    steps = exact / unit
    floor = steps.numerator // steps.denominator
    rest = steps - floor
    if mode == "rn":
        up = rest > Fraction(1, 2) or (rest == Fraction(1, 2) and floor % 2 == 1)
    else:
        up = rest > 0 and (mode == "rp" or (mode == "rz" and exact < 0))
    return float((floor + up) * unit)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("opcode", ["add", "sub", "mul", "fma"])
def test_rounds_once(opcode: str, mode: str) -> None:
    a, b, c = values(1500, 1), values(1500, 2), values(1500, 3)
    with np.errstate(over="ignore"):
        c[::3] = -(a[::3].astype(np.float64) * b[::3]).astype(np.float32)  # cancellation, where a double rounding would show
    operands = [("f32", a), ("f32", b), *([("f32", c)] if opcode == "fma" else [])]
    text = f"{opcode}.{mode}.f32 {{d}}, {{a}}, {{b}}{', {c}' if opcode == 'fma' else ''};"
    actual = evaluate(text, "f32", operands).view(np.float32)
    tested = 0
    for k in range(len(a)):
        terms = [float(x[1][k]) for x in operands]
        if not np.isfinite(terms).all():
            continue
        x, y = Fraction(terms[0]), Fraction(terms[1])
        exact = {"add": x + y, "sub": x - y, "mul": x * y}.get(opcode, x * y + Fraction(terms[-1]))
        if abs(exact) >= Fraction(2) ** 127:
            continue
        tested += 1
        assert float(actual[k]) == rounded(exact, mode), terms
    assert tested > 900


def test_a_fused_multiply_add_that_two_roundings_get_wrong() -> None:
    a, b, c = (np.array([x], np.float32) for x in (1 + 2.0**-12, 1 + 2.0**-12, 2.0**-60))
    actual = evaluate("fma.rn.f32 {d}, {a}, {b}, {c};", "f32", [("f32", a), ("f32", b), ("f32", c)]).view(np.float32)
    assert (
        actual[0]
        == np.float32(rounded(Fraction(float(a[0])) ** 2 + Fraction(float(c[0])), "rn"))
        == np.float32(1 + 2.0**-11 + 2.0**-23)
    )


@pytest.mark.parametrize("opcode", ["min", "max"])
def test_extrema_of_nan_and_zeros(opcode: str) -> None:
    a = np.array([np.nan, 1.0, -0.0, 0.0, np.nan], np.float32)
    b = np.array([2.0, np.nan, 0.0, -0.0, np.nan], np.float32)
    actual = evaluate(f"{opcode}.f32 {{d}}, {{a}}, {{b}};", "f32", [("f32", a), ("f32", b)])
    zero = 0x80000000 if opcode == "min" else 0
    assert actual.tolist() == [0x40000000, 0x3F800000, zero, zero, 0x7FFFFFFF] or np.isnan(actual.view(np.float32)[4])
    assert actual.tolist()[:4] == [0x40000000, 0x3F800000, zero, zero]


@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_float_to_integer_saturates(to: str) -> None:
    a = np.concatenate(
        [values(400, 4), np.array([np.inf, -np.inf, np.nan, 0.5, -0.5, 1e30, -1e30, 2.0**31, 2.0**63], np.float32)]
    )
    bits, wide = int(to[1:]), max(16, int(to[1:]))
    actual = evaluate(f"cvt.rzi.{to}.f32 {{d}}, {{a}};", f"b{wide}", [("f32", a)])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    for x, found in zip(a.tolist(), actual.tolist(), strict=True):
        if np.isnan(x):
            assert found == (1 << 63 if bits == 64 else 0)
            continue
        whole = high if x == np.inf else low if x == -np.inf else min(max(int(x), low), high)
        assert found == whole & ((1 << wide) - 1), x
