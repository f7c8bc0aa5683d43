"""Attention by PyTorch's operators, its gradients by autograd. Functions and
parameters are named like kernels and theirs."""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
functional: Any = torch.nn.functional
LOG2E = 1.4426950408889634


def _seen(q: Any, k: Any, before: int, after: int) -> Any:
    """Which keys a query attends to (T, S); None if to all of them."""
    queries, keys = q.shape[1], k.shape[1]
    if before >= keys and after >= keys:
        return None
    rows = torch.arange(queries, device=q.device)[:, None] + keys - queries
    distance = torch.arange(keys, device=q.device)[None, :] - rows
    return (distance >= -before) & (distance <= after)


def _attention(q: Any, k: Any, v: Any, before: int, after: int, scale: float) -> Any:
    """(B, T, HKV, G, D), as the kernel's."""
    seen, causal = _seen(q, k, before, after), q.shape[1] == k.shape[1] <= before and after == 0
    out = functional.scaled_dot_product_attention(
        q.flatten(2, 3).transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=None if causal else seen,
        is_causal=causal,
        scale=scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2).unflatten(2, q.shape[2:4])


def attention(q: Any, k: Any, v: Any, before: int, after: int, scale: float) -> tuple[Any, Any]:
    """The operator returns no log-sum-exp; it is computed in f32 too."""
    scores = torch.einsum("bthgd,bshd->bhgts", q.float(), k.float()) * scale
    seen = _seen(q, k, before, after)
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    sums = torch.logsumexp(scores, dim=-1)
    return _attention(q, k, v, before, after, scale), sums.masked_fill(sums == -torch.inf, torch.inf)


def attention_rows(out: Any, dout: Any, lse: Any) -> Any:
    sums = (out.float() * dout.float()).sum(dim=-1).permute(0, 2, 3, 1)
    more = (0, (out.shape[1] + 255) // 128 * 128 - out.shape[1])
    padded = functional.pad(lse * -LOG2E, more, value=-torch.inf), functional.pad(-sums, more)
    return torch.stack(padded, dim=-2)


def _gradients(q: Any, k: Any, v: Any, dout: Any, before: int, after: int, scale: float, wanted: str) -> Any:
    """Gradients by autograd, of the sums that PyTorch finds itself."""
    with torch.enable_grad():
        leaves = {name: one.detach().requires_grad_(name in wanted) for name, one in zip("qkv", (q, k, v), strict=True)}
        out = _attention(leaves["q"], leaves["k"], leaves["v"], before, after, scale)
        return torch.autograd.grad(out, [leaves[name] for name in wanted], dout)


def attention_backward_q(q: Any, k: Any, v: Any, dout: Any, before: int, after: int, scale: float) -> Any:
    return _gradients(q, k, v, dout, before, after, scale, "q")[0]


def attention_backward_k(q: Any, k: Any, v: Any, dout: Any, before: int, after: int, scale: float) -> Any:
    return _gradients(q, k, v, dout, before, after, scale, "k")[0]


def attention_backward_v(q: Any, k: Any, dout: Any, before: int, after: int, scale: float) -> Any:
    return _gradients(q, k, k, dout, before, after, scale, "v")[0]


def attention_backward_kv(q: Any, k: Any, v: Any, dout: Any, before: int, after: int, scale: float) -> Any:
    return _gradients(q, k, v, dout, before, after, scale, "kv")
