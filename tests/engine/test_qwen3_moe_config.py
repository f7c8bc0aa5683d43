"""`config.json` of Qwen3 mixtures of experts, as published, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint.weights import destinations
from engine.errors import ModelError
from engine.models.families import family_of, read_config
from engine.models.qwen3.rope import frequencies
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from engine.text.policy import QWEN3 as POLICY

# As published with Qwen3-30B-A3B.
PUBLISHED: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
    "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": True,
    "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
    "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
ABSENT = object()


def read(folder: Path, **changes: Any) -> Any:
    keys = {name: value for name, value in {**PUBLISHED, **changes}.items() if value is not ABSENT}
    (folder / "config.json").write_text(json.dumps(keys))
    return read_config(folder)


def test_published_models(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config == Qwen3MoeConfig(
        hidden_size=2048, intermediate_size=6144, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
        num_hidden_layers=48, vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False,
        max_position_embeddings=40960, torch_dtype="bfloat16", num_experts=128, num_experts_per_tok=8,
        moe_intermediate_size=768, norm_topk_prob=True,
    )  # fmt: skip
    large = read(
        tmp_path, hidden_size=4096, intermediate_size=12288, max_window_layers=94, moe_intermediate_size=1536,
        num_attention_heads=64, num_hidden_layers=94,
    )  # fmt: skip
    for model, tensors, stacked, parameters in ((config, 18867, 435, 30_532_122_624), (large, 36945, 849, 235_093_634_560)):
        found = destinations(model, "bf16")
        assert len(found) == stacked
        assert sum(len(destination.pieces) for destination in found) == tensors
        assert sum(destination.bytes for destination in found) == 2 * parameters


def test_files_of_transformers_5(tmp_path: Path) -> None:
    config = read(tmp_path)
    newer = read(
        tmp_path, num_experts=ABSENT, num_local_experts=128, torch_dtype=ABSENT, dtype="bfloat16", rope_theta=ABSENT,
        rope_scaling=ABSENT, rope_parameters={"rope_theta": 1e6, "rope_type": "default"},
    )  # fmt: skip
    assert newer == config
    assert read(tmp_path, num_local_experts=128) == config


def test_defaults_are_those_of_transformers(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert read(tmp_path, norm_topk_prob=ABSENT) == replace(config, norm_topk_prob=False)
    assert read(tmp_path, mlp_only_layers=ABSENT, decoder_sparse_step=ABSENT, sliding_window=4096) == config


@pytest.mark.parametrize("every", [None, 1, 2, 3, 6])
@pytest.mark.parametrize("listed", [None, [], [0], [4, 0], [1, 2, 3]])
def test_dense_layers_are_those_of_transformers(tmp_path: Path, listed: list[int] | None, every: int | None) -> None:
    """`Qwen3MoeDecoderLayer` there: a layer has experts if `(layer not in mlp_only_layers) and (num_experts > 0 and (layer + 1)
    % decoder_sparse_step == 0)`."""
    config = read(tmp_path, num_hidden_layers=6, mlp_only_layers=listed, decoder_sparse_step=every)
    sparse = [layer for layer in range(6) if layer not in (listed or []) and (layer + 1) % (every or 1) == 0]
    assert config.dense_layers == ",".join(str(layer) for layer in range(6) if layer not in sparse)
    of_layers = {
        layer: {name.removeprefix(f"model.layers.{layer}.mlp.").removesuffix(".weight") for name in names}
        for layer in range(6)
        if (names := {one.name for one in destinations(config, "bf16") if one.name.startswith(f"model.layers.{layer}.mlp.")})
    }
    experts, dense = {"gate", "experts.gate_up_proj", "experts.down_proj"}, {"gate_up_proj", "down_proj"}
    assert of_layers == {layer: experts if layer in sparse else dense for layer in range(6)}


def test_a_model_of_experts_only_decides_its_bundle_as_before(tmp_path: Path) -> None:
    """A bundle that was packed before states nothing about dense layers, and still is this model's."""
    family = family_of("qwen3_moe")
    mixed = read(tmp_path, mlp_only_layers=[0])
    assert family.deciding(read(tmp_path)) == family.sizes
    assert family.deciding(mixed) == (*family.sizes, "dense_layers", "intermediate_size")
    assert family.numbers_of(read(tmp_path)).keys() == {*family.sizes, "rms_norm_eps"}
    assert family.numbers_of(mixed).items() >= {"dense_layers": "0", "intermediate_size": 6144}.items()


