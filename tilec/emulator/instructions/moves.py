"""mov, cvta, selp, slct, prmt and mov's packing of vectors (PTX ISA, sections 9.7.9 and 9.7.7)."""

from __future__ import annotations

import numpy as np

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.instructions.quads import mov_b128
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.halves import high, low, packed, quarter, whole
from tilec.emulator.machine.memory import LOCAL_BASE, PARAM_BASE, SHARED_BASE
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.scalar_types import RAW, TYPES
from tilec.emulator.machine.sources import Source, Step, Target
from tilec.emulator.ptx.syntax import Register, Vector

_MOV = ("pred", "b16", "u16", "s16", "b32", "u32", "s32", "b64", "u64", "s64", "f32", "f64")
WINDOWS = {"shared": SHARED_BASE, "local": LOCAL_BASE, "global": 0, "const": 0, "param": PARAM_BASE}


@lanewise("mov")
def mov(d: Decoder) -> Step:
    kind = d.need(*_MOV, "b128")
    d.finish(2)
    if kind == "b128":
        return mov_b128(d)
    result = d.operands[0]
    if isinstance(result, Register) and TYPES[result.type][0] != TYPES[kind][0]:
        raise d.unsupported("mov to a register of another size")
    if isinstance(result, Vector):
        return _unpack(d, result, kind)
    if isinstance(d.operands[1], Vector):
        return _pack(d, d.operands[1], kind)
    return move(d.target(0, kind), d.source(1, kind))


def move(target: Target, source: Source) -> Step:
    """Copies the bits and the poison with its half flags."""
    return lambda frame: target(frame, source.value(frame), source.halves(frame))


def _part(d: Decoder, kind: str, count: int) -> str:
    bits = TYPES[kind][0]
    if kind[0] != "b" or bits % count or bits // count not in RAW:
        raise d.unsupported(f"{count} parts of .{kind}")
    return f"b{bits // count}"


def _pack(d: Decoder, vector: Vector, kind: str) -> Step:
    part = _part(d, kind, len(vector.items))
    bits, dtype = TYPES[part][0], TYPES[kind][1]
    parts, target = [d.source(item, part) for item in vector.items], d.target(0, kind)

    def step(frame: Frame) -> None:
        total = parts[0].value(frame).astype(dtype)
        for k, source in enumerate(parts[1:], 1):
            total = total | (source.value(frame).astype(dtype) << dtype(k * bits))
        target(frame, total, packed([source.halves(frame) for source in parts]))

    return step


