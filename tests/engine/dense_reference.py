"""The forward pass of Qwen3, its mixtures of experts and Llama 3 in float64 NumPy, from the models' definitions alone.

Architecture: `Qwen3ForCausalLM` and `LlamaForCausalLM` of transformers: per layer RMSNorm, projections to queries, keys and
values, in Qwen3 RMSNorm of every query and key head, rotary embedding of halves (Su et al., RoFormer, 2021), causal attention
in which several query heads share a key head (Ainslie et al., GQA, 2023), and a SwiGLU layer (Shazeer, 2020); attention and
SwiGLU are each added to the residual. Llama 3.1 scales the frequencies of rotary embedding (`apply_scaling` of Meta's reference
code, in which wavelengths decide). In a mixture each token has a SwiGLU layer of each of a few experts, the most probable of a
softmax over all, and adds them by these probabilities, or by their shares if those are to sum to one (`Qwen3MoeForCausalLM`).
Layers of a mixture that have no router are dense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.models.llama.config import LlamaConfig, RopeScaling
from engine.models.qwen3_moe.config import Qwen3MoeConfig

Matrix = NDArray[np.float64]


Inputs = Callable[[int, str, Matrix], Matrix]
"""What a product takes for its inputs: of a layer, and of the products after `norm`, `mixed`, `norm_again` or `act`."""


def as_they_are(layer: int, name: str, x: Matrix) -> Matrix:
    return x


def logits(
    config: ModelConfig, tensors: Mapping[str, NDArray[Any]], ids: Sequence[int], inputs: Inputs = as_they_are,
    cached: Callable[[Matrix], Matrix] = np.asarray, gaps: list[Matrix] | None = None,
) -> Matrix:  # fmt: skip
    """The logits after each of the tokens, (tokens, vocab). `tensors` by their names in a checkpoint. `cached`: what a cache
    gives back for keys or values, (tokens, heads, elements). To `gaps` each layer of a mixture adds how far the router's logits
    of the last expert that a token has and the first that it lacks are apart, over the deviation of all; (tokens,). That is
    infinite if there is none, and for equals, of which the lower expert is chosen."""
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    eps = config.rms_norm_eps
    x = weights["model.embed_tokens.weight"][list(ids)]
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        of_layer = partial(inputs, layer)
        x = x + _attention(config, own, _rms_norm(x, own["input_layernorm.weight"], eps), of_layer, cached)
        normed = _rms_norm(x, own["post_attention_layernorm.weight"], eps)
        if isinstance(config, Qwen3MoeConfig) and "mlp.gate.weight" in own:
            x = x + _mixture(config, own, normed, gaps)
        else:
            x = x + _feed_forward(own, normed, of_layer)
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return _rms_norm(x, weights["model.norm.weight"], eps) @ weights[head].T


def _rms_norm(x: Matrix, weight: Matrix, eps: float) -> Matrix:
    return weight * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def frequencies(config: ModelConfig) -> Matrix:
    """The frequencies of rotary embedding, (head_dim / 2,)."""
    half = config.head_dim // 2
    plain = config.rope_theta ** -(np.arange(half) / half)
    scaling = config.rope_scaling if isinstance(config, LlamaConfig) else None
    return plain if scaling is None else np.array([_scaled(frequency, scaling) for frequency in plain])


def _scaled(frequency: float, scaling: RopeScaling) -> float:
    wavelength, context = 2 * math.pi / frequency, scaling.original_max_position_embeddings
    if wavelength < context / scaling.high_freq_factor:
        return frequency
    if wavelength > context / scaling.low_freq_factor:
        return frequency / scaling.factor
    smooth = (context / wavelength - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - smooth) * frequency / scaling.factor + smooth * frequency


def _rotate(x: Matrix, of_positions: Matrix) -> Matrix:
    """Rotary embedding of heads at every position: (tokens, heads, elements)."""
    half = x.shape[-1] // 2
    angle = np.arange(len(x))[:, None, None] * of_positions
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], axis=-1
    )


def _attention(
    config: ModelConfig, weights: Mapping[str, Matrix], x: Matrix, inputs: Callable[[str, Matrix], Matrix],
    cached: Callable[[Matrix], Matrix],
) -> Matrix:  # fmt: skip
    x = inputs("norm", x)
    tokens, size = len(x), config.head_dim
    q, k, v = ((x @ weights[f"self_attn.{name}_proj.weight"].T).reshape(tokens, -1, size) for name in "qkv")
    if config.model_type in ("qwen3", "qwen3_moe"):
        q = _rms_norm(q, weights["self_attn.q_norm.weight"], config.rms_norm_eps)
        k = _rms_norm(k, weights["self_attn.k_norm.weight"], config.rms_norm_eps)
    q, k = _rotate(q, frequencies(config)), _rotate(k, frequencies(config))
    k, v = cached(k), cached(v)
    shared = config.num_attention_heads // config.num_key_value_heads
    mixed = np.empty_like(q)
    for head in range(config.num_attention_heads):
        scores = q[:, head] @ k[:, head // shared].T / np.sqrt(size)
        scores[np.triu_indices(tokens, 1)] = -np.inf
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[:, head] = weight / weight.sum(axis=1, keepdims=True) @ v[:, head // shared]
    return inputs("mixed", mixed.reshape(tokens, -1)) @ weights["self_attn.o_proj.weight"].T


def _feed_forward(weights: Mapping[str, Matrix], x: Matrix, inputs: Callable[[str, Matrix], Matrix]) -> Matrix:
    x = inputs("norm_again", x)
    gate, up = x @ weights["mlp.gate_proj.weight"].T, x @ weights["mlp.up_proj.weight"].T
    return inputs("act", gate / (1 + np.exp(-gate)) * up) @ weights["mlp.down_proj.weight"].T


def _mixture(config: Qwen3MoeConfig, weights: Mapping[str, Matrix], x: Matrix, gaps: list[Matrix] | None) -> Matrix:
    """The experts of each token, one token after the other; of equal logits the lower experts are chosen."""
    out, apart = np.zeros_like(x), np.full(len(x), np.inf)
    for token, row in enumerate(x):
        scores = weights["mlp.gate.weight"] @ row
        probabilities = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        order = sorted(range(config.num_experts), key=lambda expert: (-scores[expert], expert))
        chosen, others = order[: config.num_experts_per_tok], order[config.num_experts_per_tok :]
        if others and scores[chosen[-1]] != scores[others[0]]:
            apart[token] = (scores[chosen[-1]] - scores[others[0]]) / scores.std()
        total = sum(probabilities[expert] for expert in chosen) if config.norm_topk_prob else 1.0
        for expert in chosen:
            gate, up, down = (weights[f"mlp.experts.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            inner = gate @ row
            out[token] += probabilities[expert] / total * (down @ (inner / (1 + np.exp(-inner)) * (up @ row)))
    if gaps is not None:
        gaps.append(apart)
    return out
