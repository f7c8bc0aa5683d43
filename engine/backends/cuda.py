"""Runs a StepGraph on a GPU with nothing but the CUBINs of a bundle. A decode step is one CUDA graph.

Every launch is checked against its artifact's contract once, when the step is planned; a step then only enqueues. Launches
overlap: each kernel waits by itself for the one before it (`tilec.runtime.Plan.launch`).
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.device_memory import DeviceMemory, InputBlock, Progress, WeightSource
from engine.errors import BundleRefused, DeviceError, UsageError
from engine.graph.plan import plan_memory
from engine.graph.qwen3 import Head, cache_slots, step
from engine.graph.step import ITEM_BYTES, Buffer, Kind, Op, StepGraph
from tilec.runtime import Bundle, BundleError, Device, DriverError, Kernel, LaunchError, Plan, TensorView, ValueBounds
from tilec.runtime.tensors import contiguous_strides

CHUNK_TOKENS: Final = 1024
"""Tokens of a prefill step: enough for matrix products to be bound by arithmetic, few enough for small activations."""

AHEAD: Final = 1
"""Decode steps enqueued beyond the one whose token is waited for."""

RING: Final = 4
"""Places on the host for tokens on their way, more than are."""


class CudaBackend:
    """One model on one device. Not for several threads at once."""

    def __init__(self, bundle: Bundle, device: Device | None = None) -> None:
        try:
            self.device = Device() if device is None else device
        except LaunchError as error:
            raise DeviceError(str(error)) from None
        if bundle.arch != self.device.architecture:
            what = f"is for {bundle.arch}, and {self.device.name} is {self.device.architecture}"
            raise BundleRefused(
                what, where=bundle.path, fix=f"pack one with `tilec bundle pack --arch {self.device.architecture[:-1]}`"
            )
        self.bundle = bundle
        self.driver = self.device.driver
        self.stream = self.driver.create_stream()
        self.memory = DeviceMemory(self.driver, self.stream)
        self.position = 0
        self._kernels: dict[str, Kernel] = {}
        self._graphs: dict[Head, Any] = {}
        self._plans: dict[Head, list[Plan]] = {}
        self._inputs: dict[int, InputBlock] = {}
        self._arena = (0, 0)
        self._host = 0

    def load(
        self, config: Any, weights: WeightSource, max_seq_len: int, dtype: str = "bf16", progress: Progress | None = None
    ) -> None:
        """Put a model on the device: weights, caches for `max_seq_len` tokens, the rope table, kernels, the captured step."""
        self.config, self.dtype, self.max_seq_len = config, dtype, max_seq_len
        decode = step(config, 1, max_seq_len, dtype)
        caches = sum(buffer.bytes for buffer in decode.of_kind(Kind.CACHE))
        chunk = step(config, min(CHUNK_TOKENS, max(2, max_seq_len)), max_seq_len, dtype)
        arena = max(plan_memory(graph).size for graph in (decode, chunk))
        self.memory.require(weights.bytes + caches + arena)
        self.memory.add_weights(weights, progress)
        for buffer in decode.of_kind(Kind.CACHE):
            self.memory.add_zeroed(buffer)
        self.memory.add_array("rope_table", rope_table(cache_slots(max_seq_len), config.head_dim, config.rope_theta))
        self._arena = (self.memory.allocate(arena), arena)
        self.memory.pointers["token"] = self.memory.allocate(256)
        self.memory.pointers["logits"] = self.memory.allocate(2 * config.vocab_size)
        self._host = self.driver.allocate_host(256)
        self._events = [self.driver.create_event() for _ in range(RING)]
        self._capture("argmax")

    def prefill(self, ids: Sequence[int]) -> None:
        """Take in a prompt behind what the cache holds, in chunks; the last one leaves the greedy token and nothing else."""
        self._take_in(ids, "argmax")

    def prompt_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Take in a prompt and give the logits of its last token, (vocab,)."""
        self._take_in(ids, "logits")
        return self._read_logits()

    def token(self) -> int:
        """The greedy token of the last step; waits for it."""
        self.driver.copy_to_host(self._host, self.memory.pointers["token"], 4, self.stream)
        self.driver.synchronize(self.stream)
        return int(ctypes.c_int32.from_address(self._host).value)

    def decode(self, token: int) -> int:
        """Take in one token; the greedy choice of the next."""
        return next(self.stream_tokens(token, 1))

    def stream_tokens(self, token: int, limit: int) -> Iterator[int]:
        """Take in `token` and give the greedy choice of the next, which is taken in in turn, at most `limit` times. Each step
        leaves the inputs of the next on the device, so that one is always enqueued ahead of the one that is waited for."""
        start, launched = self.position, 0
        waiting: deque[int] = deque()
        self._send(token)
        try:
            for given in range(limit):
                while launched < min(given + 1 + AHEAD, limit) and (launched <= given or start + launched < self.max_seq_len):
                    if launched:
                        self._room(1)
                    self.driver.launch_graph(self._graphs["argmax"], self.stream)
                    slot = launched % RING
                    self.driver.copy_to_host(self._host + 4 * slot, self.memory.pointers["token"], 4, self.stream)
                    self.driver.record_event(self._events[slot], self.stream)
                    waiting.append(slot)
                    launched += 1
                    self.position = start + launched
                slot = waiting.popleft()
                self.driver.wait_event(self._events[slot])
                yield int(ctypes.c_int32.from_address(self._host + 4 * slot).value)
        finally:
            # What was enqueued ahead and not asked for is forgotten: its slots of the cache are written again.
            self.position = start + launched - len(waiting)

    def decode_logits(self, token: int) -> NDArray[np.float32]:
        """Take in one token; the logits after it, (vocab,)."""
        if "logits" not in self._graphs:
            self._capture("logits")
        self._send(token)
        self.driver.launch_graph(self._graphs["logits"], self.stream)
        self.position += 1
        return self._read_logits()

    def reset(self) -> None:
        """Forget all tokens."""
        self.position = 0

    def close(self) -> None:
        """Free the device; idempotent."""
        for graph in self._graphs.values():
            self.driver.destroy_graph(graph)
        self._graphs.clear()
        self._plans.clear()
        for inputs in self._inputs.values():
            inputs.close()
        self._inputs.clear()
        if self._host:
            self.driver.free_host(self._host)
            self._host = 0
            for event in self._events:
                self.driver.destroy_event(event)
        self.memory.close()
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels.clear()

    def _room(self, count: int) -> None:
        if count == 0:
            raise UsageError("the prompt is empty", fix="give at least one token")
        if self.position + count > self.max_seq_len:
            what = f"{self.position} tokens and {count} more do not fit max-seq-len {self.max_seq_len}"
            raise UsageError(what, fix="raise --max-seq-len or shorten the prompt")

    def _send(self, token: int) -> None:
        """Set the inputs of a decode step."""
        self._room(1)
        if not 0 <= token < self.config.vocab_size:
            raise UsageError(f"token {token} is not in the vocabulary of {self.config.vocab_size}")
        inputs = self._inputs[1]
        self.driver.synchronize(self.stream)  # the copy before may still read the block
        for name, value in (
            ("ids", token),
            ("positions", self.position),
            ("slots", self.position),
            ("lengths", self.position + 1),
        ):
            inputs.set(name, value)
        inputs.send()

    def _take_in(self, ids: Sequence[int], head: Head) -> None:
        """All of a prompt, chunk by chunk; only the last chunk has a head."""
        self._room(len(ids))
        for begin in range(0, len(ids), CHUNK_TOKENS):
            chunk = list(ids[begin : begin + CHUNK_TOKENS])
            self._chunk(chunk, head if begin + len(chunk) == len(ids) else "none")

    def _chunk(self, ids: list[int], head: Head) -> None:
        graph = step(self.config, len(ids), self.max_seq_len, self.dtype, past=self.position, head=head, decode=False)
        inputs = self._inputs_of(graph)
        places = np.arange(self.position, self.position + len(ids), dtype=np.int32)
        self.driver.synchronize(self.stream)  # the copy before may still read the block
        inputs.set("ids", ids)
        inputs.set("positions", places)
        inputs.set("slots", places)
        if head != "none":
            inputs.set("last", len(ids) - 1)
        inputs.send()
        plans: list[Plan] = []
        for plan in self._planned(graph, inputs):  # the device runs one while the next is checked
            plan.launch(self.stream, overlap=True)
            plans.append(plan)
        self.position += len(ids)
        self.driver.synchronize(self.stream)  # `plans` hold the arguments until the launches are done with them

    def _capture(self, head: Head) -> None:
        graph = step(self.config, 1, self.max_seq_len, self.dtype, head=head)
        plans = self._plans[head] = list(self._planned(graph, self._inputs_of(graph)))
        self.driver.begin_capture(self.stream)
        try:
            for plan in plans:
                plan.launch(self.stream, overlap=True)
        finally:
            captured = self.driver.end_capture(self.stream)
        self._graphs[head] = captured

    def _inputs_of(self, graph: StepGraph) -> InputBlock:
        """The input block of a step of so many tokens; all of decode share one, and all of prefill the largest."""
        room = 1 if graph.name == "decode" else CHUNK_TOKENS
        if room not in self._inputs:
            lists = [*graph.of_kind(Kind.INPUT)]
            if room > 1 and "last" not in graph.buffers:
                lists.append(Buffer("last", "i32", (1,), Kind.INPUT))
            widest = [Buffer(b.name, b.dtype, (room if b.name != "last" else 1,), Kind.INPUT) for b in lists]
            self._inputs[room] = InputBlock(self.memory, widest)
        return self._inputs[room]

    def _planned(self, graph: StepGraph, inputs: InputBlock) -> Iterator[Plan]:
        """Every launch of a step, its contract checked."""
        memory = plan_memory(graph)
        if memory.size > self._arena[1]:
            raise DeviceError(f"a step of {graph.tokens} tokens needs an arena of {memory.size} bytes, not {self._arena[1]}")
        pointers = dict(self.memory.pointers)
        pointers |= {name: self._arena[0] + offset for name, offset in memory.offsets.items()}
        pointers |= {buffer.name: inputs.pointer(buffer.name) for buffer in graph.of_kind(Kind.INPUT)}
        for op in graph.ops:
            yield self._plan(graph, op, pointers)

    def _plan(self, graph: StepGraph, op: Op, pointers: dict[str, int]) -> Plan:
        kernel = self._kernel(op)
        arguments: dict[str, Any] = dict(op.scalars)
        values: dict[str, ValueBounds] = {}
        checked = {check.tensor for check in kernel.manifest.value_checks}
        for name, view in op.tensors.items():
            buffer = graph.buffers[view.buffer]
            pointer = pointers[view.buffer] + view.offset * ITEM_BYTES[buffer.dtype]
            arguments[name] = TensorView(pointer, buffer.dtype, view.shape, contiguous_strides(view.shape))
            if name in checked and buffer.low is not None and buffer.high is not None:
                values[name] = ValueBounds(buffer.low, buffer.high, buffer.distinct)
        try:
            return kernel.plan(arguments, values=values)
        except LaunchError as error:
            raise DeviceError(f"operation `{op.name}`: {error}") from None

    def _kernel(self, op: Op) -> Kernel:
        """The kernel of an operation, loaded once."""
        try:
            found = self.bundle.find(op.kernel, **op.constants)
            if found.name not in self._kernels:
                self._kernels[found.name] = self.bundle.load(found, self.device)
        except BundleError as error:
            raise BundleRefused(f"operation `{op.name}`: {error.message}", fix="pack the bundle of this model") from None
        except (LaunchError, DriverError) as error:
            raise DeviceError(f"operation `{op.name}`: {error}") from None
        return self._kernels[found.name]

    def _read_logits(self) -> NDArray[np.float32]:
        count = self.config.vocab_size
        held = np.empty(count, np.uint16)
        self.driver.copy_to_host(held.ctypes.data, self.memory.pointers["logits"], held.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        if self.dtype == "f16":
            return held.view(np.float16).astype(np.float32)
        return (held.astype(np.uint32) << 16).view(np.float32)


def rope_table(positions: int, head_dim: int, theta: float) -> NDArray[np.float32]:
    """Cosines, then sines, of each position's `head_dim / 2` angles, (positions, head_dim), as transformers computes them: the
    frequencies and their products with positions in f32."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    frequencies = (1.0 / np.power(np.float32(theta), exponents, dtype=np.float32)).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies[None, :]
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
