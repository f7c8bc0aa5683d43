"""Sampling from any part of the vocabulary: the kernels draw what the reference draws, and that follows the distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.errors import UsageError
from engine.sampling import (
    Logprobs,
    SamplingParams,
    logprobs_of,
    row_factors,
    row_numbers,
    sample_logits,
    token_bias,
    token_marks,
    uniform,
)
from tests import shipped
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function

FIRST = 3  # the slot of a prompt's last token
NO_TOKEN = 2147483647
GREEDY = SamplingParams(top_k=1)


def rounded(logits: Any) -> NDArray[Any]:
    """Logits in 16 bits."""
    return np.asarray(logits, np.float32).astype(ml_dtypes.bfloat16)


@cache
def of_any_vocabulary(name: str) -> Function:
    """A kernel for vocabularies that are no multiple of what a vector holds."""
    constants = shipped.specialisation(name, {"E": "bf16"})[1]
    return load_kernel(shipped.source(name), constants | {"ALIGN": 1}, root=shipped.ROOT)


class Rows:
    """Rows of a step and what the three kernels do to them. `marks` are changed by them as a step's are."""

    def __init__(self, logits: NDArray[Any], params: Sequence[SamplingParams], marks: Sequence[NDArray[np.int32]]) -> None:
        rows, vocabulary = logits.shape
        self.arrays: dict[str, Any] = {
            "logits": logits, "state": np.array(marks, np.int32),
            "bias": np.array([token_bias(one, vocabulary) for one in params]),
            "numbers": np.array([row_numbers(one, FIRST, vocabulary) for one in params]),
            "factors": np.array([row_factors(one) for one in params]),
            "maxima": np.full((rows, -(-vocabulary // 32)), np.nan, np.float32),
            "token": np.full(rows, -1, np.int32), "tokens": np.full((rows, 20), -7, np.int32),
            "logprobs": np.full((rows, 21), np.nan, np.float32),
        }  # fmt: skip

    def drawn(self, steps: Sequence[int]) -> list[int]:
        """The tokens of the rows, each with its number."""
        arrays = self.arrays | {"positions": np.array(steps, np.int32) + FIRST}
        names = {
            "sample_maxima": "logits state bias numbers factors positions maxima",
            "sample_rows": "logits maxima state bias numbers factors positions token",
            "sample_report": "logits token numbers state bias maxima tokens logprobs",
        }
        for kernel, taken in names.items():
            run(of_any_vocabulary(kernel), {name: arrays[name] for name in taken.split()})
        return arrays["token"].tolist()


def unmarked(params: Sequence[SamplingParams], vocabulary: int) -> list[NDArray[np.int32]]:
    """Marks of sequences without a prompt."""
    return [token_marks(one, (), (), vocabulary) for one in params]


def drawn(logits: NDArray[Any], params: Sequence[SamplingParams], steps: Sequence[int]) -> list[int]:
    """The tokens that the kernels draw."""
    return Rows(logits, params, unmarked(params, logits.shape[1])).drawn(steps)


def reference(logits: NDArray[Any], params: Sequence[SamplingParams], steps: Sequence[int]) -> list[int]:
    """The tokens that they should draw."""
    return [sample_logits(row.astype(np.float32), one, step) for row, one, step in zip(logits, params, steps, strict=True)]


@st.composite
def parameters(draw: st.DrawFn, vocabulary: int) -> SamplingParams:
    """Any parameters: all combinations of what changes logits, and cuts of any size."""
    token = st.integers(0, vocabulary - 1)
    changed = draw(st.booleans())
    tokens = tuple(draw(st.lists(token, max_size=4)))
    return SamplingParams(
        temperature=draw(st.sampled_from([1e-4, 0.3, 1.0, 3.0, 1e4])),
        top_k=draw(st.sampled_from([0, 1, 2, 63, 64, 65, 66, 200, vocabulary // 2 + 1, vocabulary, vocabulary + 7])),
        top_p=draw(st.sampled_from([1e-9, 0.3, 0.9, 0.999, 1.0])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-4, 0.1, 1.0])),
        seed=draw(st.integers(0, (1 << 64) - 1)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.5])) if changed else 1.0,
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -2.0])) if changed else 0.0,
        presence_penalty=draw(st.sampled_from([0.0, 1.5, -0.7])) if changed else 0.0,
        logit_bias=tuple((one, draw(st.floats(-100, 100, width=32))) for one in tokens) if changed else (),
        allowed=tuple(draw(st.lists(token, min_size=5, unique=True))) if changed and draw(st.booleans()) else (),
        barred=tuple(draw(st.lists(token, max_size=4))) if changed else (),
        min_tokens=draw(st.sampled_from([0, 3, 100])) if changed else 0,
    )


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_the_kernels_draw_what_the_reference_draws(data: st.DataObject) -> None:
    """Rows with parameters of their own; logits of 16 bits have many ties, and with a small scale hardly anything else."""
    vocabulary = data.draw(st.sampled_from([5, 40, 70, 1000, 3000, 9000]))
    random = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    params = data.draw(st.lists(parameters(vocabulary), min_size=3, max_size=3))
    logits = rounded(random.normal(size=(3, vocabulary), scale=data.draw(st.sampled_from([0.0, 0.02, 1.0, 4.0]))))
    seen = [
        token_marks(one, random.integers(0, vocabulary, 6), random.integers(0, vocabulary, 6), vocabulary) for one in params
    ]
    steps = random.integers(0, 9, 3).tolist()
    rows = Rows(logits, params, seen)
    found = rows.drawn(steps)
    for row, (one, marks, step) in enumerate(zip(params, seen, steps, strict=True)):
        wide = logits[row].astype(np.float32)
        assert found[row] == sample_logits(wide, one, step, marks), one
        counted = marks.copy()
        counted[found[row]] += one.adjusts
        assert (rows.arrays["state"][row] == counted).all()


