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
from typing import Any, ClassVar

from engine.backends.backend import Backend
from engine.backends.bundled_step import bundled_step
from engine.backends.decode_steps import DecodeGraphs, DecodeSteps, StepBuffers, graphs_of, lasting_buffers, prompt_caches
from engine.backends.device_buffers import DeviceBuffers, cache_bytes
from engine.backends.device_memory import DeviceMemory, InputBlock
from engine.backends.device_pages import DevicePages, pages_that_fit
from engine.backends.launches import Launches, launch_message
from engine.backends.prompts import PrefillSteps, padded_lengths
from engine.backends.upload import Progress, Upload, WeightSource
from engine.errors import BundleRefused, DeviceError
from engine.graph.contract import Contract
from engine.graph.integers import Replay
from engine.graph.memory_rule import verify_captured
from engine.graph.plan import plan_memory
from engine.graph.verify import may_overlap, verify
from engine.models.families import family_of
from engine.models.steps import model_step
from engine.phases import PHASES
from engine.ranks.verify import verify_lasting
from engine.sequence import Sequence
from tilec.artifact.records import Manifest
from tilec.runtime import Bundle, Device, LaunchError, Plan
from tilec.step.expressions import StepError
from tilec.step.graph import SERVE, Buffer, Kind, Op, StepGraph
from tilec.step.step import ALL_KINDS, OutputMode, Step, Variants


