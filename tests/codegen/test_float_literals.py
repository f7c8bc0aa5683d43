"""Every float constant survives the trip through MLIR, LLVM IR and PTX bit by bit."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tilec.codegen.float_literals import older_spelling


def rewritten_bits(constant: str, kind: str) -> int:
    """Bits of the constant after rewriting, as the older parser reads it."""
    line = older_spelling(f"  %2 = fmul {kind} %1, {constant}")
    text = line.rsplit(" ", 1)[1]
    digits = int(text.removeprefix("0xH").removeprefix("0xR").removeprefix("0x"), 16)
    if kind != "float":
        return digits
    (wide,) = struct.unpack("<d", struct.pack("<Q", digits))
    return int.from_bytes(struct.pack("<f", wide), "little")


@settings(max_examples=300, deadline=None)
@given(bits=st.integers(0, 0x7F7FFFFF))
@example(bits=0x39CCCCCD)  # 1 / 2560, printed as 3.906250e-04
def test_a_decimal_is_rounded_to_float(bits: int) -> None:
    (value,) = struct.unpack("<f", struct.pack("<I", bits))
    for sign in ("", "-"):
        assert rewritten_bits(f"{sign}{value:.9e}", "float") == bits | (0x80000000 if sign else 0)


@pytest.mark.parametrize(
    ("constant", "kind", "bits"),
    [
        ("3.906250e-04", "float", 0x39CCCCCD),
        ("1.000000e-01", "half", 0x2E66),
        ("1.000980e-01", "bfloat", 0x3DCD),
        ("f0x3F8000FF", "float", 0x3F8000FF),
        ("-inf", "float", 0xFF800000),
        ("+inf", "half", 0x7C00),
        ("+qnan", "bfloat", 0x7FC0),
    ],
)
def test_spellings(constant: str, kind: str, bits: int) -> None:
    assert rewritten_bits(constant, kind) == bits


def test_constants_next_to_inline_ptx() -> None:
    line = '  %1 = call i32 asm "cvt.rzi.s32.f32 $0, $1; // 1.0e+00", "=r,f"(float +inf)'
    assert older_spelling(line) == line.replace("+inf", "0x7FF0000000000000")


def test_a_constant_has_the_type_named_last_before_it() -> None:
    line = "  %1 = call { float, half } @f(float -inf, half +inf, bfloat 1.0e+00)"
    expected = "  %1 = call { float, half } @f(float 0xFFF0000000000000, half 0xH7C00, bfloat 0xR3F80)"
    assert older_spelling(line) == expected


def test_other_text_is_unchanged() -> None:
    for line in (
        '@"1.0e+00" = external global i32',
        "  %e.1 = add i32 %e, 3",
        '  call float asm "ex2.approx.f32 $0, 1.5e+00;"',
    ):
        assert older_spelling(line) == line
