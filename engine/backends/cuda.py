"""Runs a StepGraph on a GPU with nothing but the CUBINs of a bundle. A decode step is one CUDA graph.

Every launch is checked against its artifact's contract once, when the step is planned; a step then only enqueues. Launches
overlap: each kernel waits by itself for the one before it (`tilec.runtime.Plan.launch`).
"""

from __future__ import annotations

import ctypes
import time
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.backends.device_memory import DeviceMemory, InputBlock
from engine.backends.launches import Launches
from engine.backends.prompts import CHUNK_TOKENS, Answers, check_room, check_vocabulary, chunks
from engine.backends.upload import Progress, Upload, WeightSource
from engine.errors import BundleRefused, DeviceError, ModelError, UsageError
from engine.graph.plan import plan_memory
from engine.graph.qwen3 import Head, cache_slots, step
from engine.graph.rope import rope_table
from engine.graph.step import Buffer, Kind, StepGraph
from engine.graph.verify import verify, verify_captured
from engine.sampling import SamplingParams, settings
from tilec.runtime import Bundle, Device, LaunchError, Plan

AHEAD: Final = 1
"""Decode steps enqueued beyond the one whose token is waited for."""

RING: Final = 4
"""Places on the host for tokens on their way, more than are."""


REMEMBERED: Final = 32
"""Prefill steps whose launches are kept, so that a prompt of a length that came before is not planned again."""


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """A decode step as a CUDA graph; the plans hold what its launches point to."""

    graph: StepGraph
    plans: tuple[Plan, ...]
    executable: Any


