"""A tuple of which a few elements can be replaced without copying all: what memory with many pages keeps of each of them.

It is immutable, so states of the scheduler can share it. Elements lie in blocks; replacing n of them copies the tuple of blocks
and the blocks that have one of the n.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")

BITS: Final = 6
"""A block has 1 << BITS elements."""
MASK: Final = (1 << BITS) - 1


@dataclass(frozen=True, slots=True)
class Vector(Generic[T]):
    """Elements by index from 0. IndexError outside."""

    blocks: tuple[tuple[T, ...], ...]

    @classmethod
    def of(cls, elements: Iterable[T]) -> Self:
        """A vector of these elements."""
        found = tuple(elements)
        return cls(tuple(found[start : start + MASK + 1] for start in range(0, len(found), MASK + 1)))

    def __getitem__(self, index: int) -> T:
        return self.blocks[index >> BITS][index & MASK]

    def __iter__(self) -> Iterator[T]:
        for block in self.blocks:
            yield from block

    def replaced(self, elements: Mapping[int, T]) -> Vector[T]:
        """The vector with other elements at some indices."""
        blocks, copies = list(self.blocks), dict[int, list[T]]()
        for index, element in elements.items():
            number = index >> BITS
            if number not in copies:
                copies[number] = list(blocks[number])
            copies[number][index & MASK] = element
        for number, copy in copies.items():
            blocks[number] = tuple(copy)
        return Vector(tuple(blocks))