def _unpack(d: Decoder, vector: Vector, kind: str) -> Step:
    part = _part(d, kind, len(vector.items))
    bits, dtype, narrow = TYPES[part][0], TYPES[kind][1], TYPES[part][1]
    source, targets = d.source(1, kind), [d.target(item, part) for item in vector.items]

    def step(frame: Frame) -> None:
        value, poison = source.value(frame), source.halves(frame)
        halves = low(poison), high(poison)
        for k, target in enumerate(targets):
            target(frame, (value >> dtype(k * bits)).astype(narrow), halves[2 * k // len(targets)])

    return step


@lanewise("cvta")
def cvta(d: Decoder) -> Step:
    """Converts between generic addresses and those of a state space (the windows of `tilec.emulator.machine.memory`)."""
    to = d.flag("to")
    space = d.need(*WINDOWS, "shared::cta", "shared::cluster", "param::entry").split("::")[0]
    kind = d.need("u64", "u32")
    d.finish(2)
    if kind == "u32" and WINDOWS[space]:
        raise d.unsupported("32-bit generic addresses")
    base = TYPES[kind][1](WINDOWS[space])
    return d.pure(0, kind, [d.source(1, kind)], lambda value: value - base if to else value + base)


@lanewise("selp")
def selp(d: Decoder) -> Step:
    kind = d.need(*(k for k in _MOV if k != "pred"))
    d.finish(4)
    return choose(d.target(0, kind), d.source(1, kind), d.source(2, kind), d.source(3, "pred"))


def choose(target: Target, first: Source, second: Source, condition: Source) -> Step:
    """`condition ? first : second`; the result has the poison of the selected side and of the condition."""

    def step(frame: Frame) -> None:
        taken = condition.value(frame)
        value = np.where(taken, first.value(frame), second.value(frame))
        first_poison, second_poison = first.poison(frame), second.poison(frame)
        poison: Poison | None = None
        if first_poison is not None or second_poison is not None:
            poison = np.where(
                taken, 0 if first_poison is None else first_poison, 0 if second_poison is None else second_poison
            ).astype(np.uint8)
            poison = np.broadcast_to(poison, frame.n) if poison.any() else None
        target(frame, value, union(poison, condition.poison(frame)))

    return step


@lanewise("slct")
def slct(d: Decoder) -> Step:
    ftz = d.flag("ftz")
    kind, control = d.need(*(k for k in _MOV if k != "pred")), d.need("s32", "f32")
    d.finish(4)
    if ftz and control != "f32":
        raise d.unsupported(".ftz with an integer condition")
    inner = d.source(3, control)
    condition = Source(lambda frame: np.asarray(inner.value(frame) >= 0), inner.poison)
    return choose(d.target(0, kind), d.source(1, kind), d.source(2, kind), condition)


@lanewise("prmt")
def prmt(d: Decoder) -> Step:
    """Selects four of eight bytes (PTX ISA, prmt): the default mode, and the modes that select by the low bits of c."""
    d.need("b32")
    mode = d.take("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    d.finish(4)
    a, b, c = (d.source(k, "b32") for k in (1, 2, 3))
    if mode is None:
        return _permuted(d.target(0, "b32"), a, b, c)
    table = np.array(_SELECTORS[mode], np.uint32)
    return d.pure(0, "b32", [a, b, c], lambda x, y, z: permute(x, y, table[(z & np.uint32(3)).astype(np.int64)]))


def _permuted(target: Target, a: Source, b: Source, c: Source) -> Step:
    """The default mode. The result has the poison of the bytes that are selected: LLVM leaves the others undefined."""

    def step(frame: Frame) -> None:
        selectors, chosen = np.asarray(c.value(frame)), c.poison(frame)
        bytes_ = [quarter(source.halves(frame), k) for source in (a, b) for k in range(4)]
        poison: Poison | None = None
        if any(byte is not None for byte in bytes_):
            choices = [np.uint8(0) if byte is None else byte for byte in bytes_]
            numbers = [(selectors >> np.uint32(4 * k)) & np.uint32(7) for k in range(4)]
            parts = [np.broadcast_to(np.choose(number.astype(np.int64), choices), frame.n) for number in numbers]
            poison = packed([part.astype(np.uint8) for part in parts])
        target(
            frame,
            permute(a.value(frame), b.value(frame), selectors),
            poison if chosen is None else union(whole(poison), chosen),
        )

    return step


_SELECTORS = {
    "f4e": (0x3210, 0x4321, 0x5432, 0x6543),
    "b4e": (0x5670, 0x6701, 0x7012, 0x0123),
    "rc8": (0x0000, 0x1111, 0x2222, 0x3333),
    "ecl": (0x3210, 0x3211, 0x3222, 0x3333),
    "ecr": (0x0000, 0x1110, 0x2210, 0x3210),
    "rc16": (0x1010, 0x3232, 0x1010, 0x3232),
}


def permute(a: Lanes, b: Lanes, c: Lanes) -> Lanes:
    """The default mode: nibble k of c selects the byte for position k; with bit 3 set, that byte's sign is replicated
    instead."""
    both = np.asarray(a, np.uint64) | (np.asarray(b, np.uint64) << np.uint64(32))
    total = np.zeros(np.broadcast(a, b, c).shape, np.uint32)
    for k in range(4):
        nibble = (np.asarray(c) >> np.uint32(4 * k)) & np.uint32(15)
        byte = (both >> ((nibble & np.uint32(7)).astype(np.uint64) * np.uint64(8))).astype(np.uint32) & np.uint32(255)
        byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), np.uint32(255), np.uint32(0)), byte)
        total = total | (byte << np.uint32(8 * k))
    return total