@dataclass(frozen=True, slots=True)
class OwnGraphs:
    """Steps of one sequence, decode and prefill, the bytes of their activations, and the caches that only prefills use."""

    decode: DecodeGraphs
    prefills: tuple[PrefillSteps, ...]
    arena: int
    only_prompts: tuple[Buffer, ...]

    @property
    def bytes(self) -> int:
        """Bytes of memory that they need."""
        return cache_bytes(list(self.decode.values())) + sum(buffer.bytes for buffer in self.only_prompts) + self.arena


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A decode step as a CUDA graph. The plans keep the memory alive that the launches point to."""

    graph: StepGraph
    plans: tuple[Plan, ...]
    executable: Any
    replay: Replay


class CudaBackend(Backend):
    """A `Backend` on one GPU. `kernels` makes the launches of a bundle's kernels on a device."""

    ahead = 1
    kernels: ClassVar[type[Launches]] = Launches
    defers: ClassVar[bool] = True
    """Whether a server's backend makes the steps of its own sequence only when one comes."""

    def __init__(self, bundle: Bundle, device: Device | None = None) -> None:
        super().__init__()
        try:
            self.device = Device() if device is None else device
        except LaunchError as error:
            raise DeviceError(launch_message(error)) from None
        if not self.device.runs(bundle.arch):
            what = f"is for {bundle.arch}, and {self.device.name} is {self.device.architecture}"
            arch = self.device.architecture.removesuffix("a")
            raise BundleRefused(what, where=bundle.path, fix=f"pack one with `tilec bundle pack --arch {arch}`")
        self.bundle = bundle
        self.driver = self.device.driver
        self.stream = self.driver.create_stream()
        self.memory = DeviceMemory(self.driver, self.stream)
        self.launches = self.kernels(bundle, self.device)
        self._prefills: tuple[PrefillSteps, ...] = ()
        self._prompt: InputBlock | None = None
        self._arena: tuple[int, int] | None = None
        self._upload: Upload | None = None
        self._once = False
        self._only_prompts: list[tuple[int, int]] = []
        """Pointer and bytes of each cache that only prompts of its own sequence use."""

    def load(
        self, config: Any, weights: WeightSource, max_seq_len: int, dtype: str = "bf16", progress: Progress | None = None,
        cache_format: str | None = None, *, serves: bool = False, once: bool = False,
    ) -> None:  # fmt: skip
        """Load a model onto the device: weights, caches for `max_seq_len` tokens, the rope table, kernels, the captured
        step. `cache_format` None: that of the bundle. `once`: one prompt will come, so that those of other lengths are not
        prepared. `serves`: where the model has steps over pages, these do all the work, so that caches and steps of its own
        sequence are made only if one comes; weights may be on their way when this returns (`finish`)."""
        self.config, self.dtype, self.max_seq_len = config, dtype, max_seq_len
        self.step = self._bundled_step(weights, self.bundle.cache_format if cache_format is None else cache_format)
        serves = serves and SERVE in self.step.declaration.modes
        self._once = once or serves
        self.chunk_tokens = self.step.chunk_tokens
        free, _ = self.driver.memory()
        try:
            if self.memory.fits(weights.bytes):  # otherwise the whole model does not, which is refused below
                self._upload = self._begin_upload(weights, progress)
            PHASES.ended("upload_begun")
            if serves and self.defers:
                self.memory.require(weights.bytes, free)
                self._add_rope_table()
                return
            own = self._own_graphs()
            self.memory.require(weights.bytes + own.bytes, free)
            PHASES.ended("graphs")
            self._add_rope_table()
            self._allocate_own(own)
            PHASES.ended("steps")
            self.finish()
            PHASES.ended("upload")
        except BaseException:
            if self._upload is not None:
                self._upload.close()
            raise

    def _begin_upload(self, weights: WeightSource, progress: Progress | None) -> Upload:
        """Allocate the weights, and let threads copy them."""
        for weight in weights.destinations:
            self.memory.add(weight.name, weight.bytes)
        self.driver.synchronize(self.stream)  # pool memory is usable from other streams once its allocation is done
        pointers = {name: pointer for name, (pointer, _) in self.memory.allocations.items()}
        return Upload(self.driver, weights, pointers, progress)

    def finish(self) -> None:
        if self._upload is not None:
            self._upload.wait()
            self._upload = None

    def _add_rope_table(self) -> None:
        few = self.step.graph("decode", "argmax", tokens=1, layers=self.step.few_layers(ALL_KINDS))
        slots = few.buffers["rope_table"].shape[0]
        self.memory.add_array("rope_table", family_of(self.config.model_type).rope_table(self.config, slots))

    def _own_graphs(self) -> OwnGraphs:
        """The steps of the backend's own sequence."""
        decode = graphs_of(self.step, 1)
        lengths = self.step.prefills(min(self.chunk_tokens, self.max_seq_len))
        prefills = tuple(PrefillSteps(self.step, length, self.launches) for length in lengths)
        arena = max(*(prefill.memory.size for prefill in prefills), *(plan_memory(graph).size for graph in decode.values()))
        only_prompts = prompt_caches((prefill.whole for prefill in prefills), decode.values())
        return OwnGraphs(decode, prefills, arena, tuple(only_prompts))

    def _load_own(self) -> None:
        own = self._own_graphs()
        self.memory.require(own.bytes)
        self._allocate_own(own)

    def _allocate_own(self, own: OwnGraphs) -> None:
        """Memory for the backend's own sequence, and its steps ready to run."""
        self._prefills = own.prefills
        for buffer in own.only_prompts:
            self.memory.add_zeroed(buffer)
        self._only_prompts = [self.memory.allocations[buffer.name] for buffer in own.only_prompts]
        self._arena = (self._allocate_arena(own.arena), own.arena)
        self._prompt = InputBlock(self.memory, lasting_buffers([self._prefills[-1].whole], Kind.INPUT))
        self.own = self._prepared(own.decode)  # captures steps while the weights are uploaded
        if self._once and self.defers:
            return
        for prefill in self._prefills:
            self._bind(prefill, later=False)
        for tokens in [] if self._once else padded_lengths(self._prefills[-1].largest):  # while the weights are uploaded
            self._prefill_of(tokens).prepared(tokens, 0, "argmax")

    def clear_own(self) -> None:
        super().clear_own()
        for pointer, size in self._only_prompts:
            self.driver.fill(pointer, 0, size, self.stream)

    def _bind(self, prefill: PrefillSteps, *, later: bool) -> None:
        """Verify prefills of one form on the backend's memory."""
        assert self._arena is not None  # set in `_allocate_own`
        pointers = {name: pointer for name, (pointer, _) in self.prompt_allocations.items()}
        prefill.bind(pointers, self._arena[0], later=later)

    @property
    def prompt_allocations(self) -> dict[str, tuple[int, int]]:
        """Pointer and bytes of every buffer that outlives a prefill."""
        assert self._prompt is not None  # set in `load`
        return self.memory.allocations | _on_device(self.own.buffers).allocations | self._prompt.allocations

    def contract(self, op: Op) -> Contract | Manifest:
        """The contract of an operation's artifact."""
        return self.launches.contract(op, self.launches.bundled_kernel(op))

    @property
    def kernel_seconds(self) -> float:
        """Time spent on loading kernels so far."""
        return self.launches.load_seconds

    def run_uncaptured(self, sequence: Sequence, token: int) -> int:
        """Process one token by launching every kernel of the step from the host, without a graph; returns the next token. The
        launches equal those of `decode`, for comparison."""
        step = self.captured_step(sequence.output_mode, self.step.decode_variants(sequence.length + 1))
        self._send(sequence, token)
        self.own.enqueued(step)
        self.finish()
        for plan in (*step.plans, *self.ending()):
            plan.launch(self.stream)
        sequence.length += 1
        return self.token()

    def captured_step(self, output_mode: OutputMode, variants: Variants) -> CapturedStep:
        """The decode step of the backend's own sequence in an output mode with some variants."""
        self._check_open()
        step = self.own.prepared(output_mode, variants)
        assert isinstance(step, CapturedStep)  # `prepare` made it
        return step

    def time_launches(self, plans: Tokens[Plan], repeats: int, filled: int) -> float:
        """Mean seconds of a graph of these launches in order, over `repeats` runs after a warm-up run. The launches read the
        activations of the last step; the inputs are those of a step whose token is in the last of `filled` slots."""
        self.finish()
        self.own.send([Sequence(length=max(0, filled - 1))])
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
        if self._own is not None:
            self._own.forget()
        for prefill in self._prefills:
            prefill.forget()

    def decode_steps(self, sequences: int) -> DecodeSteps:
        try:
            return super().decode_steps(sequences)
        except StepError as error:
            raise BundleRefused(str(error), where=self.bundle.path, fix="pack a bundle whose step serves batches") from None

    def allocate(self, graphs: Tokens[StepGraph], token: str) -> DeviceBuffers:
        arena = self._arena if graphs[0].sequences == 1 else None  # steps of one sequence and its prefills share theirs
        return DeviceBuffers(self.driver, self.stream, graphs, token, arena)

    def prepare(self, graph: StepGraph, buffers: DeviceBuffers) -> CapturedStep:
        return self.captured(graph, buffers.allocations, buffers.arena)

    def captured(self, graph: StepGraph, own: Mapping[str, tuple[int, int]], arena: tuple[int, int]) -> CapturedStep:
        """A verified step as a CUDA graph, with the contract of every launch checked. `own` are the pointer and bytes of its
        buffers that are not the model's; the activations are in `arena`."""
        memory = plan_memory(graph)
        replay = verify(graph, memory, self.contract)
        verify_lasting(graph, memory)
        if memory.size > arena[1]:
            raise DeviceError(f"a step of {graph.tokens} tokens needs an arena of {memory.size} bytes, not {arena[1]}")
        allocations = self.memory.allocations | dict(own)
        pointers = {name: pointer for name, (pointer, _) in allocations.items()}
        pointers |= {name: arena[0] + offset for name, offset in memory.offsets.items()}
        plans = tuple(self.launches.plans(graph, pointers))
        verify_captured(graph, allocations, arena)
        early = [may_overlap(graph, op, self.contract(op)) for op in graph.ops]
        ending = self.ending()
        return CapturedStep(graph, plans, self.capture((*plans, *ending), [*early, *[True] * len(ending)]), replay)

    def _allocate_arena(self, size: int) -> int:
        """Memory for activations, which the backend frees."""
        return self.memory.allocate(size)

    def ending(self) -> tuple[Plan, ...]:
        """Launches after those of each step."""
        return ()

    def _pages_that_fit(self, bucket: int) -> int:
        return pages_that_fit(self, bucket)

    def _paged_device(self, step: Step, bucket: int) -> DevicePages:
        return DevicePages(self, step, bucket)

    def enqueue(self, step: CapturedStep) -> None:
        if self._upload is not None:
            self.finish()
        self.driver.launch_graph(step.executable, self.stream)

    def discard(self, step: CapturedStep) -> None:
        self.driver.destroy_graph(step.executable)

    def wait(self) -> None:
        self.driver.synchronize(self.stream)

    def _release(self) -> None:
        """Free all device resources that can still be freed; idempotent. Raises the last error."""
        if not self.stream:
            return
        stream, self.stream = self.stream, 0
        with ExitStack() as releases:  # in reverse order, even after a failure
            if self._upload is not None:
                self._upload.close()
            releases.callback(self.driver.destroy_stream, stream)
            releases.callback(self.launches.close)
            releases.callback(self.memory.close)
            if self._prompt is not None:
                releases.callback(self._prompt.close)
            self.driver.synchronize(stream)

    def _bundled_step(self, weights: WeightSource, cache_format: str) -> Step:
        """The bundle's step, for this model; BundleRefused if the bundle is for another one."""
        bundle = self.bundle
        return bundled_step(
            bundle, weights, cache_format, 1,
            lambda: model_step(
                self.config, self.max_seq_len, self.dtype, bundle.declaration, bundle.tuning.numbers,
                weight_format=bundle.weight_format, cache_format=cache_format,
            ),
        )  # fmt: skip

    @property
    def _closed(self) -> bool:
        return not self.stream

    def _padded(self, tokens: int, past: int) -> int:
        if self._own is None:
            self._load_own()
        return self._prefills[-1].padded(tokens, past)

    def _prefill_of(self, tokens: int) -> PrefillSteps:
        """The steps of prompts of that length, verified."""
        found = next(candidate for candidate in self._prefills if tokens <= candidate.largest)
        if not found.bound:
            self._bind(found, later=True)
        return found

    def _run_chunk(self, inputs: dict[str, Any], tokens: int, past: int, output_mode: OutputMode) -> None:
        self.finish()
        prefill = self._prefill_of(tokens)
        prepared = prefill.prepared(tokens, past, output_mode)
        assert self._prompt is not None  # set in `load`
        self._prompt.send_to(prepared.inputs, {name: inputs[prefill.whole.role(name)] for name in prepared.inputs})
        prepared.launch(self.stream)
        for plan in self.ending():
            plan.launch(self.stream, overlap=True)

    def capture(self, plans: Tokens[Plan], overlaps: Tokens[bool] = ()) -> Any:
        """Launches as an executable graph. The first launch does not overlap earlier work, nor does one whose element of
        `overlaps` (default: all true) is false, as the verifier assumes."""
        self.driver.begin_capture(self.stream)
        try:
            for number, (plan, allowed) in enumerate(zip(plans, overlaps or [True] * len(plans), strict=True)):
                plan.launch(self.stream, overlap=allowed and number > 0)
        finally:
            executable = self.driver.end_capture(self.stream)
        return executable


def _on_device(buffers: StepBuffers) -> DeviceBuffers:
    assert isinstance(buffers, DeviceBuffers)  # `allocate` made them
    return buffers
