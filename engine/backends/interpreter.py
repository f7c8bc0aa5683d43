"""Runs a StepGraph on any machine: every operation on the tile interpreter, in NumPy. No GPU, no compiler, no bundle.

The kernels are the sources that bundles are built from, at block sizes chosen here; so this is the engine's own computation and
the one that the GPU is held against, not a second implementation of the model. It is for tests and tiny models: an interpreter
takes some tenths of a second for a token where a GPU takes a millisecond. Activations lie in one arena as the memory plan says,
filled with NaN before each step: what is read before it is written, or after its bytes were given away, shows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.backends.block_sizes import block_sizes
from engine.backends.prompts import CHUNK_TOKENS, Answers, check_room, check_vocabulary, chunks
from engine.backends.upload import Progress
from engine.config import ModelConfig
from engine.errors import ModelError, UsageError
from engine.graph.plan import plan_memory
from engine.graph.qwen3 import Head, cache_slots, step
from engine.graph.rope import rope_table
from engine.graph.step import Constant, Kind, Op, StepGraph, View
from engine.graph.verify import Contract, verify
from engine.sampling import SamplingParams, settings
from engine.weights import Weights
from tilec import frontend
from tilec.artifact import ScalarSpec, TensorSpec, ValueCheck
from tilec.diagnostics import CompileError
from tilec.interpreter import InterpreterError, run
from tilec.ir.core import Function

KERNELS: Final = Path(frontend.__file__).resolve().parents[2] / "kernels_src"
"""Where the kernels' sources are: beside the compiler."""

NUMPY_TYPES: Final[Mapping[str, np.dtype[Any]]] = {
    "bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32), "i32": np.dtype(np.int32),
}  # fmt: skip
"""NumPy type of each dtype that buffers have."""

