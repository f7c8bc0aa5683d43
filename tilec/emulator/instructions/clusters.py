"""Cluster addresses in clusters of one block, and rejected instructions.

PTX ISA, "mapa", "getctarank", "tensormap.cp_fenceproxy" and "tcgen05". In a cluster of one block every shared address belongs
to that block. Tensor memory (fifth-generation tensor cores) is not emulated.
"""

from __future__ import annotations

import numpy as np

from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.sources import Step


@lanewise("mapa")
def mapa(d: Decoder) -> Step:
    """`mapa.shared::cluster.u32|u64 d, a, rank`: returns the address itself, because the only rank is 0."""
    d.need("shared::cluster")
    kind = d.need("u32", "u64")
    d.finish(3)
    address, rank, target = d.source(1, kind), d.source(2, "u32"), d.target(0, kind)

    def step(frame: Frame) -> None:
        value = np.broadcast_to(address.value(frame), (frame.n,))
        other = np.broadcast_to(rank.value(frame), (frame.n,)) != 0
        if frame.mask is not None:
            other = other & frame.mask
        d.machine.faults.lanes("space", "a block of another rank in a cluster of one", d.instruction, frame, other)
        target(frame, value, address.poison(frame))

    return step


@lanewise("getctarank")
def getctarank(d: Decoder) -> Step:
    """`getctarank.shared::cluster.u32|u64 d, a`: 0."""
    d.need("shared::cluster")
    d.need("u32", "u64")
    d.finish(2)
    target = d.target(0, "u32")
    return lambda frame: target(frame, np.zeros(frame.n, np.uint32), None)


@lanewise("tcgen05")
def tcgen05(d: Decoder) -> Step:
    """Always UnsupportedPtx."""
    raise d.unsupported("tensor memory (tcgen05) is not emulated yet")


@lanewise("tensormap")
def tensormap(d: Decoder) -> Step:
    """Always UnsupportedPtx: tensor maps are encoded on the host."""
    raise d.unsupported("changing a tensor map on the device is not emulated")
