"""Executes the inline PTX of `wgmma` on a block's shared memory.

A product runs as late as possible: when it is waited for. Overwriting a stage too early, or using an accumulator too early,
therefore gives wrong results.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from mlir_steps import Array
from numpy.typing import NDArray

ELEMENTS = {
    "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "e5m2": np.dtype(ml_dtypes.float8_e5m2), "s8": np.dtype(np.int8), "u8": np.dtype(np.uint8),
}  # fmt: skip
MODIFIERS = {"bf16": ", 1, 1, 0, 0", "f16": ", 1, 1, 0, 0", "e4m3": ", 1, 1", "e5m2": ", 1, 1", "s8": "", "u8": ""}
"""What follows the operands of a product of two K-major matrices."""
Read = Callable[[NDArray[np.int64]], Array]
"""Bytes of shared memory at the given addresses, checked for hazards."""


@dataclass
class Warpgroups:
    """Products in flight, in groups; `read` is the block machine's."""

    threads: int
    read: Read
    group: list[Callable[[], None]] = field(default_factory=list)
    groups: list[list[Callable[[], None]]] = field(default_factory=list)
    fenced: bool = False

    def start(self, text: str, operands: list[Array]) -> list[Array]:
        """Executes the statements of one text; accumulators come first among the operands. The results are NaN until waited
        for."""
        count = len(operands) - 2
        integers = ".s32." in text
        results: list[Array] = [
            np.full(self.threads, -99 if integers else np.nan, np.int32 if integers else np.float32) for _ in range(count)
        ]
        registers: dict[str, Array] = {f"${2 * count + i}": operands[count + i].astype(np.int64) for i in range(2)}
        state: dict[int, Array] = {}
        self.group.append(lambda: state.update({i: operands[i].copy() for i in range(count)}))
        for statement in (part.strip() for part in text.strip("{} ").split(";")):
            name, _, operand_text = statement.partition(" ")
            arguments = [argument.strip() for argument in operand_text.split(",")]
            if name in ("", ".reg", "mov.u32", "setp.ne.u32"):
                assert name != "setp.ne.u32" or arguments == ["p", "t", "0"]
            elif name == "mov.b64":
                registers[arguments[0]] = registers[arguments[1]]
            elif name == "add.s64":
                registers[arguments[0]] = registers[arguments[1]] + int(arguments[2])
            elif name == "wgmma.fence.sync.aligned":
                self.fenced = True
            elif name == "wgmma.commit_group.sync.aligned":
                self.groups.append(self.group)
                self.group = []
            else:
                instruction = re.fullmatch(r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(\d+)\.(f32|s32)\.(\w+)\.(\w+)", name)
                assert instruction and self.fenced, statement
                kinds = instruction[4], instruction[5]
                modifiers = MODIFIERS[kinds[0]]
                major = modifiers == MODIFIERS["bf16"] and operand_text.endswith(", 1")
                modifiers = modifiers[:-1] + "1" if major else modifiers
                operand_match = re.fullmatch(r"\{(.*)\}, (\w+), (\w+), p" + modifiers, operand_text)
                assert operand_match and MODIFIERS[kinds[0]] == MODIFIERS[kinds[1]], statement
                assert int(instruction[2]) * ELEMENTS[kinds[0]].itemsize == 32 and integers == (instruction[3] == "s32")
                accumulators = [int(argument.strip(" $")) for argument in operand_match[1].split(",")]
                assert len(accumulators) == int(instruction[1]) // 2
                a, b = registers[operand_match[2]], registers[operand_match[3]]
                elements = ELEMENTS[kinds[0]], ELEMENTS[kinds[1]]
                self.group.append(self._product(state, accumulators, a, b, elements, major))
        self.groups[-1].append(lambda: [results[i].__setitem__(slice(None), state[i]) for i in range(count)] and None)
        return results

    def wait(self, pending: int) -> None:
        """Finishes all groups but the newest `pending` ones."""
        while len(self.groups) > pending:
            for run in self.groups.pop(0):
                run()

    def _product(
        self,
        state: dict[int, Array],
        accumulators: list[int],
        a: Array,
        b: Array,
        elements: tuple[np.dtype, np.dtype],
        mn_major: bool,
    ) -> Callable[[], None]:
        columns = 2 * len(accumulators)
        lane, warp = np.arange(128) % 32, np.arange(128) // 32

        def run() -> None:
            for first in range(0, self.threads, 128):
                group_threads = slice(first, first + 128)
                left = self._matrix(a[group_threads], 64, elements[0]).astype(np.float64)
                read = self._rows_of_depth if mn_major else self._matrix
                product = left @ read(b[group_threads], columns, elements[1]).astype(np.float64).T
                for i, accumulator in enumerate(accumulators):
                    row = 16 * warp + lane // 4 + (8 if i % 4 >= 2 else 0)
                    column = 8 * (i // 4) + 2 * (lane % 4) + i % 2
                    sums: Any = state[accumulator]
                    terms: Any = product[row, column].astype(np.int64 if sums.dtype.kind == "i" else np.float32)
                    sums[group_threads] = (sums[group_threads] + terms).astype(sums.dtype)

        return run

    def _matrix(self, descriptors: Array, rows: int, element: np.dtype) -> Array:
        """Rows of 32 bytes at a descriptor that all threads of the warpgroup share (PTX ISA, "Matrix Descriptor Format")."""
        start, stride, _ = _fields(descriptors)
        row = np.arange(rows)[:, None]
        return self._swizzled(start + row // 8 * stride + row % 8 * 128 + np.arange(32), element)

    def _rows_of_depth(self, descriptors: Array, columns: int, element: np.dtype) -> Array:
        """The same of a matrix that lies MN-major: 16 rows along the depth, in sub-tiles of 64 columns."""
        start, stride, sub_tiles = _fields(descriptors)
        row, byte = np.arange(16)[:, None], 2 * np.arange(columns)[None, :]
        offset = start + byte // 128 * sub_tiles + row // 8 * stride + row % 8 * 128 + byte % 128
        addresses = (offset[..., None] + np.arange(2)).reshape(16, 2 * columns)
        return self._swizzled(addresses, element).T

    def _swizzled(self, addresses: NDArray[np.int64], element: np.dtype) -> Array:
        return np.ascontiguousarray(self.read(addresses ^ (addresses >> 7 & 7) << 4)).view(element)


def _fields(descriptors: Array) -> tuple[int, int, int]:
    """Address, bytes between groups of eight rows, and bytes between sub-tiles."""
    (descriptor,) = {int(value) & (1 << 64) - 1 for value in descriptors}
    assert descriptor >> 62 == 1 and not descriptor >> 49 & 7, "the 128-byte swizzle from a multiple of 1024 bytes"
    return (descriptor & 0x3FFF) << 4, (descriptor >> 32 & 0x3FFF) << 4, (descriptor >> 16 & 0x3FFF) << 4
