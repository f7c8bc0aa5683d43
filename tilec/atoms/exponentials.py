"""exp2 of two floats by additions and multiplications of pairs (PTX ISA, `add`, `sub`, `mul` and `fma` of `.f32x2`: compute
capability 10.0 and later), for code that would wait for the special-function unit.

With n = floor(x), and f = x - n: 2^x = p(f) * 2^n. `SHIFT` is so large that x + SHIFT is an integer, rounded down, and its
lowest nine bits are n + 127, the exponent of 2^n. Before, x is held between -127 and 128, where these bits give 0 and infinity.
`max.NaN` and `min.NaN` keep a NaN, and a product keeps it too. The nearest integer instead of the floor would be 128 for x from
127.5 on, and 2^128 is infinite.

`COEFFICIENTS` minimize the largest relative error of p(f) = 1 + c1 f + ... + c5 f^5 for 0 <= f <= 1 by the algorithm of Remez
in f64. That error is 2^-23.5. Random changes of a few units in the last place then lowered the error with each step rounded to
f32, and with that of f for x from -0.5 to 0, where x + 1 is rounded, from 2^-22.52 to 2^-22.61 over all f32. The PTX ISA allows
`ex2.approx` 2^-22.5. One coefficient less leaves 2^-18.4.
"""

from __future__ import annotations

from typing import Final

from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32

COEFFICIENTS: Final = (0x3F31725D, 0x3E75EDAD, 0x3D648EBF, 0x3C13B9CB, 0x3AF4C3A7)
"""c1 to c5, as bits of f32."""
SHIFT: Final = 0x4B40007F
"""Bits of 1.5 * 2^23 + 127: floats of that size are integers."""
ONE: Final = 0x3F800000
LEAST: Final = 0xC2FE0000
"""Bits of -127."""
MOST: Final = 0x43000000
"""Bits of 128."""


def exp2_of_pair(out: Builder, low: SsaValue, high: SsaValue) -> list[SsaValue]:
    """2^low and 2^high (f32). Relative error at most 2^-22.6 from 2^-126 up to where f32 ends; below it is 0, of 128
    or more infinity, and of NaN NaN."""
    *following, last = COEFFICIENTS
    steps = [f"mov.b64 k, {_both(bits)}; fma.rn.f32x2 p, p, f, k;" for bits in (*following[::-1], ONE)]
    text = " ".join(
        [
            "{ .reg .b32 a, b; .reg .b64 x, n, f, p, k;",
            f"max.NaN.f32 a, $2, 0f{LEAST:08X}; min.NaN.f32 a, a, 0f{MOST:08X};",
            f"max.NaN.f32 b, $3, 0f{LEAST:08X}; min.NaN.f32 b, b, 0f{MOST:08X};",
            f"mov.b64 x, {{a, b}}; mov.b64 k, {_both(SHIFT)};",
            "add.rm.f32x2 n, x, k; sub.rn.f32x2 f, n, k; sub.rn.f32x2 f, x, f;",
            f"mov.b64 p, {_both(last)};",
            *steps,
            "mov.b64 {a, b}, n; shl.b32 a, a, 23; shl.b32 b, b, 23; mov.b64 n, {a, b};",
            "mul.rn.f32x2 p, p, n; mov.b64 {$0, $1}, p; }",
        ]
    )
    return out.inline_ptx(text, "=f,=f,f,f", [low, high], [f32, f32])


def _both(bits: int) -> str:
    """A pair of equal floats, as a constant of 64 bits."""
    return f"0x{bits:08X}{bits:08X}"
