"""Cluster addresses, and rejected instructions.

PTX ISA, "mapa", "getctarank" and "tensormap.cp_fenceproxy". `cluster_windows` says how an address names a block.
"""

from __future__ import annotations

import numpy as np

from tilec.emulator.errors import Lanes
from tilec.emulator.instructions.operands import read
from tilec.emulator.machine.cluster_windows import OFFSETS, RANK_SHIFT
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.memory import SHARED_BASE
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.scalar_types import TYPES
from tilec.emulator.machine.sources import Step
from tilec.emulator.machine.windows import WINDOW


def _operand(d: Decoder) -> tuple[str, bool]:
    """The type of the address, and whether it is generic."""
    generic = not d.flag("shared::cluster")
    kind = d.need("u32", "u64")
    if generic and kind == "u32":
        raise d.unsupported("32-bit generic addresses")
    return kind, generic


def _inside(d: Decoder, frame: Frame, address: Lanes, generic: bool) -> Lanes:
    """Addresses in the window of shared memory as int64; a generic one of another state space is a fault."""
    inner = address.astype(np.uint64).view(np.int64) - (SHARED_BASE if generic else 0)
    outside = (inner < 0) | (inner >= WINDOW)
    if frame.mask is not None:
        outside &= frame.mask
    d.machine.faults.lanes("space", "a generic address outside shared memory", d.instruction, frame, outside)
    return inner


@lanewise("mapa")
def mapa(d: Decoder) -> Step:
    """`mapa{.shared::cluster}.u32|u64 d, a, rank`: the address of the same offset in the block of that rank."""
    kind, generic = _operand(d)
    d.finish(3)
    address, rank, target = d.source(1, kind), d.source(2, "u32"), d.target(0, kind)
    size, dtype = d.machine.launch.cluster_size, TYPES[kind][1]

    def step(frame: Frame) -> None:
        inner = _inside(d, frame, read(address, frame)[0], generic)
        ranks, poison = read(rank, frame)
        bad = ranks >= size
        if frame.mask is not None:
            bad = bad & frame.mask
        text = f"a block of a rank that a cluster of {size} does not have"
        d.machine.faults.lanes("cluster", text, d.instruction, frame, bad)
        mapped = (inner & OFFSETS) + (ranks.astype(np.int64) << RANK_SHIFT) + (SHARED_BASE if generic else 0)
        target(frame, mapped.astype(dtype), union(address.poison(frame), poison))

    return step


@lanewise("getctarank")
def getctarank(d: Decoder) -> Step:
    """`getctarank{.shared::cluster}.u32|u64 d, a`: the rank of the block that owns the address."""
    kind, generic = _operand(d)
    d.finish(2)
    address, target = d.source(1, kind), d.target(0, "u32")

    def step(frame: Frame) -> None:
        inner = _inside(d, frame, read(address, frame)[0], generic)
        target(frame, (inner >> RANK_SHIFT).astype(np.uint32), address.poison(frame))

    return step


@lanewise("tensormap")
def tensormap(d: Decoder) -> Step:
    """Always UnsupportedPtx: tensor maps are encoded on the host."""
    raise d.unsupported("changing a tensor map on the device is not emulated")
