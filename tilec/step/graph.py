"""Buffers and operations of one step for a given number of tokens, so that every shape is a number.

An operation is one launch of an artifact: the kernel, the constants that its specialisation must have, and for each parameter a
view of a buffer or a scalar. The artifact's manifest states what a kernel reads and writes and what it assumes; the loader
checks the operation against it when it plans a launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Final

from tilec.target.dtypes import bf16, f8e4m3, f16, f32, i32, u8, u32

Constant = int | float | bool | str

CHUNK: Final = "chunk"
"""The mode of a step that takes a chunk of a prompt and whose cache is in pages."""

SERVE: Final = "serve"
"""The mode of a step that takes a token of each of several rows and whose cache is in pages."""

PAGED: Final = frozenset({CHUNK, SERVE})
"""Modes whose caches are pools of pages."""

ITEM_BYTES: Final = {dtype.name: dtype.bytes for dtype in (bf16, f16, f32, i32, f8e4m3, u8, u32)}
"""Bytes per element of each dtype that buffers have."""


class Kind(Enum):
    """Who owns a buffer's contents, and how long they live."""

    WEIGHT = "weight"  # loaded once, never written
    TABLE = "table"  # computed on the host at load, never written
    CACHE = "cache"  # persists across steps: keys and values
    POOL = "pool"  # the same in pages, which sequences share: the host says which page belongs to whom
    INPUT = "input"  # written by the host before each step
    SETTING = "setting"  # written by the host before a generation begins, then constant for all of its steps
    OUTPUT = "output"  # read by the host after each step
    ACTIVATION = "activation"  # lives within a step; the memory plan reuses its bytes


@dataclass(frozen=True, slots=True)
class Buffer:
    """Row-major contiguous device memory. A weight has its Hugging Face `name`; a merged one is named as in
    `engine.checkpoint.weights`. `low` and `high` bound the integers in the buffer whenever a kernel reads it (`low <= v <
    high`); `distinct` states that no two are equal. The host ensures this for values it writes, and a kernel that writes the
    buffer promises it. `distinct_in_rows` states that no two of a row, along the last axis, are equal: of what kernels write
    within a step, an activation or an output."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: Kind
    low: int | None = None
    high: int | None = None
    distinct: bool = False
    distinct_in_rows: bool = False

    @property
    def bytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class View:
    """A buffer as a kernel accesses it: the same bytes, starting at element `offset`, with another row-major shape."""

    buffer: str
    shape: tuple[int, ...]
    offset: int = 0

    @property
    def elements(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class Op:
    """One launch: `constants` are those that its specialisation must have; tuning constants are left to the bundle.
    `overlaps`: it may begin before the previous launch has ended (programmatic dependent launch), whatever its kernel reads
    early; else only if that is nothing that a step writes."""

    name: str
    kernel: str
    constants: Mapping[str, Constant]
    tensors: Mapping[str, View]
    scalars: Mapping[str, int | float] = field(default_factory=dict[str, "int | float"])
    overlaps: bool = True


@dataclass(slots=True)
class StepGraph:
    """Buffers by name and operations in order. `tokens` is the number of input tokens of the step, `sequences` the number of
    sequences they belong to. With several sequences, each has its own cache, at its index on the first axis of every cache
    buffer."""

    name: str
    tokens: int
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    ops: list[Op] = field(default_factory=list[Op])
    sequences: int = 1

    def buffer(self, name: str, dtype: str, shape: tuple[int, ...], kind: Kind, **facts: int | bool) -> Buffer:
        """Adds a buffer; ValueError if one of this name exists with other properties."""
        added = Buffer(name, dtype, shape, kind, **facts)  # pyright: ignore[reportArgumentType]
        if self.buffers.setdefault(name, added) != added:
            raise ValueError(f"buffer `{name}` is {self.buffers[name]}, not {added}")
        return added

    def view(self, name: str, *shape: int, offset: int = 0) -> View:
        """A view of a whole buffer, in its own shape unless another is given."""
        return View(name, shape or self.buffers[name].shape, offset)

    def add(
        self, name: str, kernel: str, constants: Mapping[str, Constant], tensors: Mapping[str, View], **scalars: int | float
    ) -> None:
        """Appends an operation."""
        self.ops.append(Op(name, kernel, constants, tensors, scalars))

    def role(self, buffer: str) -> str:
        """What a buffer is to the step: its name without the step's own in front, so `lengths` for `batch.lengths`. Steps over
        pages share some, `pages.slots`, and one that serves shares how tokens are chosen with a batch."""
        found = buffer.removeprefix(f"{self.name}.")
        if self.name in PAGED:
            found = found.removeprefix("pages.")
        return found.removeprefix("batch.") if self.name == SERVE else found

    def of_kind(self, kind: Kind) -> Iterator[Buffer]:
        """Buffers of a kind in the order of insertion."""
        return (buffer for buffer in self.buffers.values() if buffer.kind is kind)
