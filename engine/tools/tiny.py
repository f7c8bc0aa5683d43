"""`python -m engine.tiny FOLDER`: writes a tiny model of random weights, with all files in Hugging Face's formats.

It is for trying the engine without a GPU or a model: `python -m engine --backend interpreter` generates text with it in
seconds, which is nonsense of course. Its sizes are the smallest that the kernels support: eight key-value heads, and a
multiple of eight query heads, because a prefill block of `qk_norm_rope_kv`, or of `rope_kv`, processes eight heads of one
token. In a mixture of experts it processes four, so that two ranks can share it. Layers of a mixture may be dense. The
vocabulary is a multiple of eight, as that of published models is: the tokens after the tokenizer's last one have no text.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.errors import EngineError, UsageError
from engine.models.config import CONFIG_FILE, GENERATION_FILE, ModelConfig
from engine.models.families import family_of
from engine.models.keys import Keys
from engine.text.policy import TOKENIZER_FILE
from engine.text.tokenizer import TEMPLATE_FILE
from engine.tools.dummy_weights import dummy_weights
from tilec.untrusted.output_tree import write_tree

VOCABULARY: Final = 512
"""Maximum number of tokens: the 256 bytes, merges learned from `WORDS`, and the special tokens."""

WORDS: Final = """the sky is blue because light of short waves is scattered more than light of long waves by the air above us
a kernel is the work of one block on tiles and a proof says that no two blocks meet in one element of a tensor
what is the answer to this question and why does the wheel of the water mill turn when there is no wind at all"""
"""Training text of the tokenizer."""

SIZES: Final[Mapping[str, Any]] = {
    "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 16,
    "num_hidden_layers": 2, "torch_dtype": "bfloat16",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """The tiny model of a family: keys of config.json in addition to `SIZES`, its control tokens, of which the last ends an
    answer, and its conversation format, without tools and thinking."""

    keys: Mapping[str, Any]
    special: tuple[str, ...]
    template: str


QWEN3_TOKENS: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
QWEN3_TEMPLATE: Final = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

KINDS: Final = {
    "qwen3": Kind(
        {"architectures": ["Qwen3ForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960},
        QWEN3_TOKENS, QWEN3_TEMPLATE,
    ),
    "qwen3_moe": Kind(
        {
            "architectures": ["Qwen3MoeForCausalLM"], "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960,
            "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 128, "norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1,
        },
        QWEN3_TOKENS, QWEN3_TEMPLATE,
    ),
    "llama": Kind(
        {
            "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-5, "rope_theta": 5e5, "max_position_embeddings": 4096,
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
        },
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        """{{- bos_token }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    ),
}  # fmt: skip
"""By family. The positions of Llama are scaled, and its frequencies have all three kinds: kept, interpolated, divided."""

MOST_HIDDEN: Final = 1024
"""Largest hidden size: with more, the model is not tiny."""

MOST_LAYERS: Final = 16
"""Most layers, for the same reason."""

SPREAD: Final = 8
"""Standard deviation of weights relative to `dummy_weights`, so that the next token depends on more than the last one."""


