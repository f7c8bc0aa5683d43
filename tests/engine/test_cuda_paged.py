"""Rows over pages on a driver that launches nothing: what is captured, sent, enqueued and freed."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from step_contracts import MODELS, shape_of
from test_cuda_backend import SMALLEST

from engine.backends.cuda import CudaBackend
from engine.backends.device_pages import lasting_bytes, steps_bytes
from engine.backends.paged_steps import chunk_graphs, serve_graphs
from engine.backends.prompts import PrefillSteps, union
from engine.backends.upload import SWITCH_SECONDS, Upload
from engine.errors import DeviceError, UsageError
from engine.graph.plan import plan_memory
from engine.models.dense import UNMEASURED
from engine.models.steps import model_step
from engine.paged_batch import PagedBatch
from engine.paged_prompts import Piece
from engine.sampling import BARRED, IN_PROMPT, SamplingParams
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

PER_STEP = 2 + 9 * SMALLEST.num_hidden_layers + 5
"""Launches: of a step's start, of each layer, and of the head with the token's choice."""

Loaded = tuple[CudaBackend, FakeDriver]


@pytest.fixture
def loaded(bundle: Bundle) -> Iterator[Loaded]:
    driver = FakeDriver()
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256)
    yield backend, driver
    backend.close()
    assert not driver.buffers, "something was not freed"


def values(pointer: int, count: int) -> list[int]:
    """Integers in the fake device's memory."""
    return list((ctypes.c_int32 * count).from_address(pointer))


def allocations(batch: PagedBatch) -> dict[str, tuple[int, int]]:
    internals: Any = batch
    return internals._steps._device._allocations(internals._steps._device.rows)


def test_a_server_prepares_no_prompts_of_the_other_caches(bundle: Bundle) -> None:
    for serves, lengths in ((False, 6), (True, 0)):  # 16, 32, and multiples of 64 up to 256
        backend = CudaBackend(bundle, Device(FakeDriver()))
        backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256, serves=serves)
        internals: Any = backend
        assert sum(len(one._cached) for one in internals._prefills) == lengths
        assert (internals._own is None) == (internals._arena is None) == serves  # nor has it their memory
        with PagedBatch(backend, 2, pages=20) as batch:
            batch.join(0, [1], 0, [1, 2], None)
        sequence = backend.begin()
        backend.prefill(sequence, [1] * 20)  # one that comes is prepared then
        prefills = internals._prefills
        assert sum(len(one._cached) for one in prefills) == max(1, lengths)
        backend.close()


def test_one_prompt_loads_what_it_needs(bundle: Bundle) -> None:
    """The kernels and lengths of other prompts are loaded when they come."""
    drivers = [FakeDriver(), FakeDriver()]
    chosen = list[int]()
    for driver, once in zip(drivers, (False, True), strict=True):
        backend = CudaBackend(bundle, Device(driver))
        backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256, once=once)
        prefills: Any = backend._prefills  # pyright: ignore[reportPrivateUsage]
        assert [one.bound for one in prefills] == [not once] * len(prefills)
        modules = len(driver.images)
        backend.prefill(backend.begin(), [1] * 100)
        assert (len(driver.images) == modules) == (not once)
        assert sum(one.bound for one in prefills) == (1 if once else len(prefills))
        assert sum(len(one._cached) for one in prefills) == (1 if once else 6)
        chosen.append(len(driver.launches))
        backend.close()
    assert chosen[0] == chosen[1] and len(drivers[1].images) < len(drivers[0].images)


