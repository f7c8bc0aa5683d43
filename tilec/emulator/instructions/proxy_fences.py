"""`fence.proxy`: the fences between the generic proxy and the others (PTX ISA, "membar/fence").

`fence.proxy.async` is recorded in `proxies`. `fence.proxy.alias` has no effect here, because no memory has two addresses.
"""

from __future__ import annotations

from tilec.emulator.instructions.memory import FENCE_PROXY
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.registry import Decoder
from tilec.emulator.machine.sources import Step


def fence_async(d: Decoder) -> Step:
    """`fence.proxy.async[.global|.shared::cta|.shared::cluster]`; a fence of one state space does not order the other."""
    d.need("async")
    where = d.take("global", "shared::cta", "shared::cluster")
    d.finish(0)
    proxies = d.machine.ordering.proxies
    space = (where or "").partition("::")[0] or None

    def step(frame: Frame) -> None:
        proxies.fence(frame.active_lanes(), space=space)

    return step


def fence_alias(d: Decoder) -> Step:
    """`fence.proxy.alias`."""
    d.need("alias")
    d.finish(0)
    return lambda frame: None


FENCE_PROXY.update({"async": fence_async, "alias": fence_alias})
