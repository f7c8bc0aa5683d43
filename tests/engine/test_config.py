"""`config.json` and `generation_config.json`: every dense Qwen3 size is read; anything else is refused in one line."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import BundleRefused, DeviceError, EngineError, Interrupted, ModelError, UsageError
from engine.models.config import GenerationConfig
from engine.models.families import read_config
from engine.models.qwen3.config import Qwen3Config

QWEN3_0_6B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 1024,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "max_window_layers": 28,
    "model_type": "qwen3",
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0",
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
# hidden_size, intermediate_size, num_attention_heads, num_hidden_layers, tie_word_embeddings; the rest is the same in all six
SIZES = {
    "0.6B": (1024, 3072, 16, 28, True),
    "1.7B": (2048, 6144, 16, 28, True),
    "4B": (2560, 9728, 32, 36, True),
    "8B": (4096, 12288, 32, 36, False),
    "14B": (5120, 17408, 40, 40, False),
    "32B": (5120, 25600, 64, 64, False),
}
ABSENT = object()


def write_config(folder: Path, name: str = "config.json", **changes: Any) -> Path:
    """The folder with a config of 0.6B and the given changes."""
    keys = {**QWEN3_0_6B, **changes}
    (folder / name).write_text(json.dumps({key: value for key, value in keys.items() if value is not ABSENT}))
    return folder


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        read_config(folder)
    line = str(caught.value)
    assert "\n" not in line and line.isprintable()
    assert line.startswith(str(folder / "config.json"))
    assert caught.value.exit_code == 3 and caught.value.fix
    return line


@pytest.mark.parametrize("size", SIZES)
def test_every_dense_size_is_read(tmp_path: Path, size: str) -> None:
    hidden, intermediate, heads, layers, tied = SIZES[size]
    write_config(
        tmp_path, hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads, num_hidden_layers=layers,
        max_window_layers=layers, tie_word_embeddings=tied,
    )  # fmt: skip
    config = read_config(tmp_path)
    assert config == Qwen3Config(
        hidden_size=hidden, intermediate_size=intermediate, num_attention_heads=heads, num_key_value_heads=8, head_dim=128,
        num_hidden_layers=layers, vocab_size=151936, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=tied,
        max_position_embeddings=40960, torch_dtype="bfloat16",
    )  # fmt: skip
    assert (config.query_size, config.key_value_size, config.dtype) == (heads * 128, 1024, "bf16")


def test_the_spelling_of_transformers_5_is_read(tmp_path: Path) -> None:
    write_config(
        tmp_path, torch_dtype=ABSENT, dtype="float16", rope_theta=ABSENT, rope_scaling=ABSENT,
        rope_parameters={"rope_theta": 5e6, "rope_type": "default"}, layer_types=["full_attention"] * 28,
    )  # fmt: skip
    config = read_config(tmp_path)
    assert (config.dtype, config.rope_theta) == ("f16", 5e6)


def test_a_window_that_no_layer_uses_is_no_window(tmp_path: Path) -> None:
    plain = read_config(write_config(tmp_path))
    assert read_config(write_config(tmp_path, sliding_window=4096)) == plain
    assert read_config(write_config(tmp_path, sliding_window=4096, use_sliding_window=True)) == plain  # from layer 28 of 28 on
    assert read_config(write_config(tmp_path, tie_word_embeddings=ABSENT)) == replace(plain, tie_word_embeddings=False)


@pytest.mark.parametrize(
    ("changes", "expected_texts"),
    [
        ({"model_type": "mistral"}, ["`model_type` is \"mistral\"", "Qwen3"]),
        ({"model_type": "qwen2"}, ["`model_type` is \"qwen2\""]),
        ({"model_type": ABSENT}, ["`model_type` is absent"]),
        ({"model_type": "qwen3_moe", "architectures": ["Qwen3ForCausalLM"]}, ["`architectures[0]`", "Qwen3MoeForCausalLM"]),
        ({"num_experts": 128}, ["`num_experts` is 128", "a dense model"]),
        ({"num_local_experts": 8}, ["`num_local_experts` is 8", "a dense model"]),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, ["Qwen3MoeForCausalLM", "Qwen3ForCausalLM"]),
        ({"architectures": "Qwen3ForCausalLM"}, ["`architectures`"]),
        ({"architectures": ["a", "b"]}, ["a list of 2 entries"]),
        ({"hidden_act": "gelu"}, ["`hidden_act` is \"gelu\"", '"silu"']),
        ({"attention_bias": True}, ["`attention_bias` is true"]),
        ({"attention_bias": 0}, ["`attention_bias` is 0", "true or false"]),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, ["`rope_scaling`", "scaled positions"]),
        ({"rope_parameters": {"rope_type": "yarn"}}, ["`rope_parameters.rope_type` is \"yarn\""]),
        ({"rope_parameters": 3}, ["`rope_parameters` is 3"]),
        ({"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 14}, ["`use_sliding_window`", "from 14"]),
        ({"layer_types": ["full_attention"] * 27 + ["sliding_attention"]}, ["`layer_types[27]`", "sliding"]),
        ({"layer_types": ["full_attention"]}, ["`layer_types`", "28 entries"]),
        ({"torch_dtype": "float8_e4m3fn"}, ["`torch_dtype`", "bfloat16"]),
        ({"torch_dtype": 3}, ["`torch_dtype` is 3"]),
        ({"torch_dtype": ABSENT}, ["`torch_dtype` is absent"]),
        ({"dtype": "int8", "torch_dtype": ABSENT}, ["`dtype` is \"int8\""]),
        ({"tie_word_embeddings": "yes"}, ["`tie_word_embeddings` is \"yes\"", "true or false"]),
        ({"hidden_size": ABSENT}, ["`hidden_size` is absent"]),
        ({"hidden_size": "1024"}, ["`hidden_size` is \"1024\"", "an integer from 1"]),
        ({"hidden_size": True}, ["`hidden_size` is true"]),
        ({"hidden_size": 1024.0}, ["`hidden_size` is 1024.0"]),
        ({"intermediate_size": 0}, ["`intermediate_size` is 0"]),
        ({"num_hidden_layers": -1}, ["`num_hidden_layers` is -1"]),
        ({"vocab_size": 10**1000}, ["`vocab_size` is an integer of 3322 bits"]),
        ({"max_position_embeddings": [40960]}, ["`max_position_embeddings` is a list of 1 entries"]),
        ({"num_key_value_heads": 5}, ["`num_key_value_heads` is 5", "num_attention_heads = 16"]),
        ({"head_dim": 127}, ["`head_dim` is 127", "even"]),
        ({"head_dim": ABSENT}, ["`head_dim` is absent"]),
        ({"rms_norm_eps": 0.0}, ["`rms_norm_eps` is 0.0", "above 0"]),
        ({"rms_norm_eps": "1e-6"}, ["`rms_norm_eps` is \"1e-6\""]),
        ({"rope_theta": -1}, ["`rope_theta` is -1"]),
        ({"rope_theta": 10**400}, ["`rope_theta` is an integer of"]),
        ({"rope_theta": ABSENT}, ["`rope_theta` is absent"]),
        ({"hidden_act": "x\n\x1b[31m" * 40}, ["`hidden_act`", "..."]),
    ],
)  # fmt: skip
def test_unsupported_models_are_refused(tmp_path: Path, changes: dict[str, Any], expected_texts: list[str]) -> None:
    line = refusal(write_config(tmp_path, **changes))
    for part in expected_texts:
        assert part in line, line


@pytest.mark.parametrize(
    ("content", "expected_texts"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "a list of 0 entries, not a JSON object"),
        (b"\xff\xfe", "not valid JSON"),
        (b'{"rms_norm_eps": NaN}', "NaN is not a JSON number"),
        (b'{"hidden_size": 1, "hidden_size": 2}', 'the key "hidden_size" is there twice'),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "not valid JSON"),
        (b" " * (1 << 20) + b"{}", "over 1048576 bytes"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, expected_texts: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    assert expected_texts in refusal(tmp_path)


def test_absent_and_strange_files_are_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "config.json")
    assert "not a regular file" in refusal(tmp_path)  # reading a pipe would hang
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    assert "not a regular file" in refusal(tmp_path)


def test_generation_config_sets_stop_tokens_and_sampling(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path))
    assert GenerationConfig.read(tmp_path, config) == GenerationConfig(eos_token_id=(151645,))  # of config.json
    write_config(tmp_path, eos_token_id=ABSENT)
    assert GenerationConfig.read(tmp_path, config) == GenerationConfig(eos_token_id=())
    official = {"bos_token_id": 151643, "do_sample": True, "eos_token_id": [151645, 151643], "pad_token_id": 151643}
    sampling = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "transformers_version": "4.51.0"}
    (tmp_path / "generation_config.json").write_text(json.dumps(official | sampling))
    found = GenerationConfig.read(tmp_path, config)
    assert found == GenerationConfig(eos_token_id=(151645, 151643), do_sample=True, temperature=0.6, top_p=0.95, top_k=20)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 7, "temperature": 0, "top_p": 1, "top_k": 0}')
    found = GenerationConfig.read(tmp_path, config)
    assert found == GenerationConfig(eos_token_id=(7,), temperature=0.0, top_p=1.0, top_k=0)


@pytest.mark.parametrize(
    ("content", "expected_texts"),
    [
        ('{"eos_token_id": 151936}', "below vocab_size = 151936"),
        ('{"eos_token_id": [1, -1]}', "`eos_token_id` is a list of 2 entries"),
        ('{"eos_token_id": true}', "`eos_token_id` is true"),
        ('{"temperature": -0.1}', "`temperature` is -0.1, and must be a number at least 0 and finite"),
        ('{"temperature": 1e999}', "`temperature` is Infinity"),
        ('{"top_p": 0}', "`top_p` is 0, and must be a number above 0 and at most 1"),
        ('{"top_p": 1.5}', "`top_p` is 1.5"),
        ('{"top_k": -1}', "`top_k` is -1"),
        ('{"top_k": 2.5}', "`top_k` is 2.5"),
        ('{"do_sample": 1}', "`do_sample` is 1"),
        ("{", "not valid JSON"),
    ],
)
def test_senseless_generation_configs_are_refused(tmp_path: Path, content: str, expected_texts: str) -> None:
    config = read_config(write_config(tmp_path))
    (tmp_path / "generation_config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        GenerationConfig.read(tmp_path, config)
    assert expected_texts in str(caught.value) and "generation_config.json" in str(caught.value)


def test_a_dangling_link_is_not_an_absent_generation_config(tmp_path: Path) -> None:
    config = read_config(write_config(tmp_path))
    (tmp_path / "generation_config.json").symlink_to(tmp_path / "blob")
    with pytest.raises(ModelError, match="no such file"):
        GenerationConfig.read(tmp_path, config)


def test_errors_are_one_line_with_a_status_each() -> None:
    kinds = (UsageError, ModelError, BundleRefused, DeviceError)
    assert [kind("x").exit_code for kind in kinds] + [Interrupted().exit_code] == [2, 3, 4, 5, 130]
    error = ModelError("tensor `a\nb` is \x1b[31mred", where="file", fix="fix it")
    assert str(error) == "file: tensor `a\\nb` is \\x1b[31mred; fix it"
    assert str(Interrupted()) == "interrupted"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from([*sorted(QWEN3_0_6B), "rope_parameters", "layer_types", "dtype"]), JSON, max_size=3))
def test_no_value_of_any_key_is_an_internal_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_config(tmp_path, **changes)
    try:
        config = read_config(tmp_path)
        GenerationConfig.read(tmp_path, config)
    except EngineError as error:
        assert str(error).isprintable()
