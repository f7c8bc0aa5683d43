"""Rows over pages on two processes with drivers that launch nothing: what each rank launches, and the ends of ranks, up to the
server, which loads the model again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_gpus import Ranks, kernels_of, model_of, together
from test_rank_gpus import BROKEN, ODD

from engine.errors import DeviceError
from engine.paged_batch import PagedBatch
from engine.ranks.gpus import GpuRanks
from engine.ranks.processes import RankEnded, RanksDiffer
from engine.sampling import SamplingParams
from engine.serving.beginning import EngineProcess
from engine.serving.client import EngineClient, EngineEnded
from engine.serving.loop import EngineLoop
from engine.serving.protocol import Load, Submit
from engine.serving.rows import rows_of
from engine.tools.tiny import write_tiny_model
from tilec.runtime import open_bundle
from tilec.step.collectives import COLLECTIVES


def test_every_rank_launches_the_same_steps_and_meets_at_their_ends(ranks: Ranks) -> None:
    batches = together(2, lambda rank: PagedBatch(ranks.backends[rank], 16, pages=20))
    first = [len(driver.launches) for driver in ranks.drivers]
    for batch in batches:
        assert batch.join(0, [1], 0, [1, 2], None) == 0
        batch.extend([2, 3], 0, [1] * 70)
        assert batch.step(ahead=False) == {0: 0}
    names = [kernels_of(driver, start) for driver, start in zip(ranks.drivers, first, strict=True)]
    assert names[0] == names[1]
    steps = " ".join(names[0]).split("rank_meet")
    assert len(steps) == 4 and not steps[-1].strip(), "each of three steps ends with a meet, and nothing follows"
    assert "paged_gather" in steps[0] and "all_reduce " in steps[0] and "all_gather" not in steps[0]
    assert "paged_decode_attention" in steps[2] and steps[2].split().count("all_gather") == 4
    for batch in batches:
        batch.close()


def test_collectives_of_rows_read_what_all_ranks_map(ranks: Ranks) -> None:
    batches = together(2, lambda rank: PagedBatch(ranks.backends[rank], 16, pages=20))
    regions = [backend._shared.regions for backend in ranks.backends]
    assert [len(found) for found in regions] == [2, 2], "the activations of steps over pages are a region of their own"
    for batch, own in zip(batches, regions, strict=True):
        batch.join(0, [1], 0, [1, 2], None)
        batch.step(ahead=False)
        internals: Any = batch
        (step,) = internals._steps.device._captured
        for op, plan in zip(step.graph.ops, step.plans, strict=True):
            if op.kernel in COLLECTIVES:
                pointers = [plan.checked.views[f"x_{rank}"].pointer for rank in range(2)]
                offsets = {pointer - base for pointer, base in zip(pointers, own[1].pointers, strict=True)}
                assert len(offsets) == 1 and 0 <= offsets.pop() < own[1].size
        assert step.graph.buffers["k_pages.0"].shape[2] == 4, "a pool of half of the heads"
        batch.close()


@pytest.fixture
def asked(started: Callable[..., GpuRanks]) -> Callable[..., tuple[GpuRanks, PagedBatch]]:
    def load(change: str = "", rows: int = 16, pages: int | None = 20) -> tuple[GpuRanks, PagedBatch]:
        ranks = started(change, serves=True)
        return ranks, PagedBatch(ranks, rows, pages)

    return load


def test_two_processes_serve_rows(asked: Callable[..., tuple[GpuRanks, PagedBatch]]) -> None:
    ranks, batch = asked()
    assert batch.join(0, [1], 0, [1, 2]) == 0 and ranks.watched
    batch.extend([2, 3], 0, [1] * 64)
    sampled = SamplingParams(0.5, 7, 0.25, seed=9, logprobs=2, repetition_penalty=1.5)
    assert batch.join(3, [2, 3], 64, [1] * 9, sampled, prompt=[1] * 73) >= 0
    for _ in range(3):
        assert set(batch.step()) == {0, 3}
    assert batch.logprobs.keys() == {3}
    batch.remove(3)
    assert batch.verify({0: [0, 0]}, [5, 6]) == {0: [0, 0, 0]} if not batch.ahead else batch.step(ahead=False)
    assert batch.step_logits()[0].shape == (2048,)
    batch.close()
    with PagedBatch(ranks, 2, 10) as again:
        assert again.join(1, [1], 0, [5]) == 0


def test_a_pool_fits_the_rank_with_the_least_memory(asked: Callable[..., tuple[GpuRanks, PagedBatch]]) -> None:
    change = """
from engine.ranks.cuda import RankCuda
RankCuda._pages_that_fit = lambda self, bucket: 40 + 7 * self.rank
"""
    _, batch = asked(change, pages=None)
    assert batch.pages == 40


def test_a_rank_without_memory_for_the_pool_is_one_error(asked: Callable[..., tuple[GpuRanks, PagedBatch]]) -> None:
    change = """