def test_a_prompt_waits_for_the_weights(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server's pages are made while weights are copied; what runs first waits for them, of pages or of another cache."""
    waited, wait, ready = list[int](), Upload.wait, threading.Event()
    interval = sys.getswitchinterval()

    def recorded(upload: Upload) -> None:
        waited.append(len(driver.launches))
        ready.set()
        wait(upload)

    def late(name: str, limit: int) -> Iterator[tuple[int, memoryview]]:
        assert ready.wait(60), "nothing waits for the weights"
        yield from weights_chunks(name, limit)

    monkeypatch.setattr(Upload, "wait", recorded)
    for paged in (True, False):
        driver, weights = FakeDriver(), dummy_weights(SMALLEST, "bf16")
        weights_chunks = weights.chunks
        monkeypatch.setattr(weights, "chunks", late)
        ready.clear()
        waited.clear()
        backend = CudaBackend(bundle, Device(driver))
        backend.load(SMALLEST, weights, 256, serves=True)
        with PagedBatch(backend, 2, pages=20) as batch:
            assert not waited and not driver.launches
            assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)  # so that copying threads get on meanwhile
            if paged:
                batch.join(0, [1], 0, [1, 2], None)
            else:
                backend.prefill(backend.begin(), [1, 2])
            assert waited == [0] and driver.launches and sys.getswitchinterval() == interval
        backend.close()


def test_a_model_that_is_closed_while_its_weights_are_copied(bundle: Bundle) -> None:
    driver, weights = FakeDriver(), dummy_weights(SMALLEST, "bf16")
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, weights, 256, serves=True)
    backend.close()
    assert not driver.buffers and not [one for one in threading.enumerate() if one.name.startswith("upload")]


def test_prompts_of_all_lengths_are_prepared_for_greedy_and_sampled_tokens_and_for_parts(loaded: Loaded) -> None:
    backend, _ = loaded
    with PagedBatch(backend, 2, pages=20) as batch:
        internals: Any = batch
        chunks = internals._steps._device._chunks
        lengths = (16, 32, 64, 128, 192, 256)
        assert batch.prepare()
        assert not chunks._cached, "a first prompt waits for all lengths"
        while batch.prepare():
            pass
        prepared = dict(chunks._cached)
        assert set(prepared) == {(tokens, 512 - tokens, mode) for tokens in lengths for mode in ("argmax", "sample", "none")}
        batch.join(0, [1], 0, [1] * 20, SamplingParams(temperature=0.5))
        assert chunks._cached[32, 480, "sample"] is prepared[32, 480, "sample"]
        assert len(chunks._cached) == len(prepared)


def test_a_bucket_is_captured_when_it_is_first_used_and_steps_run_ahead(loaded: Loaded) -> None:
    backend, driver = loaded
    with PagedBatch(backend, 40, pages=20) as batch:
        internals: Any = batch
        captured = internals._steps._device._captured
        assert (batch.parking, captured) == (1, [])
        batch.join(0, [1], 0, [1, 2], None)
        before = len(driver.launches)
        assert batch.step() == {0: 0}  # the fake device writes nothing
        assert len(captured) == 1
        step = driver.launches[before:]
        assert len(step) == 2 * PER_STEP
        assert [launch.overlap for launch in step[-PER_STEP:]] == [False] + [True] * (PER_STEP - 1)
        batch.join(17, [2, 3], 0, [5] * 64, None)
        batch.step(ahead=False)
        batch.step(ahead=False)
        assert [step.graph.tokens for step in captured] == [8, 32]
        batch.remove(17)
        before = len(driver.launches)
        batch.step(ahead=False)
        assert len(captured) == 2
        assert len(driver.launches) == before + PER_STEP


