"""Qwen3's forward pass in float64 NumPy, written from the model's definition and independent of the engine.

Architecture: `Qwen3ForCausalLM` of transformers (modeling_qwen3.py): per layer RMSNorm, projections to queries, keys and
values, RMSNorm of every query and key head, rotary embedding of halves (Su et al., RoFormer, 2021), causal attention in which
several query heads share a key head (Ainslie et al., GQA, 2023), and a SwiGLU layer (Shazeer, 2020); attention and SwiGLU are
each added to the residual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig

Matrix = NDArray[np.float64]


def logits(config: ModelConfig, tensors: Mapping[str, NDArray[Any]], ids: Sequence[int]) -> Matrix:
    """The logits after each of the tokens, (tokens, vocab). `tensors` by their names in a checkpoint."""
    weights = {name: np.asarray(tensor, np.float64) for name, tensor in tensors.items()}
    eps = config.rms_norm_eps
    x = weights["model.embed_tokens.weight"][list(ids)]
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        own = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
        x = x + _attention(config, own, _rms_norm(x, own["input_layernorm.weight"], eps))
        x = x + _feed_forward(own, _rms_norm(x, own["post_attention_layernorm.weight"], eps))
    head = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return _rms_norm(x, weights["model.norm.weight"], eps) @ weights[head].T


def _rms_norm(x: Matrix, weight: Matrix, eps: float) -> Matrix:
    return weight * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + eps)


def _rotate(x: Matrix, theta: float) -> Matrix:
    """Rotary embedding of heads at every position: (tokens, heads, elements)."""
    half = x.shape[-1] // 2
    frequencies = theta ** -(np.arange(half) / half)
    angle = np.arange(len(x))[:, None, None] * frequencies
    first, second = x[..., :half], x[..., half:]
    return np.concatenate(
        [first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)], axis=-1
    )


def _attention(config: ModelConfig, weights: Mapping[str, Matrix], x: Matrix) -> Matrix:
    tokens, size = len(x), config.head_dim
    q, k, v = ((x @ weights[f"self_attn.{name}_proj.weight"].T).reshape(tokens, -1, size) for name in "qkv")
    q = _rotate(_rms_norm(q, weights["self_attn.q_norm.weight"], config.rms_norm_eps), config.rope_theta)
    k = _rotate(_rms_norm(k, weights["self_attn.k_norm.weight"], config.rms_norm_eps), config.rope_theta)
    shared = config.num_attention_heads // config.num_key_value_heads
    mixed = np.empty_like(q)
    for head in range(config.num_attention_heads):
        scores = q[:, head] @ k[:, head // shared].T / np.sqrt(size)
        scores[np.triu_indices(tokens, 1)] = -np.inf
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        mixed[:, head] = weight / weight.sum(axis=1, keepdims=True) @ v[:, head // shared]
    return mixed.reshape(tokens, -1) @ weights["self_attn.o_proj.weight"].T


def _feed_forward(weights: Mapping[str, Matrix], x: Matrix) -> Matrix:
    gate, up = x @ weights["mlp.gate_proj.weight"].T, x @ weights["mlp.up_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ weights["mlp.down_proj.weight"].T
