"""`bitcast` keeps every bit: NumPy's views, all dtypes of a width, NaN and subnormals; machine code computes the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.words.kernels import One, refusal
from tilec.diagnostics.diagnostic import CompileError
from tilec.interpreter.dtypes import numpy_dtype
from tilec.ir.types import DTYPES
from tilec.target.targets import SM_90A

PAIRS = [
    (source.name, target.name)
    for source in DTYPES.values()
    for target in DTYPES.values()
    if source.bits == target.bits and source != target and source.kind != "b"
]
FLOATS = (("f32", (32,)),)
SPECIAL = {
    8: [0x00, 0x01, 0x7E, 0x7F, 0x80, 0xFE, 0xFF],
    16: [0x0000, 0x0001, 0x7C00, 0x7C01, 0x7F80, 0x7F81, 0x7FFF, 0x8000, 0xFFFF],
    32: [0x00000000, 0x00000001, 0x7F800000, 0x7F800001, 0x7FC00000, 0x80000000, 0xFFC12345, 0xFFFFFFFF],
    64: [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1],
}


def random_bits(width: int, count: int) -> np.ndarray:
    found = np.random.default_rng(width).integers(0, 1 << width, count, dtype=np.uint64)
    found[: len(SPECIAL[width])] = SPECIAL[width]
    return found.astype(f"u{width // 8}")


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_bit_is_kept(source: str, target: str) -> None:
    """NaN too: the kernel only loads and stores them, so no arithmetic chooses their bits."""
    width = DTYPES[source].bits
    bits = random_bits(width, 128)
    one = One(f"tl.bitcast(a, tl.{target})", target, (128,), ((source, (128,)),))
    given_ = bits.view(numpy_dtype(DTYPES[source]))
    unsigned = f"u{width // 8}"
    assert (one.interpreted(given_).view(unsigned) == bits).all()
    assert (one.emulated(SM_90A, given_).view(unsigned) == bits).all()


@pytest.mark.parametrize(("source", "target"), [("f32", "u32"), ("i16", "bf16"), ("f8e5m2", "u8"), ("u32", "i32")])
def test_every_architecture_computes_the_same(source: str, target: str) -> None:
    """Arithmetic on the bits: a sign that is cleared, and a conversion back."""
    width = DTYPES[source].bits
    one = One(f"tl.bitcast(tl.bitcast(a, tl.{target}), tl.{source})", source, (4, 32), ((source, (4, 32)),))
    one.agreed(random_bits(width, 128).view(numpy_dtype(DTYPES[source])))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False), min_size=32, max_size=32))
def test_the_exponent_of_a_float(numbers: list[float]) -> None:
    """What the word is for: fields of a float, checked with `frexp`."""
    a = np.array(numbers, np.float32)
    one = One("(tl.bitcast(a, tl.i32) >> 23) & 255", "i32", (32,), (("f32", (32,)),))
    found = one.interpreted(a)
    normal = np.isfinite(a) & (np.abs(a) >= 2.0**-126)
    assert (found[normal] == np.frexp(a[normal])[1] + 126).all()
    assert (found[np.isinf(a)] == 255).all() and (found[np.abs(a) < 2.0**-126] == 0).all()


def test_a_scalar_and_a_number_have_bits_too() -> None:
    one = One("a + tl.bitcast(1.0, tl.i32)", "i32", (32,), (("i32", (32,)),))
    assert (one.agreed(np.zeros(32, np.int32)) == 0x3F800000).all()


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("tl.bitcast(a, tl.i16)", "E0201: `bitcast` keeps the width: f32 has 32 bits, i16 has 16; take a dtype of 32 bits "
         "(i32, u32), or convert the value with `.astype(i16)`"),
        ("tl.bitcast(tl.i64(1), tl.f32)", "E0201: `bitcast` keeps the width: i64 has 64 bits, f32 has 32; take a dtype of "
         "64 bits (u64), or convert the value with `.astype(f32)`"),
        ("tl.bitcast(a > 0, tl.i8)", "E0201: `bitcast` takes numbers: bool as i8; convert it with `.astype(i32)` first"),
        ("tl.bitcast(a.astype(tl.i8), tl.boolean)", "E0201: `bitcast` takes numbers: i8 as bool; compare the bits: `x != 0`"),
    ],
)  # fmt: skip
def test_refusals(expression: str, message: str) -> None:
    assert refusal(One(expression, "i32", (32,), (("f32", (32,)),)).text) == message


def test_bits_as_an_index_may_be_any_number() -> None:
    """The prover's range of the bits of a float is that of the dtype, of an integer its own: an access by the former needs a
    mask."""
    with pytest.raises(CompileError) as caught:
        One("tl.gather(a_, tl.bitcast(a, tl.i32))", "f32", (32,), FLOATS).function()
    assert {d.code for d in caught.value.diagnostics} == {"E0306"}  # no launch is shown whose values were not computed
    assert One("tl.gather(a_, tl.bitcast(a, tl.i32) & 31)", "f32", (32,), FLOATS).function()
    assert One("tl.gather(a_, tl.bitcast(tl.bitcast(tl.arange(32), tl.u32), tl.i32))", "f32", (32,), FLOATS).function()
    with pytest.raises(CompileError):
        One("tl.gather(a_, tl.bitcast(tl.bitcast(tl.arange(32) - 1, tl.u32), tl.i32))", "f32", (32,), FLOATS).function()
