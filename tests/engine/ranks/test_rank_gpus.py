"""A model on two processes, each with a driver that launches nothing: from the command to tokens, and the ends of ranks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.errors import BundleRefused, EngineError, UsageError
from engine.models.families import read_config
from engine.ranks import load
from engine.ranks.gpus import GpuRanks
from engine.ranks.messages import decoded, encoded
from engine.ranks.processes import RankEnded
from engine.sampling import SamplingParams

ODD = """
from engine.backends.token_ring import TokenRing
original = TokenRing._read_slot
TokenRing._read_slot = lambda self, slot: original(self, slot) + self._driver.rank
"""
"""Ranks whose tokens differ."""
BROKEN = """
from engine.ranks.cuda import RankCuda
from engine.errors import DeviceError
def enqueue(self, step):
    if self.rank == 1:
        raise DeviceError("the launch failed", fix="look at it")
RankCuda.enqueue = enqueue
"""
"""Rank 1 cannot launch a step; rank 0 goes on."""


def test_two_processes_generate(started: Callable[..., GpuRanks]) -> None:
    seen: list[tuple[int, int]] = []
    ranks = started(progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0 and [gpu["name"] for gpu in ranks.gpus] == ["fake device"] * 2
    sequence = ranks.begin()
    ranks.prefill(sequence, [1, 2, 3])
    assert ranks.token() == 0  # the fake device writes nothing
    assert list(ranks.stream_tokens(sequence, 0, 20)) == [0] * 20 and sequence.length == 23
    assert ranks.prompt_logits(ranks.begin(), [1] * 700).shape == (2048,)
    sequence = ranks.begin()
    ranks.prefill(sequence, [1], SamplingParams(0.5, 7, 0.25, seed=9))
    assert list(ranks.stream_tokens(sequence, 0, 3)) == [0, 0, 0]
    batch = Batch(ranks, 2)
    assert batch.add([1, 2, 3]) == (0, 0) and batch.step() == {0: 0}
    batch.close()
    ranks.close()
    with pytest.raises(UsageError, match="the engine is closed"):
        ranks.token()


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_rank_that_is_killed_between_tokens_is_one_error(started: Callable[..., GpuRanks], guilty: int) -> None:
    ranks = started()
    sequence = ranks.begin()
    ranks.prefill(sequence, [1])
    tokens = ranks.stream_tokens(sequence, 0, 900)
    for _ in range(5):
        next(tokens)
    os.kill(ranks.pids[guilty], signal.SIGKILL)
    with pytest.raises(RankEnded, match=f"rank {guilty} .* ended by SIGKILL, so the other rank is stopped too"):
        list(tokens)
    with pytest.raises(UsageError, match="the engine is closed"):
        ranks.prefill(ranks.begin(), [1])


def test_an_error_of_one_rank_ends_both_with_its_message(started: Callable[..., GpuRanks]) -> None:
    ranks = started(BROKEN)
    sequence = ranks.begin()
    ranks.prefill(sequence, [1])
    with pytest.raises(EngineError, match="the launch failed; look at it"):
        list(ranks.stream_tokens(sequence, 0, 5))


def test_ranks_that_choose_other_tokens_are_found(started: Callable[..., GpuRanks]) -> None:
    ranks = started(ODD)
    ranks.prefill(ranks.begin(), [1])
    with pytest.raises(EngineError, match=r"rank 1 chose the tokens \[1\], and rank 0 \[0\]"):
        ranks.token()


def test_an_interrupt_while_ranks_reply_ends_them(
    started: Callable[..., GpuRanks], monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """One of them may have got a request, and the other not."""
    ranks = started()
    ranks.prefill(ranks.begin(), [1])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ranks._processes, "gather", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ranks.token()
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks.pids)


def test_a_bundle_of_one_gpu_starts_no_process(
    bundle_folder: Path, shipped_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(load, "RankProcesses", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(BundleRefused, match=r"on 1 GPU, and 2 GPUs are to run it; pack .*--gpus 2`"):
        load.load_ranks(bundle_folder, read_config(bundle_folder), 2, "cuda", 1024, dummy=0, bundle=shipped_bundle)


def test_messages_keep_arrays() -> None:
    for array in (np.arange(6, dtype=np.int32).reshape(2, 3), np.array([0.5, -1.0], np.float32)):
        found = decoded(json.loads(json.dumps(encoded(array))))
        assert found.dtype == array.dtype and (found == array).all() and found.shape == array.shape
    assert decoded(encoded([1, 2])).dtype == np.int32 and decoded(encoded(7)) == 7
