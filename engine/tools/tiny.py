"""`python -m engine.tiny FOLDER`: writes a tiny Qwen3 model of random weights, with all files in Hugging Face's formats.

It is for trying the engine without a GPU or a model: `python -m engine --backend interpreter` generates text with it in
seconds, which is nonsense of course. Its sizes are the smallest that Qwen3's kernels support: eight key-value heads, and a
multiple of eight query heads, because a prefill block of `qk_norm_rope_kv` processes eight heads of one token.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.errors import EngineError, UsageError
from engine.models.config import CONFIG_FILE, GENERATION_FILE, ModelConfig
from engine.models.qwen3.config import Qwen3Config
from engine.text.tokenizer import TEMPLATE_FILE, TOKENIZER_FILE
from engine.tools.dummy_weights import dummy_weights
from tilec.untrusted.output_tree import write_tree

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VOCABULARY: Final = 512
"""Maximum number of tokens: the 256 bytes, merges learned from `WORDS`, and the special tokens."""

WORDS: Final = """the sky is blue because light of short waves is scattered more than light of long waves by the air above us
a kernel is the work of one block on tiles and a proof says that no two blocks meet in one element of a tensor
what is the answer to this question and why does the wheel of the water mill turn when there is no wind at all"""
"""Training text of the tokenizer."""

TEMPLATE: Final = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""Qwen's conversation format, without tools and thinking."""

SPREAD: Final = 8
"""Standard deviation of weights relative to `dummy_weights`, so that the next token depends on more than the last one."""


def write_tiny_model(folder: str | PathLike[str], *, seed: int = 0, tied: bool = False) -> Qwen3Config:
    """Write config.json, generation_config.json, tokenizer.json, chat_template.jinja and model.safetensors (bf16); returns the
    config.

    `tied` makes the LM head the embedding table. The same arguments give the same bytes. UsageError for a folder that is not
    empty or cannot be created, and for a negative seed.
    """
    target = Path(folder)
    tokenizer = _tokenizer()
    config = Qwen3Config(
        hidden_size=64, intermediate_size=128, num_attention_heads=16, num_key_value_heads=8, head_dim=16, num_hidden_layers=2,
        vocab_size=tokenizer.get_vocab_size(), rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=tied,
        max_position_embeddings=40960, torch_dtype="bfloat16",
    )  # fmt: skip
    weights = _weights(config, seed)
    try:
        if os.path.isdir(target) and any(target.iterdir()):
            raise UsageError("the folder is not empty", where=target, fix="name a new one")
        stop_token = tokenizer.token_to_id("<|im_end|>")
        other = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False,
            "eos_token_id": stop_token,
        }  # fmt: skip
        sampling = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
        files = {
            CONFIG_FILE: _json(other | asdict(config)),
            GENERATION_FILE: _json({"eos_token_id": [stop_token], "do_sample": False, **sampling}),
            TOKENIZER_FILE: tokenizer.to_str(pretty=True).encode(), TEMPLATE_FILE: TEMPLATE.encode(),
            "model.safetensors": _safetensors(dict(weights)),
        }  # fmt: skip
        write_tree(target, files)
    except OSError as error:
        what = f"no model can be written there: {error.strerror or error}"
        raise UsageError(what, where=target, fix="name a new folder") from None
    return config


def _tokenizer() -> Any:
    """A byte-level BPE that splits text as GPT-2 does; any text round-trips."""
    tokenizer: Any = Tokenizer(models.BPE())  # the library's methods are not fully typed
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL), initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS.splitlines(), trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    return tokenizer


def _weights(config: ModelConfig, seed: int) -> Iterator[tuple[str, NDArray[Any]]]:
    """Tensors by Hugging Face's names: norms as in `dummy_weights`, all others scaled by `SPREAD`."""
    base = dummy_weights(config, "bf16", seed)
    return (
        (name, tensor if tensor.ndim == 1 else (tensor.astype(np.float32) * SPREAD).astype(tensor.dtype))
        for name in base.tensor_names
        for tensor in [base.tensor(name)]
    )


def _json(keys: dict[str, Any]) -> bytes:
    return (json.dumps(keys, indent=2) + "\n").encode()


def _safetensors(tensors: dict[str, NDArray[Any]]) -> bytes:
    """A safetensors file of bf16 tensors, in order (https://github.com/huggingface/safetensors, section "Format")."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    return len(text).to_bytes(8, "little") + text + data


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
@click.option("--tied", is_flag=True, help="Let the head be the embedding table.")
def command(folder: str, seed: int, tied: bool) -> None:
    """Write a tiny Qwen3 model of random weights into a new FOLDER."""
    try:
        write_tiny_model(folder, seed=seed, tied=tied)
    except EngineError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