def test_positions_and_tokenizer_are_those_of_dense_models() -> None:
    family = family_of("qwen3_moe")
    assert (family.frequencies, family.tokenizer) == (frequencies, POLICY)


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, ["`architectures[0]`", '"Qwen3MoeForCausalLM"']),
        ({"mlp_only_layers": [0, 48]}, ["`mlp_only_layers` is a list of 2 entries", "different layers from 0 to 47"]),
        ({"mlp_only_layers": [-1]}, ["`mlp_only_layers`", "different layers from 0 to 47"]),
        ({"mlp_only_layers": [3, 0, 3]}, ["`mlp_only_layers` is a list of 3 entries", "different layers"]),
        ({"mlp_only_layers": [True]}, ["`mlp_only_layers`", "different layers"]),
        ({"mlp_only_layers": [1.0]}, ["`mlp_only_layers`", "different layers"]),
        ({"mlp_only_layers": ["1"]}, ["`mlp_only_layers`", "different layers"]),
        ({"mlp_only_layers": [[1]]}, ["`mlp_only_layers`", "different layers"]),
        ({"mlp_only_layers": "none"}, ["`mlp_only_layers`", "different layers"]),
        ({"mlp_only_layers": {"0": 1}}, ["`mlp_only_layers`", "different layers"]),
        ({"mlp_only_layers": [*range(48)]}, ["`mlp_only_layers`", "some layer has experts"]),
        ({"decoder_sparse_step": 49}, ["`decoder_sparse_step` is 49", "some layer has experts"]),
        ({"mlp_only_layers": [23, 47], "decoder_sparse_step": 24}, ["`decoder_sparse_step`", "some layer has experts"]),
        ({"decoder_sparse_step": 0}, ["`decoder_sparse_step` is 0", "from 1"]),
        ({"decoder_sparse_step": -1}, ["`decoder_sparse_step` is -1"]),
        ({"decoder_sparse_step": True}, ["`decoder_sparse_step` is true"]),
        ({"decoder_sparse_step": 2.0}, ["`decoder_sparse_step`", "an integer"]),
        ({"mlp_only_layers": [0], "intermediate_size": ABSENT}, ["`intermediate_size` is absent"]),
        ({"shared_expert_intermediate_size": 512}, ["`shared_expert_intermediate_size` is 512", "shared experts"]),
        ({"num_experts": ABSENT}, ["`num_experts` is absent"]),
        ({"num_experts": 0}, ["`num_experts` is 0", "from 1 to 1024"]),
        ({"num_experts": 1 << 20}, ["`num_experts`", "from 1 to 1024"]),
        ({"num_experts": True}, ["`num_experts` is true"]),
        ({"num_local_experts": 64}, ["`num_local_experts` is 64", "num_experts = 128"]),
        ({"num_experts_per_tok": 129}, ["`num_experts_per_tok` is 129", "from 1 to 128"]),
        ({"num_experts_per_tok": ABSENT}, ["`num_experts_per_tok` is absent"]),
        ({"moe_intermediate_size": ABSENT}, ["`moe_intermediate_size` is absent"]),
        ({"norm_topk_prob": 1}, ["`norm_topk_prob` is 1", "true or false"]),
        ({"use_sliding_window": True, "sliding_window": 4096}, ["`use_sliding_window`", "sliding windows"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["`rope_scaling`", "scaled positions"]),
        ({"attention_bias": True}, ["`attention_bias` is true"]),
        ({"num_key_value_heads": 5}, ["`num_key_value_heads` is 5"]),
    ],
)  # fmt: skip
def test_unsupported_models_are_refused(tmp_path: Path, changes: dict[str, Any], texts: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        read(tmp_path, **changes)
    assert all(text in str(caught.value) for text in texts), str(caught.value)
