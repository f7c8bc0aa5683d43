"""Corner cases of instructions, each with the result that the PTX ISA defines, computed by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.emulator.tiny import evaluate

NAN, INF = 0x7FC00000, 0x7F800000
CANONICAL = 0x7FFFFFFF
"""The NaN that f32 arithmetic returns (PTX ISA, 9.7.3: payloads are not kept; the result is the canonical NaN)."""


def f32(*values: float) -> list[int]:
    return np.array(values, np.float32).view(np.uint32).tolist()


def bf16(value: float) -> int:
    return int(np.float32(value).view(np.uint32)) >> 16


def f16(value: float) -> int:
    return int(np.float16(value).view(np.uint16))


ROWS: list[tuple[str, str, list[tuple[str, int]], int]] = [
    # shifts clamp at the width; the amount is a full u32
    ("shl.b32 {d}, {a}, {b};", "b32", [("b32", 1), ("u32", 32)], 0),
    ("shl.b32 {d}, {a}, {b};", "b32", [("b32", 1), ("u32", 0xFFFFFFFF)], 0),
    ("shl.b16 {d}, {a}, {b};", "b16", [("b16", 1), ("u32", 16)], 0),
    ("shl.b64 {d}, {a}, {b};", "b64", [("b64", 1), ("u32", 63)], 1 << 63),
    ("shr.u32 {d}, {a}, {b};", "b32", [("b32", 0x80000000), ("u32", 256)], 0),
    ("shr.s32 {d}, {a}, {b};", "b32", [("b32", 0x80000000), ("u32", 32)], 0xFFFFFFFF),
    ("shr.s32 {d}, {a}, {b};", "b32", [("b32", 0x40000000), ("u32", 0x80000000)], 0),
    ("shr.s16 {d}, {a}, {b};", "b16", [("b16", 0x8000), ("u32", 17)], 0xFFFF),
    ("shr.b64 {d}, {a}, {b};", "b64", [("b64", 1 << 63), ("u32", 64)], 0),
    ("shf.l.wrap.b32 {d}, {a}, {b}, {c};", "b32", [("b32", 0x80000001), ("b32", 0x12345678), ("u32", 33)], 0x2468ACF1),
    ("shf.r.clamp.b32 {d}, {a}, {b}, {c};", "b32", [("b32", 5), ("b32", 0x12345678), ("u32", 99)], 0x12345678),
    # bit fields: only the low 8 bits of position and length are used; past the end the sign is that of the highest bit
    ("bfe.u32 {d}, {a}, {b}, {c};", "b32", [("b32", 0xF0000000), ("u32", 28), ("u32", 8)], 0xF),
    ("bfe.s32 {d}, {a}, {b}, {c};", "b32", [("b32", 0x80000000), ("u32", 28), ("u32", 8)], 0xFFFFFFF8),
    ("bfe.s32 {d}, {a}, {b}, {c};", "b32", [("b32", 0x80000000), ("u32", 40), ("u32", 4)], 0xFFFFFFFF),
    ("bfe.s32 {d}, {a}, {b}, {c};", "b32", [("b32", 0xFFFFFFFF), ("u32", 4), ("u32", 0)], 0),
    ("bfe.u32 {d}, {a}, {b}, {c};", "b32", [("b32", 0xABCD), ("u32", 256), ("u32", 0x108)], 0xCD),
    ("bfe.s64 {d}, {a}, {b}, {c};", "b64", [("b64", 1 << 63), ("u32", 63), ("u32", 1)], (1 << 64) - 1),
    ("bfe.u32 {d}, {a}, {b}, {c};", "b32", [("b32", 0xFFFFFFFF), ("u32", 0), ("u32", 255)], 0xFFFFFFFF),
    ("bfi.b32 {d}, {a}, {b}, {c}, {e};", "b32", [("b32", 0xFF), ("b32", 0), ("u32", 28), ("u32", 8)], 0xF0000000),
    ("bfi.b32 {d}, {a}, {b}, {c}, {e};", "b32", [("b32", 0xFF), ("b32", 7), ("u32", 33), ("u32", 8)], 7),
    ("bfi.b32 {d}, {a}, {b}, {c}, {e};", "b32", [("b32", 0xFF), ("b32", 7), ("u32", 0), ("u32", 0x100)], 7),
    ("bfi.b64 {d}, {a}, {b}, {c}, {e};", "b64", [("b64", 1), ("b64", 0), ("u32", 63), ("u32", 64)], 1 << 63),
    # bytes
    ("prmt.b32 {d}, {a}, {b}, {c};", "b32", [("b32", 0x00008000), ("b32", 0), ("b32", 0x9999)], 0xFFFFFFFF),
    ("prmt.b32 {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0x77665544), ("b32", 0x7531)], 0x77553311),
    ("prmt.b32.f4e {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0x77665544), ("b32", 3)], 0x66554433),
    ("prmt.b32.b4e {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0x77665544), ("b32", 1)], 0x66770011),
    ("prmt.b32.rc8 {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0), ("b32", 6)], 0x22222222),
    ("prmt.b32.ecl {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0), ("b32", 2)], 0x33222222),
    ("prmt.b32.ecr {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0), ("b32", 1)], 0x11111100),
    ("prmt.b32.rc16 {d}, {a}, {b}, {c};", "b32", [("b32", 0x33221100), ("b32", 0), ("b32", 3)], 0x33223322),
    # integers
    ("div.s32 {d}, {a}, {b};", "b32", [("s32", 0xFFFFFFF9), ("s32", 2)], 0xFFFFFFFD),
    ("rem.s32 {d}, {a}, {b};", "b32", [("s32", 0xFFFFFFF9), ("s32", 2)], 0xFFFFFFFF),
    ("rem.s32 {d}, {a}, {b};", "b32", [("s32", 7), ("s32", 0xFFFFFFFE)], 1),
    ("mul.hi.s32 {d}, {a}, {b};", "b32", [("s32", 0x80000000), ("s32", 0x80000000)], 0x40000000),
    ("mul.hi.u64 {d}, {a}, {b};", "b64", [("u64", (1 << 64) - 1), ("u64", (1 << 64) - 1)], (1 << 64) - 2),
    ("mul.wide.s16 {d}, {a}, {b};", "b32", [("s16", 0x8000), ("s16", 0x8000)], 0x40000000),
    ("mad.wide.s32 {d}, {a}, {b}, {c};", "b64", [("s32", 0xFFFFFFFF), ("s32", 1), ("s64", 0)], (1 << 64) - 1),
    ("mad.wide.u32 {d}, {a}, {b}, {c};", "b64", [("u32", 0xFFFFFFFF), ("u32", 2), ("u64", 2)], 0x200000000),
    ("mad.hi.u32 {d}, {a}, {b}, {c};", "b32", [("u32", 0xFFFFFFFF), ("u32", 0xFFFFFFFF), ("u32", 3)], 1),
    ("sad.s32 {d}, {a}, {b}, {c};", "b32", [("s32", 0xFFFFFFFF), ("s32", 2), ("s32", 10)], 13),
    ("sad.u32 {d}, {a}, {b}, {c};", "b32", [("u32", 0xFFFFFFFF), ("u32", 2), ("u32", 10)], 7),
    ("abs.s32 {d}, {a};", "b32", [("s32", 0x80000000)], 0x80000000),
    ("neg.s16 {d}, {a};", "b16", [("s16", 0x8000)], 0x8000),
    ("add.sat.s32 {d}, {a}, {b};", "b32", [("s32", 0x7FFFFFFF), ("s32", 1)], 0x7FFFFFFF),
    ("sub.sat.s32 {d}, {a}, {b};", "b32", [("s32", 0x80000000), ("s32", 1)], 0x80000000),
    ("clz.b32 {d}, {a};", "u32", [("b32", 0)], 32),
    ("clz.b64 {d}, {a};", "u32", [("b64", 1)], 63),
    ("popc.b64 {d}, {a};", "u32", [("b64", (1 << 64) - 1)], 64),
    ("bfind.s32 {d}, {a};", "u32", [("s32", 0xFFFFFFFF)], 0xFFFFFFFF),
    ("bfind.s32 {d}, {a};", "u32", [("s32", 0x80000000)], 30),
    ("bfind.u32 {d}, {a};", "u32", [("u32", 0x80000000)], 31),
    ("bfind.shiftamt.u32 {d}, {a};", "u32", [("u32", 1)], 31),
    ("bfind.shiftamt.s64 {d}, {a};", "u32", [("s64", 0)], 0xFFFFFFFF),
    ("brev.b64 {d}, {a};", "b64", [("b64", 1)], 1 << 63),
    ("slct.s32.s32 {d}, {a}, {b}, {c};", "b32", [("s32", 5), ("s32", 6), ("s32", 0x80000000)], 6),
    ("slct.s32.f32 {d}, {a}, {b}, {c};", "b32", [("s32", 5), ("s32", 6), ("f32", 0x80000000)], 5),
    ("slct.s32.f32 {d}, {a}, {b}, {c};", "b32", [("s32", 5), ("s32", 6), ("f32", NAN)], 6),
    # float extrema
    ("min.f32 {d}, {a}, {b};", "b32", [("f32", NAN), ("f32", 0x3F800000)], 0x3F800000),
    ("max.f32 {d}, {a}, {b};", "b32", [("f32", 0x80000000), ("f32", 0)], 0),
    ("min.f32 {d}, {a}, {b};", "b32", [("f32", 0), ("f32", 0x80000000)], 0x80000000),
    ("max.NaN.f32 {d}, {a}, {b};", "b32", [("f32", 0x3F800000), ("f32", NAN)], CANONICAL),
    ("min.f32 {d}, {a}, {b};", "b32", [("f32", 0xFFC00001), ("f32", 0x7F800001)], CANONICAL),
    ("min.f32 {d}, {a}, {b};", "b32", [("f32", 0x7F800001), ("f32", 0x3F800000)], 0x3F800000),
    ("max.f32 {d}, {a}, {b};", "b32", [("f32", 0x3F800000), ("f32", 0xFF800001)], 0x3F800000),
    ("max.ftz.f32 {d}, {a}, {b};", "b32", [("f32", 1), ("f32", 0x80000001)], 0),
    ("max.f16 {d}, {a}, {b};", "b16", [("f16", 0x7E00), ("f16", 0xFC00)], 0xFC00),
    ("min.NaN.bf16 {d}, {a}, {b};", "b16", [("bf16", 0xFFC1), ("bf16", 0x3F80)], 0x7FFF),
    # float arithmetic: NaN is canonical, zeros keep their sign, one rounding
    ("sub.rn.f32 {d}, {a}, {b};", "b32", [("f32", INF), ("f32", INF)], CANONICAL),
    ("add.rn.f32 {d}, {a}, {b};", "b32", [("f32", 0xFFC12345), ("f32", 0)], CANONICAL),
    ("mul.rn.f32 {d}, {a}, {b};", "b32", [("f32", INF), ("f32", 0x80000000)], CANONICAL),
    ("fma.rn.f32 {d}, {a}, {b}, {c};", "b32", [("f32", INF), ("f32", 0), ("f32", NAN)], CANONICAL),
    ("div.rn.f32 {d}, {a}, {b};", "b32", [("f32", 0), ("f32", 0)], CANONICAL),
    ("sqrt.rn.f32 {d}, {a};", "b32", [("f32", 0xBF800000)], CANONICAL),
    ("rsqrt.approx.f32 {d}, {a};", "b32", [("f32", 0xBF800000)], CANONICAL),
    ("ex2.approx.ftz.f32 {d}, {a};", "b32", [("f32", 0xFFFFFFFF)], CANONICAL),
    ("cvt.f32.f16 {d}, {a};", "b32", [("f16", 0xFE01)], CANONICAL),
    ("cvt.rn.f16.f32 {d}, {a};", "b16", [("f32", 0xFFC00000)], 0x7FFF),
    ("cvt.rn.bf16.f32 {d}, {a};", "b16", [("f32", 0xFFC00000)], 0x7FFF),
    ("add.rn.f16 {d}, {a}, {b};", "b16", [("f16", 0xFC00), ("f16", 0x7C00)], 0x7FFF),
    ("fma.rn.bf16 {d}, {a}, {b}, {c};", "b16", [("bf16", 0x7F80), ("bf16", 0), ("bf16", 0)], 0x7FFF),
    ("add.rn.f32 {d}, {a}, {b};", "b32", [("f32", 0x80000000), ("f32", 0x80000000)], 0x80000000),
    ("add.rm.f32 {d}, {a}, {b};", "b32", [("f32", 0x3F800000), ("f32", 0xBF800000)], 0x80000000),
    ("fma.rn.f32 {d}, {a}, {b}, {c};", "b32", [("f32", 0x80000000), ("f32", 0x3F800000), ("f32", 0)], 0),
    ("add.sat.f32 {d}, {a}, {b};", "b32", [("f32", NAN), ("f32", 0)], 0),
    ("mul.ftz.f32 {d}, {a}, {b};", "b32", [("f32", 0x80800000), ("f32", 0x3F000000)], 0x80000000),
    ("mul.rn.f32 {d}, {a}, {b};", "b32", [("f32", 0x00800000), ("f32", 0x3F000000)], 0x00400000),
    ("rcp.approx.ftz.f32 {d}, {a};", "b32", [("f32", 0x80000001)], 0xFF800000),
    ("ex2.approx.ftz.f32 {d}, {a};", "b32", [("f32", f32(-127.0)[0])], 0),
    ("ex2.approx.f32 {d}, {a};", "b32", [("f32", f32(-130.0)[0])], f32(2.0**-130)[0]),
    ("abs.f32 {d}, {a};", "b32", [("f32", 0x80000000)], 0),
    ("neg.ftz.f32 {d}, {a};", "b32", [("f32", 1)], 0x80000000),
    # conversions
    ("cvt.rni.s32.f32 {d}, {a};", "b32", [("f32", f32(2.5)[0])], 2),
    ("cvt.rpi.s32.f32 {d}, {a};", "b32", [("f32", f32(-0.5)[0])], 0),
    ("cvt.rmi.s32.f32 {d}, {a};", "b32", [("f32", f32(-0.5)[0])], 0xFFFFFFFF),
    ("cvt.rzi.u32.f32 {d}, {a};", "b32", [("f32", f32(-3.0)[0])], 0),
    ("cvt.rzi.u32.f32 {d}, {a};", "b32", [("f32", f32(4294967296.0)[0])], 0xFFFFFFFF),
    ("cvt.rzi.s32.f32 {d}, {a};", "b32", [("f32", NAN)], 0),
    ("cvt.rzi.s64.f32 {d}, {a};", "b64", [("f32", NAN)], 1 << 63),
    ("cvt.rzi.s8.f32 {d}, {a};", "b32", [("f32", f32(-200.0)[0])], 0xFFFFFF80),
    ("cvt.rzi.ftz.u32.f32 {d}, {a};", "b32", [("f32", 1)], 0),
    ("cvt.rpi.ftz.u32.f32 {d}, {a};", "b32", [("f32", 1)], 0),
    ("cvt.rpi.u32.f32 {d}, {a};", "b32", [("f32", 1)], 1),
    ("cvt.rn.f32.u32 {d}, {a};", "b32", [("u32", 0xFFFFFFFF)], 0x4F800000),
    ("cvt.rz.f32.u32 {d}, {a};", "b32", [("u32", 0xFFFFFFFF)], 0x4F7FFFFF),
    ("cvt.rn.f32.s64 {d}, {a};", "b32", [("s64", (1 << 24) + 1 << 30 | 1)], f32(float((1 << 24) + 2) * 2**30)[0]),
    ("cvt.rn.f16.s32 {d}, {a};", "b16", [("s32", 2049)], 0x6800),
    ("cvt.rn.f16.f32 {d}, {a};", "b16", [("f32", f32(65520.0)[0])], 0x7C00),
    ("cvt.rn.f16.f32 {d}, {a};", "b16", [("f32", f32(65519.0)[0])], 0x7BFF),
    ("cvt.rn.f16.f32 {d}, {a};", "b16", [("f32", f32(2.0**-25)[0])], 0),
    ("cvt.rn.f16.f32 {d}, {a};", "b16", [("f32", f32(1.5 * 2.0**-25)[0])], 1),
    ("cvt.rn.bf16.f32 {d}, {a};", "b16", [("f32", 0x7F7FFFFF)], 0x7F80),
    ("cvt.rz.bf16.f32 {d}, {a};", "b16", [("f32", 0x7F7FFFFF)], 0x7F7F),
    ("cvt.rn.bf16.f32 {d}, {a};", "b16", [("f32", 0x3F808000)], 0x3F80),
    ("cvt.rn.bf16.f32 {d}, {a};", "b16", [("f32", 0x3F818000)], 0x3F82),
    ("cvt.rn.relu.bf16.f32 {d}, {a};", "b16", [("f32", f32(-1.0)[0])], 0),
    ("cvt.rn.f16x2.f32 {d}, {a}, {b};", "b32", [("f32", f32(1.0)[0]), ("f32", f32(2.0)[0])], 0x3C004000),
    ("cvt.rn.satfinite.e4m3x2.f32 {d}, {a}, {b};", "b16", [("f32", f32(1e9)[0]), ("f32", NAN)], 0x7E7F),
    ("cvt.rn.satfinite.e5m2x2.f32 {d}, {a}, {b};", "b16", [("f32", f32(-1e9)[0]), ("f32", f32(2.0**-17)[0])], 0xFB00),
    ("cvt.sat.f32.f32 {d}, {a};", "b32", [("f32", NAN)], 0),
    ("cvt.rni.f32.f32 {d}, {a};", "b32", [("f32", f32(-0.5)[0])], 0x80000000),
    ("cvt.s32.s8 {d}, {a};", "b32", [("b16", 0x0080)], 0xFFFFFF80),
    ("cvt.u16.u8 {d}, {a};", "b16", [("b16", 0xFF80)], 0x0080),
    ("cvt.sat.u8.s32 {d}, {a};", "b32", [("s32", 0xFFFFFFFF)], 0),
    # comparisons with NaN
    *[(f"setp.{n}.f32 {{d}}, {{a}}, {{b}};", "pred", [("f32", NAN), ("f32", 0)], 0) for n in ("eq", "ne", "lt", "ge", "num")],
    *[(f"setp.{n}.f32 {{d}}, {{a}}, {{b}};", "pred", [("f32", 0), ("f32", NAN)], 1) for n in ("equ", "neu", "ltu", "geu")],
    ("setp.eq.f32 {d}, {a}, {b};", "pred", [("f32", 0), ("f32", 0x80000000)], 1),
    ("setp.lt.ftz.f32 {d}, {a}, {b};", "pred", [("f32", 0), ("f32", 1)], 0),
    ("setp.lt.ftz.f16 {d}, {a}, {b};", "pred", [("f16", 0x8001), ("f16", 0)], 0),
    ("setp.lt.f16 {d}, {a}, {b};", "pred", [("f16", 0x8001), ("f16", 0)], 1),
    ("setp.ne.bf16 {d}, {a}, {b};", "pred", [("bf16", 0x7FC0), ("bf16", 0x7FC0)], 0),
    ("setp.neu.bf16 {d}, {a}, {b};", "pred", [("bf16", 0x7FC0), ("bf16", 0x7FC0)], 1),
    ("set.lt.u32.s32 {d}, {a}, {b};", "b32", [("s32", 0xFFFFFFFF), ("s32", 0)], 0xFFFFFFFF),
    ("set.gt.f32.u32 {d}, {a}, {b};", "b32", [("u32", 0xFFFFFFFF), ("u32", 0)], 0x3F800000),
    ("copysign.f32 {d}, {a}, {b};", "b32", [("f32", 0x80000000), ("f32", 0x3F800000)], 0xBF800000),
    ("testp.subnormal.f32 {d}, {a};", "pred", [("f32", 0x007FFFFF)], 1),
    ("fma.rn.relu.f16 {d}, {a}, {b}, {c};", "b16", [("f16", 0x3C00), ("f16", 0xBC00), ("f16", 0)], 0),
    # double rounding: through f32 (or f64) these would round to the other neighbor
    ("fma.rn.f16 {d}, {a}, {b}, {c};", "b16", [("f16", f16(1 + 2.0**-10)), ("f16", f16(1 + 2.0**-10)), ("f16", 1)], 0x3C02),
    ("fma.rn.bf16 {d}, {a}, {b}, {c};", "b16", [("bf16", 0x3F81), ("bf16", bf16(1.5)), ("bf16", bf16(2.0**-130))], 0x3FC2),
    ("fma.rn.bf16 {d}, {a}, {b}, {c};", "b16", [("bf16", 0x3F81), ("bf16", bf16(1.5)), ("bf16", 0x8001)], 0x3FC1),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "result", "operands", "wanted"), ROWS, ids=[f"{k}-{row[0].split()[0]}" for k, row in enumerate(ROWS)]
)
def test_corner(text: str, result: str, operands: list[tuple[str, int]], wanted: int) -> None:
    widths: dict[str, Any] = {"f32": 4, "f16": 2, "bf16": 2}
    columns = []
    for kind, value in operands:
        width = widths.get(kind) or max(2, int(kind[1:]) // 8)
        columns.append((kind, np.array([value], f"u{width}")))
    actual = int(evaluate(text, result, columns)[0])
    assert actual == wanted, f"{actual:#x} for {wanted:#x}"
