"""Dummy weights: the same normal numbers, however they are taken and in every release."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from checkpoints import UNTIED, joined

from engine.errors import UsageError
from engine.tools.dummy_weights import dummy_weights

LAST = "lm_head.weight"


def test_dummy_weights_are_the_same_however_they_are_taken() -> None:
    config = replace(UNTIED, hidden_size=512, vocab_size=4200)  # embeddings of more than two blocks
    weights = dummy_weights(config, "bf16", 7)
    names = [destination.name for destination in weights.destinations]
    bytes_by_name = {name: weights.array(name).tobytes() for name in names}
    with ThreadPoolExecutor(4) as pool:
        again = dummy_weights(config, "bf16", 7)
        order = random.Random(0).sample(names, len(names))

        def is_same(name: str) -> bool:
            return joined(again, name, 100_002) == bytes_by_name[name]

        assert all(pool.map(is_same, order))
    assert dummy_weights(config, "bf16", 8).array(LAST).tobytes() != bytes_by_name[LAST]
    assert bytes_by_name[LAST] != bytes_by_name["model.embed_tokens.weight"]  # of the same shape
    assert bytes_by_name[LAST][:1000] != bytes_by_name[LAST][2 << 20 :][:1000]  # another block
    merged = weights.array("model.layers.1.self_attn.qkv_proj.weight")
    assert merged[24:36].tobytes() == weights.tensor("model.layers.1.self_attn.k_proj.weight").tobytes()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_dummy_weights_are_normal(dtype: str) -> None:
    config = replace(UNTIED, hidden_size=512, vocab_size=4200)
    weights = dummy_weights(config, dtype)
    values = weights.array(LAST).astype(np.float64).ravel() / 0.02
    assert abs(values.mean()) < 5 / len(values) ** 0.5 and abs(values.std() - 1) < 0.005
    within = [np.mean(np.abs(values) < width) for width in (1, 2, 3)]
    assert np.allclose(within, [0.6827, 0.9545, 0.9973], atol=0.005)  # of a normal distribution
    assert values.min() == -values.max()  # each of the 65536 quantiles occurs about 32 times
    rows = values.reshape(4200, 512)
    assert abs(np.mean(rows[:-1] * rows[1:])) < 0.005 and abs(np.mean(rows[:, :-1] * rows[:, 1:])) < 0.005  # independent
    norm = weights.array("model.norm.weight").astype(np.float64)
    assert abs(norm.mean() - 1) < 0.01 and 0.01 < norm.std() < 0.03


def test_dummy_weights_do_not_change_between_releases() -> None:
    bits = dummy_weights(UNTIED, "bf16", 1).array("model.norm.weight").view(np.uint16)
    assert " ".join(f"{value:04x}" for value in bits) == "3f7c 3f7d 3f78 3f74 3f7e 3f83 3f7c 3f81"


def test_dummy_weights_refuse_what_they_cannot_be() -> None:
    with pytest.raises(UsageError, match="the seed is -1"):
        dummy_weights(UNTIED, "bf16", -1)
    with pytest.raises(UsageError, match='weights cannot be "f32"'):
        dummy_weights(UNTIED, "f32")
    with pytest.raises(ValueError, match="holds no element"):
        next(dummy_weights(UNTIED, "bf16").chunks(LAST, 1))
