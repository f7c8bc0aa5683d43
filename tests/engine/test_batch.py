"""Batched steps on the interpreter: each sequence gives the same result as alone, whatever the other sequences are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError, UsageError
from engine.sampling import SamplingParams
from engine.sequence import NO_TOKEN
from engine.tools.tiny import write_tiny_model

MAX_SEQ_LEN = 40
PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(0, 400, n)] for n in (3, 17, 30)]
SAMPLED = SamplingParams(0.9, 20, 0.9, seed=7)
TOLERANCE = 0.02
"""Upper bound of the root mean square difference between the two forms of a step, over the deviation of the logits."""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), MAX_SEQ_LEN)
    yield loaded
    loaded.close()


def alone(backend: InterpreterBackend, ids: list[int], count: int, sampling: SamplingParams | None = None) -> list[int]:
    """The tokens that one sequence generates alone."""
    sequence = backend.begin()
    backend.prefill(sequence, ids, sampling)
    token = backend.token()
    return [token, *backend.stream_tokens(sequence, token, count - 1)]


@pytest.mark.campaign
def test_sequences_are_added_and_removed_and_each_generates_as_if_alone(backend: InterpreterBackend) -> None:
    expected = [alone(backend, ids, 5) for ids in PROMPTS]
    with Batch(backend, 2) as batch:
        first, token = batch.add(PROMPTS[0])
        assert (first, batch.free) == (0, 1)
        generated = {0: [token]}
        generated[0].append(batch.step()[first])  # with a slot that has no sequence
        second, token = batch.add(PROMPTS[1])
        generated[1] = [token]
        for _ in range(3):
            tokens = batch.step()
            generated[0].append(tokens[first])
            generated[1].append(tokens[second])
        batch.remove(first)
        third, token = batch.add(PROMPTS[2])  # in the slot of the first
        assert third == first
        generated[2] = [token]
        for _ in range(4):
            tokens = batch.step()
            generated[2].append(tokens[third])
            generated[1].append(tokens[second])
        assert batch.length(third) == len(PROMPTS[2]) + 4
    assert generated[0] == expected[0]
    assert generated[1][:5] == expected[1]
    assert generated[2] == expected[2]


def test_logits_depend_neither_on_other_sequences_nor_on_the_row(backend: InterpreterBackend) -> None:
    sequence = backend.begin()
    backend.prefill(sequence, PROMPTS[1])
    single = backend.decode_logits(sequence, 5)
    with Batch(backend, 4) as batch:
        row, _ = batch.add(PROMPTS[1])
        alone_logits = batch.logits({row: 5})[row]
        batch.remove(row)
        batch.add(PROMPTS[2])
        batch.add(PROMPTS[0])
        row, _ = batch.add(PROMPTS[1])
        batch_logits = batch.logits({0: 9, 1: 8, row: 5})[row]
    assert row == 2
    assert (alone_logits == batch_logits).all()
    assert np.sqrt(np.mean((alone_logits - single) ** 2)) / single.std() < TOLERANCE


@pytest.mark.campaign
def test_sampled_and_greedy_sequences_in_one_batch(backend: InterpreterBackend) -> None:
    expected = [alone(backend, PROMPTS[0], 3, SAMPLED), alone(backend, PROMPTS[1], 3)]
    with Batch(backend, 2) as batch:
        added = [batch.add(PROMPTS[0], SAMPLED), batch.add(PROMPTS[1])]
        generated = {row: [token] for row, token in added}
        for _ in range(2):
            for row, token in batch.step().items():
                generated[row].append(token)
    assert list(generated.values()) == expected


def test_a_full_cache_is_refused_and_other_sequences_continue(backend: InterpreterBackend) -> None:
    with Batch(backend, 2) as batch:
        full, _ = batch.add([1] * MAX_SEQ_LEN)
        other, _ = batch.add([2, 3])
        with pytest.raises(UsageError, match="place 0 fills the 40 tokens of its cache"):
            batch.step()
        with pytest.raises(UsageError, match="place 0 fills"):
            batch.logits({full: 1, other: 1})
        batch.remove(full)
        assert batch.step().keys() == {other}


def test_wrong_use_is_refused(backend: InterpreterBackend) -> None:
    for sequences in (0, 1, 3, 9):
        with pytest.raises(UsageError, match=f"a batch has 2, 4 or 8 sequences, not {sequences}"):
            Batch(backend, sequences)
    with Batch(backend, 2) as batch:
        with pytest.raises(UsageError, match="no sequence"):
            batch.step()
        for row in (-1, 0, 2):
            with pytest.raises(UsageError, match=f"place {row} of the batch has no sequence"):
                batch.remove(row)
        with pytest.raises(UsageError, match="41 tokens do not fit"):
            batch.add([1] * 41)
        with pytest.raises(UsageError, match="the prompt is empty"):
            batch.add([])
        assert batch.free == 2
        batch.add([1])
        batch.add([2])
        with pytest.raises(UsageError, match="all 2 places of the batch are taken"):
            batch.add([3])
        with pytest.raises(UsageError, match="tokens are for places"):
            batch.logits({0: 1})
        with pytest.raises(UsageError, match="token 100000 is not in the vocabulary"):
            batch.logits({0: 1, 1: 100000})


def test_logits_that_are_not_finite_choose_no_token(backend: InterpreterBackend, tmp_path: Path) -> None:
    config = write_tiny_model(tmp_path / "model")
    broken = InterpreterBackend()
    broken.load(config, WeightPlan.for_model(config, tmp_path / "model", "bf16"), MAX_SEQ_LEN)
    with Batch(broken, 2) as batch:
        batch.add([1, 2])
        internals: Any = broken
        internals._buffers["model.norm.weight"] = np.full_like(internals._buffers["model.norm.weight"], np.nan)
        batch._steps.forget()  # pyright: ignore[reportPrivateUsage]
        assert batch.step() == {0: NO_TOKEN}
        with pytest.raises(ModelError, match="the logits are not finite"):
            batch.add([1, 2])
