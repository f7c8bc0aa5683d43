"""The registry of instruction families, and the decoder that turns an instruction into a step.

A family registers a decoder for an opcode:

    @lanewise("add")                      # runs under a mask; the return value of its steps is ignored
    def add(d: Decoder) -> Step: ...
    @control("bar", "barrier")            # never runs under a mask; its steps may return the next instruction

An opcode may include the first modifier (`tcgen05.mma`), which has precedence. A decoder runs once per instruction. It consumes
the modifiers in order (`take`, `flag`, `need`), calls `finish()`, which rejects any that remain, and returns a closure
`step(frame)`. A step must not look anything up by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import Lanes, Poison, UnsupportedPtx
from tilec.emulator.machine.cluster_windows import RANK_SHIFT
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.scalar_types import RAW, TYPES
from tilec.emulator.machine.sources import Source, Step, Target, no_poison, of_register
from tilec.emulator.machine.specials import special
from tilec.emulator.ptx.syntax import (
    Address,
    Immediate,
    Instruction,
    Negated,
    Operand,
    Register,
    Sink,
    Special,
    Symbol,
    Vector,
)

_Wide = Callable[[Any, Any, Any], Any] | Callable[[Any, Any, Any, Any], Any]
Function = Callable[[Any], Any] | Callable[[Any, Any], Any] | _Wide
"""The computation of a value instruction, on one to four typed arrays."""


@dataclass(frozen=True, slots=True)
class _Entry:
    decode: Callable[[Decoder], Step]
    is_control: bool


_REGISTRY: Final[dict[str, _Entry]] = {}


def lanewise(*opcodes: str) -> Callable[[Callable[[Decoder], Step]], Callable[[Decoder], Step]]:
    """Registers a decoder whose steps work under a mask: they compute values, or memory accesses that apply `frame.mask`."""
    return _register(opcodes, False)


def control(*opcodes: str) -> Callable[[Callable[[Decoder], Step]], Callable[[Decoder], Step]]:
    """Registers a decoder whose steps never run under a mask and may return an index or RESCHEDULE."""
    return _register(opcodes, True)


def _register(opcodes: tuple[str, ...], is_control: bool) -> Callable[[Any], Any]:
    def add(decode: Callable[[Decoder], Step]) -> Callable[[Decoder], Step]:
        for opcode in opcodes:
            if opcode in _REGISTRY:
                raise ValueError(f"two families for {opcode}")
            _REGISTRY[opcode] = _Entry(decode, is_control)
        return decode

    return add


def opcodes() -> tuple[str, ...]:
    """Every registered opcode."""
    return tuple(sorted(_REGISTRY))


class Decoder:
    """Decodes one instruction into a step. `machine` is the state that its step works on."""

    def __init__(self, instruction: Instruction, index: int, machine: Machine) -> None:
        self.instruction, self.index, self.machine = instruction, index, machine
        self.left = list(instruction.modifiers)
        self.operands = instruction.operands

    # --- modifiers
    def unsupported(self, reason: str) -> UnsupportedPtx:
        return UnsupportedPtx(reason, self.instruction.line, self.instruction.text)

    def take(self, *names: str) -> str | None:
        """Consumes and returns the next modifier if it is one of `names`."""
        return self.left.pop(0) if self.left and self.left[0] in names else None

    def flag(self, name: str) -> bool:
        """Whether the next modifier is `name`; consumes it if so."""
        return self.take(name) is not None

    def need(self, *names: str) -> str:
        """Consumes the next modifier, which must be one of `names`."""
        found = self.take(*names)
        if found is None:
            raise self.unsupported(f"expected a modifier of {', '.join('.' + name for name in names)}")
        return found

    def finish(self, *counts: int) -> None:
        """Rejects remaining modifiers, and an operand count other than `counts`."""
        if self.left:
            raise self.unsupported(f"unknown modifier .{self.left[0]}")
        if counts and len(self.operands) not in counts:
            raise self.unsupported(f"{len(self.operands)} operands")

    # --- operands
    def source(self, operand: int | Operand, kind: str) -> Source:
        """A readable operand as `kind` (a key of TYPES). An integer `kind` reads the low bits of a wider register."""
        item = self.operands[operand] if isinstance(operand, int) else operand
        bits, dtype = TYPES[kind]
        if isinstance(item, Register):
            return self._register_source(item, kind, bits, dtype)
        if isinstance(item, Negated):
            inner = self._register_source(item.register, kind, bits, dtype)
            return Source(lambda frame: ~inner.value(frame), inner.poison)
        if isinstance(item, Immediate):
            constant = self.literal(item, kind)
            return Source(lambda _: constant, no_poison, constant)
        if isinstance(item, Symbol):
            address = self.symbol_address(item)
            if self.machine.launch.cluster_size > 1 and item.name in self.machine.windows.shared_offsets:
                return Source(lambda frame: _ranked(frame, address).astype(RAW[bits]).view(dtype), no_poison)
            constant = dtype(address & ((1 << bits) - 1))
            return Source(lambda _: constant, no_poison, constant)
        if isinstance(item, Special):
            return self._special_source(item, bits, dtype)
        raise self.unsupported("not a readable operand")

    def _special_source(self, item: Special, bits: int, dtype: Any) -> Source:
        read = special(self.machine, item.name)
        if read is None:
            raise self.unsupported(f"unknown special register {item.name}")

        def value(frame: Frame) -> Lanes:
            return read(frame).astype(RAW[bits]).view(dtype)

        return Source(value, no_poison)

    def _register_source(self, item: Register, kind: str, bits: int, dtype: Any) -> Source:
        index, width = item.index, TYPES[item.type][0]
        if width < bits or (kind == "pred") != (item.type == "pred"):
            raise self.unsupported(f"register {item.name} of type .{item.type} read as .{kind}")
        return of_register(index, width, bits, dtype)

    def literal(self, item: Immediate, kind: str) -> Any:
        """A literal as a NumPy scalar of `kind`: integers as bits; floats exactly, or by their bits if given."""
        bits, dtype = TYPES[kind]
        if kind == "pred":
            return np.bool_(item.value != 0)
        if item.is_float:
            if item.width == bits:
                return RAW[bits](item.bits).view(dtype) if dtype is not RAW[bits] else dtype(item.bits)
            if kind == "f64":
                return np.float64(item.value)
            if kind == "f32" and item.width in (0, 64):
                return np.float32(item.value)
            raise self.unsupported(f"a float literal as .{kind}")
        value = RAW[bits](int(item.value) & ((1 << bits) - 1))
        if kind in ("f32", "f64"):
            raise self.unsupported(f"an integer literal as .{kind}")
        return value.view(dtype)

    def target(self, operand: int | Operand, kind: str) -> Target:
        """A writer of results of `kind`. A wider register is sign-extended (signed kinds) or zero-extended."""
        item = self.operands[operand] if isinstance(operand, int) else operand
        if isinstance(item, Sink):
            return lambda frame, value, poison: None
        if not isinstance(item, Register):
            raise self.unsupported("the result is not a register")
        bits, dtype = TYPES[kind]
        index, width = item.index, TYPES[item.type][0]
        if width < bits or (kind == "pred") != (item.type == "pred"):
            raise self.unsupported(f"a result of type .{kind} in register {item.name} of type .{item.type}")
        raw = RAW[width]
        wide = TYPES[f"s{width}"][1] if kind[0] == "s" and width > bits else raw

        def write(frame: Frame, value: Lanes, poison: Poison | None) -> None:
            if value.ndim == 0:
                value = np.full(frame.n, value)
            if width > bits:
                value = value.view(RAW[bits]) if wide is raw else value.view(dtype)
                value = value.astype(wide)
            frame.write(index, value if value.dtype == raw else value.view(raw), poison)

        return write

    def vector(self, operand: int | Operand, count: int) -> tuple[Operand, ...]:
        """The `count` items of a vector operand; with `count` 1 it may be a plain operand."""
        item = self.operands[operand] if isinstance(operand, int) else operand
        items = item.items if isinstance(item, Vector) else (item,)
        if len(items) != count:
            raise self.unsupported(f"{len(items)} elements where {count} are due")
        return items

    def address(self, operand: int) -> Address:
        item = self.operands[operand]
        if not isinstance(item, Address):
            raise self.unsupported("not an address")
        return item

    def address_source(self, item: Address) -> Source:
        """Base plus offset as 64-bit integers (a 32-bit base is zero-extended); int64 arithmetic wraps."""
        base = item.base
        if isinstance(base, Register) and TYPES[base.type][0] not in (32, 64):
            raise self.unsupported("an address of neither 32 nor 64 bits")
        narrow = isinstance(base, Register) and TYPES[base.type][0] == 32
        inner = self.source(base, "b32" if narrow else "b64")
        offset = np.uint64(item.offset & ((1 << 64) - 1))
        if narrow:
            low = np.uint32(item.offset & 0xFFFFFFFF)
            return Source(lambda frame: (inner.value(frame) + low).astype(np.uint64).view(np.int64), inner.poison)
        if item.offset == 0:
            return Source(lambda frame: inner.value(frame).view(np.int64), inner.poison)
        return Source(lambda frame: (inner.value(frame) + offset).view(np.int64), inner.poison)

    def symbol_address(self, symbol: Symbol) -> int:
        """The address of a variable (`Windows.symbol_address`)."""
        found = self.machine.windows.symbol_address(symbol)
        if found is None:
            raise self.unsupported(f"unknown symbol {symbol.name}")
        return found

    # --- steps
    def pure(self, operand: int | Operand, kind: str, sources: Sequence[Source], function: Function) -> Step:
        """The step `target = function(*sources)`, with the union of their poison."""
        apply: Any = function
        write = self.target(operand, kind)
        if len(sources) == 1:
            value_of, poison_of = sources[0].value, sources[0].poison
            return lambda frame: write(frame, apply(value_of(frame)), poison_of(frame))
        if len(sources) == 2:
            first, second = sources

            def binary(frame: Frame) -> None:
                value = apply(first.value(frame), second.value(frame))
                write(frame, value, union(first.poison(frame), second.poison(frame)))

            return binary

        def many(frame: Frame) -> None:
            values = [source.value(frame) for source in sources]
            poison: Poison | None = None
            for source in sources:
                poison = union(poison, source.poison(frame))
            write(frame, apply(*values), poison)

        return many


def _ranked(frame: Frame, offset: int) -> Lanes:
    """The address of a shared variable of each lane's own block in a cluster of several (`cluster_windows`)."""
    return offset + (frame.wave.rank[frame.block] << RANK_SHIFT)


def decode(instruction: Instruction, index: int, machine: Machine) -> tuple[Step, bool]:
    """The step of an instruction, without its guard, and whether it is a control instruction."""
    decoder = Decoder(instruction, index, machine)
    first = instruction.modifiers[0] if instruction.modifiers else ""
    entry = _REGISTRY.get(f"{instruction.opcode}.{first}") or _REGISTRY.get(instruction.opcode)
    if entry is None:
        raise decoder.unsupported("unknown opcode")
    return entry.decode(decoder), entry.is_control
