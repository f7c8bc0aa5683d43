"""128-bit registers: `mov.b128` packs and unpacks them; ld and st of .b128 move two halves of 64 bits (PTX ISA, `.b128`).

A register has one set of poison flags for its 16 bytes.
"""

from __future__ import annotations

import numpy as np

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.scalar_types import RAW
from tilec.emulator.machine.sources import Source, Step, Target
from tilec.emulator.ptx.syntax import Vector


def joined(low: Lanes, high: Lanes) -> Lanes:
    """Two halves as values of 128 bits."""
    return np.ascontiguousarray(np.stack(np.broadcast_arrays(low, high), axis=-1)).view(RAW[128]).reshape(-1)


def half(source: Source, which: int) -> Source:
    """The low (0) or high (1) half of a source of 128 bits."""

    def value(frame: Frame) -> Lanes:
        return np.ascontiguousarray(source.value(frame)).view(np.uint64).reshape(-1, 2)[:, which].copy()

    return Source(value, source.poison)


def half_targets(target: Target) -> list[Target]:
    """Writers of the low and then the high half, the second of which writes the whole."""
    kept: list[tuple[Lanes, Poison | None]] = []

    def low(_: Frame, value: Lanes, poison: Poison | None) -> None:
        kept[:] = [(value, poison)]

    def high(frame: Frame, value: Lanes, poison: Poison | None) -> None:
        target(frame, joined(kept[0][0], value), union(kept[0][1], poison))

    return [low, high]


def mov_b128(d: Decoder) -> Step:
    """`mov.b128` between registers, or with `{low, high}` on one side."""
    result, given = d.operands
    if isinstance(result, Vector):
        source = d.source(given, "b128")
        targets, halves = [d.target(item, "b64") for item in d.vector(result, 2)], [half(source, 0), half(source, 1)]

        def unpack(frame: Frame) -> None:
            for target, part in zip(targets, halves, strict=True):
                target(frame, part.value(frame), source.poison(frame))

        return unpack
    if isinstance(given, Vector):
        parts = [d.source(item, "b64") for item in d.vector(given, 2)]
        return d.pure(result, "b128", parts, joined)
    return d.pure(result, "b128", [d.source(given, "b128")], lambda value: value)
