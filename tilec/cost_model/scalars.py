"""Scalars of a scheduled kernel, for all of its blocks at once.

A scalar is an array of (blocks, turns): one row for each launched block, one column for each tile that a persistent block
processes. Scalars that depend on data, and those that a loop carries, are unknown: None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.ir.core import Op, Value
from tilec.ir.ops import Binary, BlockId, Cast, Compare, Constant, DimValue, NumBlocks, Select
from tilec.ir.ops.launch_ops import GridExtent, LaunchedBlocks
from tilec.ir.ops.pair_ops import ClusterRank

Array = NDArray[Any]

BINARY: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "floordiv": np.floor_divide, "mod": np.mod,
    "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
}  # fmt: skip
COMPARE: Final[Mapping[str, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


class Launch:
    """What a launch fixes: dims and scalar arguments by name, the grid, how many blocks are launched (fewer than the grid has
    if they are persistent), and how many neighbours of them are one place of the grid (`cluster`)."""

    def __init__(
        self, values: Mapping[str, int | float], grid: tuple[int, ...], launched: int, cluster: int = 1
    ) -> None:  # fmt: skip
        self.values, self.grid, self.launched, self.cluster = values, grid, launched, cluster

    def block_ids(self, axis: int) -> Array:
        """The index of every launched block on an axis of the grid, in launch order (the first axis runs fastest)."""
        inner = self.cluster
        for extent in self.grid[:axis]:
            inner *= extent
        return (np.arange(self.launched) // inner % self.grid[axis])[:, None]

    def ranks(self) -> Array:
        """The rank of every launched block in its cluster."""
        return (np.arange(self.launched) % self.cluster)[:, None]


class Scalars:
    """Values of scalars, computed when they are asked for."""

    def __init__(self, launch: Launch, known: Mapping[Value, Array | None] | None = None) -> None:
        self.launch = launch
        self._known: dict[Value, Array | None] = dict(known or {})

    def inside(self, known: Mapping[Value, Array | None]) -> Scalars:
        """The scalars inside a loop body, whose arguments are `known`."""
        return Scalars(self.launch, {**self._known, **known})

    def get(self, value: Value) -> Array | None:
        """The value of a scalar in each block and turn; None if it is unknown."""
        if value not in self._known:
            owner = value.owner
            self._known[value] = self._computed(owner) if isinstance(owner, Op) else None
        return self._known[value]

    def _computed(self, op: Op) -> Array | None:
        match op:
            case Constant():
                return np.array([[op.value]])
            case DimValue():
                found = self.launch.values.get(op.symbol)
                return None if found is None else np.array([[found]])
            case BlockId():
                return self.launch.block_ids(op.axis)
            case NumBlocks() | GridExtent():
                return np.array([[self.launch.grid[op.axis]]])
            case LaunchedBlocks():
                return np.array([[self.launch.launched // self.launch.cluster]])
            case ClusterRank():
                return self.launch.ranks()
            case Binary() | Compare() | Select() | Cast():
                if op.result.tile.rank:
                    return None
                operands = [self.get(one) for one in op.operands]
                return (
                    None if any(one is None for one in operands) else _applied(op, [one for one in operands if one is not None])
                )
            case _:
                return None


def _applied(op: Op, operands: list[Array]) -> Array | None:
    with np.errstate(all="ignore"):
        match op:
            case Binary() if op.kind in BINARY:
                return BINARY[op.kind](*operands)
            case Compare():
                return COMPARE[op.kind](*operands)
            case Select():
                return np.where(*operands)
            case Cast():
                return operands[0]
            case _:
                return None