def test_a_row_alone_and_among_others_draws_the_same() -> None:
    random = np.random.default_rng(3)
    vocabulary = 2500
    logits = rounded(random.normal(size=(6, vocabulary), scale=2))
    params = [
        GREEDY, SamplingParams(1.0, 0, 1.0, 4), SamplingParams(1.0, 300, 0.99, 5, min_p=0.001),
        SamplingParams(0.7, 0, 0.9, 6, frequency_penalty=1.0, logprobs=3), SamplingParams(2.0, 64, 1.0, 7),
        SamplingParams(top_k=1, repetition_penalty=2.0, logprobs=20),
    ]  # fmt: skip
    steps = [0, 1, 2, 3, 4, 5]
    marks = [token_marks(one, random.integers(0, vocabulary, 50), (), vocabulary) for one in params]
    together = Rows(logits, params, marks)
    tokens = together.drawn(steps)
    for row in range(6):
        alone = Rows(logits[row : row + 1], params[row : row + 1], marks[row : row + 1])
        assert alone.drawn([steps[row]]) == [tokens[row]]
        for name in ("state", "tokens", "logprobs"):
            assert (alone.arrays[name][0] == together.arrays[name][row]).all()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(1.0, 0, 1e-9), SamplingParams(1.0, 0, min_p=1.0), SamplingParams(1e-4, 0), SamplingParams(1e-300, 0),
        SamplingParams(1.0, 1), GREEDY,
    ],
)  # fmt: skip
def test_the_narrowest_values_draw_the_most_likely_token(params: SamplingParams) -> None:
    logits = rounded(np.random.default_rng(1).permutation(400)[None] / 8)
    assert {drawn(logits, [params], [step])[0] for step in range(5)} == {int(logits.astype(np.float32).argmax())}
    assert reference(logits, [params], [0]) == drawn(logits, [params], [0])


def test_equal_logits_are_drawn_alike_at_any_temperature() -> None:
    logits = rounded(np.zeros((1, 300)))
    for temperature in (1e-4, 1.0, 1e4):
        params = SamplingParams(temperature, 0, seed=5)
        for step in range(4):
            assert drawn(logits, [params], [step]) == [int(uniform(5, step) * 300)]  # lower tokens first
    cut = SamplingParams(1.0, 100, seed=5)
    assert all(drawn(logits, [cut], [step]) == [int(uniform(5, step) * 100)] for step in range(4))


def test_a_hot_distribution_is_flat() -> None:
    logits = rounded(np.random.default_rng(2).normal(size=(1, 130), scale=3))
    params = SamplingParams(1e4, 0, seed=1)
    order = np.argsort(-logits[0].astype(np.float32), kind="stable")
    for step in range(4):
        assert abs(int(np.nonzero(order == drawn(logits, [params], [step])[0])[0][0]) - uniform(1, step) * 130) <= 1.1


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(1.0, 0), SamplingParams(1.0, 40, presence_penalty=1.0)])
def test_logits_that_are_not_finite_give_no_token(bad: float, params: SamplingParams) -> None:
    """Wherever the wrong logit is, even where its token is barred; the row next to it draws its own."""
    good = SamplingParams(1.0, 0, seed=2)
    for index in (0, 33, 199):
        logits = rounded(np.random.default_rng(0).normal(size=(2, 200)))
        expected = reference(logits[1:], [good], [0])
        logits[0, index] = bad
        marks = unmarked([params, good], 200)
        assert Rows(logits, [params, good], marks).drawn([0, 0]) == [NO_TOKEN, *expected]
        with pytest.raises(UsageError, match="not finite"):
            sample_logits(logits[0].astype(np.float32), params, 0, marks[0])
    barred = SamplingParams(1.0, 0, allowed=(4, 5))
    logits = rounded(np.zeros((1, 200)))
    logits[0, 100] = bad
    assert drawn(logits, [barred], [0]) == [NO_TOKEN]


def test_no_allowed_token_gives_none() -> None:
    logits = rounded(np.full((1, 70), -np.inf))
    assert drawn(logits, [GREEDY], [0]) == drawn(logits, [SamplingParams(1.0, 0)], [0]) == [NO_TOKEN]