def test_rows_have_their_slots_and_others_are_parked(loaded: Loaded) -> None:
    backend, _ = loaded
    with PagedBatch(backend, 16, pages=20) as batch:
        batch.join(2, [5, 4, 6], 0, [7] * 70, None)
        batch.join(9, [8], 0, [3], SamplingParams(0.5, 7, 0.25, seed=9))
        batch.step(ahead=False)
        found = allocations(batch)
        slots = values(found["pages.slots"][0], 16)
        assert slots == [*range(2), 4 * 64 + 6, *range(3, 9), 8 * 64 + 1, *range(10, 16)]
        assert values(found["positions"][0], 16) == [0, 0, 70, *[0] * 6, 1, *[0] * 6]
        assert values(found["serve.lengths"][0], 16) == [1, 1, 71, *[1] * 6, 2, *[1] * 6]
        table = np.array(values(found["serve.table"][0], 16 * 4)).reshape(16, 4)
        assert (table[2] == [5, 4, 6, 0]).all()
        assert (table[[*range(2), *range(3, 9), *range(10, 16)]] == 0).all()
        batch.remove(2)
        batch.step(ahead=False)
        assert not np.array(values(found["serve.table"][0] + 2 * 16, 4)).any()
        assert values(found["pages.slots"][0], 3) == [0, 1, 2]


class OnlyThree:
    """A constraint under which every token is 3."""

    ended = False

    def allowed(self) -> NDArray[np.uint8]:
        return np.eye(1, SMALLEST.vocab_size, 3, dtype=np.uint8)[0]

    def accept(self, token: int) -> None:
        assert token in (0, 3)  # the fake device writes nothing


def test_a_row_under_a_constraint_waits_for_its_token_alone(loaded: Loaded) -> None:
    backend, _ = loaded
    with PagedBatch(backend, 4, pages=20) as batch:
        batch.join(0, [5], 0, [7] * 20, None)
        masked = SamplingParams(top_k=1, masked=True)
        assert batch.join(2, [6], 0, [7] * 20, masked, constraint=OnlyThree()) == 3
        assert batch.step().keys() == {0, 2}
        assert (batch.length(0), batch.length(2)) == (22, 21)
        found, vocabulary = allocations(batch), SMALLEST.vocab_size
        state = values(found["batch.state"][0] + 2 * 4 * vocabulary, vocabulary)
        assert (state[3], state[7]) == (1, BARRED | IN_PROMPT)
        assert {one for at, one in enumerate(state) if at not in (3, 7)} == {BARRED}
        assert not any(values(found["batch.state"][0], 2 * vocabulary))
        assert batch.step().keys() == {0} and batch.step().keys() == {0, 2}


