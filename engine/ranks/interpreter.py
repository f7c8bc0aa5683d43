"""Several ranks on the interpreter, each in a thread with its own weights, caches and activations.

It runs the steps that GPUs will share, on the kernels' sources: the collectives are the only operations that read what another
rank wrote, and `engine.ranks.collectives` says what they compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.decode_steps import StepBuffers, graphs_of, prompt_caches
from engine.backends.host_buffers import HostBuffers
from engine.backends.host_pages import HostPages
from engine.backends.interpreter import KERNELS, InterpreterBackend, PlannedOp, PlannedStep, enough_pages, set_inputs
from engine.backends.paged_steps import PagedDevice
from engine.backends.upload import Progress
from engine.checkpoint.weights import Weights
from engine.graph.contract import Contract
from engine.graph.integers import Replay
from engine.graph.plan import plan_memory
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.ranks.barrier import RankBarrier, RankStopped
from engine.ranks.collectives import collect, collective_contract
from engine.ranks.processes import same_tokens
from engine.ranks.step import RankStep, rank_step
from engine.ranks.verify import verify_lasting
from engine.sequence import Sequence as Generation
from tilec.ir.core import Function
from tilec.step.collectives import COLLECTIVES
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import Kind, Op, StepGraph
from tilec.step.step import OutputMode, Step

NO_KERNEL: Final = cast("Function", None)
"""In place of a collective's kernel: ranks of the interpreter meet in `engine.ranks.collectives`."""

END: Final = "the end of a step"


class RankInterpreter(InterpreterBackend):
    """One rank. It is loaded with its part of the weights, and meets the others in collectives."""

    def __init__(self, rank: int, barrier: RankBarrier, kernels: Path) -> None:
        super().__init__(kernels)
        self.rank, self._barrier = rank, barrier

    def take(self, config: ModelConfig, step: RankStep, weights: Weights, max_seq_len: int) -> None:
        """Load the rank's weights and the table of positions."""
        self.config, self.step, self.max_seq_len = config, step, max_seq_len
        for destination in weights.destinations:
            self._buffers[destination.name] = weights.array(destination.name)
        slots = step.graph("decode", "sample").buffers["rope_table"].shape[0]
        self._buffers["rope_table"] = family_of(config.model_type).rope_table(config, slots)

    def contract(self, op: Op) -> Contract:
        return collective_contract(op) if op.kernel in COLLECTIVES else super().contract(op)

    def planned(self, graph: StepGraph, existing: Mapping[str, NDArray[Any]]) -> PlannedStep:
        verify_lasting(graph, plan_memory(graph))
        return super().planned(graph, existing)

    def check_contracts(self, planned: PlannedStep) -> None:
        """Check the contract of every kernel of a step, with no block run."""
        alone = tuple(planned_op for planned_op in planned.ops if planned_op.op.kernel not in COLLECTIVES)
        self._check_contracts(PlannedStep(planned.inputs, planned.arena, alone, planned.replay))

    def run_step(self, planned: PlannedStep, block_order: Iterable[Sequence[int]] | None = None) -> None:
        super().run_step(planned, block_order)
        self._barrier.exchange(self.rank, END)

    def _function(self, op: Op) -> Function:
        return NO_KERNEL if op.kernel in COLLECTIVES else super()._function(op)

    def _run(self, ops: Iterable[PlannedOp], block_order: Iterable[Sequence[int]] | None) -> None:
        for planned_op in ops:
            op = planned_op.op
            if op.kernel in COLLECTIVES:
                parts = self._barrier.exchange(self.rank, f"`{op.kernel}` of `{op.name}`", planned_op.arrays["x"])
                collect(op, parts, planned_op.arrays)
            else:
                super()._run((planned_op,), block_order)


@dataclass(frozen=True, slots=True)
class RankedStep:
    """A step that every rank has planned."""

    steps: tuple[PlannedStep, ...]

    @property
    def replay(self) -> Replay:
        return self.steps[0].replay