def test_one_allowed_token_is_drawn() -> None:
    logits = rounded(np.random.default_rng(4).normal(size=(1, 3000), scale=5))
    for token in (0, 31, 32, 1023, 1024, 2999):
        for params in (SamplingParams(1.0, 0, allowed=(token,)), SamplingParams(top_k=1, allowed=(token,))):
            assert drawn(logits, [params], [0]) == [token] == reference(logits, [params], [0])


def test_a_bias_of_minus_100_bars_and_one_of_100_chooses() -> None:
    logits = rounded(np.random.default_rng(4).normal(size=(1, 300)))
    best = int(logits[0].astype(np.float32).argmax())
    assert drawn(logits, [SamplingParams(top_k=1, logit_bias=((best, -100.0),))], [0]) != [best]
    assert drawn(logits, [SamplingParams(1.0, 0, logit_bias=((17, 100.0),))], [0]) == [17]


def test_barred_tokens_come_only_after_the_first_ones() -> None:
    logits = rounded(np.arange(100)[None] / 10)
    params = SamplingParams(top_k=1, barred=(99, 98), min_tokens=4)
    assert [drawn(logits, [params], [step])[0] for step in range(6)] == [97, 97, 97, 97, 99, 99]


def test_counts_of_a_generation_are_its_own() -> None:
    """A row that is punished for each repetition takes the next best token once the penalty weighs more than the distance."""
    logits = rounded([[3.0, 2.5, 2.0, *[-9.0] * 60]])
    params = SamplingParams(top_k=1, frequency_penalty=1.0)
    rows = Rows(logits, [params], [token_marks(params, [0, 0, 1], (), 63)])
    tokens = [rows.drawn([step])[0] for step in range(6)]
    assert tokens == [0, 1, 0, 2, 1, 0]
    assert rows.arrays["state"][0, :3].tolist() == [(1 << 24) + 3, (1 << 24) + 2, 1]


@pytest.mark.parametrize(
    "params", [SamplingParams(1.3, 0, seed=9), SamplingParams(1.0, 0, 0.8, 9), SamplingParams(1.0, 0, 1.0, 9, min_p=0.2)]
)
def test_tokens_follow_the_distribution(params: SamplingParams) -> None:
    """Chi-square of the draws of fixed seeds, of rows that differ in nothing but their number."""
    draws, vocabulary = 1500, 90
    row = rounded(np.random.default_rng(2).normal(0, 1.5, vocabulary))
    logits = np.broadcast_to(row, (draws, vocabulary)).copy()
    counts = np.bincount(drawn(logits, [params] * draws, range(draws)), minlength=vocabulary)
    wide = row.astype(np.float64)
    order = sorted(range(vocabulary), key=lambda token: (-wide[token], token))
    weights = {token: math.exp((wide[token] - wide.max()) / params.temperature) for token in order}
    total, reach, kept = sum(weights.values()), 0.0, list[int]()
    for token in order:
        if reach < params.top_p and weights[token] >= params.min_p:
            kept.append(token)
        reach += weights[token] / total
    assert counts.sum() == counts[kept].sum() == draws
    expected = np.array([weights[token] for token in kept]) / sum(weights[token] for token in kept) * draws
    often = expected >= 5
    found = np.append(counts[kept][often], counts[kept][~often].sum())
    expected = np.append(expected[often], max(expected[~often].sum(), 1e-9))
    degrees = len(found) - 1
    assert ((found - expected) ** 2 / expected).sum() < degrees + 3.3 * math.sqrt(2 * degrees) + 6


def test_probabilities_are_those_of_the_logits_alone() -> None:
    """Of the token drawn, even if penalties chose it, and of the most likely ones, before any parameter."""
    random = np.random.default_rng(8)
    for vocabulary in (7, 70, 3000):
        logits = rounded(random.normal(size=(2, vocabulary), scale=3))
        params = [SamplingParams(0.5, 0, logprobs=20, presence_penalty=2.0), SamplingParams(top_k=1)]
        rows = Rows(logits, params, unmarked(params, vocabulary))
        token = rows.drawn([0, 0])[0]
        wanted = logprobs_of(logits[0].astype(np.float32), token, 20)
        found = Logprobs.of_row(rows.arrays["logprobs"][0], rows.arrays["tokens"][0], 20)
        assert found.tokens == wanted.tokens
        np.testing.assert_allclose([found.own, *found.values], [wanted.own, *wanted.values], atol=2e-5)
        assert (rows.arrays["logprobs"][1] == 0).all() and (rows.arrays["tokens"][1] == -1).all()


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    for params in (SamplingParams(logit_bias=((100, 1.0),)), SamplingParams(allowed=(100,)), SamplingParams(barred=(-1,))):
        with pytest.raises(UsageError, match="is not in the vocabulary of 100"):
            params.check_tokens(100)
    with pytest.raises(UsageError, match="no token is allowed"):
        SamplingParams(allowed=(3, 4), barred=(4, 3, 5), min_tokens=1).check_tokens(100)
    SamplingParams(allowed=(3, 4), barred=(4, 3, 5)).check_tokens(100)
