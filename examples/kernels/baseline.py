"""The baselines of `tilec bench` for the examples: PyTorch's own operators on the same tensors.

Each function is named like its kernel and its parameters like those of the kernel, and returns what the kernel writes.
"""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional


def softmax(x: Any) -> Any:
    return torch.softmax(x, dim=1)


def online_softmax(x: Any) -> Any:
    return torch.softmax(x, dim=1)


def layer_norm(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return functional.layer_norm(x, (x.shape[1],), weight, bias, eps)


def cross_entropy(logits: Any, labels: Any) -> Any:
    return functional.cross_entropy(logits.float(), labels.long(), ignore_index=-1, reduction="none")


def transpose(x: Any) -> Any:
    return x.T.contiguous()


def causal_conv1d(x: Any, weight: Any, bias: Any) -> Any:
    taps, channels = weight.shape
    padded = functional.pad(x.transpose(1, 2), (taps - 1, 0))
    found = functional.conv1d(padded, weight.T[:, None].contiguous(), bias, groups=channels)
    return functional.silu(found).transpose(1, 2)


def int8_product(a: Any, b: Any, a_scale: Any, b_scale: Any, E: str) -> Any:
    exact = torch._int_mm(a, b.T)
    return (exact.float() * a_scale[:, None] * b_scale).to({"bf16": torch.bfloat16, "f16": torch.float16}.get(E, torch.float32))


def f8_product(a: Any, b: Any, a_scale: Any, b_scale: Any, E: str) -> Any:
    depth, columns = a.shape[1], b.shape[0]
    rows = a_scale.repeat_interleave(128, 1)[:, :depth]
    blocks = b_scale.repeat_interleave(128, 0).repeat_interleave(128, 1)[:columns, :depth]
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}.get(E, torch.float32)
    return (a.float() * rows).to(dtype) @ (b.float() * blocks).to(dtype).T


def batched_product(x: Any, y: Any) -> Any:
    return torch.bmm(x, y.transpose(1, 2))


def top_k(x: Any, K: int) -> Any:
    values, index = torch.topk(x, K, dim=1)
    return values, index.int()


def csr_row_sum(x: Any, starts: Any) -> Any:
    return torch.segment_reduce(x, "sum", offsets=starts)


def moe_gather(x: Any, order: Any, K: int) -> Any:
    return x[order // K]


def silu_mul(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def kv_update(k: Any, v: Any, slots: Any, k_cache: Any, v_cache: Any) -> Any:
    return k_cache.index_copy(0, slots, k), v_cache.index_copy(0, slots, v)


def merge_splits(parts: Any, E: str) -> Any:
    return parts.sum(dim=0).to({"bf16": torch.bfloat16, "f16": torch.float16}[E])