POISON: Final = 0xFF
"""Every byte of the arena before a step: NaN in each float dtype, and -1 in i32."""

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """One operation with its specialised kernel, and the memory it works on."""

    op: Op
    function: Function
    arrays: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step that can be run: again and again where nothing but the contents of its inputs changes."""

    inputs: Mapping[str, Array]
    arena: Array
    ops: tuple[PlannedOp, ...]


class InterpreterBackend:
    """A `Backend` in NumPy. `kernels` is the folder of the kernels' sources; UsageError where it is absent."""

    def __init__(self, kernels: Path = KERNELS) -> None:
        if not kernels.is_dir():
            what = "the kernels' sources are missing, and the interpreter runs nothing else"
            raise UsageError(what, where=kernels, fix="run from a checkout of the project, or use --backend cuda")
        self.position = 0
        self.max_seq_len = 0
        self._kernels = kernels
        self._load_seconds = 0.0
        self._functions: dict[tuple[str, frozenset[tuple[str, Constant]]], Function] = {}
        self._held: dict[str, Array] = {}  # everything but inputs and activations
        self._decodes: dict[Head, PlannedStep] = {}
        self._chooses: Head = "argmax"
        self._answers = Answers()
        self._contracts: dict[int, Contract] = {}  # by the identity of a kernel, all of which are held

    def load(
        self, config: ModelConfig, weights: Weights, max_seq_len: int, dtype: str = "bf16", progress: Progress | None = None
    ) -> None:
        """Take a model: weights as they are in memory, caches of zeros for `max_seq_len` tokens, the rope table, the kernels of
        both kinds of steps. ModelError where the kernels do not take its sizes."""
        self.config, self.dtype, self.max_seq_len = config, dtype, max_seq_len
        done = 0
        for destination in weights.destinations:
            self._held[destination.name] = weights.array(destination.name)
            done += destination.bytes
            if progress is not None:
                progress(done, weights.bytes)
        graph = self._step(1, "sample")
        for kind in (Kind.CACHE, Kind.SETTING):
            for buffer in graph.of_kind(kind):
                self._held[buffer.name] = np.zeros(buffer.shape, NUMPY_TYPES[buffer.dtype])
        self._held["rope_table"] = rope_table(cache_slots(max_seq_len), config.head_dim, config.rope_theta)
        self._held["token"] = np.zeros(1, np.int32)
        self._held["logits"] = np.zeros((1, config.vocab_size), NUMPY_TYPES[dtype])
        chunk = self._planned(self._step(min(CHUNK_TOKENS, max_seq_len), "argmax", decode=False))
        chunk.inputs["slots"][...] = np.arange(len(chunk.inputs["slots"]))
        decode = self._send("argmax", 0)
        for planned in (chunk, decode):
            self._run(planned, block_order=())  # no block: the contracts alone

    @property
    def kernel_seconds(self) -> float:
        """Time spent on reading and specialising kernels so far."""
        return self._load_seconds

    def prefill(self, ids: Sequence[int], sampling: SamplingParams | None = None) -> None:
        """Take in a prompt behind what the cache holds, in chunks; only the last chunk has a head."""
        self._chooses = "argmax" if sampling is None else "sample"
        check_room(self.position, len(ids), self.max_seq_len)
        if sampling is not None:
            chosen = settings(sampling, self.position + len(ids) - 1, cache_slots(self.max_seq_len))
            for name, value in chosen.items():
                self._held[name][...] = value
        self._take_in(ids, self._chooses)

    def prompt_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Take in a prompt and give the logits of its last token, (vocab,)."""
        self._take_in(ids, "logits")
        return self._held["logits"][0].astype(np.float32)

    def token(self) -> int:
        """The token that the last step chose; ModelError where its logits were not finite."""
        token = int(self._held["token"][0])
        if not 0 <= token < self.config.vocab_size:
            raise ModelError("the logits are not finite, so no token can be chosen", fix="check the weights and their dtype")
        return token

    def stream_tokens(self, token: int, limit: int) -> Iterator[int]:
        """Take in `token` and give the choice of the next, which is taken in in turn, at most `limit` times. Each step leaves
        the inputs of the next, as on a GPU; no step runs ahead."""
        answer = self._answers.begin()
        planned = self._send(self._chooses, token)
        for given in range(limit):
            self._answers.check(answer)
            if given:
                check_room(self.position, 1, self.max_seq_len)
            self._run(planned)
            self.position += 1
            yield self.token()

    def decode_logits(self, token: int) -> NDArray[np.float32]:
        """Take in one token; the logits after it, (vocab,)."""
        self._run(self._send("logits", token))
        self.position += 1
        return self._held["logits"][0].astype(np.float32)

    def reset(self) -> None:
        """Forget all tokens."""
        self._answers.begin()
        self.position = 0

    def close(self) -> None:
        """Let go of the model; idempotent."""
        self._answers.begin()
        self._decodes.clear()
        self._held.clear()

    def _send(self, head: Head, token: int) -> PlannedStep:
        """The decode step with this head, its inputs set."""
        check_room(self.position, 1, self.max_seq_len)
        check_vocabulary([token], self.config.vocab_size)
        planned, place = self._decode_step(head), self.position
        for name, value in {"ids": token, "positions": place, "slots": place, "lengths": place + 1}.items():
            planned.inputs[name][...] = value
        return planned

    def _take_in(self, ids: Sequence[int], head: Head) -> None:
        """All of a prompt, chunk by chunk."""
        self._answers.begin()
        check_room(self.position, len(ids), self.max_seq_len)
        check_vocabulary(ids, self.config.vocab_size)
        for chunk, ends in chunks(ids, head):
            past, last = self.position, len(chunk) - 1
            planned = self._planned(self._step(len(chunk), ends, past=past, decode=False))
            places = np.arange(past, past + len(chunk), dtype=np.int32)
            given = {"ids": chunk, "positions": places, "slots": places, "last": last, "draw": past + last}
            for name, array in planned.inputs.items():
                array[...] = given[name]
            self._run(planned)
            self.position += len(chunk)

    def _step(self, tokens: int, head: Head, *, past: int = 0, decode: bool | None = None) -> StepGraph:
        return step(self.config, tokens, self.max_seq_len, self.dtype, past=past, head=head, decode=decode)

    def _decode_step(self, head: Head) -> PlannedStep:
        if head not in self._decodes:
            self._decodes[head] = self._planned(self._step(1, head))
        return self._decodes[head]

    def _planned(self, graph: StepGraph) -> PlannedStep:
        """Memory for a step's inputs and activations, and every operation's kernel."""
        memory = plan_memory(graph)
        verify(graph, memory, self._contract)
        arena = np.empty(memory.size, np.uint8)
        inputs = {buffer.name: np.zeros(buffer.shape, NUMPY_TYPES[buffer.dtype]) for buffer in graph.of_kind(Kind.INPUT)}
        flat = {name: array.reshape(-1) for name, array in (self._held | inputs).items()}
        for buffer in graph.of_kind(Kind.ACTIVATION):
            begin = memory.offsets[buffer.name]
            flat[buffer.name] = arena[begin : begin + buffer.bytes].view(NUMPY_TYPES[buffer.dtype])

        def seen(view: View) -> Array:
            return flat[view.buffer][view.offset : view.offset + view.elements].reshape(view.shape)

        ops = tuple(
            PlannedOp(op, self._function(op), {name: seen(view) for name, view in op.tensors.items()}) for op in graph.ops
        )
        return PlannedStep(inputs, arena, ops)

    def _contract(self, op: Op) -> Contract:
        function = self._function(op)
        if id(function) not in self._contracts:
            self._contracts[id(function)] = kernel_contract(function)
        return self._contracts[id(function)]

    def _function(self, op: Op) -> Function:
        """The kernel of an operation at its constants and block sizes."""
        constants = block_sizes(op)
        key = (op.kernel, frozenset(constants.items()))
        if key not in self._functions:
            began = time.perf_counter()
            try:
                path = self._kernels / f"{op.kernel}.py"
                self._functions[key] = frontend.load_kernel(path, constants, root=self._kernels.parent)
            except CompileError as error:
                what = f"operation `{op.name}`: {error.diagnostics[0].message}"
                raise ModelError(what, fix=f"the kernel `{op.kernel}` does not take this model's sizes") from None
            self._load_seconds += time.perf_counter() - began
        return self._functions[key]

    def _run(self, planned: PlannedStep, block_order: Iterable[Sequence[int]] | None = None) -> None:
        """Run a step on its inputs as they are; of each grid the blocks of `block_order`, or all."""
        planned.arena[...] = POISON
        for one in planned.ops:
            try:
                run(one.function, one.arrays, one.op.scalars, block_order=block_order)
            except InterpreterError as error:
                raise ModelError(f"operation `{one.op.name}`: {error}", fix="take a model that the kernels allow") from None


def kernel_contract(function: Function) -> Contract:
    """What a kernel says of its parameters, as its artifact's manifest would. Its preconditions are left to the interpreter,
    which checks them when it runs the kernel."""
    return Contract(
        tuple(
            TensorSpec(p.name, p.access.value, p.value.tensor.dtype.name, p.value.tensor.dims, None, p.value.tensor.align)
            for p in function.parameters
            if p.access is not None
        ),
        tuple(ScalarSpec(p.name, p.value.tile.dtype.name) for p in function.parameters if p.access is None),
        tuple(ValueCheck(fact.tensor, fact.low, fact.high, fact.distinct) for fact in function.values),
    )
