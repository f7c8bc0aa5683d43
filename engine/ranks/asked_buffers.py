"""Buffers of steps that each of several ranks on GPUs has: the process of the engine asks all of them to read and write theirs.

Tokens are those of all ranks, which must be the same; of other outputs those of rank 0 are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.decode_steps import StepBuffers
from engine.ranks.messages import decoded, encoded, encoded_values
from engine.ranks.processes import Message, same_tokens
from tilec.step.graph import Kind, StepGraph

Ask = Callable[..., Any]

FLOATS_TOGETHER: Final = 1 << 21
"""Floats of a message: 11 MB as text, of the 16 that a message may have (`engine.ranks.processes`)."""


class AskedBuffers(StepBuffers):
    """The buffers of steps, which each rank has. `tell` adds an order, `ask` also waits for the replies of all ranks."""

    def __init__(self, number: int, graphs: Sequence[StepGraph], tell: Ask, ask: Ask) -> None:
        self.number, self.graphs = number, tuple(graphs)
        self._tell, self._ask = tell, ask

    def send(self, kind: Kind, values: Mapping[str, Any]) -> None:
        self._tell("send", steps=self.number, kind=kind.value, values=encoded_values(values))

    def copy(self, target: str, slot: int, source: StepBuffers, name: str, source_slot: int, elements: int) -> None:
        assert isinstance(source, AskedBuffers)
        self._tell(
            "copy", steps=self.number, target=target, slot=slot, source=source.number, name=name, source_slot=source_slot,
            elements=elements,
        )  # fmt: skip

    def clear(self, name: str, first: int, elements: int) -> None:
        self._tell("clear", steps=self.number, name=name, first=first, elements=elements)

    def write(self, name: str, first: int, values: NDArray[Any]) -> None:
        self._tell("write", steps=self.number, name=name, first=first, values=encoded(values))

    def stage(self, name: str, first: int, values: NDArray[Any]) -> None:
        self._tell("stage", steps=self.number, name=name, first=first, values=encoded(values))

    def fetch(self, number: int, also: Sequence[str] = ()) -> None:
        self._tell("fetch", steps=self.number, number=number, also=list(also))

    def fetched_output(self, number: int, name: str) -> NDArray[Any]:
        return decoded(self._ask("output", steps=self.number, number=number, name=name)[0]["values"])

    def fetched(self, number: int) -> NDArray[np.int32]:
        return _same(self._ask("fetched", steps=self.number, number=number))

    def latest(self) -> NDArray[np.int32]:
        return _same(self._ask("latest", steps=self.number))

    def floats(self, name: str, rows: int | None = None) -> NDArray[np.float32]:
        """In parts, since the logits of many rows are longer than a message may be."""
        first, *others = next(graph.buffers[name].shape for graph in self.graphs if name in graph.buffers)
        shape = (rows or first, *others)
        whole = np.empty(prod(shape), np.float32)
        for begin in range(0, whole.size, FLOATS_TOGETHER):
            part = self.part(name, begin, min(FLOATS_TOGETHER, whole.size - begin))
            whole[begin : begin + part.size] = part
        return whole.reshape(shape)

    def part(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        """At most `FLOATS_TOGETHER` of them."""
        assert count <= FLOATS_TOGETHER
        return decoded(self._ask("floats", steps=self.number, name=name, first=first, count=count)[0]["values"])

    def close(self) -> None:
        self._tell("close", steps=self.number)


def _same(replies: Sequence[Message]) -> NDArray[np.int32]:
    """The tokens of all ranks; RanksDiffer if they are not the same."""
    return same_tokens([np.array(message["tokens"], np.int32) for message in replies])
