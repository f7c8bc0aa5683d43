"""The arithmetic of one `tcgen05.mma`: operands and cells of D in, new cells out, when it is performed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.instructions.tensor_memory_state import TensorMemory
from tilec.emulator.instructions.tensor_reads import SharedMatrix, TensorMatrix
from tilec.emulator.instructions.tensor_scales import ScaleFactors
from tilec.emulator.matrices.formats import decode, encode
from tilec.emulator.matrices.instruction_descriptors import InstructionDescriptor

Index = NDArray[np.int64]
Values = NDArray[Any]
ROWS: Final = 8


@dataclass(slots=True)
class Product:
    """D = A B, plus D divided by 2**halvings if `accumulate`. `rows`, `columns`: the cell of each element of D [M, N];
    `written`: the elements that are written (None: all)."""

    memory: TensorMemory
    fields: InstructionDescriptor
    left: SharedMatrix | TensorMatrix
    right: SharedMatrix
    rows: Index
    columns: Index
    written: NDArray[np.bool_] | None
    accumulate: bool
    halvings: int
    scales: ScaleFactors | None

    def perform(self) -> None:
        """Computes and writes D."""
        fields = self.fields
        left, left_poison = self.left.values()
        right, right_poison = self.right.values()
        left, right = left.astype(np.float64), right.astype(np.float64)
        left, right = -left if fields.negate[0] else left, -right if fields.negate[1] else right
        if self.scales is not None:
            left, right, left_poison, right_poison = self.scales.applied(left, right, left_poison, right_poison)
        sums = _times(left, right)
        poison = _spread(left_poison, right_poison, self.rows.shape)
        if self.accumulate:
            before, before_poison = self.memory.read(self.rows, self.columns)
            sums = sums + decode(before & np.uint32(0xFFFF) if fields.result == "f16" else before, fields.result) * (
                0.5**self.halvings
            )
            if before_poison is not None:
                poison = before_poison if poison is None else poison | before_poison
        words = self._words(sums)
        if self.written is None:
            self.memory.write(self.rows, self.columns, words, poison)
        else:
            kept = self.written
            self.memory.write(self.rows[kept], self.columns[kept], words[kept], None if poison is None else poison[kept])

    def _words(self, sums: Values) -> NDArray[np.uint32]:
        """Sums as cells: f16 in the low half; s32 clamped if the descriptor says so, else modulo 2**32."""
        if self.fields.result != "s32":
            return encode(sums, self.fields.result).astype(np.uint32)
        whole = sums.astype(np.int64)  # exact: below 2**53
        if self.fields.saturate:
            whole = np.clip(whole, -(1 << 31), (1 << 31) - 1)
        return (whole & 0xFFFFFFFF).astype(np.uint32)


def _times(left: Values, right: Values) -> Values:
    """`left @ right.T`, ROWS rows at a time: for larger pieces NumPy's library starts threads, which wait for busy cores."""
    found, turned = np.empty((len(left), len(right))), np.ascontiguousarray(right.T)
    for row in range(0, len(left), ROWS):
        np.matmul(left[row : row + ROWS], turned, out=found[row : row + ROWS])
    return found


def _spread(left: Poison | None, right: Poison | None, shape: tuple[int, ...]) -> NDArray[np.uint8] | None:
    """The poison of each element from that of its row of A and its column of B."""
    if left is None and right is None:
        return None
    found = np.zeros(shape, np.uint8)
    if left is not None:
        found |= left[:, None]
    if right is not None:
        found |= right[None, :]
    return found
