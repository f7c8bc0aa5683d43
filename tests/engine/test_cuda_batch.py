"""A batch on a driver that launches nothing: what it enqueues, moves and frees."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_cuda_backend import SMALLEST

from engine.backends.cuda import CudaBackend
from engine.backends.device_buffers import DeviceBuffers
from engine.batch import Batch
from engine.errors import DeviceError, UsageError
from engine.sampling import Logprobs, SamplingParams, logprobs_of, token_marks
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

PER_STEP = 1 + 5 * SMALLEST.num_hidden_layers + 3


@pytest.fixture
def loaded(bundle: Bundle) -> Iterator[tuple[CudaBackend, FakeDriver]]:
    driver = FakeDriver()
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256)
    yield backend, driver
    backend.close()
    assert not driver.buffers, "something was not freed"


def values(pointer: int, count: int) -> list[int]:
    """Integers in the fake device's memory."""
    return list((ctypes.c_int32 * count).from_address(pointer))


def floats(pointer: int, count: int) -> list[float]:
    """Floats in the fake device's memory."""
    return list((ctypes.c_float * count).from_address(pointer))


def test_a_step_is_one_graph_and_the_next_is_enqueued_ahead(loaded: tuple[CudaBackend, FakeDriver]) -> None:
    backend, driver = loaded
    with Batch(backend, 4) as batch:
        batch.add([1, 2])
        batch.add([3])
        before = len(driver.launches)
        assert batch.step() == {0: 0, 1: 0}  # the fake device writes nothing
        step = driver.launches[before:]
        assert len(step) == 2 * PER_STEP
        assert [launch.overlap for launch in step[:PER_STEP]] == [False] + [True] * (PER_STEP - 1)
        assert (batch.length(0), batch.length(1)) == (4, 3)
        before = len(driver.launches)
        batch.step(ahead=False)
        assert len(driver.launches) == before
        batch.step(ahead=False)
        assert len(driver.launches) == before + PER_STEP


def test_inputs_mark_active_rows_and_a_prompt_is_copied_to_its_row(loaded: tuple[CudaBackend, FakeDriver]) -> None:
    backend, driver = loaded
    with Batch(backend, 2) as batch:
        internals: Any = backend
        allocations = internals._steps[-1].buffers.allocations
        batch.add([5, 6, 7])
        for layer in range(SMALLEST.num_hidden_layers):
            pointer, size = internals.own.buffers.allocations[f"k_cache.{layer}"]
            ctypes.memset(pointer, 7, size)
        row, _ = batch.add([8] * 9, SamplingParams(0.5, 7, 0.25, seed=9))
        pointer, size = allocations["batch.k_cache.1"]
        cache = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer)).reshape(2, 256, -1)
        assert (cache[row, :9] == 7).all()
        assert not cache[row, 9:].any()
        assert not cache[0].any()
        batch.step(ahead=False)
        expected = {"positions": [3, 9], "batch.slots": [3, 9], "batch.lengths": [4, 10], "batch.going": [1, 1]}
        assert {name: values(allocations[name][0], 2) for name in expected} == expected
        numbers = values(allocations["batch.numbers"][0], 16)
        assert numbers == [1, 1 << 30, 0, 0, 0, 0, 0, 0, 7, 1 << 28, 0, 9, 0, 8, 0, 0]
        assert floats(allocations["batch.factors"][0], 8) == [1.0, 1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0]
        batch.remove(0)
        batch.step(ahead=False)
        expected = {"positions": [0, 10], "batch.slots": [0, 10], "batch.lengths": [1, 11], "batch.going": [0, 1]}
        assert {name: values(allocations[name][0], 2) for name in expected} == expected
        assert any("sample_rows" in launch.function[1] for launch in driver.launches[-PER_STEP:])


def test_what_sampling_knows_of_tokens_is_sent_to_its_row_alone(loaded: tuple[CudaBackend, FakeDriver]) -> None:
    backend, driver = loaded
    params = SamplingParams(top_k=1, frequency_penalty=1.0, logit_bias=((4, 2.0),), barred=(7,), min_tokens=9, logprobs=2)
    vocabulary = SMALLEST.vocab_size
    with Batch(backend, 2) as batch:
        internals: Any = backend
        allocations = internals._steps[-1].buffers.allocations
        batch.add([5, 6])
        assert batch.add([5, 6], params) == (1, 4)  # the fake device's logits are zero, and one has a bias
        assert batch.logprobs == {1: logprobs_of(np.zeros(vocabulary, np.float32), 4, 2)}
        state, bias = (
            values(allocations["batch.state"][0], 2 * vocabulary),
            floats(allocations["batch.bias"][0], 2 * vocabulary),
        )
        expected = token_marks(params, [5, 6], [4], vocabulary).tolist()
        assert state == [0] * vocabulary + expected and [expected[token] for token in (4, 5, 7)] == [1, 1 << 24, 1 << 25]
        assert {token: value for token, value in enumerate(bias) if value} == {vocabulary + 4: 2.0}
        assert batch.step() == {0: 0, 1: 0}
        assert batch.logprobs == {1: Logprobs(0.0, [0, 0], [0.0, 0.0])}  # as the fake device leaves them
        batch.remove(1)
        before = len(driver.buffers)
        batch.step()
        assert batch.logprobs == {} and len(driver.buffers) == before


def test_a_batch_frees_its_memory_and_a_closed_backend_creates_none(loaded: tuple[CudaBackend, FakeDriver]) -> None:
    backend, driver = loaded
    buffer_count = len(driver.buffers)
    batch = Batch(backend, 8)
    assert len(driver.buffers) > buffer_count
    batch.close()
    batch.close()
    assert len(driver.buffers) == buffer_count
    Batch(backend, 2)  # left open: closing the backend closes it
    backend.close()
    with pytest.raises(UsageError, match="the engine is closed"):
        Batch(backend, 2)


def test_caches_that_do_not_fit_are_refused_and_all_memory_is_freed(loaded: tuple[CudaBackend, FakeDriver]) -> None:
    backend, driver = loaded
    buffer_count, limit = len(driver.buffers), driver.limit
    driver.limit = sum(buffer.size for buffer in driver.buffers.values()) + (256 << 20) + 1000
    with pytest.raises(DeviceError, match="the model needs"):
        Batch(backend, 8)
    assert len(driver.buffers) == buffer_count
    driver.limit = limit


@pytest.mark.parametrize(("first", "count"), [(0, 5), (7, 9), (50, 10_000), (0, 10_000)])
def test_of_an_output_only_the_part_that_is_asked_for_is_copied(
    loaded: tuple[CudaBackend, FakeDriver], monkeypatch: pytest.MonkeyPatch, first: int, count: int
) -> None:
    backend, driver = loaded
    buffers = backend.own.buffers
    assert isinstance(buffers, DeviceBuffers)
    pointer, size = buffers.allocations["logits"]
    words = (np.random.default_rng(1).standard_normal(size // 2).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    ctypes.memmove(pointer, words.ctypes.data, size)
    expected = (words.astype(np.uint32) << 16).view(np.float32)
    copied, copy = list[int](), driver.copy_to_host

    def noted(host: int, source: int, size: int, stream: int) -> None:
        copied.append(size)
        copy(host, source, size, stream)

    monkeypatch.setattr(driver, "copy_to_host", noted)
    part = buffers.part("logits", first, count)
    assert (part == expected[first : first + count]).all() and part.size == min(count, expected.size - first)
    assert copied == [2 * part.size]
    assert (buffers.floats("logits").reshape(-1) == expected).all()
