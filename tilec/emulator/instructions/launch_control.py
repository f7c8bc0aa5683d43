"""`clusterlaunchcontrol`: a cluster asks to take over the work of one that has not started.

PTX ISA, "clusterlaunchcontrol.try_cancel" and ".query_cancel". The answer, 16 opaque bytes, is written through the async proxy
and counts 16 bytes on an mbarrier, in the asking block or in every block of its cluster. Seed 0 cancels clusters in the order
in which they would start; any other seed in random order, and sometimes answers false although clusters are left, which then
start normally. A request by a thread that knows of a false answer to its cluster is undefined.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tilec.emulator.errors import UNDEFINED, Lanes, Poison
from tilec.emulator.instructions.launch_control_state import CANCELED, MAGIC, REPLY_BYTES
from tilec.emulator.instructions.load_starts import start
from tilec.emulator.instructions.multicast import several, single
from tilec.emulator.machine.frame import Frame, union
from tilec.emulator.machine.registry import Decoder, lanewise
from tilec.emulator.machine.sources import Step

EVERY_RANK: Final = 0xFFFF


@lanewise("clusterlaunchcontrol")
def clusterlaunchcontrol(d: Decoder) -> Step:
    """Decodes `try_cancel` and `query_cancel`."""
    return _ask(d) if d.need("try_cancel", "query_cancel") == "try_cancel" else _query(d)


def _ask(d: Decoder) -> Step:
    d.need("async")
    space = "shared" if d.flag("shared::cta") else "generic"
    d.need("mbarrier::complete_tx::bytes")
    everyone = d.flag("multicast::cluster::all")
    d.need("b128")
    d.finish(2)
    to, barrier = d.address_source(d.address(0)), d.address_source(d.address(1))
    machine, instruction = d.machine, d.instruction

    def step(frame: Frame) -> None:
        for at in frame.active():
            one = np.zeros(frame.n, np.bool_)
            one[at] = True
            located = machine.locator.locate(
                frame, to.value(frame), to.poison(frame), space, REPLY_BYTES, instruction, write=True, mask=one
            )
            old, frame.mask = frame.mask, one
            found = [record for record, _ in machine.mbarriers.find(frame, barrier, instruction, space)]
            frame.mask = old
            if not len(located.index) or not found:
                continue
            lane, index = int(frame.lanes[at]), int(located.index[0])
            data = machine.launch_control.ask(lane, instruction)
            if everyone:
                ranks = EVERY_RANK & ((1 << machine.wave.cluster_size) - 1)
                destinations = several(machine, lane, index, found[0], ranks, False, instruction)
            else:
                destinations = single(machine, lane, index, found[0], False, instruction)
            for destination in destinations:
                there = index + destination.shift + np.arange(REPLY_BYTES)
                machine.launch_control.reuse(int(there[0]), lane, instruction)
                defined, then = np.zeros(REPLY_BYTES, np.uint8), machine.launch_control.observer(lane, data)
                start(machine, instruction, lane, destination, there, data, defined, then=then)

    return step


def _query(d: Decoder) -> Step:
    form = d.need("is_canceled", "get_first_ctaid", "get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z")
    vector = form == "get_first_ctaid"
    if vector:
        d.need("v4")
    d.need("pred" if form == "is_canceled" else "b32")
    d.need("b128")
    d.finish(2)
    reply = d.source(1, "b128")
    if form == "is_canceled":
        write = d.target(0, "pred")
        return lambda frame: write(frame, *_canceled(d, frame, _words(frame, reply.value(frame)), reply.poison(frame)))
    axes = (0, 1, 2) if vector else ("xyz".index(form[-1]),)
    items = d.vector(0, 4)[:3] if vector else (d.operands[0],)
    targets = [d.target(item, "b32") for item in items]

    def step(frame: Frame) -> None:
        words = _words(frame, reply.value(frame))
        canceled, poison = _canceled(d, frame, words, reply.poison(frame))
        if not canceled.all():
            poison = union(poison, np.where(canceled, 0, UNDEFINED).astype(np.uint8))
        for axis, target in zip(axes, targets, strict=True):
            target(frame, np.ascontiguousarray(words[:, axis]), poison)

    return step


def _words(frame: Frame, value: Lanes) -> NDArray[np.uint32]:
    """The four words of each lane's answer."""
    return np.ascontiguousarray(np.broadcast_to(value, (frame.n,))).view(np.uint32).reshape(frame.n, 4)


def _canceled(
    d: Decoder, frame: Frame, words: NDArray[np.uint32], poison: Poison | None
) -> tuple[NDArray[np.bool_], Poison | None]:
    """Whether each lane's answer is true. Defined bytes that no request wrote are a fault."""
    bad = (words[:, 3] & ~np.uint32(CANCELED)) != MAGIC
    if poison is not None:
        bad &= poison == 0
    if frame.mask is not None:
        bad &= frame.mask
    d.machine.faults.lanes("descriptor", "16 bytes that no try_cancel wrote", d.instruction, frame, bad)
    return (words[:, 3] & np.uint32(CANCELED)) != 0, poison
