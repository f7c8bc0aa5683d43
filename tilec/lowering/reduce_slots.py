"""Where threads keep the partial results that a reduction passes between warps: slots in scratch.

In: the types of a thread's values in order. Out: their places, and code that stores or loads them. An instruction of a warp
takes as many cycles as its lanes need different words of one bank. With few values of a thread side by side that is little.
With 16 of them, all lanes need the same bank: values then lie a whole block of threads apart, up to 16 bytes of them side by
side, so that adjacent threads access adjacent memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from tilec.ir.layouts.conversion_scratch import BANK_BYTES, REDUCED_BYTES
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, Type, i1, i8, vector

ACCESS_BYTES: Final = 16
"""The most bytes that a thread loads or stores in one instruction."""


@dataclass(frozen=True, slots=True)
class Slots:
    """The places of the values of `threads` threads. `types`: those of one thread; `parts` of them are a result. `run`: how
    many values of a thread are side by side, `unit` bytes apart."""

    types: tuple[Type, ...]
    parts: int
    threads: int
    run: int
    unit: int

    @property
    def are_apart(self) -> bool:
        """Whether a thread's values are in several places."""
        return self.run < len(self.types)

    @property
    def step(self) -> int:
        """Bytes from one thread to the next."""
        return self.run * self.unit

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.threads * len(self.types) * self.unit

    @property
    def vector(self) -> int:
        """Values that an access moves."""
        is_packed = self.are_apart and all(one.bytes == self.unit for one in self.types)
        return self.run if is_packed else 1

    def store(self, context: Builder, own: SsaValue, values: Sequence[SsaValue]) -> None:
        """Stores a thread's values; `own`: the address of its first place."""
        for first in range(0, len(self.types), self.vector):
            address, part = self._address(context, own, first, 0), values[first : first + self.vector]
            if self.vector > 1:
                context.store(context.packed(part, vector(self.vector, part[0].type)), address, alignment=self.step)
            else:
                context.store(context.zext(part[0], i8) if part[0].type is i1 else part[0], address)

    def groups(self) -> Iterator[int]:
        """The first value of each group of whole results that `load` loads."""
        return iter(range(0, len(self.types), max(self.vector, self.parts)))

    def load(self, context: Builder, own: SsaValue, group: int, ahead: int) -> list[SsaValue]:
        """The values of a group of the thread `ahead` threads after the one whose first place has the address `own`."""
        if self.vector > 1:
            address = self._address(context, own, group, ahead)
            loaded = context.load(address, vector(self.vector, self.types[group]), alignment=self.step)
            return [context.extract(loaded, index) for index in range(self.vector)]
        indices = range(group, group + self.parts)
        return [context.load(self._address(context, own, index, ahead), self.types[index]) for index in indices]

    def _address(self, context: Builder, own: SsaValue, value: int, ahead: int) -> SsaValue:
        run, index = divmod(value, self.run)
        return context.offset(own, (run * self.threads + ahead) * self.step + index * self.unit)


def together(parts: Sequence[Type], results: int, threads: int) -> Slots:
    """All values of a thread side by side, each with room for every dtype. A result has `parts`: a value, and for argmax and
    argmin its position."""
    types = (*parts,) * results
    return Slots(types, len(parts), threads, len(types), REDUCED_BYTES)


def apart(parts: Sequence[Type], results: int, threads: int) -> Slots:
    """At most 16 bytes of a thread side by side."""
    unit = max(BANK_BYTES, *(part.bytes for part in parts))
    is_packed = len(parts) == 1 and parts[0].bytes == unit
    return Slots((*parts,) * results, len(parts), threads, gcd(results, ACCESS_BYTES // unit) if is_packed else 1, unit)
