"""Runs a StepGraph on any machine: every operation on the tile interpreter, in NumPy. No GPU, no compiler, no bundle.

The kernels are the sources that bundles are built from, with block sizes chosen here. So it is the engine's own computation and
the reference for the GPU, not a second implementation of the model. It is for tests and tiny models: a token takes some tenths
of a second, against about a millisecond on a GPU. Activations share one arena laid out by the memory plan and filled with NaN
before each step, so a read of an activation that is not yet written, or whose memory was reused, becomes visible.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.block_sizes import block_sizes
from engine.backends.decode_steps import PreparedStep, graphs_of, prompt_caches
from engine.backends.host_buffers import NUMPY_TYPES, HostBuffers, zeros
from engine.backends.host_pages import HostPages
from engine.backends.paged_steps import PagedDevice
from engine.backends.upload import Progress
from engine.checkpoint.weights import Weights
from engine.errors import ModelError, UsageError
from engine.graph.contract import Contract
from engine.graph.integers import Replay, check_values
from engine.graph.invariance import with_tiles
from engine.graph.plan import plan_memory
from engine.graph.verify import verify
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.models.steps import model_step
from engine.sequence import Sequence as Generation
from tilec import frontend
from tilec.artifact.records import parameter_specs, value_check, value_promise
from tilec.diagnostics.diagnostic import CompileError
from tilec.interpreter import InterpreterError, run
from tilec.ir.core import Function
from tilec.shipped import project_folder
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import PAGED, Buffer, Constant, Kind, Op, StepGraph, View
from tilec.step.step import BUCKETS, OutputMode, Step

KERNELS: Final = project_folder() / "kernels_src"
"""The folder of the kernels' sources: next to the compiler, or in its package."""

POISON: Final = 0xFF
"""Every byte of the arena before a step: NaN in each float dtype, -1 in i32."""

PAGED_ROWS: Final = 64
"""Rows of a tile of a product in steps over pages."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """One operation: its specialised kernel and the arrays that it works on. `least`: the least integer of those that are
    activations with bounds."""

    op: Op
    function: Function
    arrays: Mapping[str, Array]
    least: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step ready to run; it can run repeatedly if only the contents of its inputs change."""

    inputs: Mapping[str, Array]
    arena: Array
    ops: tuple[PlannedOp, ...]
    replay: Replay


