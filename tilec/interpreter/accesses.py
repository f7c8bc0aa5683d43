"""Records the elements that each block reads and writes, and finds races, unwritten elements and reads of uninitialised
ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.interpreter.dtypes import Array
from tilec.ir.core import Access, Function

NO_BLOCK: Final = -1
SEVERAL_BLOCKS: Final = -2


class _Footprint:
    """For each element: its one reading and one writing block (or NO_BLOCK, or SEVERAL_BLOCKS), its number of writes, and
    whether a block read it without having written it."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.reader: NDArray[np.int64] = np.full(shape, NO_BLOCK, np.int64)
        self.writer: NDArray[np.int64] = np.full(shape, NO_BLOCK, np.int64)
        self.writes: NDArray[np.int64] = np.zeros(shape, np.int64)
        self.unwritten: NDArray[np.bool_] = np.zeros(shape, np.bool_)


class Accesses:
    """Pass an instance to `run`; `problems` lists violations afterwards. Blocks are numbered in row-major order of the
    grid."""

    def __init__(self, function: Function, arrays: Mapping[str, Array]) -> None:
        self.access = {p.name: p.access for p in function.parameters if p.access is not None}
        self.tensors = {name: _Footprint(arrays[name].shape) for name in self.access}

    def read(self, tensor: str, block: int, index: Any) -> None:
        """Records that a block reads the elements at `index`, a NumPy index."""
        footprint = self.tensors[tensor]
        footprint.unwritten[index] |= footprint.writer[index] != block
        footprint.reader[index] = _joined(footprint.reader[index], block)

    def write(self, tensor: str, block: int, index: Any) -> None:
        """Records that a block writes the elements at `index`, a NumPy index."""
        footprint = self.tensors[tensor]
        footprint.writer[index] = _joined(footprint.writer[index], block)
        np.add.at(footprint.writes, index, 1)

    def problems(self) -> list[str]:
        """Violations of the ownership rules, one line each, with the first element; empty for a safe kernel."""
        found: list[str] = []
        for name, footprint in self.tensors.items():
            access = self.access[name]
            if access.exclusive:
                found += _first(name, footprint.writer == SEVERAL_BLOCKS, "is written by two blocks")
                conflicting_reader = (footprint.reader == SEVERAL_BLOCKS) | (
                    (footprint.reader >= 0) & (footprint.reader != footprint.writer)
                )
                found += _first(
                    name, (footprint.writer != NO_BLOCK) & conflicting_reader, "is written by one block and read by another"
                )
            if access is Access.OUT:
                found += _first(name, footprint.writes == 0, "is written by no block")
                found += _first(name, footprint.writes > 1, "is written more than once")
            if access is Access.SCRATCH:
                found += _first(name, footprint.unwritten, "is read before its block wrote it")
        return found


def _joined(known: NDArray[np.int64], block: int) -> NDArray[np.int64]:
    return np.where((known == NO_BLOCK) | (known == block), block, SEVERAL_BLOCKS)


def _first(name: str, where: NDArray[np.bool_], violation: str) -> list[str]:
    indices = np.argwhere(where)
    return [f"`{name}[{', '.join(map(str, indices[0]))}]` {violation}"] if len(indices) else []
