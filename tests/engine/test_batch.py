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
from engine.tools.tiny import write_tiny_model

MAX_SEQ_LEN = 40
PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(0, 400, n)] for n in (3, 17, 30)]
DRAWN = SamplingParams(0.9, 20, 0.9, seed=7)
FAR = 0.02
"""Upper bound of the root mean square difference between the two forms of a step, over the deviation of the logits."""


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    made = InterpreterBackend()
    made.load(config, WeightPlan.for_model(config, folder, "bf16"), MAX_SEQ_LEN)
    yield made
    made.close()


def alone(backend: InterpreterBackend, ids: list[int], count: int, sampling: SamplingParams | None = None) -> list[int]:
    """The tokens that one sequence generates alone."""
    sequence = backend.begin()
    backend.prefill(sequence, ids, sampling)
    token = backend.token()
    return [token, *backend.stream_tokens(sequence, token, count - 1)]


@pytest.mark.campaign
def test_sequences_come_and_go_and_each_answers_as_if_alone(backend: InterpreterBackend) -> None:
    wanted = [alone(backend, ids, 5) for ids in PROMPTS]
    with Batch(backend, 2) as batch:
        first, token = batch.add(PROMPTS[0])
        assert (first, batch.free) == (0, 1)
        answers = {0: [token]}
        answers[0].append(batch.step()[first])  # with a slot that has no sequence
        second, token = batch.add(PROMPTS[1])
        answers[1] = [token]
        for _ in range(3):
            found = batch.step()
            answers[0].append(found[first])
            answers[1].append(found[second])
        batch.remove(first)
        third, token = batch.add(PROMPTS[2])  # in the slot of the first
        assert third == first
        answers[2] = [token]
        for _ in range(4):
            found = batch.step()
            answers[2].append(found[third])
            answers[1].append(found[second])
        assert batch.length(third) == len(PROMPTS[2]) + 4
    assert answers[0] == wanted[0]
    assert answers[1][:5] == wanted[1]
    assert answers[2] == wanted[2]


def test_logits_do_not_depend_on_the_others_nor_on_the_place(backend: InterpreterBackend) -> None:
    sequence = backend.begin()
    backend.prefill(sequence, PROMPTS[1])
    single = backend.decode_logits(sequence, 5)
    with Batch(backend, 4) as batch:
        place, _ = batch.add(PROMPTS[1])
        by_itself = batch.logits({place: 5})[place]
        batch.remove(place)
        batch.add(PROMPTS[2])
        batch.add(PROMPTS[0])
        place, _ = batch.add(PROMPTS[1])
        among_others = batch.logits({0: 9, 1: 8, place: 5})[place]
    assert place == 2
    assert (by_itself == among_others).all()
    assert np.sqrt(np.mean((by_itself - single) ** 2)) / single.std() < FAR


@pytest.mark.campaign
def test_some_are_drawn_and_others_not(backend: InterpreterBackend) -> None:
    wanted = [alone(backend, PROMPTS[0], 3, DRAWN), alone(backend, PROMPTS[1], 3)]
    with Batch(backend, 2) as batch:
        places = [batch.add(PROMPTS[0], DRAWN), batch.add(PROMPTS[1])]
        answers = {place: [token] for place, token in places}
        for _ in range(2):
            for place, token in batch.step().items():
                answers[place].append(token)
    assert list(answers.values()) == wanted


def test_a_cache_that_is_full_is_refused_and_the_others_go_on(backend: InterpreterBackend) -> None:
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
        for place in (-1, 0, 2):
            with pytest.raises(UsageError, match=f"place {place} of the batch has no sequence"):
                batch.remove(place)
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
        inside: Any = broken
        inside._held["model.norm.weight"] = np.full_like(inside._held["model.norm.weight"], np.nan)
        with pytest.raises(ModelError, match="the logits are not finite"):
            batch.step()
