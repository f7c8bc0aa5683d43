"""exp2 by a polynomial: its error over all arguments, and the instructions that compute it, in the emulator."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.campaign import first
from tests.programs.machines import manifest
from tilec.atoms.exponentials import COEFFICIENTS
from tilec.codegen import to_ptx
from tilec.emulator import emulate
from tilec.interpreter import run
from tilec.ir.core import VerifyError
from tilec.ir.ops import EXP2_GROUP
from tilec.ir.text.parser import parse_function
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Role, Schedule
from tilec.target.targets import SM_90A, SM_100A, SM_120A, Target

COUNT = 2048
TEXT = """kernel @k(%x: in tensor<f32, [2048], align 256>, %out: out tensor<f32, [2048], align 256>) {{
  constants {{}}
  dims []
  strides []
  grid [1]
  warps 1
  %0 = constant {{value = 0}} : i32
  %1 = load %x, %0 {{pad = none, unsafe = none, vector = 16, whole = true}} : f32[2048]
  %2 = exp2_in_parts %1 {{kind = "fast_exp2", polynomial = {polynomial}}} : f32[2048]
  store %out, %2, %0 {{mask = false, unsafe = none, vector = 16, whole = true, streamed = false}}
}}
"""
BOUND = 2.0**-22.5
"""Relative error that the PTX ISA allows `ex2.approx`."""
EDGES = [
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.0**-24, -(2.0**-30), 1e-40, -1e-40, 127.0, 127.49999, 127.5, 127.99999,
    -125.5, -126.0, -0.50000006,
]  # fmt: skip


def by_steps(x: Any, coefficients: tuple[int, ...] = COEFFICIENTS) -> Any:
    """The polynomial of f32 in [0, 1], each step rounded to f32. A product is exact in f64, and a sum of it nearly so."""
    wide, bits = x.astype(np.float64), np.array(coefficients, np.uint32).view(np.float32).astype(np.float64)
    result = np.full(x.shape, bits[-1])
    for coefficient in (*bits[-2::-1], 1.0):
        result = (wide * result + coefficient).astype(np.float32).astype(np.float64)
    return result


def error(x: Any, coefficients: tuple[int, ...] = COEFFICIENTS) -> float:
    return float(np.abs(by_steps(x, coefficients) / np.exp2(x.astype(np.float64)) - 1).max())


def error_below_zero(x: Any) -> float:
    """Of arguments from -0.5 to 0, where x + 1 is rounded."""
    return float(np.abs(by_steps(x + np.float32(1)) / 2 / np.exp2(x.astype(np.float64)) - 1).max())


def fractions(part: int) -> Any:
    """A sixteenth of the multiples of 2^-24 from 0 to 1: what is left of each f32 of 0.5 or more, and of each below 0."""
    return (np.arange(part, 2**24 + 1, 16) * 2.0**-24).astype(np.float32)


@pytest.mark.parametrize("part", first(1, range(16)))
def test_the_error_at_every_fraction(part: int) -> None:
    """A fraction above 0.5 may have been rounded by 2^-25, which changes a power by ln 2 times that. So this is for all f32 of
    0.5 or more, and for all below 0."""
    x = fractions(part)
    assert error(x) < 2.0**-22.7 and error(x[x > 0.5]) + np.log(2) * 2.0**-25 < 2.0**-22.6 < BOUND


@pytest.mark.parametrize("exponent", first(2, [-2, -13, *range(-12, -2)]))
def test_the_error_of_small_arguments(exponent: int) -> None:
    """Of 0 or more and below 0.5, an argument is its own fraction: all f32 of one exponent, and their negatives. Those below
    2^-13 leave 1 + c1 x, rounded."""
    x = ((exponent + 127 << 23) + np.arange(2**23, dtype=np.uint32)).view(np.float32)
    assert error(x) < 2.0**-22.6 and error_below_zero(-x) < 2.0**-22.6


@pytest.mark.parametrize("index", range(5))
def test_a_wrong_coefficient_exceeds_the_bound(index: int) -> None:
    """Each coefficient matters: without its last 16 bits the error is larger than that of the instruction."""
    changed = tuple(bits & ~0xFFFF if k == index else bits for k, bits in enumerate(COEFFICIENTS))
    assert error(fractions(0), changed) > BOUND


@cache
def ptx(polynomial: int) -> tuple[str, Any]:
    function = parse_function(TEXT.format(polynomial=polynomial))
    lowered = lower(prepare(function, SM_100A, Schedule((Role("all", 1),))), SM_100A)
    return to_ptx(lowered.mlir, SM_100A), manifest(parse_function(TEXT.format(polynomial=polynomial)), lowered, SM_100A)


def emulated(x: Any, polynomial: int, text: str | None = None) -> Any:
    """Results of a launch, without faults."""
    found, kernel_manifest = ptx(polynomial)
    tensors = {"x": x.view(np.uint32), "out": np.zeros(COUNT, np.uint32)}
    report = emulate(text or found, kernel_manifest, tensors, {})
    assert report.clean, str(report.faults[0])
    return report.tensors["out"].view(np.float32)


def arguments(seed: int) -> Any:
    random = np.random.default_rng(seed)
    several = [random.uniform(-126, 0, 700), random.uniform(-2, 0, 700), random.uniform(0, 128, 300), EDGES]
    rest = random.standard_normal(COUNT - sum(map(len, several))) * 2.0 ** random.integers(-40, 3)
    return random.permutation(np.concatenate([*several, rest]).astype(np.float32))


@pytest.mark.parametrize(("polynomial", "seed"), [(EXP2_GROUP, 0), (4, 1), (EXP2_GROUP, 2), (6, 3)])
def test_threads_compute_it_within_the_bound(polynomial: int, seed: int) -> None:
    """And the interpreter, which knows one exp2 alone, agrees."""
    x = arguments(seed)
    found = emulated(x, polynomial).astype(np.float64)
    exact = np.exp2(x.astype(np.float64))
    assert (np.abs(found / exact - 1) <= BOUND).all()
    tensors = {"x": x, "out": np.zeros(COUNT, np.float32)}
    run(parse_function(TEXT.format(polynomial=polynomial)), tensors, {})
    assert (np.abs(found / tensors["out"] - 1) <= BOUND + 2.0**-24).all()


def test_the_instructions_compute_the_steps() -> None:
    """Bit for bit, where the integer part is 0."""
    x = np.random.default_rng(4).uniform(0, 1, COUNT).astype(np.float32)
    assert np.array_equal(emulated(x, EXP2_GROUP), by_steps(x).astype(np.float32))


SPECIAL = [
    (-np.inf, 0.0), (-1e30, 0.0), (-128.0, 0.0), (-127.0, 0.0), (-126.6, 0.0), (np.inf, np.inf), (1e30, np.inf),
    (128.0, np.inf), (np.nan, np.nan),
]  # fmt: skip
"""Arguments and results."""


def special(polynomial: int, text: str | None = None) -> bool:
    """Whether results of all special arguments are right."""
    given, expected = (np.resize(np.array(column, np.float32), COUNT) for column in zip(*SPECIAL, strict=True))
    return bool(np.array_equal(emulated(given, polynomial, text), expected, equal_nan=True))


def test_infinities_and_nan() -> None:
    assert special(EXP2_GROUP) and special(4)


@pytest.mark.parametrize(
    ("found", "instead"),
    [
        ("max.NaN.f32", "max.f32"), ("0f43000000", "0f43800000"), ("0fC2FE0000", "0fC3800000"),
        ("0x4B40007F4B40007F", "0x4B4000804B40007F"), ("shl.b32 b, b, 23", "shl.b32 b, b, 22"),
        ("sub.rn.f32x2 f, x, f", "sub.rn.f32x2 f, f, x"), ("add.rm.f32x2", "add.rn.f32x2"),
    ],
)  # fmt: skip
def test_planted_mistakes_change_results(found: str, instead: str) -> None:
    text = ptx(EXP2_GROUP)[0]
    assert found in text
    changed = text.replace(found, instead)
    x = arguments(0)
    with np.errstate(all="ignore"):
        differs = np.abs(emulated(x, EXP2_GROUP, changed).astype(np.float64) / np.exp2(x.astype(np.float64)) - 1) > BOUND
    assert differs.any() or not special(EXP2_GROUP, changed)


@pytest.mark.parametrize("target", [SM_90A, SM_120A])
def test_a_chip_without_pairs_is_refused(target: Target) -> None:
    function = parse_function(TEXT.format(polynomial=4))
    if target.computes_pairs:
        prepare(function, target, Schedule((Role("all", 1),)))
    else:
        with pytest.raises(VerifyError, match="does not compute on pairs of floats"):
            prepare(function, target, Schedule((Role("all", 1),)))
