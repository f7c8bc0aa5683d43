"""Loads, stores and atomics of every width and kind: memory afterwards, and the returned values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emulator.tiny import evaluate, launch, program


@pytest.mark.parametrize("space", ["global", "shared", "generic"])
@pytest.mark.parametrize(
    ("count", "bits"), [(n, b) for n in (1, 2, 4) for b in (8, 16, 32, 64) if n * b <= 128] + [(8, 32), (4, 64)]
)
def test_vectors_are_loaded_as_they_were_stored(space: str, count: int, bits: int) -> None:
    if space != "global" and count * bits > 128:
        pytest.skip("32 bytes at once are for global memory")
    width = count * bits // 8
    register = {8: "h", 16: "h", 32: "r", 64: "d"}[bits]
    names = ", ".join(f"%{register}{k + 10}" for k in range(count))
    kind = (f".v{count}" if count > 1 else "") + f".b{bits}"
    operand = f"{{{names}}}" if count > 1 else names
    if space == "global":
        between = ""
    else:
        base = "mov.u64 %d7, smem;" + ("cvta.shared.u64 %d7, %d7;" if space == "generic" else "")
        suffix = ".shared" if space == "shared" else ""
        between = (
            f"{base} mad.wide.u32 %d7, %t, {width}, %d7; st{suffix}{kind} [%d7], {operand}; ld{suffix}{kind} {operand}, [%d7];"
        )
    body = f"""mad.wide.u32 %d0, %t, {width}, %a0; mad.wide.u32 %d1, %t, {width}, %a1;
    ld.global{kind} {operand}, [%d0]; {between} st.global{kind} [%d1], {operand};"""
    source = np.random.default_rng(2).integers(0, 256, 32 * width).astype(np.uint8)
    text = program(body, ["source", "out"], shared=32 * width, target="sm_90a" if count * bits <= 128 else "sm_100a")
    report = launch(text, {"source": source, "out": np.zeros_like(source)}, out=("out",), shared=32 * width, align=64)
    assert report.faults == [] and (report.tensors["out"] == source).all()


def test_narrow_loads_extend_by_their_sign() -> None:
    body = """ld.global.s8 %r1, [%a0]; ld.global.u8 %r2, [%a0]; ld.global.s16 %r3, [%a0];
    st.global.v2.u32 [%a1], {%r1, %r2}; st.global.u32 [%a1+8], %r3;"""
    tensors = {"source": np.array([0x80, 0xFF], np.uint8), "out": np.zeros(4, np.uint32)}
    out = launch(program(body, ["source", "out"]), tensors, threads=1).tensors["out"]
    assert out.tolist() == [0xFFFFFF80, 0x80, 0xFFFFFF80, 0]


def _signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> bits - 1 else x


ATOMICS: dict[str, Callable[[int, int], int]] = {
    "and.b32": lambda old, x: old & x, "or.b32": lambda old, x: old | x, "xor.b32": lambda old, x: old ^ x,
    "and.b64": lambda old, x: old & x, "or.b64": lambda old, x: old | x, "xor.b64": lambda old, x: old ^ x,
    "add.u32": lambda old, x: (old + x) % (1 << 32), "add.s32": lambda old, x: (old + x) % (1 << 32),
    "add.u64": lambda old, x: (old + x) % (1 << 64), "exch.b32": lambda old, x: x, "exch.b64": lambda old, x: x,
    "inc.u32": lambda old, x: 0 if old >= x else old + 1, "dec.u32": lambda old, x: x if old == 0 or old > x else old - 1,
    "min.u32": min, "max.u32": max, "min.u64": min, "max.u64": max,
    "min.s32": lambda old, x: min(old, x, key=lambda v: _signed(v, 32)),
    "max.s32": lambda old, x: max(old, x, key=lambda v: _signed(v, 32)),
    "min.s64": lambda old, x: min(old, x, key=lambda v: _signed(v, 64)),
    "max.s64": lambda old, x: max(old, x, key=lambda v: _signed(v, 64)),
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMICS)
def test_atomics_one_after_the_other(name: str) -> None:
    """32 threads at one address, in lane order with schedule 0: each returns the value of the previous one."""
    bits = int(name[-2:])
    register, width = {32: "r", 64: "d"}[bits], bits // 8
    body = f"""mad.wide.u32 %d0, %t, {width}, %a0; mad.wide.u32 %d1, %t, {width}, %a1; ld.global.b{bits} %{register}5, [%d0];
    atom.global.{name} %{register}6, [%a2], %{register}5; st.global.b{bits} [%d1], %{register}6;"""
    source = np.random.default_rng(9).integers(0, 1 << 63, 32).astype(f"u{width}")
    initial = np.array([12345], f"u{width}")
    tensors = {"source": source, "out": np.zeros(32, f"u{width}"), "place": initial}
    report = launch(program(body, list(tensors)), tensors, out=("out",), read_only=("source",))
    assert report.faults == []
    value = 12345
    for t in range(32):
        assert int(report.tensors["out"][t]) == value
        value = ATOMICS[name](value, int(source[t]))
    assert int(report.tensors["place"][0]) == value
    if "exch" not in name:
        reduced = program(
            body.replace("atom", "red").replace(f"%{register}6, [%a2]", "[%a2]").replace("%r6;", "%r5;"), list(tensors)
        )
        assert int(launch(reduced, tensors, checked=False).tensors["place"][0]) == value


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_compare_and_swap(bits: int) -> None:
    """Every thread expects the number of the previous one: in lane order all succeed."""
    register, width = {16: "h", 32: "r", 64: "d"}[bits], bits // 8
    body = f"""cvt.u{bits}.u32 %{register}1, %t; add.u{bits} %{register}2, %{register}1, 1;
    atom.shared.cas.b{bits} %{register}3, [smem], %{register}1, %{register}2; mad.wide.u32 %d9, %t, {width}, %a0;
    st.global.b{bits} [%d9], %{register}3;"""
    text = program(
        f"mov.u64 %d8, 0; setp.eq.u32 %p1, %t, 0; @%p1 st.shared.u64 [smem], %d8; bar.sync 0; {body}", ["out"], shared=16
    )
    report = launch(text, {"out": np.zeros(32, f"u{width}")}, out=("out",), shared=16)
    assert report.faults == [] and (report.tensors["out"] == np.arange(32)).all()


@pytest.mark.parametrize(
    ("kind", "dtype"), [("f32", np.float32), ("f64", np.float64), ("noftz.f16", np.float16), ("noftz.bf16", ml_dtypes.bfloat16)]
)
def test_float_sums(kind: str, dtype: Any) -> None:
    """Small integers: exact in any order."""
    width = np.dtype(dtype).itemsize
    register = {2: "h", 4: "r", 8: "d"}[width]
    body = f"""mad.wide.u32 %d0, %t, {width}, %a0; ld.global.b{8 * width} %{register}1, [%d0];
    red.global.add.{kind} [%a1], %{register}1;"""
    tensors = {"source": (np.arange(32) % 5).astype(dtype).view(f"u{width}"), "place": np.zeros(1, dtype).view(f"u{width}")}
    for seed in (0, 1):
        report = launch(program(body, list(tensors)), tensors, read_only=("source",), seed=seed)
        assert report.faults == [] and float(report.tensors["place"].view(dtype)[0]) == 61


WORD = st.one_of(st.sampled_from([0, 1, 2, 31, 32, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]), st.integers(0, 0xFFFFFFFF))
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "add.u32": lambda a, b: a + b, "sub.s32": lambda a, b: a - b, "mul.lo.s32": lambda a, b: a * b,
    "mul.hi.u32": lambda a, b: a * b >> 32, "mul.hi.s32": lambda a, b: _signed(a, 32) * _signed(b, 32) >> 32,
    "min.s32": lambda a, b: min(_signed(a, 32), _signed(b, 32)), "max.u32": max, "xor.b32": lambda a, b: a ^ b,
    "shl.b32": lambda a, b: a << min(b, 32), "shr.u32": lambda a, b: a >> min(b, 32),
    "shr.s32": lambda a, b: _signed(a, 32) >> min(b, 32),
    "div.u32": lambda a, b: a // b if b else 0, "rem.u32": lambda a, b: a % b if b else 0,
}  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(WORD, WORD), min_size=1, max_size=64), st.sampled_from(sorted(OPERATIONS)))
def test_integers_against_python(pairs: list[tuple[int, int]], name: str) -> None:
    if name[:3] in ("div", "rem"):
        pairs = [(a, b or 1) for a, b in pairs]
    a, b = (np.array(column, np.uint32) for column in zip(*pairs, strict=True))
    actual = evaluate(f"{name} {{d}}, {{a}}, {{b}};", "u32", [("u32", a), ("u32", b)])
    assert actual.tolist() == [OPERATIONS[name](x, y) % (1 << 32) for x, y in pairs]
