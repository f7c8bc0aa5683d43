"""What a first prompt of a length loads and checks on a driver that launches nothing, and what is prepared before it comes."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_cuda_backend import SMALLEST

from ci.bench.engine import serving_check
from engine.backends.cuda import CudaBackend
from engine.backends.prompts import PrefillSteps
from engine.errors import DeviceError
from engine.paged_batch import PagedBatch
from engine.sampling import SamplingParams
from engine.serving.loop import EngineLoop
from engine.serving.protocol import Submit
from engine.serving.rows import rows_of
from engine.serving.work import Channel, turn
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

Loaded = tuple[CudaBackend, FakeDriver]


@pytest.fixture
def loaded(bundle: Bundle) -> Iterator[Loaded]:
    """As a server loads it: nothing is made of its own sequence."""
    driver = FakeDriver()
    backend = CudaBackend(bundle, Device(driver))
    backend.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 256, serves=True)
    yield backend, driver
    backend.close()
    assert not driver.buffers, "something was not freed"


def test_a_first_prompt_loads_and_checks_nothing_once_all_is_ready(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every length, greedy, sampled, and with a rest: neither a module nor a tensor map is made."""
    backend, driver = loaded
    with PagedBatch(backend, 1, pages=20) as batch:
        while batch.prepare():
            pass
        monkeypatch.setattr(PrefillSteps, "_prepare", refuse)
        before = len(driver.images), len(driver.map_requests)
        for tokens in (1, 17, 40, 100, 150, 250):
            for sampling in (None, SamplingParams(temperature=0.5)):
                batch.join(0, [1, 2, 3, 4], 0, [3] * tokens, sampling)
                batch.remove(0)
            batch.extend([5, 6, 7, 8], 0, [3] * tokens)
        assert (len(driver.images), len(driver.map_requests)) == before


def test_what_prompts_need_is_prepared_in_small_parts(loaded: Loaded) -> None:
    """A part loads one module or encodes the maps of one launch, or of one tensor's shape in all layers, and never both."""
    backend, driver = loaded
    with PagedBatch(backend, 2, pages=20) as batch:
        internals: Any = batch
        chunks: PrefillSteps = internals._steps._device._chunks
        counts = list[tuple[int, int]]()
        left, at = True, (len(driver.images), len(driver.map_requests))
        while left:
            left, before = chunks.prepare_next(), at
            at = len(driver.images), len(driver.map_requests)
            counts.append((at[0] - before[0], at[1] - before[1]))
        kernels = [kernel.manifest for kernel in backend.launches._kernels.values()]  # pyright: ignore[reportPrivateUsage]
        most = max(len(manifest.tensor_maps) for manifest in kernels) * SMALLEST.num_hidden_layers
        assert {modules for modules, _ in counts} == {0, 1} and not [one for one in counts if all(one)]
        assert 0 < max(maps for _, maps in counts) <= most


def test_kernels_of_common_lengths_are_loaded_first(loaded: Loaded) -> None:
    """Before any other length is prepared than powers of two, with which prompts of most lengths have all kernels in common."""
    backend, driver = loaded
    with PagedBatch(backend, 2, pages=20) as batch:
        internals: Any = batch
        chunks = internals._steps._device._chunks
        while (192, 320, "sample") not in chunks._cached:
            assert chunks.prepare_next()
        assert {key[0] for key in chunks._cached} == {16, 32, 64, 128, 256, 192}
        before = len(driver.images)
        batch.join(0, [1, 2, 3, 4], 0, [3] * 170)
        assert len(driver.images) == before


def test_a_prompt_that_comes_while_its_kernels_are_made_ends_them(loaded: Loaded) -> None:
    """Whenever it comes: each module is loaded once and each launch checked once, and the launches are the same."""
    backend, driver = loaded
    found = set[tuple[int, int, int]]()
    for parts in (0, 1, 3, 7, 40, 77, 120):
        backend.launches.close()
        with PagedBatch(backend, 1, pages=20) as batch:
            internals: Any = batch
            chunks: Any = internals._steps._device._chunks
            began = len(driver.images), len(driver.launches)
            for _ in range(parts):
                chunks.prepare_next()
            batch.join(0, [1, 2], 0, [3] * 70)
            assert not chunks._making or parts > 40  # what another length needs may be under way
            launches = len(driver.launches) - began[1]
            while batch.prepare():
                pass
            assert not chunks._making
            found.add((len(driver.images) - began[0], len(chunks._series), launches))
    assert len(found) == 1, found


