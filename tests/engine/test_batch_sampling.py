"""Sampling in batches: tokens and probabilities are the reference's of a row's own logits, whatever other rows ask for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from engine.backends.interpreter import InterpreterBackend
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan
from engine.errors import UsageError
from engine.sampling import Logprobs, SamplingParams, logprobs_of, sample_logits, token_marks
from engine.tools.tiny import write_tiny_model

PROMPTS = [[int(i) for i in np.random.default_rng(n).integers(0, 400, n)] for n in (3, 9, 5, 4)]
PARAMS = [
    SamplingParams(0.9, 0, 0.95, 3, repetition_penalty=1.5, frequency_penalty=1.0, presence_penalty=0.5, logprobs=2),
    SamplingParams(1.2, 150, 1.0, 4, min_p=0.01),
    None,
    SamplingParams(top_k=1, frequency_penalty=2.0, logit_bias=((7, 3.0),), barred=(5,), min_tokens=2, logprobs=0),
]
COUNT = 4
VOCABULARY = 512


@pytest.fixture(scope="module")
def backend(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    config = write_tiny_model(folder)
    loaded = InterpreterBackend()
    loaded.load(config, WeightPlan.for_model(config, folder, "bf16"), 32)
    yield loaded
    loaded.close()


def referred(
    backend: InterpreterBackend, ids: list[int], params: SamplingParams | None
) -> tuple[list[int], list[Logprobs | None]]:
    """The tokens of a sequence by the reference, from logits of steps that are given its tokens, and their probabilities."""
    choose = SamplingParams(top_k=1) if params is None else params
    logits = backend.prompt_logits(backend.begin(), ids)
    tokens, logprobs = list[int](), list[Logprobs | None]()
    with Batch(backend, 4) as batch:
        row, _ = batch.add(ids)
        for step in range(COUNT):
            marks = token_marks(choose, ids, tokens, logits.size)
            tokens.append(sample_logits(logits, choose, step, marks))
            logprobs.append(None if choose.logprobs is None else logprobs_of(logits, tokens[-1], choose.logprobs))
            logits = batch.logits({row: tokens[-1]})[row]
    return tokens, logprobs


def test_rows_of_a_batch_draw_what_the_reference_draws(backend: InterpreterBackend) -> None:
    expected = [referred(backend, ids, params) for ids, params in zip(PROMPTS, PARAMS, strict=True)]
    found, logprobs = [list[int]() for _ in PROMPTS], [list[Logprobs | None]() for _ in PROMPTS]
    with Batch(backend, 4) as batch:
        for row, (ids, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
            assert batch.add(ids, params) == (row, expected[row][0][0])
            found[row].append(expected[row][0][0])
            logprobs[row].append(batch.logprobs.get(row))
        for _ in range(COUNT - 1):
            for row, token in batch.step().items():
                found[row].append(token)
                logprobs[row].append(batch.logprobs.get(row))
    assert found == [tokens for tokens, _ in expected]
    for own, (_, wanted) in zip(logprobs, expected, strict=True):
        for one, other in zip(own, wanted, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert one.tokens == other.tokens
                np.testing.assert_allclose([one.own, *one.values], [other.own, *other.values], atol=1e-4)


def test_a_row_that_is_taken_again_counts_from_its_own_prompt(backend: InterpreterBackend) -> None:
    params = SamplingParams(top_k=1, frequency_penalty=2.0, repetition_penalty=3.0)
    with Batch(backend, 2) as batch:
        alone = [batch.add(PROMPTS[0], params)[1], *(batch.step()[0] for _ in range(3))]
        batch.remove(0)
        batch.add(PROMPTS[1], params)
        batch.step()
        batch.remove(0)
        row, token = batch.add(PROMPTS[0], params)
        assert row == 0 and [token, *(batch.step()[0] for _ in range(3))] == alone
        with pytest.raises(UsageError, match="place 0 has penalties or bars"):
            batch.logits({0: 1})


def test_what_one_sequence_cannot_do_is_refused(backend: InterpreterBackend) -> None:
    for params in (SamplingParams(top_k=65), SamplingParams(top_k=0), SamplingParams(min_p=0.1), SamplingParams(logprobs=0)):
        with pytest.raises(UsageError, match="a step of one sequence draws from 1 to 64 tokens"):
            backend.prefill(backend.begin(), [1, 2], params)
    with Batch(backend, 2) as batch:
        for params in (SamplingParams(allowed=(10**6,)), SamplingParams(logit_bias=((-1, 2.0),))):
            with pytest.raises(UsageError, match="is not in the vocabulary"):
                batch.add([1, 2], params)
        assert batch.free == 2
