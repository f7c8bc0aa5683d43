"""Tiny models and safetensors files, written byte by byte so that any byte can be wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from engine.checkpoint.weights import Weights
from engine.models.config import ModelConfig
from engine.models.qwen3.config import Qwen3Config

UNTIED = Qwen3Config(
    hidden_size=8, intermediate_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=6, num_hidden_layers=2,
    vocab_size=11, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False, max_position_embeddings=64,
    torch_dtype="bfloat16",
)  # fmt: skip

DTYPES = {"BF16": np.dtype(ml_dtypes.bfloat16), "F16": np.dtype(np.float16), "F32": np.dtype(np.float32)}


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of Hugging Face's Qwen3ForCausalLM, listed independently of the engine."""
    h, i, d = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * d, config.num_key_value_heads * d
    layer = {
        "input_layernorm": (h,), "self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h), "self_attn.v_proj": (kv, h),
        "self_attn.o_proj": (h, q), "self_attn.q_norm": (d,), "self_attn.k_norm": (d,), "post_attention_layernorm": (h,),
        "mlp.gate_proj": (i, h), "mlp.up_proj": (i, h), "mlp.down_proj": (h, i),
    }  # fmt: skip
    shapes_by_name: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, h),
        "model.norm.weight": (h,),
    }
    for number in range(config.num_hidden_layers):
        shapes_by_name |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    if not config.tie_word_embeddings:
        shapes_by_name["lm_head.weight"] = (config.vocab_size, h)
    return shapes_by_name


def tensors(config: ModelConfig, dtype: str = "BF16", seed: int = 0) -> dict[str, NDArray[Any]]:
    """Random values for all of them; `dtype` as in safetensors headers."""
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape).astype(DTYPES[dtype]) for name, shape in shapes(config).items()}


def entries(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The header of a file with these arrays in this order, as an object."""
    header: dict[str, Any] = {}
    begin = 0
    for name, array in arrays.items():
        dtype = next(key for key, value in DTYPES.items() if value == array.dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, begin + array.nbytes]}
        begin += array.nbytes
    return header


def packed(header: object, data: bytes) -> bytes:
    """The bytes of a file; an object is written as JSON, bytes unchanged."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def data_of(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    return b"".join(array.tobytes() for array in arrays.values())


def write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """One safetensors file."""
    path.write_bytes(packed(entries(arrays), data_of(arrays)))


def write_sharded(folder: Path, arrays: Mapping[str, NDArray[Any]], shards: int) -> dict[str, str]:
    """Shards and their index; the index's map."""
    names = [f"model-{number + 1:05}-of-{shards:05}.safetensors" for number in range(shards)]
    weight_map = {tensor: names[number % shards] for number, tensor in enumerate(arrays)}
    for name in names:
        write(folder / name, {tensor: array for tensor, array in arrays.items() if weight_map[tensor] == name})
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: object) -> None:
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def joined(weights: Weights, name: str, limit: int) -> bytes:
    """A destination assembled from its chunks, each of which must be at its offset and within the size limit."""
    data = b""
    for offset, chunk in weights.chunks(name, limit):
        assert offset == len(data) and 0 < len(chunk) <= limit and chunk.readonly
        data += chunk
    return data
