"""A running maximum that is kept until it has grown by 8: where it is, and where anything else depends on it."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from tests.tensor_attention import differs, emulated, made, source
from tilec.interpreter.arithmetic import PURE
from tilec.ir.core import Function, VerifyError
from tilec.ir.ops import KeptMaximum
from tilec.ir.ops.tmem_chain_ops import TmemScale
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_100A

OTHERS = {
    "the reference is used after the loop": ("binary %79, %76 {kind = \"div\"}", "binary %78, %76 {kind = \"div\"}"),
    "the reference begins elsewhere": ("%18 = constant {value = -inf}", "%18 = constant {value = 0x0.0p+0}"),
    "the sum is not scaled": ("binary %68, %69 {kind = \"add\"}", "binary %31, %69 {kind = \"add\"}"),
    "the factor is added to the sum": ("binary %31, %67 {kind = \"mul\"}", "binary %31, %67 {kind = \"add\"}"),
    "another reduction": ("reduce %65 {kind = \"sum\", axis = 1}", "reduce %65 {kind = \"max\", axis = 1}"),
    "the sum has other elements": ("reduce %65 {kind = \"sum\"", "reduce %61 {kind = \"sum\""),
    "no ratio": ("binary %77, %82 {kind = \"mul\"}", "binary %77, %82 {kind = \"add\"}"),
    "the sum's own reference": ("binary %79, %76 {kind = \"div\"}", "binary %76, %76 {kind = \"div\"}"),
    "the sum as a minuend": ("binary %79, %76 {kind = \"div\"}", "binary %79, %76 {kind = \"sub\"}"),
    "scores that depend on the sum": ("binary %56, %57 {kind = \"mul\"}", "binary %56, %31 {kind = \"mul\"}"),
    "scores that depend on the reference": ("binary %56, %57 {kind = \"mul\"}", "binary %56, %33 {kind = \"mul\"}"),
    "a reference below the largest": ("binary %56, %57 {kind = \"mul\"}", "binary %56, %57 {kind = \"sub\"}"),
    "the smallest of a row": ("reduce %55 {kind = \"max\", axis = 1}", "reduce %55 {kind = \"min\", axis = 1}"),
    "a factor of its own": ("%57 = broadcast %17 : f32[256]", "%57 = constant {value = 0x1.0p-1} : f32[256]"),
    "factors below zero": (
        """%57 = broadcast %17 : f32[256]
    %58 = binary %56, %57 {kind = "mul"} : f32[256]
    %59 = binary %33, %58 {kind = "max"} : f32[256]
    %60 = broadcast %17 : f32[256, 128]""",
        """%57 = constant {value = -0x1.0p-1} : f32[256]
    %58 = binary %56, %57 {kind = "mul"} : f32[256]
    %59 = binary %33, %58 {kind = "max"} : f32[256]
    %60 = constant {value = -0x1.0p-1} : f32[256, 128]""",
    ),
    "a minimum": ("binary %33, %58 {kind = \"max\"}", "binary %33, %58 {kind = \"min\"}"),
    "exp instead of exp2": ("unary %64 {kind = \"fast_exp2\"}", "unary %64 {kind = \"fast_exp\"}"),
    "a difference the other way": ("binary %61, %63 {kind = \"sub\"}", "binary %63, %61 {kind = \"sub\"}"),
}  # fmt: skip
"""Changes of the kernel's canonical text."""


@cache
def text() -> str:
    function = source("bf16", 256, 128)
    canonicalize(function)
    return print_function(function)


def prepared(changed: str) -> Function:
    function = parse_function(changed)
    return prepare(function, SM_100A, choose(function, SM_100A, Overrides(copy="tma", consumers=2)))


def kept(function: Function) -> list[float]:
    return [op.threshold for op in function.body.walk() if isinstance(op, KeptMaximum)]


def test_the_maximum_of_attention_is_kept() -> None:
    assert kept(prepared(text())) == [8.0]


def test_the_maximum_of_scores_times_a_positive_number_is_kept() -> None:
    found, instead = OTHERS["factors below zero"]
    assert kept(prepared(text().replace(found, instead.replace("-0x", "0x")))) == [8.0]


@pytest.mark.parametrize("name", OTHERS)
def test_a_maximum_that_anything_else_depends_on_is_replaced(name: str) -> None:
    """In a loop that is an attention in tensor memory otherwise."""
    found, instead = OTHERS[name]
    assert text().count(found) == 1
    function = prepared(text().replace(found, instead))
    assert any(isinstance(op, TmemScale) for op in function.body.walk()) and not kept(function)


KEPT = r"(kept_maximum %(\d+), %(\d+) .*\n(?:.*\n)*?"
MISTAKES = {
    "another reference of the matrix": (KEPT + r".*reshape )%\d+", r"\1%\3", "it is subtracted"),
    "another reference of the factor": (KEPT + r".*binary %\2, )%\d+", r"\1%\3", "it is subtracted"),
    "the difference is multiplied": (KEPT + r".*binary %\2, %\d+ {kind = )\"sub\"", r'\1"mul"', "it is subtracted"),
    "the matrix is added": (KEPT + r".*f32\[256, 128\].*\n.*{kind = )\"sub\"", r'\1"add"', "it is subtracted"),
    "another function": (KEPT + r'.*unary %\d+ {kind = )"fast_exp2"', r'\1"fast_exp"', "has exp2"),
    "not the carried one": (r"kept_maximum %(\d+), %(\d+)", r"kept_maximum %\2, %\1", "is not carried by its loop"),
    "the candidate is carried": (
        r"(%\d+) = kept_maximum %(\d+), (%\d+)((?:.*\n)*?      yield .*)\1\b", r"\1 = kept_maximum %\2, \3\4\3", "no further"
    ),
    "too large a threshold": (r"threshold = 0x1.0000000000000p\+3", "threshold = 0x1.2000000000000p+3", "may grow by 8.0"),
    "no threshold": (r"threshold = 0x1.0000000000000p\+3", "threshold = 0x0.0p+0", "may grow by 8.0"),
}  # fmt: skip
"""Changes of the prepared text: pattern, replacement, and the rule that they break."""


