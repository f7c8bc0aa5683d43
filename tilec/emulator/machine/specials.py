"""Special registers (PTX ISA, section 10): thread and block indices, launch sizes, lane masks and clocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.machine import Machine
from tilec.emulator.machine.sources import Reader


def special(machine: Machine, name: str) -> Reader | None:
    """A reader of integer lanes, or None if the register is unknown."""
    base, _, axis = name.partition(".")
    if axis in ("x", "y", "z"):
        return _axis(machine, base, "xyz".index(axis))
    return _BY_LANE.get(name) or _uniform(machine, name)


def _axis(machine: Machine, base: str, axis: int) -> Reader | None:
    launch = machine.launch
    shape = launch.block_shape
    if base == "%tid":
        step = int(np.prod(shape[:axis], dtype=np.int64))
        return lambda frame: frame.thread // step % shape[axis]
    if base == "%ctaid":
        return lambda frame: frame.wave.block_ids[frame.block, axis]
    cluster = launch.cluster_shape
    constants: dict[str, tuple[int, ...]] = {"%ntid": shape, "%nctaid": launch.grid, "%cluster_nctaid": cluster}
    constants["%nclusterid"] = tuple(-(-g // c) for g, c in zip(launch.grid, cluster, strict=True))
    if base in constants:
        value = constants[base][axis]
        return lambda frame: np.full(frame.n, value, np.int64)
    if base == "%clusterid":
        return lambda frame: frame.wave.block_ids[frame.block, axis] // cluster[axis]
    if base == "%cluster_ctaid":
        return lambda frame: frame.wave.block_ids[frame.block, axis] % cluster[axis]
    return None


def _lane_mask(compare: Callable[[Any, Any], Any]) -> Reader:
    def read(frame: Frame) -> Lanes:
        bits = compare(np.arange(32)[None, :], frame.lane_in_warp[:, None])
        return (bits * (1 << np.arange(32, dtype=np.int64))).sum(axis=1)

    return read


def _uniform(machine: Machine, name: str) -> Reader | None:
    value = _UNIFORM.get(name)
    return None if value is None else lambda frame: np.full(frame.n, value(machine), np.int64)


_BY_LANE: dict[str, Reader] = {
    "%laneid": lambda frame: frame.lane_in_warp,
    "%warpid": lambda frame: frame.thread // 32,
    "%smid": lambda frame: frame.block,
    "%cluster_ctarank": lambda frame: frame.wave.rank[frame.block],
    "%lanemask_eq": _lane_mask(lambda a, b: a == b),
    "%lanemask_lt": _lane_mask(lambda a, b: a < b),
    "%lanemask_le": _lane_mask(lambda a, b: a <= b),
    "%lanemask_gt": _lane_mask(lambda a, b: a > b),
    "%lanemask_ge": _lane_mask(lambda a, b: a >= b),
}
_UNIFORM: dict[str, Callable[[Machine], int]] = {
    "%nwarpid": lambda machine: -(-machine.launch.threads // 32),
    "%nsmid": lambda machine: machine.wave.block_count,
    "%gridid": lambda machine: 1,
    "%clock": lambda machine: machine.ordering.clocks.now,
    "%clock64": lambda machine: machine.ordering.clocks.now,
    "%globaltimer": lambda machine: machine.ordering.clocks.now,
    "%globaltimer_lo": lambda machine: machine.ordering.clocks.now,
    "%cluster_nctarank": lambda machine: machine.launch.cluster_size,
    "%is_explicit_cluster": lambda machine: int(machine.launch.explicit_cluster),
    "%dynamic_smem_size": lambda machine: machine.launch.dynamic_shared_bytes,
    "%total_smem_size": lambda machine: machine.windows.shared_size,
}
