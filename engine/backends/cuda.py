"""Runs a StepGraph on a GPU with nothing but the CUBINs of a bundle. A decode step is one CUDA graph.

Every launch is checked against its artifact's contract once, when the step is planned; running a step only enqueues. Launches
overlap by programmatic dependent launch: each kernel waits for the previous one itself (`tilec.runtime.Plan.launch`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from collections.abc import Sequence as Tokens
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.backend import Backend
from engine.backends.cuda_batch import CudaBatch
from engine.backends.device_memory import DeviceMemory, InputBlock
from engine.backends.launches import Launches, launch_message
from engine.backends.prompts import PrefillSteps
from engine.backends.token_ring import TokenRing
from engine.backends.upload import Progress, Upload, WeightSource
from engine.errors import BundleRefused, DeviceError
from engine.graph.integers import Replay
from engine.graph.plan import plan_memory
from engine.graph.verify import verify, verify_captured
from engine.models.rope import rope_table
from engine.models.steps import model_step
from engine.sequence import Sequence
from tilec.artifact.records import Manifest
from tilec.runtime import Bundle, Device, LaunchError, Plan
from tilec.step.expressions import StepError
from tilec.step.graph import Kind, Op, StepGraph
from tilec.step.step import OUTPUT_MODES, OutputMode, Step

PACK_AGAIN: Final = "pack the bundle of this model"


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A decode step as a CUDA graph. The plans keep the memory alive that the launches point to."""

    graph: StepGraph
    plans: tuple[Plan, ...]
    executable: Any
    replay: Replay