def write_tiny_model(
    folder: str | PathLike[str], *, seed: int = 0, tied: bool = False, family: str = "qwen3",
    hidden_size: int = SIZES["hidden_size"], layers: int | None = None, dense_layers: Sequence[int] = (),
) -> ModelConfig:  # fmt: skip
    """Write config.json, generation_config.json, tokenizer.json, chat_template.jinja and model.safetensors (bf16); returns the
    config.

    `tied` makes the LM head the embedding table; `family` is one of `KINDS`. With a `hidden_size` that is a multiple of 128
    all linear layers have whole blocks of 128 x 128, as kernels for FP8 weights need. `layers`: how many there are, None
    for two. `dense_layers`: those of a mixture of experts that have none. The same arguments give the same bytes.
    UsageError for a folder that is not empty or cannot be created, a negative seed, a size that is no multiple of 64, and
    layers that are not some of a mixture's.
    """
    if hidden_size < 64 or hidden_size % 64 or hidden_size > MOST_HIDDEN:
        raise UsageError(f"the hidden size is {hidden_size}, and must be a multiple of 64 from 64 to {MOST_HIDDEN}")
    target, kind = Path(folder), KINDS[family]
    tokenizer = _tokenizer(kind.special)
    stop_token = tokenizer.token_to_id(kind.special[-1])
    keys: dict[str, object] = {
        **SIZES, **kind.keys, **_layers(family, layers, {*dense_layers}), "hidden_size": hidden_size, "model_type": family,
        "hidden_act": "silu", "attention_bias": False, "tie_word_embeddings": tied,
        "vocab_size": -(-tokenizer.get_vocab_size() // 8) * 8, "eos_token_id": stop_token,
    }  # fmt: skip
    config = family_of(family).config(Keys(target / CONFIG_FILE, keys))
    sampling = {"temperature": 0.7, "top_k": 20, "top_p": 0.9}
    files = {
        CONFIG_FILE: _json(keys),
        GENERATION_FILE: _json({"eos_token_id": [stop_token], "do_sample": False, **sampling}),
        TOKENIZER_FILE: tokenizer.to_str(pretty=True).encode(), TEMPLATE_FILE: kind.template.encode(),
        "model.safetensors": save(dict(_weights(config, seed)), {"format": "pt"}),
    }  # fmt: skip
    try:
        if os.path.isdir(target) and any(target.iterdir()):
            raise UsageError("the folder is not empty", where=target, fix="name a new one")
        write_tree(target, files)
    except OSError as error:
        what = f"no model can be written there: {error.strerror or error}"
        raise UsageError(what, where=target, fix="name a new folder") from None
    return config


def _layers(family: str, layers: int | None, dense: Set[int]) -> dict[str, object]:
    """The keys that say how many layers there are, and which of a mixture have no experts."""
    keys = {**SIZES, **KINDS[family].keys}
    count = keys["num_hidden_layers"] if layers is None else layers
    if not 1 <= count <= MOST_LAYERS:
        raise UsageError(f"{count} layers are asked for, and a tiny model has 1 to {MOST_LAYERS}")
    if dense and "mlp_only_layers" not in keys:
        raise UsageError(f"all layers of `{family}` are dense", fix="name a mixture of experts, or no dense layers")
    if dense - {*range(count)} or len(dense) == count:
        what = f"dense layers are some of the layers 0 to {count - 1}, and not all"
        raise UsageError(what, fix="name others, or more layers")
    found: dict[str, object] = {"num_hidden_layers": count}
    return found | {"mlp_only_layers": sorted(dense)} if dense else found


def _tokenizer(special: Sequence[str]) -> Any:
    """A byte-level BPE that splits text as GPT-2 does; any text round-trips."""
    tokenizer: Any = Tokenizer(models.BPE())  # the library's methods are not fully typed
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(special), initial_alphabet=alphabet, min_frequency=1, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS.splitlines(), trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in special])
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


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights.")
@click.option("--tied", is_flag=True, help="Let the head be the embedding table.")
@click.option("--family", type=click.Choice([*KINDS]), default="qwen3", show_default=True, help="Family of the model.")
@click.option(
    "--hidden-size", default=SIZES["hidden_size"], show_default=True,
    help="A multiple of 64; with multiples of 128, kernels for FP8 weights run what `engine.quantize` makes of the model.",
)  # fmt: skip
@click.option("--layers", type=int, help=f"Number of layers; {SIZES['num_hidden_layers']} without it.")
@click.option(
    "--dense-layer", "dense_layers", type=int, multiple=True,
    help="A layer of a mixture that has no experts; may be given several times.",
)  # fmt: skip
def command(
    folder: str, seed: int, tied: bool, family: str, hidden_size: int, layers: int | None, dense_layers: tuple[int, ...]
) -> None:
    """Write a tiny model of random weights into a new FOLDER."""
    try:
        write_tiny_model(
            folder, seed=seed, tied=tied, family=family, hidden_size=hidden_size, layers=layers, dense_layers=dense_layers
        )
    except EngineError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(error.exit_code)
