"""The sampler: bad values are refused, the random numbers are Philox's, tokens follow the expected distribution."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine.errors import UsageError
from engine.sampling import (
    SamplingParams,
    keep_top_p,
    merge_top_k,
    philox4x32,
    sample,
    sample_logits,
    settings,
    uniform,
    uniforms,
)
from tests import shipped
from tilec.interpreter import run


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": 10**400}, "temperature is 1000"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": -1}, "top-k is -1"),
        ({"top_k": 1 << 31}, "top-k is 2147483648"),
        ({"top_k": 2.5}, "top-k is 2.5"),
        ({"top_k": True}, "top-k is True"),
        ({"top_p": 0.0}, "top-p is 0.0"),
        ({"top_p": 1.01}, "top-p is 1.01"),
        ({"top_p": math.nan}, "top-p is nan"),
        ({"seed": -1}, "the seed is -1"),
        ({"seed": 1 << 64}, "the seed is 18446744073709551616"),
        ({"seed": None}, "the seed is None"),
        ({"min_p": 1.01}, "min-p is 1.01"),
        ({"min_p": math.nan}, "min-p is nan"),
        ({"repetition_penalty": 0}, "the repetition penalty is 0"),
        ({"frequency_penalty": 2.01}, "the frequency penalty is 2.01"),
        ({"presence_penalty": -math.inf}, "the presence penalty is -inf"),
        ({"logit_bias": ((5, 101.0),)}, "the bias of token 5 is 101.0"),
        ({"min_tokens": -1}, "min-tokens is -1"),
        ({"logprobs": 21}, "logprobs is 21"),
        ({"logprobs": True}, "logprobs is True"),
    ],
)
def test_a_bad_value_is_one_clear_line(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        SamplingParams(**values)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # test vectors of the Random123 library, kat_vectors
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_words(counter: Any, key: Any, expected: tuple[int, ...]) -> None:
    assert philox4x32(counter, key) == expected


def test_uniform_numbers_are_uniform_and_of_the_step_alone() -> None:
    numbers = np.array([uniform(7, step) for step in range(8000)])
    counts = np.histogram(numbers, bins=20, range=(0, 1))[0]
    assert ((counts - 400.0) ** 2 / 400).sum() < 43.8  # chi-square, 19 degrees of freedom, 0.1 %
    assert numbers.max() < 1
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.04
    assert uniform(7, 5) == numbers[5]
    assert (uniforms(7, 8000) == numbers).all()
    assert uniforms((1 << 64) - 1, 3).tolist() == [uniform((1 << 64) - 1, step) for step in range(3)]
    assert len({uniform(seed, step) for seed in (0, 1, 1 << 32) for step in (0, 1, 1 << 32)}) == 9


def test_blocks_merge_to_the_greatest_of_all() -> None:
    rng = np.random.default_rng(0)
    for top_k in (1, 7, 64):
        logits = rng.integers(-20, 20, 1000).astype(np.float32)  # many ties
        blocks = np.pad(logits, (0, 24), constant_values=-np.inf).reshape(8, 128)
        order = np.argsort(-blocks, axis=1, kind="stable")[:, :64]
        values = np.take_along_axis(blocks, order, 1)
        greatest, indices = merge_top_k(values, order + 128 * np.arange(8)[:, None], top_k)
        expected = sorted(range(1000), key=lambda i: (-logits[i], i))[:top_k]
        assert indices.tolist() == expected
        assert greatest.tolist() == logits[expected].tolist()


def test_padding_is_never_drawn() -> None:
    values, indices = merge_top_k(np.array([9.0, 1.0, -np.inf]), np.array([-1, 4, 5]), 3)
    assert (values.tolist(), indices.tolist()) == ([1.0], [4])


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
def test_logits_that_are_not_finite_are_refused(bad: list[float]) -> None:
    with pytest.raises(UsageError, match="not finite"):
        sample_logits(np.array(bad, np.float32), SamplingParams(), 0)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    rng = np.random.default_rng(1)
    for _ in range(300):
        probabilities = np.sort(rng.dirichlet(np.full(12, 0.5)))[::-1]
        top_p = float(rng.uniform(0.01, 0.999))
        fewest = next(count for count in range(1, 13) if probabilities[:count].sum() >= top_p)
        assert keep_top_p(probabilities, top_p) == fewest
    assert keep_top_p(np.array([0.5, 0.25, 0.25]), 0.5) == 1  # reached exactly
    assert keep_top_p(np.array([0.5, 0.25, 0.25]), 1.0) == 3


@pytest.mark.parametrize(("temperature", "top_k", "top_p"), [(1.0, 64, 1.0), (0.6, 20, 0.95), (1.7, 5, 0.7)])
def test_tokens_follow_the_distribution(temperature: float, top_k: int, top_p: float) -> None:
    logits = np.random.default_rng(2).normal(0, 1.5, 40).astype(np.float32)
    params = SamplingParams(temperature, top_k, top_p, seed=11)
    draws = 6000
    counts = np.bincount([sample_logits(logits, params, step) for step in range(draws)], minlength=40)
    order = sorted(range(40), key=lambda i: -logits[i])[:top_k]
    weights = {i: math.exp(float(logits[i]) / temperature) for i in order}
    total, reached, kept = sum(weights.values()), 0.0, list[int]()
    for i in order:
        if reached < top_p:
            kept.append(i)
            reached += weights[i] / total
    assert counts[[i for i in range(40) if i not in kept]].sum() == 0
    expected = np.array([weights[i] for i in kept]) / sum(weights[i] for i in kept) * draws
    statistic = ((counts[kept] - expected) ** 2 / expected).sum()
    degrees_of_freedom = len(kept) - 1
    assert (
        statistic < degrees_of_freedom + 3.3 * math.sqrt(2 * degrees_of_freedom) + 6
    )  # above the 0.1 % point for every number of degrees of freedom


def test_a_draw_is_repeatable_and_the_seed_matters() -> None:
    logits = np.zeros(50, np.float32)
    draws = {seed: [sample_logits(logits, SamplingParams(seed=seed), step) for step in range(40)] for seed in (3, 4)}
    assert draws[3] == [sample_logits(logits, SamplingParams(seed=3), step) for step in range(40)]
    assert draws[3] != draws[4]


@pytest.mark.parametrize("params", [SamplingParams(top_k=1), SamplingParams(temperature=1e-320), SamplingParams(top_p=1e-9)])
def test_the_narrowest_values_are_greedy(params: SamplingParams) -> None:
    logits = np.array([1.0, 3.0, 3.5, 2.0], np.float32)
    assert {sample_logits(logits, params, step) for step in range(50)} == {2}


def test_blocks_and_the_whole_vocabulary_draw_the_same_token() -> None:
    logits = np.random.default_rng(5).normal(0, 2, 256).astype(np.float32)
    order = np.argsort(-logits.reshape(4, 64), axis=1)[:, :32]
    values = np.take_along_axis(logits.reshape(4, 64), order, 1)
    params = SamplingParams(0.8, 32, 0.9, 9)
    indices = order + 64 * np.arange(4)[:, None]
    assert [sample(values, indices, params, s) for s in range(60)] == [sample_logits(logits, params, s) for s in range(60)]


@pytest.mark.parametrize("vocab", [40, 3000])
def test_the_kernels_draw_what_the_reference_draws(vocab: int) -> None:
    """`topk_blocks` and `sample_token`, with the parameters in `settings`, against `sample_logits`; bf16 logits have many
    ties."""
    rng = np.random.default_rng(vocab)
    parts = -(-vocab // 1024)
    top, draw = shipped.load("topk_blocks", {"E": "bf16", "BLOCK": 1024}), shipped.load("sample_token", {"KEEP": 64})
    for step in range(25):
        params = SamplingParams(float(rng.uniform(0.05, 2)), int(rng.integers(1, 65)), float(rng.uniform(0.05, 1)), seed=step)
        logits = rng.normal(size=(1, vocab), scale=3).astype(ml_dtypes.bfloat16)
        parameters = {name: np.asarray(value) for name, value in settings(params, 2, 30).items()}
        arrays = {
            name: parameters[name].astype(np.int32 if name == "top_k" else np.float32).reshape(1, -1) for name in parameters
        }
        single = {name: arrays[name].reshape(-1) for name in ("top_k", "temperature", "top_p")}
        candidates: dict[str, Any] = {
            "best": np.full((1, parts, 64), np.nan, np.float32), "indices": np.full((1, parts, 64), -1, np.int32)
        }  # fmt: skip
        run(top, {"logits": logits, "top_k": single["top_k"], **candidates})
        token = np.full(1, -1, np.int32)
        slot = np.array([2 + step], np.int32)
        run(draw, {**candidates, **single, "uniforms": arrays["uniforms"], "place": slot, "token": token})
        assert token[0] == sample_logits(logits[0].astype(np.float32), params, step)


def test_logits_that_are_not_finite_give_no_token() -> None:
    draw = shipped.load("sample_token", {"KEEP": 64})
    arrays = {
        "best": np.full((1, 2, 64), np.nan, np.float32), "indices": np.zeros((1, 2, 64), np.int32),
        "top_k": np.array([5], np.int32), "temperature": np.ones(1, np.float32), "top_p": np.ones(1, np.float32),
        "uniforms": np.zeros((1, 4), np.float32), "place": np.zeros(1, np.int32), "token": np.zeros(1, np.int32),
    }  # fmt: skip
    run(draw, arrays)
    assert arrays["token"][0] == 2147483647


def test_numbers_of_numpy_are_numbers() -> None:
    assert SamplingParams(np.float32(0.5), np.int64(3), np.float64(0.9)).top_k == 3


def test_extreme_settings_stay_in_f32() -> None:
    for temperature in (1e-300, 1e300):
        inputs = settings(SamplingParams(temperature, top_p=1e-300), 0, 1)
        assert np.float32(inputs["top_p"]) > 0
        assert 0 < np.float32(inputs["temperature"]) < np.inf
