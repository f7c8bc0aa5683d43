"""Mixtures of experts with dense layers between, on two ranks of the interpreter and before the verifier of all ranks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from interpreter_ranks import (
    IDS,
    TOLERANCE,
    bits_of_ranks,
    decode_logits,
    distance,
    greedy,
    one_rank,
    prompt_logits,
    two_ranks,
)  # fmt: skip
from mixed_models import write_mixed
from paged_logits import logits_of
from test_verify_ranks import FORMATS, PROMPTS, SIZES, verify_modes

from engine.api import Engine
from engine.backends.backend import Backend
from engine.batch import Batch
from engine.errors import UsageError
from engine.models.qwen3_moe import UNMEASURED
from engine.paged_batch import PagedBatch
from engine.ranks.interpreter import InterpreterRanks
from engine.ranks.shards import shards_of, verify_shards
from engine.ranks.step import RankStep, rank_step
from engine.tools.quantize.checkpoint import prepare, write_quantised
from engine.tools.quantize.fp8 import Fp8
from engine.tools.quantize.int4 import Int4
from tests.campaign import first
from tilec.step.collectives import COLLECTIVES

SHARED: Any = {
    "layers": 4, "dense_layers": (0, 3), "hidden_size": 128, "intermediate_size": 512, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 64, "moe_intermediate_size": 256, "num_experts_per_tok": 8,
}  # fmt: skip
"""Each of two ranks has whole blocks of every weight. A token has all experts, so that none is chosen by what rounding left."""


OF_EIGHT_BITS = 0.12
"""In place of `TOLERANCE` where activations have eight bits: twice the greatest that was measured. Logits of one rank and of
two are 0.10 from float64 then."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mixed") / "model"
    write_mixed(path, **SHARED)
    return path


@pytest.mark.parametrize("tokens", [1, 5, 17])
def test_logits_of_a_prompt(one: Backend, two: InterpreterRanks, tokens: int) -> None:
    """Not the same bits: a part of each sum is rounded where it is sent."""
    assert 0 < distance(prompt_logits(two, IDS[:tokens]), prompt_logits(one, IDS[:tokens])) < TOLERANCE
    assert len({*bits_of_ranks(two)}) == 1


def test_greedy_tokens_and_those_of_a_batch_are_those_of_one_rank(one: Backend, two: InterpreterRanks) -> None:
    generated: list[list[Any]] = []
    for backend in (one, two):
        with Batch(backend, 4) as batch:
            found: list[Any] = [batch.add(IDS[:tokens]) for tokens in (3, 9)]
            generated.append([greedy(backend, IDS[:6], 4), *found, *(batch.step() for _ in range(2))])
    assert generated[0] == generated[1]


def test_rows_over_pages(one: Backend, two: InterpreterRanks) -> None:
    found: list[Any] = []
    for backend in (one, two):
        with PagedBatch(backend, 1) as batch:
            found.append(logits_of(batch, 0, [2, 1], [IDS[:9]]).copy())
    assert 0 < distance(found[1], found[0]) < TOLERANCE


@pytest.mark.parametrize("form", first(1, ["int4", "fp8", "w8a8"]))
def test_formats(folder: Path, tmp_path: Path, form: str) -> None:
    write_quantised(
        prepare(folder, Int4(128, "mse") if form == "int4" else Fp8()), tmp_path / "model", 1 << 20, lambda *_: None
    )
    backends = one_rank(tmp_path / "model", weight_format=form), two_ranks(tmp_path / "model", weight_format=form)
    for tokens in (5, 17):
        expected, found = (prompt_logits(backend, IDS[:tokens]) for backend in backends)
        quantised = form == "w8a8" and tokens > UNMEASURED["w8a8_tokens"]
        assert distance(found, expected) < (OF_EIGHT_BITS if quantised else 2 * TOLERANCE)
    expected, found = (decode_logits(backend, IDS[:3], IDS[3:5]) for backend in backends)
    assert max(map(distance, found, expected)) < 2 * TOLERANCE
    for backend in backends:
        backend.close()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"intermediate_size": 511}, "`intermediate_size` is 511, which 2 ranks cannot share equally"),
        ({"moe_intermediate_size": 255}, "`moe_intermediate_size` is 255, which 2 ranks cannot share equally"),
    ],
)
def test_dense_layers_that_ranks_cannot_share(folder: Path, tmp_path: Path, change: dict[str, int], message: str) -> None:
    (tmp_path / "model").mkdir()
    for path in folder.iterdir():
        (tmp_path / "model" / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UsageError) as caught:
        Engine.from_pretrained(tmp_path / "model", backend="interpreter", max_seq_len=128, gpus=2)
    assert message in str(caught.value)


def ranked(dense_layers: str, layers: int = 4, weights: str = "16bit", caches: str = "16bit") -> RankStep:
    """A rank's step at published sizes."""
    shape: Any = SimpleNamespace(
        **SIZES["qwen3_moe"], head_dim=128, num_hidden_layers=layers, vocab_size=4096, rms_norm_eps=1e-6,
        tie_word_embeddings=False, model_type="qwen3_moe", intermediate_size=6144, dense_layers=dense_layers,
    )  # fmt: skip
    return rank_step(shape, 2048, "bf16", 2, weight_format=weights, cache_format=caches)


@pytest.mark.parametrize(("weights", "caches"), first(2, [FORMATS[0], FORMATS[3], *FORMATS[1:3]]))
@pytest.mark.parametrize("dense_layers", ["0,3", "1,2"])
def test_steps_of_all_modes_are_verified(dense_layers: str, weights: str, caches: str) -> None:
    step = ranked(dense_layers, 4, weights, caches).with_pages(40)
    verify_modes(step, [*PROMPTS, ("serve", 8), ("chunk", 300)])
    graph = step.graph("decode", "argmax")
    assert sum(op.kernel in COLLECTIVES for op in graph.ops) == 2 * 4  # two in a layer, whatever its kind


def test_what_a_rank_has() -> None:
    """Half of the rows of gate and of up and of the columns of down of a dense layer; every element is in one rank."""
    step = ranked("1,2")
    shapes = {weight.name: weight.shape for weight in step.weights()}
    assert shapes["model.layers.1.mlp.gate_up_proj.weight"] == (2 * 3072, 2048)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (2048, 3072)
    assert shapes["model.layers.0.mlp.experts.down_proj.weight"] == (128, 2048, 384)
    assert "model.layers.0.mlp.down_proj.weight" not in shapes
    ranks = [shards_of(step, rank) for rank in range(2)]
    verify_shards({name: shard.shape for name, shard in ranks[0].items()}, ranks)