def test_chunks_have_whole_tiles_of_tokens_whose_others_are_nobodys(loaded: Loaded) -> None:
    backend, driver = loaded
    with PagedBatch(backend, 2, pages=20) as batch:
        internals: Any = batch
        found = internals._steps._device._prompt.allocations
        for first, count, padded in ((0, 1, 16), (1, 17, 32), (18, 33, 64), (51, 65, 128), (116, 140, 192)):
            batch.extend([7, 5, 3, 9], first, [1] * count)
            embedding = next(launch for launch in reversed(driver.launches) if launch.function[1] == "embedding")
            assert embedding.grid[0] == padded
            slots = values(found["pages.slots"][0], padded)
            assert slots[count:] == list(range(padded - count))
            assert slots[0] == [7, 5, 3, 9][first // 64] * 64 + first % 64
        batch.join(0, [11], 0, [1] * 40, None)
        assert values(found["chunk.last"][0], 1) == [39]


def test_the_number_of_prompts_of_a_chunk_is_data(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """One or four prompts with as many tokens have the launches of the same plan."""
    backend, driver = loaded
    with PagedBatch(backend, 9, pages=30) as batch:
        while batch.prepare():
            pass
        monkeypatch.setattr(PrefillSteps, "_prepare", refuse)
        began = len(driver.launches)
        batch.compute([Piece([29], 0, [1] * 64, 8)])
        alone = [(launch.function, launch.grid) for launch in driver.launches[began:]]
        began = len(driver.launches)
        internals: Any = batch
        assert batch.limits.slots // batch.limits.prompt_slots == 4
        batch.compute([Piece([10 + row], 0, [row] * 8, row) for row in range(4)])
        found = internals._steps._device._prompt.allocations
        assert values(found["chunk.last"][0], 8) == [7, 15, 23, 31, 0, 0, 0, 0]
        assert values(found["chunk.firsts"][0], 32) == [128 * (row // 8) for row in range(32)]
        assert values(found["chunk.lasts"][0], 32) == [128 * (row // 8) + row % 8 for row in range(32)]
        assert values(found["chunk.table"][0], 8) == [10, 10, 11, 11, 12, 12, 13, 13]
        assert len(driver.launches) - began == len(alone)
        began = len(driver.launches)
        batch.compute([Piece([20 + row], 0, [row] * 16, 4 + row) for row in range(4)])
        assert [(launch.function, launch.grid) for launch in driver.launches[began:]] == alone


def test_every_length_of_a_chunk_is_prepared_before_its_prompt_comes(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, _ = loaded
    with PagedBatch(backend, 4, pages=20) as batch:
        while batch.prepare():
            pass
        monkeypatch.setattr(PrefillSteps, "_prepare", refuse)
        for row, tokens in enumerate((1, 17, 65, 200)):
            batch.join(row, list(range(1 + 4 * row, 5 + 4 * row)), 0, [3] * tokens)


def refuse(*_: object) -> None:
    raise AssertionError("a step is prepared while a prompt waits")


def test_a_row_whose_pages_are_full_is_parked_in_steps_ahead(loaded: Loaded) -> None:
    backend, _ = loaded
    with PagedBatch(backend, 2, pages=20) as batch:
        batch.join(0, [1], 0, [1] * 63, None)
        batch.join(1, [2, 3], 0, [1] * 63, None)
        assert batch.step().keys() == {0, 1}
        assert (batch.length(0), batch.length(1)) == (64, 65)
        assert values(allocations(batch)["pages.slots"][0], 2) == [0, 3 * 64]
        batch.remove(0)
        assert batch.step().keys() == {1}


@pytest.mark.parametrize("name", MODELS)
def test_a_pool_of_what_is_left_fits(name: str) -> None:
    """Bytes that are planned for a few layers are those of all."""
    measured = {**UNMEASURED, "some_tokens": 1024, "chunk_tokens": 8192}
    step = model_step(shape_of(name), 8448, measured=measured).with_pages(1)
    for bucket, tokens in ((16, 2048), (256, 8192)):
        graphs = list(serve_graphs(step, bucket).values())
        chunk = union(chunk_graphs(step, tokens).values())
        arena = max(plan_memory(graph).size for graph in (*graphs, chunk))
        assert steps_bytes(step, bucket, tokens) == arena + lasting_bytes(graphs) + lasting_bytes([chunk])


def test_pages_take_the_memory_that_is_left_and_are_freed(loaded: Loaded) -> None:
    backend, driver = loaded
    before = len(driver.buffers)
    driver.limit = sum(buffer.size for buffer in driver.buffers.values()) + (256 << 20) + (300 << 20)
    free, _ = driver.memory()
    batch = PagedBatch(backend, 16)
    left, _ = driver.memory()
    page_bytes = SMALLEST.num_hidden_layers * 2 * 64 * SMALLEST.num_key_value_heads * SMALLEST.head_dim * 2
    assert batch.pages * page_bytes < free
    assert (256 << 20) - 2 * page_bytes <= left < (300 << 20)
    batch.close()
    batch.close()
    assert len(driver.buffers) == before
    assert driver.memory()[0] == free, "the next batch finds less memory"
    with pytest.raises(DeviceError, match="the model needs"):
        PagedBatch(backend, 16, pages=batch.pages + 1000)
    assert len(driver.buffers) == before
    driver.limit = sum(buffer.size for buffer in driver.buffers.values()) + (256 << 20)
    with pytest.raises(DeviceError, match="no page of"):
        PagedBatch(backend, 16)
    driver.limit = 1 << 40
    PagedBatch(backend, 2, pages=4)  # left open: closing the backend closes it
    backend.close()
    with pytest.raises(UsageError, match="the engine is closed"):
        PagedBatch(backend, 2)
