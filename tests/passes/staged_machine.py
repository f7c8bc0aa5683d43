"""Runs tile IR with staged shared memory on NumPy, for one block. Copies that are not waited for read as NaN, since a GPU might
still have them in flight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tilec.ir import ops
from tilec.ir.core import Block, Function, Value
from tilec.ir.ops.staging_ops import AsyncCopy, GroupMma, SharedAlloc, SharedLoad, WaitMma
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, Drain, ProxyFence, Release, Ring, SharedFree, Wait

_BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
}
_COMPARE: dict[str, Callable[[int, int], bool]] = {"lt": lambda a, b: a < b, "eq": lambda a, b: a == b}


class Machine:
    """State of one block. `arrays` are float tensors by parameter name, `dims` the launch values."""

    def __init__(self, function: Function, arrays: dict[str, np.ndarray], dims: dict[str, int], block: tuple[int, ...]) -> None:
        self.values: dict[Value, object] = {p.value: arrays[p.name] for p in function.parameters}
        self.dims, self.block = dims, block
        self.open: list[Callable[[], None]] = []
        self.groups: list[list[Callable[[], None]]] = []
        self.reads = 0
        self.products: list[Callable[[], None]] = []  # in flight; each runs as late as it may
        self.run(function.body)

    def run(self, block: Block) -> list[object]:
        for op in block.ops[:-1]:
            self.step(op)
        last = block.ops[-1]
        if isinstance(last, ops.Yield):
            return [self.values[value] for value in last.operands]
        self.step(last)
        return []

    def inside(
        self, array: np.ndarray, offsets: list[Value], shape: tuple[int, ...]
    ) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of a box that lies inside a tensor: its slices of the box, and its slices of the tensor."""
        starts = [int(self.values[value]) for value in offsets]
        ends = list(zip(starts, shape, array.shape, strict=True))
        found = [slice(max(start, 0), max(min(start + size, extent), start, 0)) for start, size, extent in ends]
        moved = [slice(part.start - start, part.stop - start) for part, start in zip(found, starts, strict=True)]
        return tuple(moved), tuple(found)

    def box(self, array: np.ndarray, offsets: list[Value], shape: tuple[int, ...]) -> np.ndarray:
        found = np.zeros(shape)
        here, there = self.inside(array, offsets, shape)
        found[here] = array[there]
        return found

    def step(self, op: object) -> None:
        v = self.values
        match op:
            case ops.Constant():
                v[op.result] = np.full(op.result.tile.shape, op.value) if op.result.tile.rank else op.value
            case ops.DimValue():
                v[op.result] = self.dims[op.symbol]
            case ops.BlockId():
                v[op.result] = self.block[op.axis]
            case ops.Binary():
                v[op.result] = _BINARY[op.kind](v[op.operands[0]], v[op.operands[1]])
            case ops.Compare():
                v[op.result] = _COMPARE[op.kind](v[op.operands[0]], v[op.operands[1]])
            case ops.Select():
                v[op.result] = v[op.operands[1]] if v[op.operands[0]] else v[op.operands[2]]
            case ops.Cast():
                v[op.result] = v[op.operands[0]]
            case ops.Permute():
                v[op.result] = v[op.operands[0]].transpose(op.axes)
            case ops.Reshape():
                v[op.result] = v[op.operands[0]].reshape(op.result.tile.shape)
            case ops.Mma():
                a, b, c = (v[value] for value in op.operands)
                v[op.result] = a @ b + c
            case ops.Load():
                v[op.result] = self.box(v[op.source], op.offsets, op.result.tile.shape)
            case ops.Store():
                self.store(v[op.target], op)
            case ops.If():
                v.update(zip(op.results, self.run(op.regions[0 if v[op.operands[0]] else 1]), strict=True))
            case ops.For():
                carried = [v[value] for value in op.initial]
                for i in range(v[op.lower], v[op.upper], v[op.step]):
                    v.update(zip(op.regions[0].arguments, [i, *carried], strict=True))
                    carried = self.run(op.regions[0])
                v.update(zip(op.results, carried, strict=True))
            case SharedAlloc():
                type = op.result.shared
                v[op.result] = np.full((type.stages, *type.shape), np.nan)
            case AsyncCopy():
                self.copy(op)
            case Ring() | Acquire() | Release() | Barrier() | ProxyFence() | SharedFree():
                pass  # one thread at a time needs no ordering
            case Commit():
                self.groups.append(self.open)
                self.open = []
            case Wait() | Drain():
                while len(self.groups) > (op.pending if isinstance(op, Wait) else 0):
                    for finish in self.groups.pop(0):
                        finish()
            case SharedLoad():
                self.reads += 1
                matrix = v[op.buffer][v[op.stage]]
                matrix = matrix.T if op.transposed else matrix
                rows, columns = op.result.tile.shape
                v[op.result] = matrix[op.row : op.row + rows, op.column : op.column + columns].copy()
            case GroupMma():
                left, left_stage, right, right_stage, total = (v[value] for value in op.operands)
                made = np.full(op.result.tile.shape, np.nan)
                v[op.result] = made
                self.products.append(lambda: np.copyto(made, left[left_stage] @ right[right_stage].T + total))
            case WaitMma():
                while len(self.products) > op.pending:
                    self.products.pop(0)()
                v[op.result] = v[op.operands[0]]
            case _:
                raise AssertionError(op)

    def store(self, array: np.ndarray, op: ops.Store) -> None:
        tile: np.ndarray = self.values[op.tile]
        here, there = self.inside(array, op.offsets, tile.shape)
        array[there] = tile[here]

    def copy(self, op: AsyncCopy) -> None:
        type = op.buffer.shared
        stage = self.values[op.buffer][self.values[op.stage]]
        leading = (1,) * (op.source.tensor.rank - 2)
        data = self.box(self.values[op.source], op.offsets, (*leading, *type.shape)).reshape(type.shape)
        stage[:] = np.nan

        def finish() -> None:
            stage[:] = data

        self.open.append(finish)
