"""A mixture of experts on two GPUs that launch nothing: its bundle has the kernels of all steps of a rank."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_gpus import loaded, together

from engine.backends.backend import Backend
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from engine.paged_batch import PagedBatch
from tilec.runtime import open_bundle

sys.path.append(str(Path(__file__).resolve().parents[2] / "runtime"))
from fake_driver import FakeDriver

CONFIG = Qwen3MoeConfig(
    hidden_size=2048, intermediate_size=6144, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_hidden_layers=2,
    vocab_size=2048, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False, max_position_embeddings=40960,
    torch_dtype="bfloat16", num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
)  # fmt: skip
"""Qwen3 30B-A3B with two layers and a small vocabulary."""


@pytest.mark.campaign
def test_prompts_tokens_and_rows_over_pages(shipped_shared_mixture_bundle: Path) -> None:
    """Of all tiles of experts; each rank holds half of the experts' bytes."""
    drivers = [FakeDriver(devices=2) for _ in range(2)]
    with open_bundle(shipped_shared_mixture_bundle) as bundle:
        found = loaded(bundle, drivers, CONFIG)
        assert all(isinstance(one, tuple) for one in found), found
        backends: list[Backend] = [backend for backend, _ in found]

        def work(rank: int) -> set[str]:
            backend, first = backends[rank], len(drivers[rank].launches)
            sequence = backend.begin()
            backend.prefill(sequence, list(range(20)))
            backend.prefill(backend.begin(), list(range(700)))
            next(iter(backend.stream_tokens(sequence, 1, 2)))
            with PagedBatch(backend, 8) as batch:
                batch.join(0, [1, 2], 0, list(range(70)))
                batch.step()
            return {launch.function[1].split("_E")[0] for launch in drivers[rank].launches[first:]}

        launched = together(2, work)
        assert launched[0] == launched[1], launched
        assert launched[0] >= {"experts_down", "experts_sum", "all_reduce", "all_reduce_add_scaled", "rank_meet"}
        for backend in backends:
            backend.close()
