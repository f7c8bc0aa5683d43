"""The model's sizes from `config.json` and its sampling defaults from `generation_config.json`, as Hugging Face writes them.

Keys and defaults are those of `Qwen3Config` in transformers. Files written by transformers 5 are read too: they have `dtype`
for `torch_dtype`, and `rope_parameters` for `rope_theta` and `rope_scaling`. A key that would change the computation and that
the engine does not implement is refused, never ignored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Final, NoReturn, cast

from engine.checkpoint.folder_file import path_exists
from engine.checkpoint.json_file import read_object, show
from engine.errors import ModelError

CONFIG_FILE: Final = "config.json"
GENERATION_FILE: Final = "generation_config.json"
LIMIT_BYTES: Final = 1 << 20
"""Maximum bytes of either file; real ones have less than a thousand."""

DTYPES: Final = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
"""The engine's name of each `torch_dtype`."""

HIGHEST: Final = {
    "hidden_size": 1 << 20, "intermediate_size": 1 << 20, "num_attention_heads": 1 << 12, "num_key_value_heads": 1 << 12,
    "head_dim": 1 << 12, "num_hidden_layers": 1 << 12, "vocab_size": 1 << 24, "max_position_embeddings": 1 << 24,
}  # fmt: skip
"""Upper bound of each size: far above any model, and no product of three overflows 64 bits."""

OTHER_MODEL: Final = "give a folder of a dense Qwen3 model (0.6B to 32B)"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A dense Qwen3 model. Attributes are named as in `config.json`; sizes are numbers of elements."""

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

    @classmethod
    def read(cls, folder: str | PathLike[str]) -> ModelConfig:
        """The config of a model folder; ModelError if it is absent, damaged or of an unsupported model."""
        path = Path(folder) / CONFIG_FILE
        absent = "give the folder that holds config.json, the tokenizer and the safetensors files"
        keys = _Keys(path, read_object(path, LIMIT_BYTES, absent))
        _refuse_other_models(keys)
        rope = _rope(keys)
        config = cls(
            **{name: keys.integer(name, 1, highest) for name, highest in HIGHEST.items()},
            rms_norm_eps=keys.number("rms_norm_eps", 0.0, 1.0),
            rope_theta=rope.number("rope_theta", 0.0, math.inf),
            tie_word_embeddings=keys.flag("tie_word_embeddings", False),
            torch_dtype=_torch_dtype(keys),
        )
        _refuse_sliding_window(keys, config.num_hidden_layers)
        if config.num_attention_heads % config.num_key_value_heads:
            keys.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {config.num_attention_heads}")
        if config.head_dim % 2:
            keys.refuse("head_dim", "even: rotary embedding turns halves of a head")
        return config


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
        model_keys = _Keys(main, read_object(main, LIMIT_BYTES, "give the folder that holds config.json"))
        present = path_exists(path)
        keys = _Keys(path, read_object(path, LIMIT_BYTES, "mend the link") if present else {})
        stop_keys = model_keys if keys.get("eos_token_id") is None else keys
        return cls(
            eos_token_id=stop_keys.tokens("eos_token_id", config.vocab_size),
            do_sample=keys.flag("do_sample", cls().do_sample),
            temperature=keys.number("temperature", 0.0, math.inf, cls().temperature, lowest_included=True),
            top_p=keys.number("top_p", 0.0, 1.0, cls().top_p, highest_included=True),
            top_k=keys.integer("top_k", 0, HIGHEST["vocab_size"], cls().top_k),
        )


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of a JSON object, with the file for messages. A key that is `null` counts as absent, as in transformers."""

    path: Path
    values: dict[str, object]
    prefix: str = ""

    def get(self, key: str) -> object:
        return self.values.get(key)

    def refuse(self, key: str, expected: str, fix: str = "") -> NoReturn:
        what = "is absent" if key not in self.values else f"is {show(self.values[key])}"
        fix = fix or "mend it, or download the file again"
        raise ModelError(f"`{self.prefix}{key}` {what}, and must be {expected}", where=self.path, fix=fix)

    def integer(self, key: str, lowest: int, highest: int, default: int | None = None) -> int:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if type(value) is not int or not lowest <= value <= highest:  # `isinstance` would accept `True`
            self.refuse(key, f"an integer from {lowest} to {highest}")
        return value

    def number(
        self,
        key: str,
        lowest: float,
        highest: float,
        default: float | None = None,
        *,
        lowest_included: bool = False,
        highest_included: bool = False,
    ) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        number = float(value) if type(value) is float or (type(value) is int and value.bit_length() < 1000) else math.nan
        inside = lowest < number < highest or (lowest_included and number == lowest) or (highest_included and number == highest)
        if not inside:
            low = f"at least {lowest:g}" if lowest_included else f"above {lowest:g}"
            high = "finite" if highest == math.inf else f"{'at most' if highest_included else 'below'} {highest:g}"
            self.refuse(key, f"a number {low} and {high}")
        return number

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(key, "true or false")
        return value

    def tokens(self, key: str, vocab_size: int) -> tuple[int, ...]:
        value = self.get(key)
        if value is None:
            return ()
        tokens: list[object] = cast("list[object]", value) if isinstance(value, list) else [value]
        numbers = [token for token in tokens if type(token) is int and 0 <= token < vocab_size]
        if len(numbers) < len(tokens):
            self.refuse(key, f"a token id below vocab_size = {vocab_size}, or a list of such")
        return tuple(dict.fromkeys(numbers))


