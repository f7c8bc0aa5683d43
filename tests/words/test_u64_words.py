"""Every word on numbers of u64, of which half have the highest bit: the interpreter computes Python's integers modulo 2^64, and
machine code the same on every architecture."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.words.kernels import One
from tilec.diagnostics.diagnostic import CompileError

EDGES = [
    0,
    1,
    2,
    7,
    63,
    64,
    2**31,
    2**32 - 1,
    2**32,
    2**53 + 1,
    2**63 - 1,
    2**63,
    2**63 + 1,
    2**64 - 2**40,
    2**64 - 2,
    2**64 - 1,
]
PAIRS = [list(side) for side in zip(*itertools.product(EDGES, repeat=2), strict=True)]
MASK = 2**64 - 1


def array(values: list[int]) -> Any:
    return np.array(values, np.uint64)


def numbers(count: int, seed: int = 0) -> list[int]:
    """Edges first, then any."""
    drawn = np.random.default_rng(seed).integers(0, MASK, count, np.uint64, endpoint=True)
    return [*EDGES, *map(int, drawn)][:count]


@pytest.mark.parametrize(
    ("expression", "meaning"),
    [
        ("a + b", lambda a, b: a + b), ("a - b", lambda a, b: a - b), ("a * b", lambda a, b: a * b),
        ("a // b", lambda a, b: a // b if b else 0), ("a % b", lambda a, b: a % b if b else 0),
        ("tl.mulhi(a, b)", lambda a, b: a * b >> 64), ("a << b", lambda a, b: a << b if b < 64 else 0),
        ("a >> b", lambda a, b: a >> b if b < 64 else 0), ("(a & b) ^ ~(a | b)", lambda a, b: (a & b) ^ ~(a | b)),
        ("tl.where(a < b, a, 1) + tl.where(a >= b, b, 18446744073709551615)",
         lambda a, b: (a if a < b else 1) + (b if a >= b else MASK)),
        ("tl.minimum(a, b) - tl.maximum(a, 2 * b)", lambda a, b: min(a, b) - max(a, 2 * b & MASK)),
        ("tl.clamp(a, 2**63, 2**64 - 2) + abs(b) + (-b) + tl.cdiv(b, 3)",
         lambda a, _b: min(max(a, 2**63), 2**64 - 2) + -(-_b // 3)),
    ],
)  # fmt: skip
def test_arithmetic(expression: str, meaning: Any) -> None:
    one = One(expression, "u64", (256,), (("u64", (256,)), ("u64", (256,))))
    found = one.agreed(*map(array, PAIRS))
    assert found.tolist() == [meaning(a, b) & MASK for a, b in zip(*PAIRS, strict=True)]


def test_literals_are_whole_and_others_are_refused() -> None:
    one = One("a + 18446744073709551615 - 9223372036854775808 + tl.u64(2**63 + 5)", "u64", (16,), (("u64", (16,)),))
    assert one.agreed(array(EDGES)).tolist() == [(n - 1 + 5) & MASK for n in EDGES]
    for wrong in ("a + 18446744073709551616", "a - -1", "tl.full((16,), 2**64, tl.u64)"):
        with pytest.raises(CompileError, match=r"E0205.*does not fit u64"):
            One(wrong, "u64", (16,), (("u64", (16,)),)).function()


@pytest.mark.parametrize("target", ["i8", "i16", "i32", "i64", "u8", "u16", "u32", "boolean"])
def test_conversions_keep_the_low_bits(target: str) -> None:
    of_bool = target == "boolean"
    one = One(f"a.astype(tl.{target}).astype(tl.u64)", "u64", (16,), (("u64", (16,)),))
    bits = 64 if of_bool else int(target[1:])
    low = [n & ((1 << bits) - 1) for n in EDGES]
    signed = [n - (1 << bits) if target[0] == "i" and n >> (bits - 1) else n for n in low]
    assert one.agreed(array(EDGES)).tolist() == ([int(n != 0) for n in EDGES] if of_bool else [n & MASK for n in signed])


def test_floats_saturate_at_both_ends() -> None:
    floats = [
        0.0,
        -0.0,
        0.99,
        1.5,
        -0.5,
        -3.0,
        2.0**31,
        2.0**63,
        2.0**64 - 2.0**40,
        2.0**64,
        3e38,
        math.inf,
        -math.inf,
        math.nan,
    ]
    floats += [2.0**62 + 2.0**39, 16777217.0]
    one = One("a.astype(tl.u64)", "u64", (16,), (("f32", (16,)),))
    exact = [0 if math.isnan(x) else min(max(x, 0), 2.0**65) for x in np.array(floats, np.float32).tolist()]
    assert one.agreed(np.array(floats, np.float32)).tolist() == [min(int(x), MASK) for x in exact]


@pytest.mark.parametrize("target", ["f32", "f16", "bf16"])
def test_floats_of_integers_are_the_nearest(target: str) -> None:
    """Once to f32, ties to even: 2^64 - 1 is 2^64, not -1."""
    values = [*EDGES, 2**63 + 2**39, 2**63 + 2**39 + 1, 2**64 - 2**39, 2**64 - 2**39 - 1, *numbers(44, 1)]
    found = One(f"a.astype(tl.{target}).astype(tl.f32)", "f32", (64,), (("u64", (64,)),)).agreed(array(values))
    singles = [_single(n) for n in values]
    if target == "f32":
        assert found.tolist() == singles
    assert (found >= 0).all()
    limit = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}[target]
    inside = [(x, y) for x, y in zip(found.tolist(), singles, strict=True) if math.isfinite(x)]
    assert len(inside) > 5 and all(abs(x - y) <= limit * y for x, y in inside)


def _single(number: int) -> float:
    """The nearest f32, ties to even."""
    step = 1 << max(number.bit_length() - 24, 0)
    rest = number % step
    up = 2 * rest > step or (2 * rest == step and (number // step) % 2 == 1)
    return float((number // step + up) * step)


def test_bits_of_both_signs() -> None:
    one = One("tl.bitcast(tl.bitcast(a, tl.i64) >> 60, tl.u64)", "u64", (16,), (("u64", (16,)),))
    assert one.agreed(array(EDGES)).tolist() == [((n - 2**64 if n >> 63 else n) >> 60) & MASK for n in EDGES]


@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin"])
def test_reductions(kind: str) -> None:
    values = numbers(128, 2)
    result = "i32" if kind.startswith("arg") else "u64"
    found = One(f"tl.{kind}(a, axis=1)", result, (4,), (("u64", (4, 32)),)).agreed(array(values))
    rows = [values[row * 32 : row * 32 + 32] for row in range(4)]
    expected = {"sum": lambda r: sum(r) & MASK, "max": max, "min": min, "argmax": lambda r: r.index(max(r)),
                "argmin": lambda r: r.index(min(r))}[kind]  # fmt: skip
    assert found.tolist() == [expected(row) for row in rows]


@pytest.mark.parametrize(
    ("word", "combine"),
    [("cumsum", lambda a, b: a + b & MASK), ("cumprod", lambda a, b: a * b & MASK), ("cummax", max), ("cummin", min)],
)
def test_scans(word: str, combine: Any) -> None:
    values = [n | 1 for n in numbers(64, 3)[::-1]]
    found = One(f"tl.{word}(a, 0)", "u64", (64,), (("u64", (64,)),)).agreed(array(values))
    assert found.tolist() == list(itertools.accumulate(values, combine))


def test_order_is_of_numbers_without_a_sign() -> None:
    values = numbers(64, 4)[::-1]
    order = sorted(range(64), key=values.__getitem__)
    inputs = (("u64", (64,)),)
    assert One("tl.sort(a, 0)", "u64", (64,), inputs).agreed(array(values)).tolist() == sorted(values)
    assert One("tl.argsort(a, 0)", "i32", (64,), inputs).agreed(array(values)).tolist() == order
    largest = sorted(values, reverse=True)[:8]
    assert One("tl.topk(a, 8, 0)[0]", "u64", (8,), inputs).agreed(array(values)).tolist() == largest
    assert One("tl.topk(a, 8, 0)[1]", "i32", (8,), inputs).agreed(array(values)).tolist() == [*map(values.index, largest)]


def test_moves_keep_every_bit() -> None:
    values, inputs = numbers(32, 5), (("u64", (32,)),)
    joined = One("tl.join(a, ~a).reshape((64,))", "u64", (64,), inputs).agreed(array(values))
    assert joined.tolist() == [n for value in values for n in (value, value ^ MASK)]
    halves = One("tl.split(a.reshape((16, 2)))[1]", "u64", (16,), inputs).agreed(array(values))
    assert halves.tolist() == values[1::2]
    taken = One("tl.take(a, tl.arange(32) ^ 5, 0)", "u64", (32,), inputs).agreed(array(values))
    assert taken.tolist() == [values[i ^ 5] for i in range(32)]
    assert One("tl.flip(a, 0)", "u64", (32,), inputs).agreed(array(values)).tolist() == values[::-1]


def test_an_index_of_u64_is_one_without_a_sign() -> None:
    """From 2^63 on it lies outside: padding replaces the element."""
    values = numbers(32, 6)
    one = One("tl.gather(b_, a, pad=7)", "i32", (32,), (("u64", (32,)), ("i32", (32,))))
    found = one.agreed(array(values), np.arange(100, 132, dtype=np.int32))
    assert found.tolist() == [100 + n if n < 32 else 7 for n in values]
