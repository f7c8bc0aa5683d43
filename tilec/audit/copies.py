"""Copies by tensor maps, as the audit reads them from PTX, and the tiles that they make up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilec.artifact.records import TensorMapSpec
from tilec.audit.flow import Peer, SymbolicValue


class Differs(Exception):
    """The manifest contradicts the kernel."""


class Unclear(Exception):
    """The PTX does not determine the property."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The copy by a tensor map at index `position`: `maps` with the predicates that select each, `offsets` of its coordinates
    from their `bases`, outermost axis first; `barrier` is the mbarrier that counts its bytes, None for a store."""

    position: int
    line: int
    maps: tuple[tuple[dict[int, bool], TensorMapSpec], ...]
    bases: tuple[Any, ...]
    offsets: tuple[int, ...]
    barrier: Any


@dataclass(slots=True)
class Barrier:
    """The bytes that a phase expects by each instruction, by its index; the bytes counted in place of those that a smaller box
    omits (`compensation`, each with the instruction), and the bytes of each full box."""

    expected: dict[int, int] = field(default_factory=dict[int, int])
    compensation: list[tuple[Any, SymbolicValue]] = field(default_factory=list[tuple[Any, SymbolicValue]])
    copied: dict[Any, int] = field(default_factory=dict[Any, int])


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """The copies that a block executes, in the order of the text, and its mbarriers by base and constant of their address."""

    copies: list[Copy]
    barriers: dict[Any, Barrier]


def refuse_unknown_forms(instruction: Any) -> None:
    """Raises Unclear for an instruction that counts bytes at an mbarrier, or uses a tensor map, in a form that is not judged:
    only copies of a box are (PTX ISA, "Tensor copy modes")."""
    modifiers = instruction.modifiers
    where = f"PTX line {instruction.line}: "
    if instruction.opcode != "cp" or "tensor" not in modifiers:
        if any(word.startswith("mbarrier::complete_tx") for word in modifiers):
            raise Unclear(where + "bytes that no tensor map copies")
        return
    others = [
        word
        for word in modifiers
        if word in ("reduce", "prefetch", "multicast::cluster") or word.startswith(("im2col", "tile::"))
    ]
    if others:
        raise Unclear(where + f"a copy with `.{others[0]}`")


def cut(offsets: set[tuple[int, ...]], shape: tuple[int, ...]) -> Mapping[tuple[int, ...], tuple[int, ...]]:
    """The boxes that begin at these offsets and partition a tile of this shape, by offset; empty if there is no such
    partition."""
    lowest = tuple(map(min, zip(*offsets, strict=True)))
    if len(lowest) != len(shape):
        return {}
    starts = [sorted({offset[axis] - lowest[axis] for offset in offsets}) for axis in range(len(shape))]
    if prod(map(len, starts)) != len(offsets):
        return {}
    ends = [dict(zip(axis, [*axis[1:], extent], strict=True)) for axis, extent in zip(starts, shape, strict=True)]
    return {
        offset: tuple(ends[axis][at - lowest[axis]] - (at - lowest[axis]) for axis, at in enumerate(offset))
        for offset in offsets
    }


def named(position: Any) -> str:
    """An mbarrier in words, by base and constant of its address."""
    base, constant = position
    leader = f" in the block of rank {base.rank}" if isinstance(base, Peer) else ""
    base = base.base if isinstance(base, Peer) else base
    return f"the mbarrier at {base if isinstance(base, str) else 'a register'} + {constant}{leader}"
