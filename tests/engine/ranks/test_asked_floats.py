"""Logits of many rows come from the ranks in parts, each within the longest message."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine.ranks import asked_buffers
from engine.ranks.asked_buffers import AskedBuffers
from engine.ranks.messages import encoded
from engine.ranks.orders import Orders
from engine.ranks.processes import LINE_BYTES
from tilec.step.graph import Buffer, Kind, StepGraph

LOGITS = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)


def buffers(asked: list[tuple[int, int]]) -> AskedBuffers:
    """Buffers of a rank that has `LOGITS`, asked through the orders of a rank."""
    graph = StepGraph("decode", 5)
    graph.buffers["logits"] = Buffer("logits", "bf16", LOGITS.shape, Kind.OUTPUT)
    rank: Any = SimpleNamespace(_backend=SimpleNamespace(rank=0))
    rank._of = lambda order: SimpleNamespace(floats=lambda name: LOGITS)
    rank._values = lambda values: Orders._values(rank, values)  # pyright: ignore[reportPrivateUsage]

    def ask(_: str, **order: Any) -> list[dict[str, Any]]:
        asked.append((order["first"], order["count"]))
        return [json.loads(json.dumps(Orders._floats(rank, order)))]  # pyright: ignore[reportPrivateUsage]

    return AskedBuffers(0, [graph], ask, ask)


@pytest.mark.parametrize("together", [1, 7, 45, 46])
def test_parts_make_the_whole(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    monkeypatch.setattr(asked_buffers, "FLOATS_TOGETHER", together)
    asked: list[tuple[int, int]] = []
    assert (buffers(asked).floats("logits") == LOGITS).all()
    assert [first for first, _ in asked] == list(range(0, 45, together))


def test_a_part_fits_a_message() -> None:
    part = np.zeros(asked_buffers.FLOATS_TOGETHER, np.float32)
    assert len(json.dumps({"values": encoded(part)})) < LINE_BYTES