from engine.errors import DeviceError
from engine.ranks.cuda import RankCuda
original = RankCuda.shared_arena
def shared_arena(self, size):
    if self.rank == 1 and self._shared.regions:
        raise DeviceError("the device cannot give that much", fix="take fewer rows")
    return original(self, size)
RankCuda.shared_arena = shared_arena
"""
    with pytest.raises(DeviceError, match="the device cannot give that much; take fewer rows"):
        asked(change)


def loop_of(ranks: GpuRanks) -> EngineLoop:
    return EngineLoop(ranks, rows_of(ranks, 16, 20), 512)


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_killed_rank_ends_the_server_s_engine(started: Callable[..., GpuRanks], guilty: int) -> None:
    """It is no request's error: what is raised ends the engine, with one message, and both processes are gone."""
    ranks = started(serves=True)
    loop = loop_of(ranks)
    loop.submit(Submit(1, [1, 2, 3], 500))
    for _ in range(5):
        loop.iteration()
    os.kill(ranks.pids[guilty], signal.SIGKILL)
    with pytest.raises(RankEnded, match=f"rank {guilty} .* ended by SIGKILL, so the other rank is stopped too"):
        for _ in range(500):
            loop.iteration()
    assert ranks.closed and not any(Path(f"/proc/{pid}").exists() for pid in ranks.pids)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [(BROKEN, DeviceError, "the launch failed"), (ODD, RanksDiffer, r"rank 1 chose the tokens \[1, .*\], and rank 0 \[0, ")],
)
def test_an_error_of_a_rank_ends_the_server_s_engine(
    started: Callable[..., GpuRanks], change: str, kind: type[Exception], message: str
) -> None:
    loop = loop_of(started(change, serves=True))
    loop.submit(Submit(1, [1, 2, 3], 500))
    with pytest.raises(kind, match=message):
        for _ in range(20):
            loop.iteration()


@pytest.fixture
def served(shipped_ranks_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Load:
    """A model of the bundle's sizes with a tokenizer, for the engine's process."""
    folder = tmp_path / "model"
    write_tiny_model(folder)
    (folder / "model.safetensors").unlink()
    with open_bundle(shipped_ranks_bundle) as bundle:
        config = model_of(bundle)
    described = json.loads((folder / "config.json").read_text())
    numbers = {name: getattr(config, name) for name in described.keys() & set(config.__dataclass_fields__)}
    (folder / "config.json").write_text(json.dumps(described | numbers))
    monkeypatch.setattr(EngineProcess, "module", "fake_rank_engine")  # whose ranks have no GPUs
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    return Load(str(folder), "cuda", 16, 1024, 512, bundle=str(shipped_ranks_bundle), dummy=0, pages=20, gpus=2)


def ranks_of(client: EngineClient) -> list[int]:
    """The processes that the engine's has started."""
    assert client._process is not None  # pyright: ignore[reportPrivateUsage]
    (task,) = Path(f"/proc/{client._process.pid}/task").glob(str(client._process.pid))
    found = {int(pid) for one in task.parent.iterdir() for pid in (one / "children").read_text().split()}
    return sorted(pid for pid in found if b"worker.run" in Path(f"/proc/{pid}/cmdline").read_bytes())


@pytest.mark.parametrize("busy", [True, False], ids=["busy", "idle"])
def test_the_server_loads_the_model_again_after_a_rank_was_killed(served: Load, busy: bool) -> None:
    """Whether requests run or not; then the same request has the same tokens."""

    async def tokens(client: EngineClient, count: int) -> list[int]:
        async with client.submit([Submit(0, [1, 2, 3], count)]) as generations:
            found = list[int]()
            while True:
                for arrival in await generations.arrivals():
                    found += arrival.tokens
                    if arrival.ended is not None:
                        assert arrival.ended == "length", arrival.ended
                        return found

    async def run() -> None:
        client = EngineClient(4)
        try:
            assert (await client.start(served)).pages == 19
            first = await tokens(client, 6)
            pids = ranks_of(client)
            assert len(pids) == 2
            running = client.submit([Submit(0, [1], 900)]) if busy else None
            if running is not None:
                await running.arrivals()
            os.kill(pids[1], signal.SIGKILL)
            await asyncio.wait_for(client.ended.wait(), 60)
            assert isinstance(client.failure, EngineEnded) and client.failure.exit_code == 6
            message = str(client.failure)
            assert message.startswith(f"rank 1 (process {pids[1]}) ended by SIGKILL") and message.count("rank 1") == 1
            if running is not None:
                ended = [arrival.ended for arrival in await running.arrivals()]
                assert ended == [f"error: {message}"]
            while any(Path(f"/proc/{pid}").exists() for pid in pids):
                await asyncio.sleep(0.01)
            assert (await client.restart(served)).pages == 19 and client.failure is None
            assert await tokens(client, 6) == first and set(ranks_of(client)).isdisjoint(pids)
        finally:
            await client.stop()

    asyncio.run(run())