class CudaBackend:
    """A `Backend` on one device."""

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
        self.launches = Launches(bundle, self.device)
        self.position = 0
        self._answers = Answers()
        self._captured: dict[Head, CapturedStep] = {}
        self._prefills: OrderedDict[Any, list[Plan]] = OrderedDict()
        self._inputs: dict[str, InputBlock] = {}
        self._events: list[Any] = []
        self._arena = (0, 0)
        self._host = 0
        self._chooses: Head = "argmax"

    def load(
        self, config: Any, weights: WeightSource, max_seq_len: int, dtype: str = "bf16", progress: Progress | None = None
    ) -> None:
        """Put a model on the device: weights, caches for `max_seq_len` tokens, the rope table, kernels, the captured step."""
        self.config, self.dtype, self.max_seq_len = config, dtype, max_seq_len
        memory, driver = self.memory, self.driver
        decode, chunk = self._step(1, "sample"), self._step(min(CHUNK_TOKENS, max_seq_len), "sample", decode=False)
        steps = (decode, self._step(1, "argmax"), chunk)
        arena = max(plan_memory(graph).size for graph in steps)
        memory.require(weights.bytes + sum(buffer.bytes for buffer in decode.of_kind(Kind.CACHE)) + arena)
        for destination in weights.destinations:
            memory.add(destination.name, destination.bytes)
        driver.synchronize(self.stream)  # memory is there for other streams once this one has passed its allocation
        upload = Upload(driver, weights, {name: pointer for name, (pointer, _) in memory.places.items()}, progress)
        try:
            for buffer in decode.of_kind(Kind.CACHE):
                memory.add_zeroed(buffer)
            memory.add_array("rope_table", rope_table(cache_slots(max_seq_len), config.head_dim, config.rope_theta))
            self._arena = (memory.allocate(arena), arena)
            memory.add("token", 4)
            memory.add("logits", 2 * config.vocab_size)
            self._inputs = {
                "decode": InputBlock(memory, decode.of_kind(Kind.INPUT)),
                "prefill": InputBlock(memory, _for_any_chunk(chunk)),
                "settings": InputBlock(memory, decode.of_kind(Kind.SETTING)),
            }
            self._host = driver.allocate_host(4 * RING)
            self._events = [driver.create_event() for _ in range(RING)]
            self.captured_step("argmax")
            upload.wait()
        finally:
            upload.close()

    def prefill(self, ids: Sequence[int], sampling: SamplingParams | None = None) -> None:
        """Take in a prompt behind what the cache holds, in chunks; only the last chunk has a head."""
        self._check_open()
        self._chooses = "argmax" if sampling is None else "sample"
        check_room(self.position, len(ids), self.max_seq_len)
        if sampling is not None:
            last = self.position + len(ids) - 1
            self._inputs["settings"].send(**settings(sampling, last, cache_slots(self.max_seq_len)))
        self._take_in(ids, self._chooses)

    def prompt_logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Take in a prompt and give the logits of its last token, (vocab,)."""
        self._take_in(ids, "logits")
        return self._read_logits()

    @property
    def kernel_seconds(self) -> float:
        """Time spent on loading kernels so far."""
        return self.launches.load_seconds

    def token(self) -> int:
        """The token that the last step chose; waits for it."""
        self.driver.copy_to_host(self._host, self.memory.places["token"][0], 4, self.stream)
        self.driver.synchronize(self.stream)
        return self._received(0)

    def decode(self, token: int) -> int:
        """Take in one token; the greedy choice of the next."""
        return next(self.stream_tokens(token, 1))

    def stream_tokens(self, token: int, limit: int) -> Iterator[int]:
        """Take in `token` and give the choice of the next, which is taken in in turn, at most `limit` times. Each step leaves
        the inputs of the next on the device, so that one is always enqueued ahead of the one that is waited for."""
        answer = self._answers.begin()
        start, launched = self.position, 0
        waiting: deque[int] = deque()
        executable = self.captured_step(self._chooses).executable
        self._send(token)
        try:
            for given in range(limit):
                self._answers.check(answer)
                while launched < min(given + 1 + AHEAD, limit) and (launched <= given or start + launched < self.max_seq_len):
                    if launched:
                        check_room(self.position, 1, self.max_seq_len)
                    self.driver.launch_graph(executable, self.stream)
                    slot = launched % RING
                    self.driver.copy_to_host(self._host + 4 * slot, self.memory.places["token"][0], 4, self.stream)
                    self.driver.record_event(self._events[slot], self.stream)
                    waiting.append(slot)
                    launched += 1
                    self.position = start + launched
                slot = waiting.popleft()
                self.driver.wait_event(self._events[slot])
                yield self._received(slot)
        finally:
            # What was enqueued ahead and not asked for is forgotten: its slots of the cache are written again.
            if self._answers.is_current(answer):
                self.position = start + launched - len(waiting)

    def decode_logits(self, token: int) -> NDArray[np.float32]:
        """Take in one token; the logits after it, (vocab,)."""
        executable = self.captured_step("logits").executable
        self._send(token)
        self.driver.launch_graph(executable, self.stream)
        self.position += 1
        return self._read_logits()

    def run_uncaptured(self, token: int) -> int:
        """Take in one token by launching every kernel of the step from the host, without a graph; the choice of the next. The
        same launches as `decode`, for comparison."""
        plans = self.captured_step(self._chooses).plans
        self._send(token)
        for plan in plans:
            plan.launch(self.stream)
        self.position += 1
        return self.token()

    def reset(self) -> None:
        """Forget all tokens."""
        self._answers.begin()
        self.position = 0

    def captured_step(self, head: Head) -> CapturedStep:
        """The decode step with this head, captured when it is first asked for."""
        self._check_open()
        if head not in self._captured:
            graph = self._step(1, head)
            plans = tuple(self._planned(graph))
            verify_captured(graph, self._places(graph), self._arena)
            self._captured[head] = CapturedStep(graph, plans, self._capture(plans))
        return self._captured[head]

    def time_launches(self, plans: Sequence[Plan], repeats: int) -> float:
        """Seconds that some launches of a decode step take, one after the other in one graph: the mean of `repeats` runs after
        a first one. They compute on what the last step left, with the inputs of a step at the last filled slot."""
        place = max(0, self.position - 1)
        self._inputs["decode"].send(ids=0, positions=place, slots=place, lengths=place + 1)
        executable = self._capture(plans)
        try:
            self.driver.launch_graph(executable, self.stream)
            self.driver.synchronize(self.stream)
            began = time.perf_counter()
            for _ in range(repeats):
                self.driver.launch_graph(executable, self.stream)
            self.driver.synchronize(self.stream)
            return (time.perf_counter() - began) / repeats
        finally:
            self.driver.destroy_graph(executable)

    def forget_steps(self) -> None:
        """Drop captured decode steps and planned prompts, and end the answer; each step is made again when it is needed."""
        self._answers.begin()
        self.driver.synchronize(self.stream)
        self._destroy_steps()

    def close(self) -> None:
        """Free the device, all that it still lets free; idempotent. The last error is raised."""
        if not self.stream:
            return
        self._answers.begin()
        stream, self.stream = self.stream, 0
        with ExitStack() as releases:  # from the last to the first, whatever fails
            releases.callback(self.driver.destroy_stream, stream)
            releases.callback(self.launches.close)
            releases.callback(self.memory.close)
            for event in self._events:
                releases.callback(self.driver.destroy_event, event)
            if self._host:
                releases.callback(self.driver.free_host, self._host)
            for inputs in self._inputs.values():
                releases.callback(inputs.close)
            releases.callback(self._destroy_steps)
            self.driver.synchronize(stream)

    def _destroy_steps(self) -> None:
        while self._captured:
            self.driver.destroy_graph(self._captured.popitem()[1].executable)
        self._prefills.clear()

    def _check_open(self) -> None:
        if not self.stream:
            raise UsageError("the engine is closed", fix="load the model again")

    def _send(self, token: int) -> None:
        """Set the inputs of a decode step."""
        self._check_open()
        check_room(self.position, 1, self.max_seq_len)
        check_vocabulary([token], self.config.vocab_size)
        place = self.position
        self._inputs["decode"].send(ids=token, positions=place, slots=place, lengths=place + 1)

    def _take_in(self, ids: Sequence[int], head: Head) -> None:
        """All of a prompt, chunk by chunk."""
        self._check_open()
        self._answers.begin()
        check_room(self.position, len(ids), self.max_seq_len)
        check_vocabulary(ids, self.config.vocab_size)
        for chunk, ends in chunks(ids, head):
            self._chunk(chunk, ends)

    def _chunk(self, ids: list[int], head: Head) -> None:
        past, last = self.position, len(ids) - 1
        places = np.arange(past, past + len(ids), dtype=np.int32)
        self._inputs["prefill"].send(ids=ids, positions=places, slots=places, last=last, draw=past + last)
        key = (len(ids), past, head)
        plans = self._prefills.pop(key, None)
        if plans is None:
            plans = list[Plan]()
            for plan in self._planned(self._step(len(ids), head, past=past, decode=False)):
                plan.launch(self.stream, overlap=True)  # the device runs one while the next is checked
                plans.append(plan)
        else:
            for plan in plans:
                plan.launch(self.stream, overlap=True)
        self._prefills[key] = plans
        if len(self._prefills) > REMEMBERED:
            self._prefills.popitem(last=False)
        self.position += len(ids)

    def _capture(self, plans: Sequence[Plan]) -> Any:
        """Launches as an executable graph."""
        self.driver.begin_capture(self.stream)
        try:
            for plan in plans:
                plan.launch(self.stream, overlap=True)
        finally:
            executable = self.driver.end_capture(self.stream)
        return executable

    def _step(self, tokens: int, head: Head, *, past: int = 0, decode: bool | None = None) -> StepGraph:
        return step(self.config, tokens, self.max_seq_len, self.dtype, past=past, head=head, decode=decode)

    def _planned(self, graph: StepGraph) -> Iterator[Plan]:
        """Every launch of a step that the verifier let through, its contract checked."""
        memory = plan_memory(graph)
        verify(graph, memory, lambda op: self.launches.described(op).manifest)
        if memory.size > self._arena[1]:
            raise DeviceError(f"a step of {graph.tokens} tokens needs an arena of {memory.size} bytes, not {self._arena[1]}")
        pointers = {name: pointer for name, (pointer, _) in self._places(graph).items()}
        pointers |= {name: self._arena[0] + offset for name, offset in memory.offsets.items()}
        return self.launches.plans(graph, pointers)

    def _places(self, graph: StepGraph) -> dict[str, tuple[int, int]]:
        """Pointer and bytes of every buffer that outlives a step."""
        return self.memory.places | self._inputs[graph.name].places | self._inputs["settings"].places

    def _received(self, slot: int) -> int:
        """The token in a place on the host."""
        token = int(ctypes.c_int32.from_address(self._host + 4 * slot).value)
        if not 0 <= token < self.config.vocab_size:
            raise ModelError("the logits are not finite, so no token can be chosen", fix="check the weights and their dtype")
        return token

    def _read_logits(self) -> NDArray[np.float32]:
        count = self.config.vocab_size
        held = np.empty(count, np.uint16)
        self.driver.copy_to_host(held.ctypes.data, self.memory.places["logits"][0], held.nbytes, self.stream)
        self.driver.synchronize(self.stream)
        if self.dtype == "f16":
            return held.view(np.float16).astype(np.float32)
        return (held.astype(np.uint32) << 16).view(np.float32)


def _for_any_chunk(graph: StepGraph) -> Iterator[Buffer]:
    """The inputs of a prefill step, with room for a chunk of any length."""
    for buffer in graph.of_kind(Kind.INPUT):
        per_token = buffer.shape == (graph.tokens,)
        yield Buffer(buffer.name, buffer.dtype, (CHUNK_TOKENS,), Kind.INPUT) if per_token else buffer