def test_what_cannot_be_prepared_ends_alone_and_is_tried_again_by_a_prompt(loaded: Loaded) -> None:
    backend, driver = loaded
    with PagedBatch(backend, 1, pages=20) as batch:
        driver.fail["cuModuleLoadData"] = "CUDA_ERROR_OUT_OF_MEMORY"
        with pytest.raises(DeviceError):
            while batch.prepare():
                pass
        with pytest.raises(DeviceError):
            batch.join(0, [1, 2], 0, [3] * 70)
        driver.fail.clear()
        while batch.prepare():
            pass
        internals: Any = batch
        assert not internals._steps._device._chunks._making
        batch.join(0, [1, 2], 0, [3] * 70)
        batch.step()


def test_a_server_that_is_never_idle_prepares_what_prompts_need(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """While steps and prompts are computed, in the time that the host has. A prompt then finds all ready."""
    backend, driver = loaded
    monkeypatch.setattr("engine.backends.device_pages.PREPARING_SECONDS", 0.0)  # a part at a time, however fast the machine is
    loop = EngineLoop(backend, rows_of(backend, 2, 20), 256)
    internals: Any = loop
    batch, found = internals._rows, list[tuple[int, bool]]()
    prepare = batch.prepare

    def recorded() -> bool:
        found.append((len(driver.launches), prepare()))
        return found[-1][1]

    monkeypatch.setattr(batch, "prepare", recorded)
    one, other = socket.socketpair()
    with one, other:
        for number in range(12):
            loop.submit(Submit(number, [3] * 20, 200, [], 0, None))
        while not found or found[-1][1]:
            turn(loop, Channel(one), backend)
            assert not loop.idle, "the server was idle before all was ready"
        assert found[0][0] > 0, "the first prompt waited for what was prepared"
        monkeypatch.setattr(PrefillSteps, "_prepare", refuse)
        before = len(driver.images), len(driver.map_requests)
        loop.submit(Submit(20, [3] * 150, 1, [], 0, SamplingParams(temperature=0.5)))
        for number in range(12):
            loop.cancel(number)
        while not loop.idle:
            turn(loop, Channel(one), backend)
        assert (len(driver.images), len(driver.map_requests)) == before
    loop.close()


def test_the_benchmark_runs_first_prompts_before_and_after_all_is_ready(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    backend, driver = loaded
    driver.limit = sum(buffer.size for buffer in driver.buffers.values()) + (600 << 20)
    made = list[int]()

    def recorded(batch: PagedBatch, ids: Sequence[int]) -> float:
        before = len(driver.map_requests)
        took = over_pages(batch, ids)
        made.append(len(driver.map_requests) - before)
        return took

    over_pages = serving_check.over_pages
    monkeypatch.setattr(serving_check, "over_pages", recorded)
    monkeypatch.setattr(serving_check, "PREFILLS", (18, 100))
    assert serving_check.unprepared_first(backend, SMALLEST, 100) > 0.0 and made.pop() > 0
    found = serving_check.firsts(backend, SMALLEST)
    assert made == [0, 0] and [*found.pages] == [*found.contiguous] == [18, 100]
    assert 0.0 < found.preparing["longest"] <= found.preparing["all"]
    assert serving_check.prefill(backend, SMALLEST, 18) > 0.0 and serving_check.contiguous(backend, SMALLEST, 18) > 0.0


def test_nothing_is_prepared_while_a_step_waits_for_the_host() -> None:
    """As a step does whose next one depends on its tokens."""
    events: list[str] = []
    loop: Any = SimpleNamespace(idle=False)
    loop.iteration, loop.prepare = lambda: events.append("iteration"), lambda: events.append("prepare")
    channel: Any = SimpleNamespace(received=lambda **_: iter(()), send=lambda _: events.append("sent"))
    backend: Any = SimpleNamespace(watched=())
    for loop.ahead in (True, False):
        turn(loop, channel, backend)
    assert events == ["iteration", "sent", "prepare", "iteration", "sent"]


def refuse(*_: object) -> None:
    raise AssertionError("a step is prepared while a prompt waits")