def _refuse_other_models(keys: _Keys) -> None:
    """ModelError unless the keys describe a dense Qwen3 model in everything that affects the computation."""
    if keys.get("model_type") != "qwen3":
        what = '"qwen3": mixtures of experts are not supported' if keys.get("model_type") == "qwen3_moe" else '"qwen3"'
        keys.refuse("model_type", what, OTHER_MODEL)
    architectures = keys.get("architectures")
    if architectures is not None and architectures != ["Qwen3ForCausalLM"]:
        names = cast("list[object]", architectures) if isinstance(architectures, list) else []
        if len(names) == 1:
            _Keys(keys.path, {"architectures[0]": names[0]}).refuse("architectures[0]", '"Qwen3ForCausalLM"', OTHER_MODEL)
        keys.refuse("architectures", '["Qwen3ForCausalLM"]', OTHER_MODEL)
    for key in ("num_experts", "quantization_config"):
        if keys.get(key) is not None:
            kind = "mixtures of experts" if key == "num_experts" else "quantised weights"
            keys.refuse(key, f"absent: {kind} are not supported", OTHER_MODEL)
    if keys.get("hidden_act") not in (None, "silu"):
        keys.refuse("hidden_act", '"silu"', OTHER_MODEL)
    if keys.flag("attention_bias", False):
        keys.refuse("attention_bias", "false: projections with a bias are not supported", OTHER_MODEL)


def _refuse_sliding_window(keys: _Keys, layers: int) -> None:
    """ModelError if any layer uses sliding-window attention. The rule is that of `Qwen3Config`: layers from `max_window_layers`
    on do if `use_sliding_window` is true and `sliding_window` is a number, unless `layer_types` lists each layer's kind."""
    fix = "give a model that attends to all positions"
    kinds = keys.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(cast("list[object]", kinds)) != layers:
            keys.refuse("layer_types", f"a list of num_hidden_layers = {layers} entries")
        for number, kind in enumerate(cast("list[object]", kinds)):
            if kind != "full_attention":
                name = f"layer_types[{number}]"
                _Keys(keys.path, {name: kind}).refuse(name, '"full_attention": sliding windows are not supported', fix)
    elif keys.flag("use_sliding_window", False) and keys.get("sliding_window") is not None:
        first = keys.integer("max_window_layers", 0, HIGHEST["num_hidden_layers"], 28)
        if first < layers:
            keys.refuse("use_sliding_window", f"false: layers from {first} on would slide, which is not supported", fix)


def _rope(keys: _Keys) -> _Keys:
    """The keys that contain `rope_theta`; ModelError if positions are scaled."""
    fix = "remove it for the plain context of max_position_embeddings, or give another model"
    rope = keys
    parameters = keys.get("rope_parameters")
    if parameters is not None:
        if not isinstance(parameters, dict):
            keys.refuse("rope_parameters", "an object")
        rope = _Keys(keys.path, cast("dict[str, object]", parameters), "rope_parameters.")
        if rope.get("rope_type") not in (None, "default"):
            rope.refuse("rope_type", '"default": scaled positions are not supported', fix)
        if rope.get("rope_theta") is None:
            rope = keys
    scaling = keys.get("rope_scaling")
    if scaling is not None:
        keys.refuse("rope_scaling", "null: scaled positions are not supported", fix)
    return rope


def _torch_dtype(keys: _Keys) -> str:
    """`torch_dtype`, or `dtype` if only that is there."""
    key = "dtype" if keys.get("torch_dtype") is None and keys.get("dtype") is not None else "torch_dtype"
    value = keys.get(key)
    if not isinstance(value, str) or value not in DTYPES:
        keys.refuse(key, "one of " + ", ".join(f'"{name}"' for name in DTYPES))
    return value
