"""Integer instructions against plain Python integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.emulator.tiny import bits_of, edges, evaluate, pairs

KINDS = ("u16", "s16", "u32", "s32", "u64", "s64")


def wrap(value: int, bits: int) -> int:
    return value & ((1 << bits) - 1)


def signed(value: int, bits: int) -> int:
    value = wrap(value, bits)
    return value - (1 << bits) if value >> (bits - 1) else value


def truncated(a: int, b: int) -> int:
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


TWO: dict[str, Callable[[int, int, int], int]] = {
    "add": lambda a, b, n: a + b,
    "sub": lambda a, b, n: a - b,
    "mul.lo": lambda a, b, n: a * b,
    "mul.hi": lambda a, b, n: (a * b) >> n,
    "min": lambda a, b, n: min(a, b),
    "max": lambda a, b, n: max(a, b),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opcode", TWO)
def test_two_operands(opcode: str, kind: str) -> None:
    bits = bits_of(kind)
    a, b = pairs(edges(kind), 2)
    actual = evaluate(f"{opcode}.{kind} {{d}}, {{a}}, {{b}};", kind, [(kind, a), (kind, b)])
    expected = [wrap(TWO[opcode](x, y, bits), bits) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    assert actual.tolist() == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opcode", ["div", "rem"])
def test_division_truncates(opcode: str, kind: str) -> None:
    bits = bits_of(kind)
    a, b = (column[pairs(edges(kind), 2)[1] != 0] for column in pairs(edges(kind), 2))
    actual = evaluate(f"{opcode}.{kind} {{d}}, {{a}}, {{b}};", kind, [(kind, a), (kind, b)])
    expected = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        quotient = truncated(x, y)
        expected.append(wrap(quotient if opcode == "div" else x - quotient * y, bits))
    assert actual.tolist() == expected


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32"])
def test_wide_products(kind: str) -> None:
    bits = bits_of(kind)
    a, b = pairs(edges(kind), 2)
    actual = evaluate(f"mul.wide.{kind} {{d}}, {{a}}, {{b}};", f"u{2 * bits}", [(kind, a), (kind, b)])
    assert actual.tolist() == [wrap(x * y, 2 * bits) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_multiply_add(kind: str) -> None:
    bits = bits_of(kind)
    a, b, c = pairs(edges(kind, 4)[::2], 3)
    for mode, shift in (("lo", 0), ("hi", bits)):
        actual = evaluate(f"mad.{mode}.{kind} {{d}}, {{a}}, {{b}}, {{c}};", kind, [(kind, a), (kind, b), (kind, c)])
        expected = [wrap((x * y >> shift) + z, bits) for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)]
        assert actual.tolist() == expected


@pytest.mark.parametrize("kind", ["s16", "s32", "s64"])
def test_abs_and_neg_wrap(kind: str) -> None:
    bits, a = bits_of(kind), edges(kind)
    assert evaluate(f"abs.{kind} {{d}}, {{a}};", kind, [(kind, a)]).tolist() == [wrap(abs(x), bits) for x in a.tolist()]
    assert evaluate(f"neg.{kind} {{d}}, {{a}};", kind, [(kind, a)]).tolist() == [wrap(-x, bits) for x in a.tolist()]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
@pytest.mark.parametrize("opcode", ["and", "or", "xor"])
def test_logic(opcode: str, kind: str) -> None:
    a, b = pairs(edges("u" + kind[1:]), 2)
    actual = evaluate(f"{opcode}.{kind} {{d}}, {{a}}, {{b}};", kind, [(kind, a), (kind, b)])
    function = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[opcode]
    assert actual.tolist() == [function(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64", "s16", "s32", "s64", "u16", "u32", "u64"])
def test_shifts_clamp_their_amount(kind: str) -> None:
    bits = bits_of(kind)
    values = edges(kind if kind[0] == "s" else "u" + kind[1:])
    amounts = np.array([0, 1, 7, bits - 1, bits, bits + 1, 200, 0xFFFFFFFF], np.uint32)
    a, by = (np.ascontiguousarray(x.reshape(-1)) for x in np.meshgrid(values, amounts, indexing="ij"))
    actual = evaluate(f"shr.{kind} {{d}}, {{a}}, {{b}};", kind, [(kind, a), ("u32", by)])
    assert actual.tolist() == [wrap(x >> n, bits) for x, n in zip(a.tolist(), by.tolist(), strict=True)]
    if kind[0] == "b":
        actual = evaluate(f"shl.{kind} {{d}}, {{a}}, {{b}};", kind, [(kind, a), ("u32", by)])
        assert actual.tolist() == [wrap(x << n, bits) if n < bits else 0 for x, n in zip(a.tolist(), by.tolist(), strict=True)]
        actual = evaluate(f"shl.{kind} {{d}}, {{a}}, 5;", kind, [(kind, a)])
        assert actual.tolist() == [wrap(x << 5, bits) for x in a.tolist()]


def bfe(a: int, position: int, length: int, bits: int, is_signed: bool) -> int:
    """The pseudocode of bfe, bit by bit; 64-bit operands follow the hardware, which does not truncate position and length to 8
    bits."""
    top = bits - 1
    if bits == 32:
        position, length = position & 255, length & 255
    sign = 0 if not is_signed or length == 0 else a >> min(position + length - 1, top) & 1
    found = 0
    for k in range(bits):
        bit = a >> (position + k) & 1 if k < length and position + k <= top else sign
        found |= bit << k
    return found


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_field_extract(kind: str) -> None:
    bits = bits_of(kind)
    values = edges("u" + kind[1:], 4)
    numbers = np.array([0, 1, 8, 13, 31, 32, 33, 63, 64, 65, 255, 256], np.uint32)
    a, position, length = (np.ascontiguousarray(x.reshape(-1)) for x in np.meshgrid(values, numbers, numbers, indexing="ij"))
    actual = evaluate(f"bfe.{kind} {{d}}, {{a}}, {{b}}, {{c}};", kind, [(kind, a), ("u32", position), ("u32", length)])
    columns = zip(a.tolist(), position.tolist(), length.tolist(), strict=True)
    assert actual.tolist() == [bfe(x, p, n, bits, kind[0] == "s") for x, p, n in columns]


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_field_insert(kind: str) -> None:
    bits = bits_of(kind)
    numbers = np.array([0, 1, 8, 31, 32, 63, 64, 255, 257, 0xFFFFFFFF], np.uint32)
    a, b, position, length = (
        np.ascontiguousarray(x.reshape(-1))
        for x in np.meshgrid(edges("u" + kind[1:], 2)[::3], edges("u" + kind[1:], 2)[::3], numbers, numbers, indexing="ij")
    )
    operands = [(kind, a), (kind, b), ("u32", position), ("u32", length)]
    actual = evaluate(f"bfi.{kind} {{d}}, {{a}}, {{b}}, {{c}}, {{e}};", kind, operands)
    expected = []
    for x, y, p, n in zip(a.tolist(), b.tolist(), position.tolist(), length.tolist(), strict=True):
        p, n = (p & 255, n & 255) if bits == 32 else (p, n)
        for k in range(min(n, bits)):
            if p + k < bits:
                y = y & ~(1 << p + k) | (x >> k & 1 if k < bits else 0) << p + k
        expected.append(y)
    assert actual.tolist() == expected


@pytest.mark.parametrize("kind", ["b32", "b64"])
def test_counting(kind: str) -> None:
    bits, a = bits_of(kind), edges("u" + kind[1:], 60)
    assert evaluate(f"popc.{kind} {{d}}, {{a}};", "u32", [(kind, a)]).tolist() == [x.bit_count() for x in a.tolist()]
    assert evaluate(f"clz.{kind} {{d}}, {{a}};", "u32", [(kind, a)]).tolist() == [bits - x.bit_length() for x in a.tolist()]
    reverse = [int(f"{x:0{bits}b}"[::-1], 2) for x in a.tolist()]
    assert evaluate(f"brev.{kind} {{d}}, {{a}};", kind, [(kind, a)]).tolist() == reverse
    highest = [(x.bit_length() - 1) & 0xFFFFFFFF for x in a.tolist()]
    assert evaluate(f"bfind.u{bits} {{d}}, {{a}};", "u32", [(kind, a)]).tolist() == highest
    assert evaluate(f"not.{kind} {{d}}, {{a}};", kind, [(kind, a)]).tolist() == [wrap(~x, bits) for x in a.tolist()]


def test_prmt_by_the_definition() -> None:
    random = np.random.default_rng(1)
    a, b, c = (random.integers(0, 1 << 32, 300, dtype=np.uint32) for _ in range(3))
    actual = evaluate("prmt.b32 {d}, {a}, {b}, {c};", "b32", [("b32", a), ("b32", b), ("b32", c)])
    for x, y, s, found in zip(a.tolist(), b.tolist(), c.tolist(), actual.tolist(), strict=True):
        data = (x | y << 32).to_bytes(8, "little")
        expected = []
        for k in range(4):
            nibble = s >> 4 * k & 15
            byte = data[nibble & 7]
            expected.append((0xFF if byte & 0x80 else 0) if nibble & 8 else byte)
        assert found == int.from_bytes(bytes(expected), "little")


@pytest.mark.parametrize("table", [0xF0, 0xCC, 0xAA, 0x96, 0xE8, 0x1F, 0xCA])
def test_lop3(table: int) -> None:
    random = np.random.default_rng(table)
    a, b, c = (random.integers(0, 1 << 32, 50, dtype=np.uint32) for _ in range(3))
    actual = evaluate(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", "b32", [("b32", a), ("b32", b), ("b32", c)])
    for x, y, z, found in zip(a.tolist(), b.tolist(), c.tolist(), actual.tolist(), strict=True):
        expected = sum((table >> ((x >> k & 1) << 2 | (y >> k & 1) << 1 | (z >> k & 1)) & 1) << k for k in range(32))
        assert found == expected


@pytest.mark.parametrize("mode", ["l.clamp", "l.wrap", "r.clamp", "r.wrap"])
def test_funnel_shift(mode: str) -> None:
    random = np.random.default_rng(2)
    a, b = (random.integers(0, 1 << 32, 80, dtype=np.uint32) for _ in range(2))
    by = np.arange(80, dtype=np.uint32)
    actual = evaluate(f"shf.{mode}.b32 {{d}}, {{a}}, {{b}}, {{c}};", "b32", [("b32", a), ("b32", b), ("u32", by)])
    for x, y, n, found in zip(a.tolist(), b.tolist(), by.tolist(), actual.tolist(), strict=True):
        n = min(n, 32) if mode.endswith("clamp") else n & 31
        both = x | y << 32
        assert found == (wrap(both >> n, 32) if mode[0] == "r" else both << n >> 32 & 0xFFFFFFFF)


@pytest.mark.parametrize("kind", ["u16", "s16", "u32", "s32", "u64", "s64", "b32"])
@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge", "hi", "ls"])
def test_comparisons(kind: str, name: str) -> None:
    if (kind[0] == "b" and name not in ("eq", "ne")) or (kind[0] == "s" and name in ("hi", "ls")):
        pytest.skip("not an instruction")
    a, b = pairs(edges(kind if kind[0] == "s" else "u" + kind[1:]), 2)
    name_of = {"hi": "gt", "ls": "le"}.get(name, name)
    actual = evaluate(f"setp.{name}.{kind} {{d}}, {{a}}, {{b}};", "pred", [(kind, a), (kind, b)])
    function = getattr(int, f"__{name_of}__")
    assert actual.tolist() == [int(function(x, y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]


def test_setp_combines_and_gives_the_negation() -> None:
    a, b = pairs(np.array([0, 1, 2], np.uint32), 2)
    random = np.random.default_rng(0).integers(0, 2, len(a)).astype(np.uint32)
    for join, function in (("and", lambda x, y: x & y), ("or", lambda x, y: x | y), ("xor", lambda x, y: x ^ y)):
        text = f".reg .pred %other; setp.lt.{join}.u32 %other|{{d}}, {{a}}, {{b}}, {{c}};"
        actual = evaluate(text, "pred", [("u32", a), ("u32", b), ("pred", random)])
        expected = [function(int(not x < y), z) for x, y, z in zip(a.tolist(), b.tolist(), random.tolist(), strict=True)]
        assert actual.tolist() == expected


@pytest.mark.parametrize("to", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
@pytest.mark.parametrize("source", ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"])
def test_integer_conversions(source: str, to: str) -> None:
    if source == to:
        pytest.skip("the same type")
    a = edges(source)
    bits, wide = int(to[1:]), max(16, int(to[1:]))
    actual = evaluate(f"cvt.{to}.{source} {{d}}, {{a}};", f"b{wide}", [(source, a)])
    extend = signed if to[0] == "s" else wrap
    assert actual.tolist() == [wrap(extend(x, bits), wide) for x in a.tolist()]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    actual = evaluate(f"cvt.sat.{to}.{source} {{d}}, {{a}};", f"b{wide}", [(source, a)])
    assert actual.tolist() == [wrap(min(max(x, low), high), wide) for x in a.tolist()]


@pytest.mark.parametrize(("opcode", "expected"), [("min", [0, 0, 3]), ("max", [0, 7, 9])])
def test_relu_keeps_what_is_positive(opcode: str, expected: list[int]) -> None:
    a, b = np.array([-5, 7, 3], np.int32), np.array([-2, -1, 9], np.int32)
    assert evaluate(f"{opcode}.relu.s32 {{d}}, {{a}}, {{b}};", "s32", [("s32", a), ("s32", b)]).tolist() == expected
