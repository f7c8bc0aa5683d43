"""What the configs of all families have: the model's sizes, and its sampling defaults from `generation_config.json`, as Hugging
Face writes them.

The folder of a family reads its `config.json` (`engine.models.families`). A key that would change the computation and that the
engine does not implement is refused, never ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import ClassVar, Final, cast

from engine.checkpoint.folder_file import path_exists
from engine.checkpoint.json_file import read_object
from engine.models.keys import Keys
from tilec.target.dtypes import bf16, f16, f32

CONFIG_FILE: Final = "config.json"
GENERATION_FILE: Final = "generation_config.json"
LIMIT_BYTES: Final = 1 << 20
"""Maximum bytes of either file; real ones have less than a thousand."""

DTYPES: Final = {dtype.numpy: dtype.name for dtype in (bf16, f16, f32)}
"""The engine's name of each `torch_dtype`."""

HIGHEST: Final = {
    "hidden_size": 1 << 20, "intermediate_size": 1 << 20, "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12, "num_hidden_layers": 1 << 12, "vocab_size": 1 << 24, "max_position_embeddings": 1 << 24,
}  # fmt: skip
"""Upper bound of each size: far above any model, and no product of three overflows 64 bits."""
SIZES: Final = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
    "vocab_size",
)  # fmt: skip
"""Numbers of config.json that determine which kernels the step of a dense model needs."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model; a subclass for each family. Attributes are named as in `config.json`; sizes are numbers of elements."""

    model_type: ClassVar[str]
    """The family, as `config.json` names it."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    num_hidden_layers: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    torch_dtype: str

    @property
    def query_size(self) -> int:
        """Elements of a token's queries, `num_attention_heads * head_dim`; differs from `hidden_size` in some models."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Elements of a token's keys in one layer; the same for its values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def dtype(self) -> str:
        """The engine's name of `torch_dtype`: bf16, f16 or f32."""
        return DTYPES[self.torch_dtype]


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Default stop tokens and sampling parameters of a model.

    `eos_token_id` lists every token that ends a generation; `temperature` 0 is greedy; `top_k` 0 and `top_p` 1 disable their
    filters. Defaults are those of `GenerationConfig` in transformers.
    """

    eos_token_id: tuple[int, ...] = ()
    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 50

    @classmethod
    def read(cls, folder: str | PathLike[str], config: ModelConfig) -> GenerationConfig:
        """The defaults of a model folder. If `generation_config.json` is absent or has no `eos_token_id`, that of `config.json`
        is used, as in transformers. ModelError for invalid values."""
        main = Path(folder) / CONFIG_FILE
        path = Path(folder) / GENERATION_FILE
        model_keys = Keys(main, read_object(main, LIMIT_BYTES, "give the folder that holds config.json"))
        present = path_exists(path)
        keys = Keys(path, read_object(path, LIMIT_BYTES, "repair the link") if present else {})
        stop_keys = model_keys if keys.get("eos_token_id") is None else keys
        return cls(
            eos_token_id=stop_keys.tokens("eos_token_id", config.vocab_size),
            do_sample=keys.flag("do_sample", cls().do_sample),
            temperature=keys.number("temperature", 0.0, math.inf, cls().temperature, lowest_included=True),
            top_p=keys.number("top_p", 0.0, 1.0, cls().top_p, highest_included=True),
            top_k=keys.integer("top_k", 0, HIGHEST["vocab_size"], cls().top_k),
        )


def refuse_other_architectures(keys: Keys, expected: str, fix: str) -> None:
    """ModelError unless the keys describe a model of one architecture, in everything that affects the computation and is the
    same for all families."""
    architectures = keys.get("architectures")
    if architectures is not None and architectures != [expected]:
        names = cast("list[object]", architectures) if isinstance(architectures, list) else []
        if len(names) == 1:
            Keys(keys.path, {"architectures[0]": names[0]}).refuse("architectures[0]", f'"{expected}"', fix)
        keys.refuse("architectures", f'["{expected}"]', fix)
    if keys.get("hidden_act") not in (None, "silu"):
        keys.refuse("hidden_act", '"silu"', fix)
    if keys.flag("attention_bias", False):
        keys.refuse("attention_bias", "false: projections with a bias are not supported", fix)


def refuse_experts(keys: Keys, fix: str) -> None:
    """ModelError if the keys describe a mixture of experts, as those of a dense model do not."""
    for key in ("num_experts", "num_local_experts"):
        if keys.get(key) is not None:
            keys.refuse(key, "absent from the config of a dense model", fix)


def check_heads(keys: Keys, config: ModelConfig) -> None:
    """ModelError for numbers of heads that no attention has."""
    if config.num_attention_heads % config.num_key_value_heads:
        keys.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {config.num_attention_heads}")
    if config.head_dim % 2:
        keys.refuse("head_dim", "even: rotary embedding turns halves of a head")


def rope_keys(keys: Keys) -> Keys:
    """The keys that say how positions are scaled: `rope_parameters`, as transformers 5 writes them, or `rope_scaling`.
    ModelError if both do."""
    key = "rope_scaling" if keys.get("rope_parameters") is None else "rope_parameters"
    if key == "rope_parameters" and keys.get("rope_scaling") is not None:
        keys.refuse("rope_scaling", "null: `rope_parameters` says how positions are scaled")
    value = keys.get(key)
    if value is not None and not isinstance(value, dict):
        keys.refuse(key, "an object")
    return Keys(keys.path, cast("dict[str, object]", value or {}), f"{key}.")


def torch_dtype(keys: Keys) -> str:
    """`torch_dtype`, or `dtype` if only that is there."""
    key = "dtype" if keys.get("torch_dtype") is None and keys.get("dtype") is not None else "torch_dtype"
    value = keys.get(key)
    if not isinstance(value, str) or value not in DTYPES:
        keys.refuse(key, "one of " + ", ".join(f'"{name}"' for name in DTYPES))
    return value
