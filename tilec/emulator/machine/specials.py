"""Special registers (PTX ISA, section 10): thread and block indices, launch sizes, lane masks and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.machine.frame import Frame

if TYPE_CHECKING:
    from tilec.emulator.machine.machine import Machine

Reader = Callable[[Frame], Lanes]


def special(machine: Machine, name: str) -> Reader | None:
    """A reader of integer lanes, or None if the register is unknown."""
    base, _, axis = name.partition(".")
    if axis in ("x", "y", "z"):
        return _axis(machine, base, "xyz".index(axis))
    if name in _WHOLE:
        return _WHOLE[name]
    return None


def _axis(machine: Machine, base: str, axis: int) -> Reader | None:
    shape = machine.block_shape
    if base == "%tid":
        step = int(np.prod(shape[:axis], dtype=np.int64))
        return lambda frame: frame.column("thread") // step % shape[axis]
    if base == "%ctaid":
        return lambda frame: machine.block_ids[frame.column("block"), axis]
    cluster = machine.cluster_shape
    constants: dict[str, tuple[int, ...]] = {"%ntid": shape, "%nctaid": machine.grid, "%cluster_nctaid": cluster}
    constants["%nclusterid"] = tuple(-(-g // c) for g, c in zip(machine.grid, cluster, strict=True))
    if base in constants:
        value = constants[base][axis]
        return lambda frame: np.full(frame.n, value, np.int64)
    if base == "%clusterid":
        return lambda frame: machine.block_ids[frame.column("block"), axis] // cluster[axis]
    if base == "%cluster_ctaid":
        return lambda frame: machine.block_ids[frame.column("block"), axis] % cluster[axis]
    return None


def _lane_mask(compare: Callable[[Any, Any], Any]) -> Reader:
    def read(frame: Frame) -> Lanes:
        bits = compare(np.arange(32)[None, :], frame.column("lane_in_warp")[:, None])
        return (bits * (1 << np.arange(32, dtype=np.int64))).sum(axis=1)

    return read


def _constant(value: Callable[[Frame], int]) -> Reader:
    return lambda frame: np.full(frame.n, value(frame), np.int64)


_WHOLE: dict[str, Reader] = {
    "%laneid": lambda frame: frame.column("lane_in_warp"),
    "%warpid": lambda frame: frame.column("thread") // 32,
    "%nwarpid": _constant(lambda frame: -(-frame.machine.threads // 32)),
    "%smid": lambda frame: frame.column("block"),
    "%nsmid": _constant(lambda frame: frame.machine.block_count),
    "%gridid": _constant(lambda frame: 1),
    "%clock": _constant(lambda frame: frame.machine.clocks.now),
    "%clock64": _constant(lambda frame: frame.machine.clocks.now),
    "%globaltimer": _constant(lambda frame: frame.machine.clocks.now),
    "%globaltimer_lo": _constant(lambda frame: frame.machine.clocks.now),
    "%cluster_ctarank": _constant(lambda frame: 0),
    "%cluster_nctarank": _constant(lambda frame: 1),
    "%is_explicit_cluster": _constant(lambda frame: 0),
    "%lanemask_eq": _lane_mask(lambda a, b: a == b),
    "%lanemask_lt": _lane_mask(lambda a, b: a < b),
    "%lanemask_le": _lane_mask(lambda a, b: a <= b),
    "%lanemask_gt": _lane_mask(lambda a, b: a > b),
    "%lanemask_ge": _lane_mask(lambda a, b: a >= b),
    "%dynamic_smem_size": _constant(lambda frame: frame.machine.dynamic_shared_bytes),
    "%total_smem_size": _constant(lambda frame: frame.machine.shared_size),
}
