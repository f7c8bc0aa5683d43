"""Llama 3, the second family: its config, positions and tokenizer, and logits of a tiny model against float64."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dense_reference
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from one_sequence import OneSequence

from engine.backends.interpreter import InterpreterBackend
from engine.checkpoint.weights import WeightPlan
from engine.errors import ModelError
from engine.models.families import family_of, read_config
from engine.models.llama.config import LlamaConfig, RopeScaling
from engine.models.llama.rope import frequencies
from engine.text.policy import LLAMA3 as POLICY
from engine.text.tokenizer import Text
from engine.tools.tiny import write_tiny_model

IDS = np.random.default_rng(6).integers(0, 400, 80).tolist()
TOLERANCE = {"bf16": 0.06, "f16": 0.004}
"""Upper bound of the root mean square error, over the deviation of the logits: twice the measured values (0.029 and 0.0019)."""
PUBLISHED: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048,
    "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 128256,
}  # fmt: skip
"""config.json of Llama 3.2 1B."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama") / "model"
    write_tiny_model(path, family="llama")
    return path


def read(folder: Path, **changes: Any) -> LlamaConfig:
    """The config of the published file with other keys; None leaves a key out."""
    keys = {key: value for key, value in {**PUBLISHED, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(keys))
    config = read_config(folder)
    assert isinstance(config, LlamaConfig)
    return config


def test_a_published_config(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.rope_scaling == RopeScaling(32.0, 1.0, 4.0, 8192)
    assert (config.head_dim, config.query_size, config.key_value_size, config.dtype) == (64, 2048, 512, "bf16")
    assert read(tmp_path, head_dim=None) == config  # files of Llama 3.1 have none
    assert read(tmp_path, num_key_value_heads=None) == replace(config, num_key_value_heads=32)
    assert read(tmp_path, rope_scaling=None).rope_scaling is None  # Llama 3
    parameters = {**PUBLISHED["rope_scaling"], "rope_theta": 500000.0}
    assert read(tmp_path, rope_scaling=None, rope_theta=None, rope_parameters=parameters) == config  # of transformers 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}},
            r'`rope_scaling.rope_type` is "yarn", and must be "default"',
        ),
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, r'`rope_scaling.type` is "linear"'),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "`rope_scaling.low_freq_factor` is absent"),
        ({"rope_scaling": {**PUBLISHED["rope_scaling"], "high_freq_factor": 1.0}}, "high_freq_factor` is 1.0, and must be"),
        ({"rope_scaling": {**PUBLISHED["rope_scaling"], "factor": 0.5}}, "factor` is 0.5, and must be a number at least 1"),
        ({"rope_scaling": 8}, "`rope_scaling` is 8, and must be an object"),
        ({"rope_scaling": {"factor": 8.0}}, "`rope_scaling.factor` is 8.0, and must be absent"),
        ({"rope_scaling": {"rope_type": "default", "factor": 8.0}}, '"default" have no such number'),
        ({"rope_scaling": {**PUBLISHED["rope_scaling"], "attention_factor": 2.0}}, "`rope_scaling.attention_factor` is 2.0"),
        ({"rope_scaling": {**PUBLISHED["rope_scaling"], "type": "yarn"}}, '`rope_scaling.type` is "yarn", and must be absent'),
        ({"rope_parameters": {"rope_theta": 5e5}}, "`rope_scaling` is an object of 5 entries, and must be null"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor` is 0.5, and must be absent"),
        ({"head_dim": None, "hidden_size": 2056}, "`num_attention_heads` is 32, and must be a divisor of hidden_size = 2056"),
        ({"mlp_bias": True}, "`mlp_bias` is true, and must be false"),
        ({"attention_bias": True}, "`attention_bias` is true"),
        ({"architectures": ["MistralForCausalLM"]}, r'must be "LlamaForCausalLM"; give a folder of a dense Llama 3 model'),
        ({"num_key_value_heads": 5}, "`num_key_value_heads` is 5, and must be a divisor"),
        ({"head_dim": 63}, "`head_dim` is 63, and must be even"),
    ],
)
def test_what_would_compute_something_else_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        read(tmp_path, **changes)


@given(
    st.sampled_from([16, 64, 128]), st.sampled_from([1e4, 5e5]), st.floats(1, 64), st.floats(0.5, 4), st.floats(0.5, 8),
    st.sampled_from([64, 8192, 131072]),
)  # fmt: skip
def test_frequencies_are_those_of_the_definition(
    head_dim: int, theta: float, factor: float, low: float, width: float, context: int
) -> None:
    config = LlamaConfig(
        hidden_size=64, intermediate_size=64, num_attention_heads=8, num_key_value_heads=8, head_dim=head_dim,
        num_hidden_layers=1, vocab_size=64, rms_norm_eps=1e-5, rope_theta=theta, tie_word_embeddings=False,
        max_position_embeddings=64, torch_dtype="bfloat16", rope_scaling=RopeScaling(factor, low, low + width, context),
    )  # fmt: skip
    np.testing.assert_allclose(frequencies(config), dense_reference.frequencies(config), rtol=2e-5)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_logits_of_a_prompt_and_of_decode_steps(folder: Path, dtype: str) -> None:
    config = read_config(folder)
    assert isinstance(config, LlamaConfig)
    weights = WeightPlan.for_model(config, folder, dtype, convert=True)
    backend = OneSequence(InterpreterBackend())
    backend.load(config, weights, 128, dtype)
    tensors = {name: weights.tensor(name) for name in weights.tensor_names}
    expected = dense_reference.logits(config, tensors, IDS)
    found = [backend.prompt_logits(IDS[:61]), *(backend.decode_logits(token) for token in IDS[61:67])]
    for logits, right in zip(found, expected[60:], strict=False):
        assert np.sqrt(np.mean((logits - right) ** 2)) < TOLERANCE[dtype] * right.std()
    plain = dense_reference.logits(replace(config, rope_scaling=None), tensors, IDS)
    assert np.sqrt(np.mean((plain - expected)[60:] ** 2)) > 5 * TOLERANCE[dtype] * expected.std()  # a wrong table would be seen


def test_every_text_begins_with_the_token_of_the_family(folder: Path) -> None:
    text = Text.read(folder, family_of("llama").tokenizer)
    begin = text.tokenizer.token_to_id(POLICY.begin)
    assert text.raw("the sky") == [begin, *text.encode("the sky")]
    ids = text.chat([{"role": "user", "content": "is <|eot_id|> blue"}])
    assert ids[0] == begin and ids.count(begin) == 1
    assert ids.count(text.tokenizer.token_to_id("<|eot_id|>")) == 1  # that of the message is text
    assert text.decode(ids).startswith("user\n\nis <|eot_id|> blue")


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}",
        "\nhi {{ bos_token }}",
        "\n\n x",
        "  {% if true %}x{% endif %}{{ bos_token }}",
        "{%- if 1 %}x{% endif %}",
    ],
)
def test_a_template_begins_as_it_is_written(folder: Path, tmp_path: Path, source: str) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text(source)
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)  # as in transformers
    expected = jinja.from_string(source).render(bos_token=POLICY.begin)
    text = Text.read(tmp_path, POLICY)
    assert text.chat([{"role": "user", "content": "x"}]) == text.encode(expected)


def test_a_tokenizer_without_that_token_is_refused(folder: Path, tmp_path: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] != POLICY.begin]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match=r"has no `<\|begin_of_text\|>`, which every text of a Llama 3 model begins with"):
        Text.read(tmp_path, POLICY)


@pytest.mark.parametrize("pieces", [["A", "A"], [], ["B"], ["<|begin_of_text|>", "A", "A"], ["A", "<|begin_of_text|>"]])
@pytest.mark.parametrize("nested", [True, False])
def test_a_post_processor_that_changes_the_text_is_refused(
    folder: Path, tmp_path: Path, pieces: list[str], nested: bool
) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    number = next(token["id"] for token in data["added_tokens"] if token["content"] == POLICY.begin)
    named = [{"Sequence" if len(name) == 1 else "SpecialToken": {"id": name, "type_id": 0}} for name in pieces]
    template = {
        "type": "TemplateProcessing", "single": named, "pair": [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"],
        "special_tokens": {POLICY.begin: {"id": POLICY.begin, "ids": [number], "tokens": [POLICY.begin]}},
    }  # fmt: skip
    data["post_processor"] = {"type": "Sequence", "processors": [BYTES, template]} if nested else template
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match=r"its post_processor is an object of . entries, and must be that of Llama 3"):
        Text.read(tmp_path, POLICY)


SPLIT = {"type": "Split", "pattern": {"Regex": POLICY.split}, "behavior": "Isolated", "invert": False}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}


def test_the_components_of_a_published_tokenizer_are_taken(folder: Path, tmp_path: Path) -> None:
    data = json.loads((folder / "tokenizer.json").read_text())
    number = next(token["id"] for token in data["added_tokens"] if token["content"] == POLICY.begin)
    begin = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": POLICY.begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {POLICY.begin: {"id": POLICY.begin, "ids": [number], "tokens": [POLICY.begin]}},
    }  # fmt: skip
    data["model"]["ignore_merges"] = True
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [SPLIT, BYTES]}
    data["post_processor"] = {"type": "Sequence", "processors": [BYTES, begin]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    text = Text.read(tmp_path, POLICY)
    assert text.raw("the year 12345")[0] == number
    assert text.decode(text.raw("the year 12345")) == "the year 12345"
