"""`mulhi` is the upper half of the exact product: Python's integers, all dtypes, edges; machine code computes the same."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import ARCHITECTURES, One, refusal
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.facts.range_facts import Range, arithmetic
from tilec.ir.types import DTYPES

INTEGERS = [dtype for dtype in DTYPES.values() if dtype.is_integer]
NAMES = [dtype.name for dtype in INTEGERS]


def numbers(name: str, count: int) -> list[int]:
    """Edges of the dtype, and random numbers of every length."""
    low, high = DTYPES[name].integer_range()
    r = np.random.default_rng(len(name))
    edges = [low, low + 1, high, high - 1, 0, 1, 2, high // 2, low // 2 + 1, *([-1, -2] if low else [])]
    spread = [int(n) for n in r.integers(low, high, count - len(edges), dtype=DTYPES[name].numpy, endpoint=True)]
    return [*edges, *(n >> int(r.integers(0, DTYPES[name].bits)) for n in spread)]


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_computes_the_upper_half(name: str) -> None:
    """All pairs of 16 numbers, on every architecture."""
    pairs = list(itertools.product(numbers(name, 16), repeat=2))
    a, b = (np.array(side, DTYPES[name].numpy) for side in zip(*pairs, strict=True))
    found = One("tl.mulhi(a, b)", name, (256,), ((name, (256,)), (name, (256,)))).agreed(a, b)
    assert [int(x) for x in found] == [x * y >> DTYPES[name].bits for x, y in pairs]


@settings(max_examples=25, deadline=None)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_both_halves_are_the_product(data: st.DataObject, name: str) -> None:
    low, high = DTYPES[name].integer_range()
    values = st.lists(st.integers(low, high), min_size=32, max_size=32)
    a, b = data.draw(values), data.draw(values)
    one = One("tl.mulhi(a, b)", name, (32,), ((name, (32,)), (name, (32,))))
    upper = one.interpreted(np.array(a, DTYPES[name].numpy), np.array(b, DTYPES[name].numpy))
    bits = DTYPES[name].bits
    assert all((int(h) << bits) + (x * y & ((1 << bits) - 1)) == x * y for h, x, y in zip(upper, a, b, strict=True))


@pytest.mark.parametrize("target", ARCHITECTURES, ids=str)
def test_one_instruction_for_32_and_64_bits(target: Any) -> None:
    for name, instruction in (("i32", "mul.hi.s32"), ("u32", "mul.hi.u32"), ("i64", "mul.hi.s64"), ("u64", "mul.hi.u64")):
        text, _ = One("tl.mulhi(a, b)", name, (64,), ((name, (64,)), (name, (64,)))).ptx(target)
        assert text.count(instruction) == text.count("mul.hi") > 0


def test_a_product_of_random_bits_chooses_an_element() -> None:
    """The use of the word: a random number scaled to an extent is an index that is proven to be inside."""
    choice = "tl.gather(b_, tl.bitcast(tl.mulhi(a, 32), tl.i32))"
    one = One(choice, "f32", (32,), (("u32", (32,)), ("f32", (32,))))
    a, b = np.random.default_rng(0).integers(0, 2**32, 32).astype(np.uint32), np.arange(32, dtype=np.float32)
    assert (one.agreed(a, b) == a.astype(np.uint64) * 32 >> 32).all()
    with pytest.raises(CompileError) as caught:
        One(choice.replace("32), tl.i32", "33), tl.i32"), "f32", (32,), one.inputs).function()
    assert {d.code[:3] for d in caught.value.diagnostics} == {"E03"}


def test_the_range_of_a_product_is_that_of_its_corners() -> None:
    assert arithmetic("mulhi", Range(0, 2**32 - 1), Range(10, 10, 0, 10), 32) == Range(0, 9)
    assert arithmetic("mulhi", Range(-(2**31), 2**31 - 1), Range(-(2**31), 2**31 - 1), 32) == Range(-(2**30), 2**30)


@pytest.mark.parametrize(
    ("expression", "message"),
    [("tl.mulhi(a, a)", "E0204: `mulhi` takes integers, not f32; multiply floats with `*`"),
     ("tl.mulhi(a > 0, a > 1)", "E0204: `mulhi` takes integers, not bool; use `&` for both"),
     ("tl.mulhi(a.astype(tl.i32), a.astype(tl.i64))", "E0201: the operands have different dtypes: i32 and i64; widen one side: "
      "`i64(...)` or `.astype(i64)`")],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "f32", (32,), (("f32", (32,)),)).text) == message
