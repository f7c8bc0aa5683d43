"""Several ranks on GPUs, as one backend: it asks the process of each rank to do the same things in the same order.

That is all that keeps ranks in step. Nothing here waits for a GPU, but for the tokens that a caller asks for, and a step is
asked for before the one before it has ended, as on one GPU. The tokens of all ranks are compared: all have the same bits.

In: processes that opened their GPUs (`engine.ranks.worker`). An error, or an interrupt, between a request and its replies ends
all ranks: they would no longer be where the others are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from engine.backends.backend import Backend
from engine.backends.decode_steps import graphs_of
from engine.backends.launches import BundledKernels
from engine.backends.paged_steps import PagedDevice
from engine.backends.prompts import padded_chunk
from engine.backends.upload import Progress, WeightSource
from engine.errors import EngineError
from engine.graph.contract import Contract
from engine.graph.integers import Replay
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.config import ModelConfig
from engine.ranks.asked_buffers import AskedBuffers
from engine.ranks.asked_pages import AskedPages
from engine.ranks.cuda import bundled_rank_step
from engine.ranks.launches import RankContracts
from engine.ranks.messages import encoded_values
from engine.ranks.orders import OWN, PROMPT
from engine.ranks.processes import HANDLE, Message, RankProcesses
from tilec.artifact.records import Manifest
from tilec.runtime import Bundle
from tilec.step.graph import Op, StepGraph
from tilec.step.step import OutputMode, Step


@dataclass(frozen=True, slots=True)
class AskedStep:
    """A step that every rank has prepared: the number of its steps and its place among their graphs."""

    steps: int
    graph: int
    replay: Replay


class GpuRanks(Backend):
    """A `Backend` of several ranks, each a process with a GPU. The caller closes `bundle` after it."""

    ahead = 1

    def __init__(self, processes: RankProcesses, bundle: Bundle, gpus: Sequence[Message]) -> None:
        super().__init__()
        self.bundle, self._processes = bundle, processes
        self.gpus = tuple(gpus)
        """What each rank said of its GPU: `name`, `architecture`, `memory_bytes`."""
        self._kernels, self._contracts = BundledKernels(bundle), RankContracts()
        self._orders: list[dict[str, Any]] = []
        self._allocated, self._seconds, self._ended = 0, 0.0, False

    def load(
        self, config: ModelConfig, weights: WeightSource, max_seq_len: int, dtype: str, model: Message,
        cache_format: str | None = None, progress: Progress | None = None,
    ) -> None:  # fmt: skip
        """Load a model in all ranks. `weights` are those of rank 0, of which only the form is used; `model` is the message that
        ranks load from; its `serves` as of `CudaBackend.load`."""
        cache_format = self.bundle.cache_format if cache_format is None else cache_format
        self.config, self.max_seq_len = config, max_seq_len
        ranks = len(self.gpus)
        self.step = bundled_rank_step(self.bundle, config, weights, max_seq_len, dtype, cache_format, ranks)
        self.chunk_tokens = self.step.chunk_tokens
        done, total = [0] * ranks, [0] * ranks

        def heard(rank: int, message: Message) -> None:
            done[rank], total[rank] = int(message["done"]), int(message["total"])
            if progress is not None and all(total):
                progress(sum(done), sum(total))

        file = {"bundle": str(self.bundle.path), "digest": self.bundle.digest, "cache_format": cache_format}
        self._processes.send([{**model, **file, "ranks": ranks, "max_seq_len": max_seq_len, "dtype": dtype}] * ranks)
        self._seconds = float(self._replies(heard)[0]["seconds"])
        self.own = self._prepared(graphs_of(self.step, 1))
        self.wait()

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the ranks."""
        return self._processes.pids

    @property
    def watched(self) -> tuple[int, ...]:
        return self._processes.descriptors

    @property
    def kernel_seconds(self) -> float:
        return self._seconds

    def contract(self, op: Op) -> Contract | Manifest:
        return self._contracts.of(op, self._kernels.bundled_kernel(op))

    def allocate(self, graphs: Sequence[StepGraph], token: str) -> AskedBuffers:
        number, self._allocated = self._allocated, self._allocated + 1
        if number:  # ranks have those of their own sequence
            self.ask("allocate", steps=number, sequences=graphs[0].sequences)
        return AskedBuffers(number, graphs, self.tell, self.ask)

    def prepare(self, graph: StepGraph, buffers: AskedBuffers) -> AskedStep:
        replay = verify(graph, plan_memory(graph), self.contract)
        index = next(index for index, one in enumerate(buffers.graphs) if one is graph)
        self.tell("prepare", steps=buffers.number, graph=index)
        return AskedStep(buffers.number, index, replay)

    def enqueue(self, step: AskedStep) -> None:
        self.tell("run", steps=step.steps, graph=step.graph)

    def discard(self, step: AskedStep) -> None:
        """Nothing to do: ranks drop what they prepared when their steps are closed."""

    def wait(self) -> None:
        if not self._ended:
            self.ask("wait")

    def tell(self, order: str, **details: Any) -> None:
        """Add an order; those that were added are sent with the next one that has a reply, or by `flush`."""
        if not self._ended:
            self._orders.append({"do": order, **details})

    def ask(self, order: str, **details: Any) -> list[Message]:
        """Send an order, and those before it, and return the replies of all ranks in order."""
        self._check_open()
        self.tell(order, **details)
        self.flush()
        return self._replies()

    def flush(self) -> None:
        """Send the orders that were added."""
        orders, self._orders = self._orders, []
        try:
            self._processes.send([{"orders": orders}] * len(self.gpus))
        except BaseException:
            self._end()
            raise

    def _replies(self, progress: Callable[[int, Message], None] | None = None) -> list[Message]:
        """The next replies of all ranks; in between, memory that they share is mapped."""
        try:
            while True:
                messages = self._processes.gather(progress)
                handles = [message["data"] for message in messages if message["kind"] == HANDLE]
                if not handles:
                    return messages
                if len(handles) < len(messages):
                    raise EngineError("some ranks share memory, and others do not")
                self._processes.send([{"handles": handles}] * len(messages))
        except BaseException:
            self._end()
            raise

    def clear_own(self) -> None:
        self.tell("clear_own")

    def _end(self) -> None:
        self._ended = True
        self._processes.end()

    @property
    def _closed(self) -> bool:
        return self._ended

    def _padded(self, tokens: int, past: int) -> int:
        slots = self.own.slots
        return padded_chunk(tokens, past, min(self.chunk_tokens, self.max_seq_len), slots)

    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        self.tell("chunk", steps=OWN, inputs=encoded_values(inputs), tokens=tokens, past=past, mode=output_mode)
        self.flush()

    def _pages_that_fit(self, bucket: int) -> int:
        return min(int(reply["pages"]) for reply in self.ask("room", rows=bucket))

    def _paged_device(self, step: Step, bucket: int) -> PagedDevice:
        number, self._allocated = self._allocated, self._allocated + 1 + PROMPT
        return AskedPages(self, number, step, bucket)

    def _release(self) -> None:
        """End all ranks, after their launches; idempotent."""
        try:
            self.wait()
        finally:
            self._end()