class CudaBackend(Backend):
    """A `Backend` on one GPU."""

    ahead = 1

    def __init__(self, bundle: Bundle, device: Device | None = None) -> None:
        super().__init__()
        try:
            self.device = Device() if device is None else device
        except LaunchError as error:
            raise DeviceError(launch_message(error)) from None
        if bundle.arch != self.device.architecture:
            what = f"is for {bundle.arch}, and {self.device.name} is {self.device.architecture}"
            raise BundleRefused(
                what, where=bundle.path, fix=f"pack one with `tilec bundle pack --arch {self.device.architecture[:-1]}`"
            )
        self.bundle = bundle
        self.driver = self.device.driver
        self.stream = self.driver.create_stream()
        self.memory = DeviceMemory(self.driver, self.stream)
        self.launches = Launches(bundle, self.device)
        self._prefills: tuple[PrefillSteps, ...] = ()
        self._captured: dict[tuple[OutputMode, bool], CapturedStep] = {}
        self._batches: list[CudaBatch] = []
        self._inputs: dict[str, InputBlock] = {}
        self._tokens: TokenRing | None = None
        self._arena = (0, 0)

    def load(
        self, config: Any, weights: WeightSource, max_seq_len: int, dtype: str = "bf16", progress: Progress | None = None
    ) -> None:
        """Load a model onto the device: weights, caches for `max_seq_len` tokens, the rope table, kernels, the captured
        step."""
        self.config, self.dtype, self.max_seq_len = config, dtype, max_seq_len
        self.step = self._bundled_step(weights)
        memory, driver = self.memory, self.driver
        decode, logits = self.step.graph("decode", "sample"), self.step.graph("decode", "logits")
        lengths = self.step.prefills(min(self.chunk_tokens, max_seq_len))
        self._prefills = tuple(PrefillSteps(self.step, length, self.launches) for length in lengths)
        graphs = [
            self.step.graph("decode", output_mode, short=short) for output_mode in OUTPUT_MODES[:3] for short in (False, True)
        ]
        arena = max(*(prefill.memory.size for prefill in self._prefills), *(plan_memory(graph).size for graph in graphs))
        memory.require(weights.bytes + sum(buffer.bytes for buffer in decode.of_kind(Kind.CACHE)) + arena)
        for weight in weights.destinations:
            memory.add(weight.name, weight.bytes)
        driver.synchronize(self.stream)  # pool memory is usable from other streams once its allocation is done
        upload = Upload(driver, weights, {name: pointer for name, (pointer, _) in memory.allocations.items()}, progress)
        try:
            for buffer in decode.of_kind(Kind.CACHE):
                memory.add_zeroed(buffer)
            slots, head_dim = decode.buffers["rope_table"].shape
            memory.add_array("rope_table", rope_table(slots, head_dim, config.rope_theta))
            self._arena = (memory.allocate(arena), arena)
            for buffer in (*decode.of_kind(Kind.OUTPUT), *logits.of_kind(Kind.OUTPUT)):
                memory.add(buffer.name, buffer.bytes)
            self._inputs = {
                "decode": InputBlock(memory, decode.of_kind(Kind.INPUT)),
                "prefill": InputBlock(memory, self._prefills[-1].whole.of_kind(Kind.INPUT)),
                "settings": InputBlock(memory, decode.of_kind(Kind.SETTING)),
            }
            self._tokens = TokenRing(memory, "token", 1)
            for short in {self.step.is_short(1), self.step.is_short(max_seq_len)}:  # while the weights are uploaded
                self.captured_step("argmax", short)
            for prefill in self._prefills:
                allocations = self._allocations(prefill.whole)
                prefill.bind({name: pointer for name, (pointer, _) in allocations.items()}, self._arena[0])
            upload.wait()
        finally:
            upload.close()

    def contract(self, op: Op) -> Manifest:
        """The manifest of an operation's artifact."""
        return self.launches.bundled_kernel(op).manifest

    @property
    def kernel_seconds(self) -> float:
        """Time spent on loading kernels so far."""
        return self.launches.load_seconds

    def run_uncaptured(self, sequence: Sequence, token: int) -> int:
        """Process one token by launching every kernel of the step from the host, without a graph; returns the next token. The
        launches equal those of `decode`, for comparison."""
        step = self.captured_step(sequence.output_mode, self._is_short(sequence.length))
        self._send(sequence, token)
        self._inputs_known.enqueue(step.replay)
        for plan in step.plans:
            plan.launch(self.stream)
        sequence.length += 1
        return self.token()

    def captured_step(self, output_mode: OutputMode, short: bool = False) -> CapturedStep:
        """The decode step in an output mode, or its variant for short context; captured on first use."""
        self._check_open()
        if (output_mode, short) not in self._captured:
            graph = self.step.graph("decode", output_mode, short=short)
            self._captured[output_mode, short] = self.captured(graph, self._allocations(graph), self._arena)
        return self._captured[output_mode, short]

    def time_launches(self, plans: Tokens[Plan], repeats: int, filled: int) -> float:
        """Mean seconds of a graph of these launches in order, over `repeats` runs after a warm-up run. The launches read the
        activations of the last step; the inputs are those of a step whose token is in the last of `filled` slots."""
        self._set_decode(0, max(0, filled - 1))
        executable = self.capture(plans)
        try:
            self.driver.launch_graph(executable, self.stream)
            self.driver.synchronize(self.stream)
            start = time.perf_counter()
            for _ in range(repeats):
                self.driver.launch_graph(executable, self.stream)
            self.driver.synchronize(self.stream)
            return (time.perf_counter() - start) / repeats
        finally:
            self.driver.destroy_graph(executable)

    def forget_steps(self) -> None:
        """Drop captured decode steps and prepared prefill steps, and end the generation. Steps are rebuilt on demand."""
        self._current.begin()
        self.driver.synchronize(self.stream)
        self._destroy_steps()

    def _release(self) -> None:
        """Free all device resources that can still be freed; idempotent. Raises the last error."""
        if not self.stream:
            return
        stream, self.stream = self.stream, 0
        with ExitStack() as releases:  # in reverse order, even after a failure
            releases.callback(self.driver.destroy_stream, stream)
            releases.callback(self.launches.close)
            releases.callback(self.memory.close)
            if self._tokens is not None:
                releases.callback(self._tokens.close)
            for inputs in self._inputs.values():
                releases.callback(inputs.close)
            releases.callback(self._destroy_steps)
            for batch in self._batches:
                releases.callback(batch.close)
            self.driver.synchronize(stream)

    def _bundled_step(self, weights: WeightSource) -> Step:
        """The bundle's step, for this model. BundleRefused if the step needs sizes or weights that the model lacks."""
        bundle = self.bundle
        try:
            step = model_step(self.config, self.max_seq_len, self.dtype, bundle.declaration, bundle.tuning.numbers)
            needed = {(weight.name, weight.shape) for weight in step.weights()}
        except StepError as error:
            raise BundleRefused(f"its step does not fit the model: {error}", where=bundle.path, fix=PACK_AGAIN) from None
        available = {(destination.name, destination.shape) for destination in weights.destinations}
        if needed != available:
            name = min(needed ^ available)[0]
            raise BundleRefused(f"its step asks for other weights: `{name}`", where=bundle.path, fix=PACK_AGAIN)
        return step

    def _destroy_steps(self) -> None:
        while self._captured:
            self.driver.destroy_graph(self._captured.popitem()[1].executable)
        for prefill in self._prefills:
            prefill.forget()

    @property
    def _closed(self) -> bool:
        return not self.stream

    def _set(self, values: dict[str, Any]) -> None:
        self._inputs["settings"].send(**values)

    def _set_inputs(self, inputs: dict[str, int]) -> None:
        self._inputs["decode"].send(**inputs)

    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        prefill = next(candidate for candidate in self._prefills if tokens <= candidate.largest)
        prepared = prefill.prepared(tokens, past, output_mode)
        self._inputs["prefill"].send_to(prepared.inputs, inputs)
        for series, numbers in prepared.numbers:
            series.use(numbers)
        stream = self.stream
        for number, (series, index) in enumerate(prepared.launches):
            series.launch(index, stream, overlap=number > 0)

    def _run_decode(self, output_mode: OutputMode, short: bool) -> None:
        step = self.captured_step(output_mode, short)
        self._inputs_known.enqueue(step.replay)
        self.driver.launch_graph(step.executable, self.stream)

    def _fetch(self, number: int) -> None:
        self._ring.fetch(number)

    def _fetched(self, number: int) -> int:
        return int(self._ring.fetched(number)[0])

    def _last_token(self) -> int:
        return int(self._ring.latest()[0])

    @property
    def _ring(self) -> TokenRing:
        assert self._tokens is not None  # set in `load`
        return self._tokens

    def capture(self, plans: Tokens[Plan]) -> Any:
        """Launches as an executable graph. The first launch does not overlap earlier work, as the verifier assumes."""
        self.driver.begin_capture(self.stream)
        try:
            for number, plan in enumerate(plans):
                plan.launch(self.stream, overlap=number > 0)
        finally:
            executable = self.driver.end_capture(self.stream)
        return executable

    def captured(self, graph: StepGraph, allocations: Mapping[str, tuple[int, int]], arena: tuple[int, int]) -> CapturedStep:
        """A verified step as a CUDA graph, with the contract of every launch checked. `allocations` are pointer and bytes of
        every buffer that outlives the step, `arena` pointer and bytes of the memory for activations."""
        memory = plan_memory(graph)
        replay = verify(graph, memory, self.contract)
        if memory.size > arena[1]:
            raise DeviceError(f"a step of {graph.tokens} tokens needs an arena of {memory.size} bytes, not {arena[1]}")
        pointers = {name: pointer for name, (pointer, _) in allocations.items()}
        pointers |= {name: arena[0] + offset for name, offset in memory.offsets.items()}
        plans = tuple(self.launches.plans(graph, pointers))
        verify_captured(graph, allocations, arena)
        return CapturedStep(graph, plans, self.capture(plans), replay)

    def batch_steps(self, sequences: int) -> CudaBatch:
        self._check_open()
        self._batches = [batch for batch in self._batches if not batch.closed]
        self._batches.append(CudaBatch(self, sequences))
        return self._batches[-1]

    def _allocations(self, graph: StepGraph) -> dict[str, tuple[int, int]]:
        """Pointer and bytes of every buffer that outlives a step."""
        return self.memory.allocations | self._inputs[graph.name].allocations | self._inputs["settings"].allocations

    def _logits(self) -> NDArray[np.float32]:
        return self.read_floats(self.memory.allocations["logits"][0], self.config.vocab_size)

    def read_floats(self, pointer: int, count: int) -> NDArray[np.float32]:
        """`count` floats of the model's dtype from the device, after all enqueued work."""
        raw = np.empty(count, np.uint16)
        self.driver.copy_to_host(raw.ctypes.data, pointer, raw.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        if self.dtype == "f16":
            return raw.view(np.float16).astype(np.float32)
        return (raw.astype(np.uint32) << 16).view(np.float32)
