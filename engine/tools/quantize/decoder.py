"""A layer of a dense decoder in float32 NumPy, in the four steps whose inputs its linear modules multiply.

Architecture: `Qwen3ForCausalLM` and `LlamaForCausalLM` of transformers. RMSNorm; queries, keys and values, in Qwen3 with an
RMSNorm of each query and key head; rotary embedding of halves (Su et al., RoFormer, 2021); causal attention in which several
query heads share a key head (Ainslie et al., GQA, 2023); SwiGLU (Shazeer, 2020); both added to the residual.

| step | modules | their inputs are made of |
|---|---|---|
| 0 | q_proj, k_proj, v_proj | the residual |
| 1 | o_proj | the residual, by the modules of step 0 |
| 2 | gate_proj, up_proj | the residual |
| 3 | down_proj | the residual, by the modules of step 2 |

`inputs` of a step is all that GPTQ asks of a layer; `add` of steps 1 and 3 adds their outputs to the residual.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig
from engine.models.families import family_of

Matrix = NDArray[np.float32]

STEPS: Final = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("self_attn.o_proj",), ("mlp.gate_proj", "mlp.up_proj"),
    ("mlp.down_proj",),
)  # fmt: skip
"""The modules of each step, which have the same inputs."""
NORMS: Final = ("input_layernorm", "post_attention_layernorm")
HEAD_NORMS: Final = ("self_attn.q_norm", "self_attn.k_norm")
"""Of Qwen3."""


class DecoderLayer:
    """One layer. `weights` (N, K) by the names of modules, in f32; modules of a step are asked for when a later step computes
    with them, so that they can be exchanged after the step's inputs were taken. `norms` by the names of their modules."""

    def __init__(self, config: ModelConfig, weights: Mapping[str, Matrix], norms: Mapping[str, Matrix]) -> None:
        self._config = config
        self._weights = weights
        self._norms = norms
        self._steps: tuple[Callable[[Matrix], Matrix], ...] = (
            lambda x: self._normed(x, NORMS[0]), self._mixed, lambda x: self._normed(x, NORMS[1]), self._activated,
        )  # fmt: skip

    def inputs(self, step: int, residual: Matrix) -> Matrix:
        """What the modules of a step multiply for a sequence: (tokens, hidden) to (tokens, K)."""
        return self._steps[step](residual)

    def add(self, step: int, residual: Matrix, inputs: Matrix) -> None:
        """Add the outputs of step 1 or 3 to the residual, for the inputs of that step."""
        residual += inputs @ self._weights[STEPS[step][0]].T

    def _normed(self, x: Matrix, name: str) -> Matrix:
        return rms_norm(x, self._norms[name], self._config.rms_norm_eps)

    def _mixed(self, x: Matrix) -> Matrix:
        """Values mixed by attention: (tokens, query heads * head_dim)."""
        config, normed = self._config, self._normed(x, NORMS[0])
        tokens, size = len(x), config.head_dim
        q, k, v = ((normed @ self._weights[name].T).reshape(tokens, -1, size) for name in STEPS[0])
        if HEAD_NORMS[0] in self._norms:
            q, k = (rms_norm(x, self._norms[name], config.rms_norm_eps) for x, name in zip((q, k), HEAD_NORMS, strict=True))
        angles = np.arange(tokens, dtype=np.float64)[:, None, None] * family_of(config.model_type).frequencies(config)
        sine, cosine = np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)
        return _attention(_rotated(q, sine, cosine), _rotated(k, sine, cosine), v)

    def _activated(self, x: Matrix) -> Matrix:
        """SwiGLU's product: (tokens, intermediate)."""
        normed = self._normed(x, NORMS[1])
        gate, up = (normed @ self._weights[name].T for name in STEPS[2])
        up *= gate
        np.negative(gate, out=gate)
        np.exp(gate, out=gate)  # infinite for gates below -88, whose product is then 0
        gate += 1
        up /= gate
        return up


def rms_norm(x: Matrix, weight: Matrix, eps: float) -> Matrix:
    """RMSNorm of the last axis (Zhang, Sennrich, 2019)."""
    mean = np.square(x).mean(axis=-1, keepdims=True, dtype=np.float32)
    return x * (weight / np.sqrt(mean + np.float32(eps)))


def _rotated(x: Matrix, sine: Matrix, cosine: Matrix) -> Matrix:
    """Rotary embedding of heads (tokens, heads, head_dim), by (tokens, 1, head_dim / 2)."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    turned = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return turned.astype(np.float32, copy=False)


def _attention(q: Matrix, k: Matrix, v: Matrix) -> Matrix:
    """Causal attention of one sequence: (tokens, heads, head_dim) to (tokens, query heads * head_dim)."""
    tokens, heads, size = q.shape
    kept = k.shape[1]
    grouped = q.reshape(tokens, kept, -1, size).transpose(1, 2, 0, 3)  # queries of a key head, one after the other
    queries = np.ascontiguousarray(grouped).reshape(kept, -1, size)
    scores = queries @ k.transpose(1, 2, 0)  # (key heads, queries, tokens)
    scores *= np.float32(size**-0.5)
    rows = scores.reshape(heads, tokens, tokens)  # a view
    rows += np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    rows -= rows.max(axis=-1, keepdims=True)
    np.exp(rows, out=rows)
    rows /= rows.sum(axis=-1, keepdims=True)
    mixed = (scores @ v.transpose(1, 0, 2)).reshape(heads, tokens, size)
    return mixed.transpose(1, 0, 2).astype(np.float32, order="C").reshape(tokens, -1)
