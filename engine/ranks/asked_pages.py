"""Steps over pages of several ranks on GPUs: what the process of the engine asks all of them for (`engine.ranks.orders`).

Every rank has a pool of its heads with as many pages as the rank with the least memory has room for, and gets the same tables,
so that a page is the same tokens' in all. Nothing here waits but for tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine.backends.paged_steps import PagedDevice, chunk_graphs, serve_graphs
from engine.backends.prompts import padded_room
from engine.graph.contract import Contract
from engine.graph.integers import Replay
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.ranks.asked_buffers import Ask, AskedBuffers
from engine.ranks.messages import encoded_values
from engine.ranks.orders import PROMPT
from tilec.artifact.records import Manifest
from tilec.step.graph import SERVE, Op
from tilec.step.step import OutputMode, Step


class Ranks(Protocol):
    """What steps over pages need of all ranks. `tell` adds an order, `flush` sends those that were added, `ask` also waits for
    the replies of all ranks."""

    max_seq_len: int
    chunk_tokens: int
    tell: Ask
    ask: Ask

    def flush(self) -> None: ...

    def contract(self, op: Op) -> Contract | Manifest: ...


@dataclass(frozen=True, slots=True)
class AskedRows:
    """A step of `rows` rows that every rank has prepared."""

    rows: int
    mode: OutputMode
    replay: Replay


class AskedPages(PagedDevice):
    """A `PagedDevice` of all ranks; `number` is that of its steps. DeviceError if a rank has too little memory."""

    def __init__(self, ranks: Ranks, number: int, step: Step, bucket: int) -> None:
        self._ranks, self._number, self._step, self.bucket, self._closed = ranks, number, step, bucket, False
        chunk = list(chunk_graphs(step, 1).values())
        self.rows = AskedBuffers(number, list(serve_graphs(step, bucket).values()), ranks.tell, ranks.ask)
        self.prompt = AskedBuffers(number + PROMPT, chunk, ranks.tell, ranks.ask)
        self._slots: int = step.values()["chunk_slots"]
        ranks.ask("pages", steps=number, rows=bucket, pages=step.values()["pages"])

    def padded(self, tokens: int, filled: int) -> tuple[int, int]:
        return padded_room(tokens, filled, min(self._ranks.chunk_tokens, self._ranks.max_seq_len), self._slots)

    def prepare(self, bucket: int, output_mode: OutputMode) -> AskedRows:
        graph = self._step.graph(SERVE, output_mode, tokens=bucket)
        replay = verify(graph, plan_memory(graph), self._ranks.contract)
        self._ranks.tell("ready", steps=self._number, rows=bucket, mode=output_mode)
        return AskedRows(bucket, output_mode, replay)

    def enqueue(self, step: AskedRows) -> None:
        self._ranks.tell("serve", steps=self._number, rows=step.rows, mode=step.mode)

    def run_chunk(self, inputs: Mapping[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        order = {"inputs": encoded_values(inputs), "tokens": tokens, "past": past, "mode": output_mode}
        self._ranks.tell("chunk", steps=self._number + PROMPT, **order)
        self._ranks.flush()  # the GPUs begin while the host goes on

    def clear(self, slot: int, slots: int) -> None:
        self._ranks.tell("clear_slots", steps=self._number, slot=slot, slots=slots)

    def close(self) -> None:
        """Let all ranks free the steps and their pools; the memory that they share is freed with the ranks. Idempotent."""
        if not self._closed:
            self._closed = True
            self._ranks.tell("close", steps=self._number)
