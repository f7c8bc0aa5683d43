"""atom and red: and, or, xor, exch, cas, add, inc, dec, min, max on global and shared memory (PTX ISA, section 9.7.13.5, .6).

The lanes of one instruction execute sequentially, in lane order (seed 0) or in random order. A vector of `red` updates adjacent
elements, each by itself (section 9.7.13.6: the whole is not one atomic access); its address is a multiple of its size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from tilec.emulator.errors import STORED, Lanes
from tilec.emulator.instructions.floats import extremum
from tilec.emulator.instructions.memory import SCOPES, state_space
from tilec.emulator.machine.access import Access
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.lanes import where
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.rounding import canonical, flush, round_to, widen
from tilec.emulator.machine.scalar_types import RAW, TYPES
from tilec.emulator.machine.sources import Step

_OPERATIONS: Final[dict[str, tuple[str, ...]]] = {
    "and": ("b32", "b64"),
    "or": ("b32", "b64"),
    "xor": ("b32", "b64"),
    "exch": ("b32", "b64"),
    "cas": ("b16", "b32", "b64"),
    "add": ("u32", "s32", "u64", "f32", "f64", "f16", "bf16", "f16x2", "bf16x2"),
    "inc": ("u32",),
    "dec": ("u32",),
    "min": ("u32", "s32", "u64", "s64"),
    "max": ("u32", "s32", "u64", "s64"),
}


_VECTORS: Final[dict[str, tuple[str, ...]]] = {
    "f32": ("v2", "v4"),
    **dict.fromkeys(("f16", "bf16"), ("v2", "v4", "v8")),
    **dict.fromkeys(("f16x2", "bf16x2"), ("v2", "v4")),
}
"""Vectors of `red.add` by type (PTX ISA, `red`, table of vector qualifiers), in global memory alone."""


ASYNC_REDUCTION: Final[list[Any]] = []
"""The decoder of red.async; `async_stores` registers it."""


def _sum(kind: str) -> Callable[[Any, Any], Any]:
    if kind in ("f16", "bf16", "f16x2", "bf16x2"):
        single = kind.removesuffix("x2")

        def add(old: Lanes, new: Lanes) -> Lanes:
            pair = [np.ascontiguousarray(v).view(TYPES[single][1]) for v in (old, new)]
            rounded = round_to(single, widen(single, pair[0]) + widen(single, pair[1]))
            return np.ascontiguousarray(rounded).view(TYPES[kind][1])

        return add
    return _canonical_sum if kind == "f32" else lambda old, new: old + new


def _canonical_sum(old: Lanes, new: Lanes) -> Lanes:
    return canonical(old + new)


def _flushed_sum(old: Lanes, new: Lanes) -> Lanes:
    """f32 sums in global memory flush subnormal inputs and results to zero (PTX ISA, atom: .add.f32)."""
    return canonical(flush(flush(old) + flush(new)))


def _decrement(old: Any, new: Any) -> Any:
    return where((old == 0) | (old > new), new, old - np.uint32(1))


def reduction(operation: str, kind: str) -> Callable[[Any, Any], Any]:
    """The function of the old value and the operand that an operation other than cas stores."""
    one = np.uint32(1)
    table: dict[str, Callable[[Any, Any], Any]] = {
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "exch": lambda old, new: new,
        "add": _sum(kind),
        "inc": lambda old, new: np.where(old >= new, np.uint32(0), old + one),
        "dec": _decrement,
        "min": np.minimum,
        "max": np.maximum,
    }
    if kind in ("f32", "f64") and operation in ("min", "max"):
        return extremum(operation == "max", False)
    return table[operation]


@lanewise("atom", "red")
def atomic(d: Decoder) -> Step:
    returns = d.instruction.opcode == "atom"
    if not returns and d.flag("async"):
        return ASYNC_REDUCTION[0](d)
    order = d.take("relaxed", "acquire", "release", "acq_rel") or "relaxed"
    scope = d.take(*SCOPES) or "gpu"
    space = state_space(d.take("global", "shared", "shared::cta", "shared::cluster"))
    operation = d.need(*(name for name in _OPERATIONS if returns or name not in ("exch", "cas")))
    noftz = d.flag("noftz")
    policy = d.flag("L2::cache_hint")
    vector = None if returns else d.take("v2", "v4", "v8")
    kind = d.need(*_OPERATIONS[operation])
    if vector and (operation != "add" or vector not in _VECTORS.get(kind, ()) or space != "global"):
        raise d.unsupported(f"no .{vector} of .{operation}.{kind} here: {space} memory")
    if noftz != (kind in ("f16", "bf16", "f16x2", "bf16x2")):
        raise d.unsupported(".noftz goes with the narrow floats")
    values = 2 if operation == "cas" else 1
    d.finish(1 + returns + values + policy)
    raw = f"b{TYPES[kind][0]}"
    write = d.target(0, raw) if returns else None
    items = d.vector(1, int(vector[1:])) if vector else [d.operands[1 + returns + k] for k in range(values)]
    operands = [d.source(item, raw) for item in items]
    address = d.address_source(d.address(1 if returns else 0))
    groups = [[operand] for operand in operands] if vector else [operands]
    return _atomic_step(d, operation, kind, (space, order, scope), write, groups, address)


def _atomic_step(
    d: Decoder,
    operation: str,
    kind: str,
    how: tuple[str, str, str],
    write: Any,
    elements: list[list[Any]],
    address: Any,
) -> Step:
    """`elements`: the operands of each element, one element unless it is a vector, which writes no old value."""
    space, order, scope = how
    width, dtype = TYPES[kind][0] // 8, TYPES[kind][1]
    function = reduction(operation, kind) if operation != "cas" else None
    may_flush = operation == "add" and kind == "f32"
    machine, instruction = d.machine, d.instruction
    accesses, synchronise = machine.accesses, machine.ordering.synchronise
    total = width * len(elements)

    def step(frame: Frame) -> None:
        addresses = address.value(frame)
        located = machine.locator.locate(
            frame, addresses, address.poison(frame), space, total, instruction, write=True, align=total
        )
        for number, operands in enumerate(elements):
            update(frame, located.part(number * width, width) if len(elements) > 1 else located, operands)

    def update(frame: Frame, checked: Access, operands: list[Any]) -> None:
        positions = np.arange(frame.n) if checked.positions is None else checked.positions
        values = [np.broadcast_to(operand.value(frame), frame.n) for operand in operands]
        poisons = [operand.poison(frame) for operand in operands]
        old = np.zeros(frame.n, RAW[8 * width])
        old_poison = np.zeros(frame.n, np.uint8)
        if len(checked.index):
            synchronise.after_read(checked, order, scope)
            accesses.watch_read(checked, instruction, atomic=True, scope=scope)
            accesses.watch_write(checked, instruction, atomic=True, scope=scope)
            synchronise.before_write(checked, order, scope, keep=True)
        flushes = may_flush and checked.space(machine.memory) == "global"
        memory = machine.memory
        view, flags = memory.views[width], memory.poison
        ranks = np.arange(len(positions))
        if machine.launch.seed:
            ranks = machine.random.permutation(len(positions))
        for group in _groups_without_conflict(checked.index, ranks):
            lanes, slots = positions[group], checked.index[group] // width
            current = view[slots]
            old[lanes] = current
            poison = np.bitwise_or.reduce(flags[checked.index[group][:, None] + np.arange(width)], axis=1)
            old_poison[lanes] = poison & (STORED - 1)
            if function is None:
                compared, new = values[0][lanes], values[1][lanes]
                result = np.where(current == compared, new, current)
            else:
                operand = np.ascontiguousarray(values[0][lanes]).view(dtype)
                total = function(current.view(dtype), operand) if not flushes else _flushed_sum(current.view(dtype), operand)
                result = np.ascontiguousarray(total).view(RAW[8 * width])
            view[slots] = result
            for operand_poison in poisons:
                if operand_poison is not None:
                    poison = poison | operand_poison[lanes]
            if operation == "exch":
                poison = np.zeros_like(poison) if poisons[0] is None else poisons[0][lanes]
            poison = np.where(poison != 0, poison | STORED, 0).astype(np.uint8)
            flags[checked.index[group][:, None] + np.arange(width)] = poison[:, None]
            if poison.any():
                part = Access(lanes, checked.index[group], checked.allocation, width, checked.lanes[group])
                accesses.note_poison(part, poison[:, None], instruction)
        if write is not None:
            write(frame, old, old_poison if old_poison.any() else None)

    return step


def _groups_without_conflict(index: Any, ranks: Any) -> list[Any]:
    """Partitions the lanes into groups with distinct addresses; the groups execute sequentially."""
    if not len(index):
        return []
    order = np.lexsort((ranks, index))
    ordered = index[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    starts = np.flatnonzero(first)
    occurrence = np.arange(len(order)) - np.repeat(starts, np.diff(np.append(starts, len(order))))
    return [order[occurrence == k] for k in range(int(occurrence.max()) + 1)]
