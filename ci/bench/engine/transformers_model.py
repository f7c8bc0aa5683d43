"""The same model in transformers: its logits, its times of prefill and decode. Needs torch and transformers."""

from __future__ import annotations

import gc
import importlib
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Final, Protocol

import numpy as np

from ci.bench.engine.weights import prompt_of
from engine.models.config import ModelConfig
from engine.models.llama.config import LlamaConfig
from tilec.target.dtypes import DTYPES

torch: Any = importlib.import_module("torch")
transformers: Any = importlib.import_module("transformers")

WARM_STEPS: Final = 8
FAMILIES: Final = {"qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "llama": "Llama"}
"""The names of their classes in transformers."""
EXPERTS: Final = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob")
"""What the config of a mixture has, named as in transformers."""


class Tensors(Protocol):
    """Weights by the names that transformers has in memory, if they are `stacked`."""

    def tensors(self, stacked: bool = False) -> Iterator[tuple[str, Any]]: ...


def speed(model: Any, config: ModelConfig, prefills: list[int], decoded: int, how: str) -> dict[str, float]:
    """Milliseconds of prefill of several lengths, and of greedy decode: tokens per second after a prompt of `decoded` tokens,
    and seconds of the first steps. `compiled`: CUDA graphs of compiled kernels; otherwise `eager`."""
    found = prefill_speed(model, config, prefills)
    rate, first = decode_speed(model, config, decoded, how)
    prefix = f"transformers_{how}_decode_at_{decoded}"
    return found | {f"{prefix}_tok_s": rate, "transformers_first_steps_s": first}


def prefill_speed(model: Any, config: ModelConfig, lengths: list[int]) -> dict[str, float]:
    """Milliseconds from token ids on the host to the next token there, per length; medians."""
    found: dict[str, float] = {}
    for length in lengths:
        ids, times = prompt_of(length, config), list[float]()
        for _ in range(7):
            began = time.perf_counter()
            with torch.no_grad():
                given = torch.tensor([ids], device="cuda")
                model(given, use_cache=True, logits_to_keep=1).logits.argmax(-1).item()
            times.append((time.perf_counter() - began) * 1e3)
        found[f"transformers_prefill_{length}_ms"] = sorted(times[2:])[2]
    return found


def decode_speed(model: Any, config: ModelConfig, decoded: int, how: str) -> tuple[float, float]:
    """Tokens per second of its greedy decode after `decoded` tokens with a static cache, and seconds of the first steps, which
    include compilation. `compiled`: CUDA graphs of compiled kernels; otherwise `eager`."""
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True) if how == "compiled" else model.forward
    rates: list[float] = []
    with torch.inference_mode():
        cache = transformers.StaticCache(config=model.config, max_cache_len=decoded + WARM_STEPS + 4 * 128)
        positions = torch.arange(decoded, device="cuda")
        ids = torch.tensor([prompt_of(decoded, config)], device="cuda")
        logits = model(ids, past_key_values=cache, cache_position=positions, logits_to_keep=1).logits
        token = logits[:, -1].argmax(-1, keepdim=True)
        position = positions[-1:] + 1
        began = time.perf_counter()
        for count in (WARM_STEPS, 128, 128, 128, 128):
            for _ in range(count):
                logits = step(token.clone(), past_key_values=cache, cache_position=position).logits
                token, position = logits[:, -1].argmax(-1, keepdim=True), position + 1
            torch.cuda.synchronize()
            now = time.perf_counter()
            rates.append(count / (now - began))
            began = now
    torch.compiler.reset()
    return sorted(rates[2:])[1], WARM_STEPS / rates[0]


@contextmanager
def transformers_model(config: ModelConfig, weights: Tensors, dtype: str) -> Generator[Any]:
    """The model on the GPU, with torch's fused attention."""
    keys = (
        "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "num_hidden_layers",
        "vocab_size", "rms_norm_eps", "tie_word_embeddings", "max_position_embeddings",
    )  # fmt: skip
    dense = getattr(config, "dense_layers", "")
    described = getattr(transformers, f"{FAMILIES[config.model_type]}Config")(
        **{key: getattr(config, key) for key in (*keys, *(key for key in EXPERTS if hasattr(config, key)))},
        rope_parameters=rope_parameters(config),
        attn_implementation="sdpa",
        **({"mlp_only_layers": [int(layer) for layer in dense.split(",")]} if dense else {}),
    )
    kind = getattr(torch, DTYPES[dtype].numpy)
    with torch.device("meta"):
        model = getattr(transformers, f"{FAMILIES[config.model_type]}ForCausalLM")(described)
    model = model.to_empty(device="cuda").to(kind)
    state = {key: torch.from_numpy(value.view(np.int16).copy()).view(kind) for key, value in weights.tensors(stacked=True)}
    missing = model.load_state_dict(state, strict=False, assign=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    del state
    model.tie_weights()
    set_frequencies(model, config)
    yield model
    del model
    gc.collect()
    torch.cuda.empty_cache()


def rope_parameters(config: ModelConfig) -> dict[str, Any]:
    """How positions are rotated, as transformers names it."""
    scaling = config.rope_scaling if isinstance(config, LlamaConfig) else None
    given = {"rope_type": "default", "rope_theta": config.rope_theta}
    return given if scaling is None else given | {"rope_type": "llama3"} | asdict(scaling)


def set_frequencies(model: Any, config: ModelConfig) -> None:
    """Set rotary frequencies in float32, which loading and dtype changes do not preserve."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cuda") / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)
    if rope_parameters(config)["rope_type"] == "llama3":
        functions: Any = importlib.import_module("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
        frequencies = functions["llama3"](model.config, "cuda")[0].float()
    model.model.rotary_emb.inv_freq = frequencies


def logits(model: Any, config: ModelConfig, dtype: str, prompts: Mapping[int, Any]) -> dict[int, Any]:
    """Logits of each prompt from its last token on, teacher-forced, with the model in `dtype`: by length, (steps + 1, vocab)
    float32. The model stays in this dtype."""
    model.to(getattr(torch, DTYPES[dtype].numpy))
    set_frequencies(model, config)
    found: dict[int, Any] = {}
    for length, ids in prompts.items():
        with torch.no_grad():
            given = torch.from_numpy(ids.astype(np.int64))[None].cuda()
            hidden = model.model(given, use_cache=False).last_hidden_state[:, length - 1 :]
            found[length] = model.lm_head(hidden)[0].float().cpu().numpy()
    return found
