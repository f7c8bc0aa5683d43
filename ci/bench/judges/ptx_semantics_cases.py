"""Instructions and operands for `ptx_semantics_gpu.py`, and the PTX that runs them on a GPU and in the emulator.

A case is one instruction over many operand combinations, one per thread. `result` and the operand kinds are register types; the
values of an operand are from a named set, edges first and then random values from a seed, the same on every machine.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
COUNT: Final = 2048
"""Operand combinations of a case."""
THREADS: Final = 256
FRAGMENTS: Final = 64
"""Warps, and so matrix products, of a tensor core case."""


@dataclass(frozen=True, slots=True)
class Case:
    """`text` has {d} for the result and {a}, {b}, {c}, {e} for operands; `operands` are (register bits, set of values);
    `exact`: the PTX ISA defines the result exactly; `kind` is how results are compared (a type, or bits)."""

    name: str
    text: str
    result: int
    kind: str
    operands: tuple[tuple[int, str], ...]
    exact: bool = True

    def inputs(self) -> list[Array]:
        """One array of raw bits per operand."""
        return [values(value_set, bits, f"{self.name}/{k}", k) for k, (bits, value_set) in enumerate(self.operands)]


BITS: Final = {"f32": 32, "f16": 16, "bf16": 16, "f64": 64, "f16x2": 32, "bf16x2": 32}


def _edges(value_set: str, bits: int) -> list[int]:
    """Edge values, as raw bits."""
    top = (1 << bits) - 1
    if value_set == "amount":
        return [*range(72), 127, 128, 255, 256, 257, 1 << 16, 1 << 31, top]
    if value_set == "f32":
        found = [0, 1, 2, 0x7FFFFF, 0x800000, 0x800001, 0x3F000000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x40000000, 0x3FC00000]
        found += [0x40200000, 0x4B000000, 0x4B800000, 0x4EFFFFFF, 0x4F000000, 0x4F7FFFFF, 0x4F800000, 0x5F000000, 0x5F800000]
        found += [0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x477FE000, 0x477FF000, 0x33000000, 0x33000001]
        found += [0x38800000, 0x387FFFFF, 0x3F808000, 0x3F818000, 0x43E00000, 0x43E80000, 0x42FE0000, 0x42FF0000, 0x7F7F8000]
        found += [0x43000000, 0x42FC0000, 0x43160000, 0x3D000000]
    elif value_set == "f16":
        found = [0, 1, 2, 0x3FF, 0x400, 0x401, 0x3800, 0x3BFF, 0x3C00, 0x3C01, 0x4000, 0x4100, 0x7BFF, 0x7C00, 0x7C01, 0x7E00]
        found += [0x7FFF, 0x6400, 0x57FF]
    elif value_set == "bf16":
        found = [0, 1, 2, 0x7F, 0x80, 0x81, 0x3F00, 0x3F7F, 0x3F80, 0x3F81, 0x4000, 0x4020, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0]
        found += [0x7FFF, 0x4F00, 0x4F80]
    elif value_set in ("f16x2", "bf16x2"):
        halves = [*_edges(value_set[:-2], 16)]
        return [low | high << 16 for low, high in zip(halves, halves[3:] + halves[:3], strict=True)]
    else:
        return [
            0,
            1,
            2,
            3,
            5,
            7,
            31,
            top,
            top - 1,
            1 << (bits - 1),
            (1 << (bits - 1)) - 1,
            (1 << (bits - 1)) + 1,
            top // 3,
            255,
            128,
        ]
    return found + [value | 1 << (bits - 1) for value in found]


def values(value_set: str, bits: int, name: str, operand: int) -> Array:
    """COUNT values of a set as unsigned integers of the register's width. Each operand steps through its edges at a different
    rate, so that all pairs of edges occur; random values are next, floats mostly of common magnitude."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    edges = [value for value in _edges(value_set.removesuffix("!"), bits) if value or not value_set.endswith("!")]
    if value_set == "f32":
        usual = random.normal(size=COUNT).astype(np.float32) * np.exp2(random.integers(-12, 12, COUNT)).astype(np.float32)
        found = np.where(random.random(COUNT) < 0.3, random.integers(0, 1 << 32, COUNT, dtype=np.uint32), usual.view(np.uint32))
    elif value_set == "amount":
        found = random.integers(0, 80, COUNT)
    else:
        found = random.integers(0, 1 << bits, COUNT, dtype=np.uint64)
        if value_set in ("f16", "bf16", "f16x2", "bf16x2"):
            single = "f16" if value_set.startswith("f16") else "bf16"
            usual = random.normal(size=2 * COUNT) * np.exp2(random.integers(-6, 6, 2 * COUNT))
            half = usual.astype(np.float16).view(np.uint16) if single == "f16" else _upper(usual)
            both = half[:COUNT].astype(np.uint64) | half[COUNT:].astype(np.uint64) << np.uint64(16)
            found = np.where(random.random(COUNT) < 0.6, both & np.uint64((1 << bits) - 1), found)
        elif value_set.startswith("s"):  # small differences and small divisors
            found = np.where(random.random(COUNT) < 0.4, found >> np.uint64(bits - 9), found)
    found = np.asarray(found).astype(f"u{bits // 8}")
    fixed = np.array(edges, np.uint64).astype(f"u{bits // 8}")
    index = np.arange(COUNT // 2) // (len(fixed) if operand == 1 else 1 if operand == 0 else 3)
    found[: COUNT // 2] = fixed[index % len(fixed)]
    if value_set.endswith("!"):
        found[found == 0] = 1
    return found


def _upper(value: Array) -> Array:
    return (value.astype(np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def _case(text: str, result: str, *operands: str, exact: bool = True) -> Case:
    names = "abce"
    spots = ", ".join("{" + names[k] + "}" for k in range(len(operands)))
    sizes = tuple((BITS.get(o) or (32 if o == "amount" else max(16, int(o.strip("!")[1:]))), o) for o in operands)
    bits = 1 if result == "pred" else BITS.get(result) or max(16, int(result[1:]))
    return Case(text, f"{text} {{d}}, {spots};", bits, result, sizes, exact)


def cases() -> Iterator[Case]:
    """Every case."""
    yield from _integers()
    yield from _floats()
    yield from _narrow()
    yield from _conversions()
    yield from _comparisons()


def _integers() -> Iterator[Case]:
    for kind in ("s16", "s32", "s64", "u16", "u32", "u64"):
        for name in ("add", "sub", "mul.lo", "mul.hi", "min", "max"):
            yield _case(f"{name}.{kind}", kind, kind, kind)
        yield _case(f"mad.lo.{kind}", kind, kind, kind, kind)
        yield _case(f"sad.{kind}", kind, kind, kind, kind)
        yield _case(f"div.{kind}", kind, kind, kind + "!")
        yield _case(f"rem.{kind}", kind, kind, kind + "!")
        yield _case(f"shr.{kind}", kind, kind, "amount")
        if kind[1:] != "64":
            wide = f"{kind[0]}{2 * int(kind[1:])}"
            yield _case(f"mul.wide.{kind}", wide, kind, kind)
            yield _case(f"mad.wide.{kind}", wide, kind, kind, wide)
        if kind[1:] != "16":
            yield _case(f"bfe.{kind}", kind, kind, "amount", "amount")
            yield _case(f"bfind.{kind}", "u32", kind)
            yield _case(f"bfind.shiftamt.{kind}", "u32", kind)
            yield _case(f"mad.hi.{kind}", kind, kind, kind, kind)
        if kind[0] == "s":
            yield _case(f"abs.{kind}", kind, kind)
            yield _case(f"neg.{kind}", kind, kind)
    for kind in ("b16", "b32", "b64"):
        for name in ("and", "or", "xor"):
            yield _case(f"{name}.{kind}", kind, kind, kind)
        yield _case(f"not.{kind}", kind, kind)
        yield _case(f"cnot.{kind}", kind, kind)
        yield _case(f"shl.{kind}", kind, kind, "amount")
        if kind != "b16":
            yield _case(f"bfi.{kind}", kind, kind, kind, "amount", "amount")
            yield _case(f"brev.{kind}", kind, kind)
            yield _case(f"popc.{kind}", "u32", kind)
            yield _case(f"clz.{kind}", "u32", kind)
    yield _case("add.sat.s32", "s32", "s32", "s32")
    yield _case("sub.sat.s32", "s32", "s32", "s32")
    for mode in ("", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"):
        yield _case(f"prmt.b32{mode}", "b32", "b32", "b32", "b32")
    for mode in ("l.clamp", "l.wrap", "r.clamp", "r.wrap"):
        yield _case(f"shf.{mode}.b32", "b32", "b32", "b32", "amount")
    yield _case("slct.s32.s32", "s32", "s32", "s32", "s32")
    yield _case("slct.s32.f32", "s32", "s32", "s32", "f32")
    for table in (0x96, 0xE8, 0xCA):
        case = _case("lop3.b32", "b32", "b32", "b32", "b32")
        yield Case(f"lop3.b32 {table:#x}", case.text.replace(";", f", {table};"), 32, "b32", case.operands)


def _floats() -> Iterator[Case]:
    for name in ("add", "sub", "mul"):
        for mode in (".rn", "", ".rz", ".rm", ".rp", ".rn.ftz", ".rn.sat"):
            yield _case(f"{name}{mode}.f32", "f32", "f32", "f32")
    for mode in (".rn", ".rz", ".rm", ".rp", ".rn.ftz", ".rn.sat"):
        yield _case(f"fma{mode}.f32", "f32", "f32", "f32", "f32")
    for mode in (".rn", ".rn.ftz"):
        yield _case(f"div{mode}.f32", "f32", "f32", "f32")
    for name in ("rcp", "sqrt"):
        for mode in ("rn", "rz", "rm", "rp"):
            yield _case(f"{name}.{mode}.f32", "f32", "f32")
    for name in ("min", "max"):
        for mode in ("", ".ftz", ".NaN"):
            yield _case(f"{name}{mode}.f32", "f32", "f32", "f32")
    for mode in ("", ".ftz"):
        yield _case(f"abs{mode}.f32", "f32", "f32")
        yield _case(f"neg{mode}.f32", "f32", "f32")
        yield _case(f"div.full{mode}.f32", "f32", "f32", "f32", exact=False)
        yield _case(f"div.approx{mode}.f32", "f32", "f32", "f32", exact=False)
        for name in ("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos"):
            yield _case(f"{name}.approx{mode}.f32", "f32", "f32", exact=False)
    yield _case("tanh.approx.f32", "f32", "f32", exact=False)
    yield _case("copysign.f32", "f32", "f32", "f32")
    for name in ("finite", "infinite", "number", "notanumber", "normal", "subnormal"):
        yield _case(f"testp.{name}.f32", "pred", "f32")


def _narrow() -> Iterator[Case]:
    for kind in ("f16", "bf16", "f16x2", "bf16x2"):
        for name in ("add", "sub", "mul"):
            yield _case(f"{name}.rn.{kind}", kind, kind, kind)
            yield _case(f"{name}.{kind}", kind, kind, kind)
            if kind.startswith("f"):
                yield _case(f"{name}.rn.ftz.{kind}", kind, kind, kind)
                yield _case(f"{name}.rn.sat.{kind}", kind, kind, kind)
        yield _case(f"fma.rn.{kind}", kind, kind, kind, kind)
        yield _case(f"fma.rn.relu.{kind}", kind, kind, kind, kind)
        for name in ("min", "max"):
            yield _case(f"{name}.{kind}", kind, kind, kind)
            yield _case(f"{name}.NaN.{kind}", kind, kind, kind)
        yield _case(f"neg.{kind}", kind, kind)
        yield _case(f"abs.{kind}", kind, kind)
        yield _case(f"{'ex2.approx' if kind.startswith('f') else 'ex2.approx.ftz'}.{kind}", kind, kind, exact=False)
        yield _case(f"tanh.approx.{kind}", kind, kind, exact=False)


def _conversions() -> Iterator[Case]:
    integers = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
    for source in integers:
        for to in integers:
            if source != to:
                yield _case(f"cvt.{to}.{source}", to, source)
                yield _case(f"cvt.sat.{to}.{source}", to, source)
        for to in ("f16", "bf16", "f32"):
            yield _case(f"cvt.rn.{to}.{source}", to, source)
        for mode in ("rz", "rm", "rp"):
            yield _case(f"cvt.{mode}.f32.{source}", "f32", source)
    for to in integers:
        for mode in ("rni", "rzi", "rmi", "rpi", "rzi.ftz", "rpi.ftz", "rzi.sat"):
            yield _case(f"cvt.{mode}.{to}.f32", to, "f32")
        yield _case(f"cvt.rzi.{to}.f16", to, "f16")
        yield _case(f"cvt.rni.{to}.f16", to, "f16")
        yield _case(f"cvt.rzi.{to}.bf16", to, "bf16")
    for to in ("f16", "bf16"):
        for mode in ("rn", "rz", "rn.relu"):
            yield _case(f"cvt.{mode}.{to}.f32", to, "f32")
            yield _case(f"cvt.{mode}.{to}x2.f32", f"{to}x2", "f32", "f32")
        yield _case(f"cvt.f32.{to}", "f32", to)
    yield _case("cvt.rn.ftz.f16.f32", "f16", "f32")
    yield _case("cvt.rna.tf32.f32", "f32", "f32")
    yield _case("cvt.sat.f32.f32", "f32", "f32")
    for mode in ("rni", "rzi", "rmi", "rpi", "rni.ftz"):
        yield _case(f"cvt.{mode}.f32.f32", "f32", "f32")
        if mode != "rni.ftz":
            yield _case(f"cvt.{mode}.f16.f16", "f16", "f16")
    for to in ("e4m3x2", "e5m2x2"):
        yield Case(
            f"cvt.rn.satfinite.{to}.f32", f"cvt.rn.satfinite.{to}.f32 {{d}}, {{a}}, {{b}};", 16, "b16", ((32, "f32"),) * 2
        )
        yield Case(f"cvt.rn.satfinite.{to}.f16x2", f"cvt.rn.satfinite.{to}.f16x2 {{d}}, {{a}};", 16, "b16", ((32, "f16x2"),))
        yield Case(f"cvt.rn.f16x2.{to}", f"cvt.rn.f16x2.{to} {{d}}, {{a}};", 32, "f16x2", ((16, "b16"),))


def _comparisons() -> Iterator[Case]:
    plain = ("eq", "ne", "lt", "le", "gt", "ge")
    for kind in ("s16", "s32", "s64", "u16", "u32", "u64"):
        for name in plain:
            yield _case(f"setp.{name}.{kind}", "pred", kind, kind)
    for kind in ("f32", "f16", "bf16"):
        for name in (*plain, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"):
            yield _case(f"setp.{name}.{kind}", "pred", kind, kind)
    yield _case("setp.lt.ftz.f32", "pred", "f32", "f32")
    yield _case("setp.lt.ftz.f16", "pred", "f16", "f16")
    yield _case("set.lt.u32.f32", "u32", "f32", "f32")
    yield _case("set.geu.f32.f32", "f32", "f32", "f32")


# PTX of a case

HEADER: Final = ".version 8.6\n.target sm_90a\n.address_size 64\n"


def ptx(case: Case) -> str:
    """A module with one entry `k` of pointers, operands first and the result last; one thread per combination."""
    pointers = len(case.operands) + 1
    lines = [f".param .u64 p{k}" for k in range(pointers)]
    width = 4 if case.result == 1 else case.result // 8
    body = [
        ".reg .b32 %t, %n, %i, %bit; .reg .pred %flag; .reg .b64 %to;",
        f"mov.u32 %t, %tid.x; mov.u32 %n, %ctaid.x; mad.lo.u32 %i, %n, {THREADS}, %t;",
    ]
    names: dict[str, str] = {}
    for k, (bits, _) in enumerate(case.operands):
        body.append(f".reg .b64 %p{k}, %at{k}; .reg .b{bits} %v{k};")
        body.append(f"ld.param.u64 %p{k}, [p{k}]; mad.wide.u32 %at{k}, %i, {bits // 8}, %p{k};")
        body.append(f"ld.global.b{bits} %v{k}, [%at{k}];")
        names["abce"[k]] = f"%v{k}"
    last = pointers - 1
    body.append(f"ld.param.u64 %to, [p{last}]; mad.wide.u32 %to, %i, {width}, %to;")
    if case.result == 1:
        body.append(case.text.format(d="%flag", **names) + " selp.b32 %bit, 1, 0, %flag; st.global.b32 [%to], %bit;")
    else:
        body.append(f".reg .b{case.result} %d;" + case.text.format(d="%d", **names))
        body.append(f"st.global.b{case.result} [%to], %d;")
    return f"{HEADER}.visible .entry k({', '.join(lines)})\n{{\n" + "\n".join(body) + "\nret;\n}\n"


# Tensor cores: D = A * B + C by one warp, with each lane's registers contiguous in memory

PRODUCTS: Final = {
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32": "f16",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": "bf16",
}


def product_inputs(name: str, whole: bool) -> tuple[Array, Array, Array]:
    """Registers of A [warps, 32, 4], B [warps, 32, 2] and C [warps, 32, 4] as u32. `whole`: small integers, whose products and
    sums are exact in any order."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    found: list[Array] = []
    for count in (4, 2):
        shape = (FRAGMENTS, 32, count, 2)
        numbers = random.integers(-8, 9, shape).astype(np.float64) if whole else random.normal(size=shape)
        raw = numbers.astype(np.float16).view(np.uint16) if PRODUCTS[name] == "f16" else _upper(numbers)
        found.append(np.ascontiguousarray(raw).view(np.uint32)[..., 0])
    start = random.integers(-8, 9, (FRAGMENTS, 32, 4)) if whole else random.normal(size=(FRAGMENTS, 32, 4))
    return found[0], found[1], start.astype(np.float32).view(np.uint32)


def product_ptx(name: str) -> str:
    """A module with entry `k` of pointers to A, B, C and D; one warp per block."""
    body = [
        ".reg .b32 %t, %n, %i; .reg .b64 %p<4>, %q<4>; .reg .b32 %a<4>, %b<2>; .reg .f32 %c<4>, %d<4>;",
        "mov.u32 %t, %tid.x; mov.u32 %n, %ctaid.x; mad.lo.u32 %i, %n, 32, %t;",
    ]
    body += [f"ld.param.u64 %p{k}, [p{k}]; mad.wide.u32 %q{k}, %i, {8 if k == 1 else 16}, %p{k};" for k in range(4)]
    body += [
        "ld.global.v4.b32 {%a0, %a1, %a2, %a3}, [%q0]; ld.global.v2.b32 {%b0, %b1}, [%q1];",
        "ld.global.v4.f32 {%c0, %c1, %c2, %c3}, [%q2];",
        f"{name} {{%d0, %d1, %d2, %d3}}, {{%a0, %a1, %a2, %a3}}, {{%b0, %b1}}, {{%c0, %c1, %c2, %c3}};",
        "st.global.v4.f32 [%q3], {%d0, %d1, %d2, %d3}; ret;",
    ]
    parameters = ", ".join(f".param .u64 p{k}" for k in range(4))
    return f"{HEADER}.visible .entry k({parameters})\n{{\n" + "\n".join(body) + "\n}\n"
