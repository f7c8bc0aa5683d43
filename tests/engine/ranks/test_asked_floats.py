"""Logits of many rows come from the ranks in parts, each within the longest message. Rank 0 copies each element from its device
once; the others copy none."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.ranks import asked_buffers
from engine.ranks.asked_buffers import AskedBuffers
from engine.ranks.messages import encoded
from engine.ranks.orders import Orders
from engine.ranks.processes import LINE_BYTES
from tilec.step.graph import Buffer, Kind, StepGraph

LOGITS = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
RANKS = 2


class Device:
    """The buffers of a rank that has `LOGITS`, and notes which elements leave it."""

    def __init__(self) -> None:
        self.copied: list[range] = []
        self.waits = 0

    def part(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        assert name == "logits"
        self.copied.append(range(LOGITS.size)[first : first + count])
        return LOGITS.reshape(-1)[first : first + count]

    def wait(self) -> None:
        self.waits += 1


def orders_of(rank: int, device: Device) -> Orders:
    """A rank that follows orders on a device."""
    own = SimpleNamespace(buffers=device)
    backend: Any = SimpleNamespace(rank=rank, own=own, wait=device.wait)
    return Orders(backend)


def buffers(devices: list[Device], asked: list[tuple[int, int]]) -> AskedBuffers:
    """Buffers of ranks that are asked for logits through their orders, with the replies as they arrive."""
    graph = StepGraph("decode", 5)
    graph.buffers["logits"] = Buffer("logits", "bf16", LOGITS.shape, Kind.OUTPUT)
    of_ranks = [orders_of(rank, device) for rank, device in enumerate(devices)]

    def ask(what: str, **order: Any) -> list[dict[str, Any]]:
        asked.append((order["first"], order["count"]))
        return [json.loads(json.dumps(orders.follow({"do": what, **order}))) for orders in of_ranks]

    return AskedBuffers(0, [graph], ask, ask)


@pytest.mark.parametrize("together", [1, 7, 45, 46])
def test_parts_make_the_whole(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(asked_buffers, "FLOATS_TOGETHER", together)
    asked, devices = list[tuple[int, int]](), [Device() for _ in range(RANKS)]
    assert (buffers(devices, asked).floats("logits") == LOGITS).all()
    assert [first for first, _ in asked] == list(range(0, 45, together))


@pytest.mark.parametrize("together", [1, 7, 45, 46])
def test_each_element_leaves_the_device_of_rank_0_once(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(asked_buffers, "FLOATS_TOGETHER", together)
    asked, devices = list[tuple[int, int]](), [Device() for _ in range(RANKS)]
    buffers(devices, asked).floats("logits")
    assert [element for part in devices[0].copied for element in part] == list(range(LOGITS.size))
    assert devices[1].copied == [] and devices[1].waits == len(asked), "it waits for its step, as rank 0 does"


def test_a_part_of_the_logits() -> None:
    devices = [Device() for _ in range(RANKS)]
    one = buffers(devices, [])
    assert (one.part("logits", 9, 9) == LOGITS[1]).all() and (one.part("logits", 40, 9) == LOGITS.reshape(-1)[40:]).all()
    assert [len(part) for part in devices[0].copied] == [9, 5]


def test_a_part_fits_a_message() -> None:
    part = np.zeros(asked_buffers.FLOATS_TOGETHER, np.float32)
    assert len(json.dumps({"values": encoded(part)})) < LINE_BYTES