class InterpreterBackend(Backend):
    """A `Backend` in NumPy. `kernels` is the folder of the kernels' sources; UsageError if it is absent."""

    buckets = (2, 4, *BUCKETS)
    """More than a GPU has: time goes with the rows."""

    def __init__(self, kernels: Path = KERNELS) -> None:
        if not kernels.is_dir():
            what = "the kernels' sources are missing, and the interpreter runs nothing else"
            raise UsageError(what, where=kernels, fix="run from a checkout of the project, or use --backend cuda")
        super().__init__()
        self._kernels = kernels
        self._load_seconds = 0.0
        self._only_prompts: list[str] = []
        self._functions: dict[tuple[str, frozenset[tuple[str, Constant]]], Function] = {}
        self._buffers: dict[str, Array] = {}  # weights and tables
        self._contracts: dict[int, Contract] = {}  # by `id` of a kernel; `_functions` keeps all kernels alive

    def load(
        self, config: ModelConfig, weights: Weights, max_seq_len: int, dtype: str = "bf16", progress: Progress | None = None,
        cache_format: str | None = None,
    ) -> None:  # fmt: skip
        """Load a model: weights as arrays, zeroed caches for `max_seq_len` tokens, the rope table, the kernels of prefill and
        decode steps. ModelError if the kernels do not support its sizes. `cache_format` None: 16 bits."""
        self.config, self.max_seq_len = config, max_seq_len
        self.step = model_step(
            config, max_seq_len, dtype, weight_format=weights.weight_format, cache_format=cache_format or SIXTEEN_BIT
        )
        loaded = 0
        for destination in weights.destinations:
            self._buffers[destination.name] = weights.array(destination.name)
            loaded += destination.bytes
            if progress is not None:
                progress(loaded, weights.bytes)
        slots = self.step.graph("decode", "sample").buffers["rope_table"].shape[0]
        self._buffers["rope_table"] = family_of(config.model_type).rope_table(config, slots)
        self.own = self.decode_steps(1)
        self.chunk_tokens = self.step.chunk_tokens
        lengths = self.step.prefills(min(self.chunk_tokens, max_seq_len))
        prefills = [self.step.graph("prefill", tokens=tokens) for tokens in lengths]
        only_prompts = prompt_caches(prefills, graphs_of(self.step, 1).values())
        self.add_caches(only_prompts)
        chunks = [self._planned_chunk(graph) for graph in prefills]
        for tokens, chunk in zip(lengths, chunks, strict=True):
            chunk.inputs["slots"][...], chunk.inputs["lengths"][...] = np.arange(tokens), tokens
        self.own.send([Generation()])
        for planned in (
            *chunks,
            *(_planned(self.own.prepared("argmax", variants)) for variants in self.step.all_decode_variants()),
        ):
            self._check_contracts(planned)

    def add_caches(self, buffers: Sequence[Buffer]) -> None:
        """Memory for the caches that only prompts of the backend's own sequence use."""
        self._only_prompts = [buffer.name for buffer in buffers]
        self._buffers |= {buffer.name: zeros(buffer) for buffer in buffers}

    def clear_own(self) -> None:
        super().clear_own()
        self.clear_prompts()

    def clear_prompts(self) -> None:
        """Zero the caches that only prompts use."""
        for name in self._only_prompts:
            self._buffers[name][...] = 0

    @property
    def kernel_seconds(self) -> float:
        """Seconds spent on reading and specialising kernels so far."""
        return self._load_seconds

    @property
    def _closed(self) -> bool:
        return not self._buffers

    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        graph = self.step.graph("prefill", output_mode, tokens=tokens, past=past)
        self.run_with(graph, self._own_buffers, inputs)

    def run_with(self, graph: StepGraph, buffers: HostBuffers, inputs: Mapping[str, Any]) -> None:
        """Run a step of a chunk on inputs by role and the other buffers of `buffers`."""
        planned = self.planned(graph, buffers.except_inputs())
        set_inputs(graph, planned, inputs)
        self.run_step(planned)

    def _planned_chunk(self, graph: StepGraph) -> PlannedStep:
        """A prefill step of the backend's own sequence, with inputs of its own."""
        return self.planned(graph, self._own_buffers.except_inputs())

    @property
    def _own_buffers(self) -> HostBuffers:
        buffers = self.own.buffers
        assert isinstance(buffers, HostBuffers)  # `allocate` made them
        return buffers

    def _release(self) -> None:
        self._buffers.clear()

    def _pages_that_fit(self, bucket: int) -> int:
        return enough_pages(self.step, bucket)

    def _paged_device(self, step: Step, bucket: int) -> PagedDevice:
        return HostPages(self, step, bucket)

    def allocate(self, graphs: Sequence[StepGraph], token: str) -> HostBuffers:
        return HostBuffers(graphs, token)

    def prepare(self, graph: StepGraph, buffers: HostBuffers) -> PlannedStep:
        return self.planned(graph, buffers.arrays)

    def enqueue(self, step: PlannedStep) -> None:
        self.run_step(step)

    def discard(self, step: PlannedStep) -> None:
        """Nothing to do: a planned step is arrays."""

    def wait(self) -> None:
        """Nothing to do: steps run synchronously."""

    def cache(self, name: str) -> Array:
        """A cache of the backend's own sequence, (slots, heads, elements)."""
        return self._own_buffers.arrays[name]

    def planned(self, graph: StepGraph, existing: Mapping[str, Array]) -> PlannedStep:
        """Verify a step; allocate its activations and the inputs that are not in `existing`; specialise every kernel. Products
        of steps over pages have tiles of the same rows whatever the number of tokens: NumPy's sums follow from their shape."""
        if graph.name in PAGED:
            graph = with_tiles(graph, PAGED_ROWS)
        arrays = self._buffers | dict(existing)
        memory = plan_memory(graph)
        replay = verify(graph, memory, self.contract)
        arena = np.empty(memory.size, np.uint8)
        inputs = {
            buffer.name: arrays[buffer.name] if buffer.name in arrays else zeros(buffer) for buffer in graph.of_kind(Kind.INPUT)
        }
        flat = {name: array.reshape(-1) for name, array in (arrays | inputs).items()}
        for buffer in graph.of_kind(Kind.ACTIVATION):
            offset = memory.offsets[buffer.name]
            flat[buffer.name] = arena[offset : offset + buffer.bytes].view(NUMPY_TYPES[buffer.dtype])

        def array_of(view: View) -> Array:
            return flat[view.buffer][view.offset : view.offset + view.elements].reshape(view.shape)

        lows = {buffer.name: buffer.low for buffer in graph.of_kind(Kind.ACTIVATION) if buffer.low is not None}
        ops = tuple(
            PlannedOp(
                op, self._function(op), {name: array_of(view) for name, view in op.tensors.items()},
                {name: lows[view.buffer] for name, view in op.tensors.items() if view.buffer in lows},
            )
            for op in graph.ops
        )  # fmt: skip
        return PlannedStep(inputs, arena, ops, replay)

    def contract(self, op: Op) -> Contract:
        """The contract of an operation's kernel."""
        function = self._function(op)
        if id(function) not in self._contracts:
            self._contracts[id(function)] = kernel_contract(function)
        return self._contracts[id(function)]

    def _function(self, op: Op) -> Function:
        """The kernel of an operation, specialised to its constants and block sizes."""
        constants = block_sizes(op)
        key = (op.kernel, frozenset(constants.items()))
        if key not in self._functions:
            start = time.perf_counter()
            try:
                path = self._kernels / f"{op.kernel}.py"
                self._functions[key] = frontend.load_kernel(path, constants, root=self._kernels.parent)
            except CompileError as error:
                what = f"operation `{op.name}`: {error.diagnostics[0].message}"
                raise ModelError(what, fix=f"the kernel `{op.kernel}` does not take this model's sizes") from None
            self._load_seconds += time.perf_counter() - start
        return self._functions[key]

    def run_step(self, planned: PlannedStep, block_order: Iterable[Sequence[int]] | None = None) -> None:
        """Run a step on its current inputs; of each grid only the blocks of `block_order`, or all if None."""
        planned.arena[...] = POISON
        self._run(planned.ops, block_order)

    def _check_contracts(self, planned: PlannedStep) -> None:
        """Check the contract of each operation, with no block run: activations hold the least integer that may be there."""
        for op in planned.ops:
            for name, low in op.least.items():
                op.arrays[name][...] = low
            self._run((op,), ())

    def _run(self, ops: Iterable[PlannedOp], block_order: Iterable[Sequence[int]] | None) -> None:
        for planned_op in ops:
            try:
                run(planned_op.function, planned_op.arrays, planned_op.op.scalars, block_order=block_order)
            except InterpreterError as error:
                raise ModelError(
                    f"operation `{planned_op.op.name}`: {error}", fix="take a model that the kernels allow"
                ) from None


def enough_pages(step: Step, bucket: int) -> int:
    """Pages for every one of `bucket` rows at its longest, and for those that are no sequence's."""
    values = step.values()
    return -(-bucket // values["page_tokens"]) + bucket * values["table_pages"]


def set_inputs(graph: StepGraph, planned: PlannedStep, inputs: Mapping[str, Any]) -> None:
    """Write the inputs of a step, given by role. GraphError if a value is out of bounds."""
    for name, array in planned.inputs.items():
        values = inputs[graph.role(name)]
        check_values(graph.buffers[name], values)
        array[...] = values


def _planned(step: PreparedStep) -> PlannedStep:
    assert isinstance(step, PlannedStep)  # `prepare` made it
    return step


def kernel_contract(function: Function) -> Contract:
    """A kernel's contract, as in its artifact's manifest, but without preconditions: the interpreter checks those when it runs
    the kernel."""
    checks = (value_check(fact) for fact in function.values)
    return Contract(*parameter_specs(function), tuple(checks), promises=tuple(map(value_promise, function.promises)))