@pytest.mark.parametrize("name", MISTAKES)
def test_planted_mistakes_are_refused(name: str) -> None:
    pattern, instead, rule = MISTAKES[name]
    changed, count = re.subn(pattern, instead, print_function(prepared(text())))
    assert count == 1
    with pytest.raises(VerifyError, match=rule):
        verify(parse_function(changed), SM_100A)


def test_its_meaning() -> None:
    """The second operand where it is more than 8 above the first; -infinity is below all, and a NaN above none."""
    old = np.array([0, 0, 0, -np.inf, -np.inf, -np.inf, 5, 5], np.float32)
    new = np.array([8, 8.5, -3, -100, -np.inf, np.nan, np.inf, np.nan], np.float32)
    found = PURE[KeptMaximum](KeptMaximum(threshold=8.0), old, new)
    assert np.array_equal(found, np.array([0, 8.5, 0, -100, -np.inf, -np.inf, np.inf, 5], np.float32))
    old, new = np.zeros(6, np.float32), np.array([7, 7, 7, 7, 9, -1], np.float32)
    factor = np.array([1, 0, -1, np.nan, 1, -1], np.float32)
    found = PURE[KeptMaximum](KeptMaximum(threshold=8.0), old, new, factor)
    assert np.array_equal(found, np.array([0, 7, 7, 7, 9, 0], np.float32)), "any growth counts where it is not positive"


@pytest.mark.parametrize(("element", "lengths", "scale", "seed"), [
    ("bf16", (40, 100, 192, 1), 5.0, 0), ("f16", (257, 100, 384, 1), 20.0, 1), ("f16", (33, 222, 256, 1), 3.0, 2),
])  # fmt: skip
def test_growing_maxima_keep_the_bound(element: str, lengths: tuple[int, int, int, int], scale: float, seed: int) -> None:
    """Scores whose maximum grows by less than 8 in some iterations, and by more in others. The interpreter replaces each."""
    report, found, expected = emulated(made(element, 256, 64, target=SM_100A, consumers=2), lengths, seed, scale=scale)
    assert report.clean and not differs(found, expected)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_scores_times_a_number_below_zero(element: str) -> None:
    """The largest score of a tile has the smallest power: 2^-7 in the first, and 1 in the second, which has 2^12 too. With
    the first as the reference, which has grown by less than 8, that would be 2^19, which f16 does not have."""
    kernel = made(element, 256, 64, target=SM_100A, consumers=2)
    first, second = np.full(64, 7.0), np.where(np.arange(64) % 9 == 0, -12.0, 0.0)
    scores = np.concatenate([first, second]) * 128**0.5 * np.log(2)
    report, found, expected = emulated(kernel, (1, 127, 128, 64), 0, scale=-1.0, scores=scores)
    assert report.clean and np.isfinite(expected.astype(np.float32)).all() and not differs(found, expected)


def test_in_f16_the_factor_decides() -> None:
    """It is the third operand there, and in bf16, which has the range of f32, there is none."""
    function = source("f16", 256, 128)
    canonicalize(function)
    one = print_function(function)
    (kept_one,) = (op for op in prepared(one).body.walk() if isinstance(op, KeptMaximum))
    assert len(kept_one.operands) == 3
    (bf16_one,) = (op for op in prepared(text()).body.walk() if isinstance(op, KeptMaximum))
    assert len(bf16_one.operands) == 2


def test_a_threshold_that_f16_has_no_room_for_changes_results() -> None:
    kernel = made("f16", 256, 64, target=SM_100A, consumers=2)
    found = re.findall(r"add(?:\.rn)?\.f32 \t?%r\d+, %r\d+, 0f41000000;", kernel.ptx)
    assert len(found) == 1
    changed = kernel.ptx.replace(found[0], found[0].replace("0f41000000", "0f42480000"))
    report, result, expected = emulated(kernel, (40, 200, 256, 1), 0, changed, scale=20.0)
    assert report.clean and differs(result, expected)


@pytest.mark.parametrize(("deviation", "each", "large"), [(1.0, 0.67, 0.0), (3.0, 0.67, 0.05), (10.0, 0.67, 0.37)])
def test_how_often_warps_scale(deviation: float, each: float, large: float) -> None:
    """The share of warps and iterations in which some maximum of 32 rows grows at all, and in which a kept one is replaced: for
    normal scores of 8192 keys in tiles of 128 (docs/decisions.md)."""
    random, rows, tiles = np.random.default_rng(0), 4096, 64
    scores = (random.standard_normal((rows, 128)).max(1) * deviation * np.log2(np.e) for _ in range(tiles))
    plain = kept_one = next(scores).astype(np.float32)
    changes = np.zeros(2)
    for new in scores:
        higher = np.maximum(plain, new.astype(np.float32))
        following = PURE[KeptMaximum](KeptMaximum(threshold=8.0), kept_one, higher)
        pairs = (higher != plain, following != kept_one)
        changes += [changed.reshape(-1, 32).any(1).mean() / (tiles - 1) for changed in pairs]
        plain, kept_one = higher, following
    assert np.round(changes, 2).tolist() == [each, large]
