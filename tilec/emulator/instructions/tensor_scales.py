"""Scale factors of a block-scaled `tcgen05.mma` in tensor memory.

PTX ISA, "Scale factor A/B layout". The four bytes of a word are scale factors of one row; the words of 32 rows lie in 32 lanes
of a column, and the same words in all four quarters of the lanes. A pair's block holds the factors of its own rows of A and of
all columns of B. Words that differ between the quarters are a fault, because the layout demands copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import Poison
from tilec.emulator.instructions.tensor_forms import Form
from tilec.emulator.instructions.tensor_memory_state import TensorMemory
from tilec.emulator.instructions.tensor_operands import of_thread, split_address
from tilec.emulator.machine.faults import Recorder
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.matrices.instruction_descriptors import InstructionDescriptor
from tilec.emulator.matrices.narrow_formats import scale_values
from tilec.emulator.matrices.tensor_layouts import LANES, Rect, scale_cells
from tilec.emulator.ptx.syntax import Instruction

Values = NDArray[Any]


@dataclass(slots=True)
class _Factors:
    """The factors of `rows` rows at `column` in each of the blocks: `count` bytes of a word, from the byte `number`."""

    blocks: tuple[int, ...]
    rows: int
    column: int
    number: int


@dataclass(slots=True)
class ScaleFactors:
    """The factors of A (one part per block) and of B (copies in each block)."""

    memory: TensorMemory
    faults: Recorder
    instruction: Instruction
    lane: int
    count: int
    is_ue8m0: bool
    a: _Factors
    b: _Factors
    rects: tuple[Rect, ...]

    @classmethod
    def of(
        cls, d: Decoder, decoded: Form, fields: InstructionDescriptor, frame: Frame, at: int, blocks: tuple[int, ...]
    ) -> ScaleFactors | None:
        """The factors of an mma of a lane; None, and a fault, if their addresses or ids cannot be used."""
        assert decoded.scale_a is not None and decoded.scale_b is not None
        lane, count = int(frame.lanes[at]), decoded.scales
        if decoded.pair and fields.rows == 128:
            raise d.unsupported("scale factors of a pair with M 128")
        columns: list[int] = []
        for name, source, number in (("A", decoded.scale_a, fields.scale_a), ("B", decoded.scale_b, fields.scale_b)):
            address = of_thread(source, frame, at, "an address in tensor memory", d)
            if address is None:
                return None
            row, column = split_address(address & 0x3FFFFFFF)
            text = f"scale factors of {name} at lane {row} of tensor memory, not 0" if row else ""
            if number + count > 4:
                text = f"an instruction descriptor has {number} as the scale factor id of {name} with {count} factors a row"
            if not fields.scale_is_ue8m0 and count != 4:
                text = "an instruction descriptor has ue4m3 scale factors with vectors of 32"
            if text:
                d.machine.faults.add("descriptor", text, d.instruction, lane, distinct=text)
                return None
            columns.append(column)
        a = _Factors(blocks, fields.rows // len(blocks), columns[0], fields.scale_a)
        b = _Factors(blocks, fields.columns, columns[1], fields.scale_b)
        rects = tuple(
            (LANES * block, LANES * (block + 1), one.column, one.column + -(-one.rows // 32))
            for one in (a, b)
            for block in blocks
        )
        machine = d.machine
        return cls(
            machine.tensor_memory, machine.faults, d.instruction, lane, count, fields.scale_is_ue8m0, a, b, rects
        )  # fmt: skip

    def applied(
        self, left: Values, right: Values, left_poison: Poison | None, right_poison: Poison | None
    ) -> tuple[Values, Values, Poison | None, Poison | None]:
        """A and B [rows, K] times their factors, and the poison of each row."""
        parts = [self._read(self.a, block) for block in self.a.blocks]
        a, a_poison = np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])
        b, b_poison = self._read(self.b, self.b.blocks[0])
        each = left.shape[1] // self.count
        left, right = left * np.repeat(a, each, axis=1), right * np.repeat(b, each, axis=1)
        return left, right, _either(left_poison, a_poison), _either(right_poison, b_poison)

    def _read(self, factors: _Factors, block: int) -> tuple[Values, NDArray[np.uint8]]:
        """Factors [rows, count] of a block and the poison of each row."""
        lanes, columns = scale_cells(factors.rows)
        rows = LANES * block + lanes[None, :] + 32 * np.arange(4)[:, None]
        words, poison = self.memory.read(rows, factors.column + columns[None, :])
        flags = np.zeros(factors.rows, np.uint8) if poison is None else np.bitwise_or.reduce(poison, axis=0)
        if ((words != words[:1]).any(axis=0) & (flags == 0)).any():
            text = "scale factors that differ between the four quarters of the lanes"
            self.faults.add("tensor-memory", text, self.instruction, self.lane, distinct=text)
        codes = np.ascontiguousarray(words[0]).view(np.uint8).reshape(-1, 4)[:, factors.number : factors.number + self.count]
        return scale_values(np.ascontiguousarray(codes), self.is_ue8m0), flags


def _either(first: Poison | None, second: Poison) -> Poison | None:
    if not second.any():
        return first
    return second if first is None else first | second