class RankedBuffers(StepBuffers):
    """The buffers of all ranks. Inputs and settings are the same in each; outputs are, too, and those of the first are read."""

    def __init__(self, graphs: Sequence[StepGraph], token: str, ranks: int) -> None:
        self.of_ranks = tuple(HostBuffers(graphs, token) for _ in range(ranks))

    def send(self, kind: Kind, values: Mapping[str, Any]) -> None:
        for buffers in self.of_ranks:
            buffers.send(kind, values)

    def copy(self, target: str, slot: int, source: StepBuffers, name: str, source_slot: int, elements: int) -> None:
        assert isinstance(source, RankedBuffers)
        for own, theirs in zip(self.of_ranks, source.of_ranks, strict=True):
            own.copy(target, slot, theirs, name, source_slot, elements)

    def clear(self, name: str, first: int, elements: int) -> None:
        for buffers in self.of_ranks:
            buffers.clear(name, first, elements)

    def write(self, name: str, first: int, values: NDArray[Any]) -> None:
        for buffers in self.of_ranks:
            buffers.write(name, first, values)

    def stage(self, name: str, first: int, values: NDArray[Any]) -> None:
        for buffers in self.of_ranks:
            buffers.stage(name, first, values)

    def fetch(self, number: int, also: Sequence[str] = ()) -> None:
        """Nothing to do: the tokens are on the host."""

    def fetched_output(self, number: int, name: str) -> NDArray[Any]:
        return self.of_ranks[0].fetched_output(number, name)

    def fetched(self, number: int) -> NDArray[np.int32]:
        return self.latest()

    def latest(self) -> NDArray[np.int32]:
        return same_tokens([buffers.latest() for buffers in self.of_ranks])

    def floats(self, name: str, rows: int | None = None) -> NDArray[np.float32]:
        return self.of_ranks[0].floats(name, rows)

    def part(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        return self.of_ranks[0].part(name, first, count)

    def share(self, names: Iterable[str], other: RankedBuffers) -> None:
        """Take these arrays of other steps for their own, in each rank."""
        shared = list(names)
        for own, theirs in zip(self.of_ranks, other.of_ranks, strict=True):
            own.share(shared, theirs)

    def close(self) -> None:
        for buffers in self.of_ranks:
            buffers.close()


class InterpreterRanks(Backend):
    """A `Backend` of several ranks. An error in one rank stops all, and is raised."""

    buckets = InterpreterBackend.buckets

    def __init__(self, ranks: int, kernels: Path = KERNELS) -> None:
        super().__init__()
        self._barrier = RankBarrier(ranks)
        self.of_ranks = tuple(RankInterpreter(rank, self._barrier, kernels) for rank in range(ranks))
        self._threads = ThreadPoolExecutor(ranks, thread_name_prefix="rank")
        self._prompts: dict[tuple[int, int, OutputMode], RankedStep] = {}

    def load(
        self, config: ModelConfig, weights: Sequence[Weights], max_seq_len: int, dtype: str = "bf16",
        progress: Progress | None = None, cache_format: str | None = None,
    ) -> None:  # fmt: skip
        """Load a model: `weights` are those of each rank (`engine.ranks.weights`). Otherwise as `InterpreterBackend.load`.
        StepError if ranks cannot have equal parts."""
        self.config, self.max_seq_len = config, max_seq_len
        step = rank_step(
            config, max_seq_len, dtype, len(self.of_ranks), weight_format=weights[0].weight_format,
            cache_format=cache_format or SIXTEEN_BIT,
        )  # fmt: skip
        self.step = step
        total, loaded = sum(own.bytes for own in weights), 0
        for rank, own in zip(self.of_ranks, weights, strict=True):
            rank.take(config, step, own, max_seq_len)
            loaded += own.bytes
            if progress is not None:
                progress(loaded, total)
        self.own = self.decode_steps(1)
        self.chunk_tokens = self.step.chunk_tokens
        lengths = self.step.prefills(min(self.chunk_tokens, max_seq_len))
        prefills = [self.step.graph("prefill", tokens=tokens) for tokens in lengths]
        only_prompts = prompt_caches(prefills, graphs_of(self.step, 1).values())
        for rank in self.of_ranks:
            rank.add_caches(only_prompts)
        self._check_contracts(prefills)

    def _check_contracts(self, prefills: Sequence[StepGraph]) -> None:
        """Check every kernel's contract on the first rank: all have the same shapes."""
        first = self.of_ranks[0]
        for graph in prefills:
            chunk = first.planned(graph, self._own_buffers.of_ranks[0].except_inputs())
            chunk.inputs["slots"][...], chunk.inputs["lengths"][...] = np.arange(graph.tokens), graph.tokens
            first.check_contracts(chunk)
        self.own.send([Generation()])
        for variants in self.step.all_decode_variants():
            prepared = self.own.prepared("argmax", variants)
            assert isinstance(prepared, RankedStep)  # `prepare` made it
            first.check_contracts(prepared.steps[0])

    @property
    def kernel_seconds(self) -> float:
        return sum(rank.kernel_seconds for rank in self.of_ranks)

    def contract(self, op: Op) -> Contract:
        return self.of_ranks[0].contract(op)

    def allocate(self, graphs: Sequence[StepGraph], token: str) -> RankedBuffers:
        return RankedBuffers(graphs, token, len(self.of_ranks))

    def prepare(self, graph: StepGraph, buffers: RankedBuffers) -> RankedStep:
        return self.planned(graph, [own.arrays for own in buffers.of_ranks])

    def enqueue(self, step: RankedStep) -> None:
        self._in_threads(
            [lambda rank=rank, own=own: rank.run_step(own) for rank, own in zip(self.of_ranks, step.steps, strict=True)]
        )

    def discard(self, step: RankedStep) -> None:
        """Nothing to do: a planned step is arrays."""

    def wait(self) -> None:
        """Nothing to do: steps run synchronously."""

    def clear_own(self) -> None:
        super().clear_own()
        for rank in self.of_ranks:
            rank.clear_prompts()

    def cache(self, rank: int, name: str) -> NDArray[Any]:
        """A rank's part of a cache of the backend's own sequence, (slots, heads, elements)."""
        return self._own_buffers.of_ranks[rank].arrays[name]

    @property
    def _own_buffers(self) -> RankedBuffers:
        buffers = self.own.buffers
        assert isinstance(buffers, RankedBuffers)  # `allocate` made them
        return buffers

    @property
    def _closed(self) -> bool:
        return self.of_ranks[0]._closed  # pyright: ignore[reportPrivateUsage]  # of the same class

    def _pages_that_fit(self, bucket: int) -> int:
        return enough_pages(self.step, bucket)

    def _paged_device(self, step: Step, bucket: int) -> PagedDevice:
        return HostPages(self, step, bucket)

    def planned(self, graph: StepGraph, existing: Sequence[Mapping[str, NDArray[Any]]]) -> RankedStep:
        """A step that every rank has planned, on arrays of its own."""
        return RankedStep(tuple(rank.planned(graph, own) for rank, own in zip(self.of_ranks, existing, strict=True)))

    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        graph = self.step.graph("prefill", output_mode, tokens=tokens, past=past)
        self.run_with(graph, self._own_buffers, inputs)

    def run_with(self, graph: StepGraph, buffers: RankedBuffers, inputs: Mapping[str, Any]) -> None:
        """Run a step of a chunk in all ranks, on inputs by role and the other buffers of `buffers`."""
        planned = self.planned(graph, [own.except_inputs() for own in buffers.of_ranks])
        for of_rank in planned.steps:
            set_inputs(graph, of_rank, inputs)
        self.enqueue(planned)

    def _in_threads(self, work: Sequence[Callable[[], None]]) -> None:
        """Do the work of all ranks at once; raises the error of the first rank that failed by itself."""

        def guarded(one: Callable[[], None]) -> BaseException | None:
            try:
                one()
            except BaseException as error:  # it is raised below, in the caller's thread
                self._barrier.stop()
                return error
            return None

        errors = [future.result() for future in [self._threads.submit(guarded, one) for one in work]]
        failed = [error for error in errors if error is not None]
        if failed:
            self._barrier.reset()
            raise next((error for error in failed if not isinstance(error, RankStopped)), failed[0])

    def _release(self) -> None:
        self._threads.shutdown()
        for rank in self.of_ranks:
            rank.close()
