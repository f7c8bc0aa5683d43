"""The device memory of Qwen3 235B-A22B with INT4 weights: what a load asks for, before it loads anything."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import pytest
from step_contracts import shape_of

from engine.backends.decode_steps import graphs_of
from engine.backends.device_buffers import cache_bytes
from engine.backends.device_memory import RESERVE_BYTES
from engine.graph.plan import plan_memory
from engine.models.steps import model_step
from tests import shipped
from tilec.project.read.buildfile import read_build_file
from tilec.step.graph import ITEM_BYTES
from tilec.step.step import OUTPUT_MODES, Step
from tilec.target.targets import SM_90A

LAYERS, EXPERTS, HIDDEN, INNER, VOCABULARY = 94, 128, 4096, 1536, 151936
H200_BYTES = 141 * 10**9


@dataclass(frozen=True, slots=True)
class Needed:
    """Bytes of weights, caches and activations, as `CudaBackend.load` adds them."""

    weights: int
    caches: int
    arena: int

    @property
    def total(self) -> int:
        return self.weights + self.caches + self.arena


def step_of(weight_format: str, max_seq_len: int) -> Step:
    family = read_build_file(shipped.ROOT / "build.toml").families["qwen3_moe"]
    return model_step(
        shape_of("qwen3-235b-a22b"), max_seq_len, "bf16", family.declaration, family.tunings[SM_90A].numbers,
        weight_format=weight_format,
    )  # fmt: skip


@pytest.fixture(scope="module")
def needed() -> Needed:
    """With caches for 40960 tokens, as long as the model was trained on."""
    step = step_of("int4", 40960)
    weights = sum(prod(weight.shape) * ITEM_BYTES[weight.dtype] for weight in step.weights())
    prefills = [
        step.graph("prefill", mode, tokens=tokens) for tokens in step.prefills(step.chunk_tokens) for mode in OUTPUT_MODES
    ]
    decode = list(graphs_of(step, 1).values())
    return Needed(weights, cache_bytes(decode), max(plan_memory(graph).size for graph in (*prefills, *decode)))


def test_weights_are_codes_scales_and_zero_points(needed: Needed) -> None:
    """Half a byte of each linear weight, and three bytes of each group of 128; the rest has 16 bits."""
    linear = LAYERS * (EXPERTS * 3 * HIDDEN * INNER + (64 + 2 * 4) * 128 * HIDDEN + 64 * 128 * HIDDEN)
    others = 2 * VOCABULARY * HIDDEN + LAYERS * (EXPERTS * HIDDEN + 2 * HIDDEN + 2 * 128) + HIDDEN
    assert needed.weights == linear // 2 + linear // 128 * 3 + 2 * others


def test_caches_are_those_of_four_key_heads(needed: Needed) -> None:
    assert needed.caches == 40960 * LAYERS * 2 * 4 * 128 * 2


def test_it_fits_one_h200(needed: Needed) -> None:
    """With what the driver and kernels are left, and nothing of it twice."""
    assert needed.total + RESERVE_BYTES < H200_BYTES
    assert needed.total < needed.weights + needed.caches + 5 * 10**9


def test_16_bits_do_not_fit() -> None:
    weights = sum(prod(weight.shape) * ITEM_BYTES[weight.dtype] for weight in step_of("16bit", 4096).weights())
    assert weights > 3 * H200_BYTES
