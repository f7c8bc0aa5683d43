"""A batch on the device: each sequence gives the same result as alone, whatever the other sequences are. Needs a GPU and a
bundle of qwen3-0.6b.

`TILEC_BUNDLES` names the folder of bundles, `artifacts/bundles` by default.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda import CudaBackend
from engine.batch import Batch
from engine.models.qwen3.config import Qwen3Config
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Device, open_bundle

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
BUNDLES = Path(os.environ.get("TILEC_BUNDLES", ROOT / "artifacts" / "bundles"))
SMALL = Qwen3Config(
    hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, head_dim=128, num_hidden_layers=4,
    vocab_size=4096, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, max_position_embeddings=40960,
    torch_dtype="bfloat16",
)  # fmt: skip
"""Qwen3 0.6B with four layers and a small vocabulary."""

LENGTHS = (3, 700, 1, 64, 129, 33, 250, 12)
STEPS = 8
TOLERANCE = 0.03


@pytest.fixture(scope="module")
def backend() -> Iterator[CudaBackend]:
    device = Device()
    loaded = CudaBackend(open_bundle(BUNDLES / f"qwen3-0.6b-{device.architecture}.bundle"), device)
    loaded.load(SMALL, dummy_weights(SMALL, "bf16"), 1024)
    yield loaded
    loaded.close()


def tokens_of(length: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng([length, count]).integers(0, SMALL.vocab_size, count)]


@pytest.mark.parametrize("sequences", [2, 4, 8])
def test_each_sequence_gives_the_same_result_as_alone(backend: CudaBackend, sequences: int) -> None:
    lengths = LENGTHS[:sequences]
    with Batch(backend, sequences) as batch:
        rows = [batch.add(tokens_of(length, length))[0] for length in lengths]
        forced_tokens = {row: tokens_of(length, STEPS + 1) for row, length in zip(rows, lengths, strict=True)}
        batch_logits = [batch.logits({row: forced_tokens[row][step] for row in rows}) for step in range(STEPS)]
    for row, length in zip(rows, lengths, strict=True):
        sequence = backend.begin()
        backend.prefill(sequence, tokens_of(length, length))
        with Batch(backend, sequences) as batch:
            for other in lengths[1:]:
                batch.add(tokens_of(other, other + 5))
            own_row, _ = batch.add(tokens_of(length, length))
            for step in range(STEPS):
                others = {other: (17 * step + other) % SMALL.vocab_size for other in range(sequences)}
                logits = batch.logits(others | {own_row: forced_tokens[row][step]})[own_row]
                assert (logits == batch_logits[step][row]).all()
        sequence = backend.begin()
        backend.prefill(sequence, tokens_of(length, length))
        for step in range(STEPS):
            alone = backend.decode_logits(sequence, forced_tokens[row][step])
            assert np.linalg.norm(batch_logits[step][row] - alone) <= TOLERANCE * np.linalg.norm(alone)


def test_a_thousand_steps_give_the_same_tokens_again(backend: CudaBackend) -> None:
    generations: list[list[dict[int, int]]] = []
    for _ in range(2):
        with Batch(backend, 4) as batch:
            for length in LENGTHS[:4]:
                if length < 20:
                    batch.add(tokens_of(length, length))
            generations.append([batch.step() for _ in range(1000)])
    assert generations[0] == generations[1]
