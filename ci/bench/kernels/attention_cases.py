"""Problems of the kernels between embedding and sampling whose inputs are not plain random tensors.

Part of `cases`: sizes, tensors whose contents are restricted by a contract or for conditioning, scalars, and each kernel as
torch expressions. Attention is compared with torch's fused attention in the same dtype; the parts of decode attention, which
torch lacks, with their definition in the same dtype.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels.launch import EPSILON, Tensors, past
from tilec.artifact.records import Manifest

torch: Any = importlib.import_module("torch")
functional: Any = importlib.import_module("torch.nn.functional")

LENGTHS: Final = (1, 17, 127, 129, 1000, 4096)
MODEL: Final = {"HKV": 8, "G": 4}
"""Key-value heads and group size of Qwen3 4B and 8B."""


def sizes(manifest: Manifest) -> list[dict[str, int]]:
    """Dims to check; empty if any are valid."""
    match manifest.kernel:
        case "flash_attention":
            # The number of slots is a multiple of the tile; with a whole tile to spare, the cache already has tokens.
            tile = int(manifest.constants["BN"])
            found = [
                {"T": t, "S": -(-(t + extra) // tile) * tile, "HKV": 2, "G": g}
                for t in LENGTHS
                for extra, g in ((0, 1), (67, 2), (203, 5))
            ]
            return [*found, {"T": 17, "S": 33024, "HKV": 1, "G": 8}, {"T": 1000, "S": 8192, **MODEL}]
        case "decode_attention":
            one = [{"B": 1, "S": s, "P": p, "HKV": 8, "G": g} for s, p, g in (
                (32, 1, 2), (32, 64, 4), (128, 3, 5), (160, 64, 8), (1024, 64, 2), (4096, 64, 4), (8192, 64, 8), (32768, 64, 4),
            )]  # fmt: skip
            return [*one, {"B": 3, "S": 1024, "P": 5, "HKV": 2, "G": 7}, {"B": 8, "S": 8192, "P": 64, **MODEL}]
        case "decode_attention_wide":
            found = [{"B": 1, "S": s, "P": p, "HKV": 4, "G": 16} for s, p in ((32, 1), (160, 33), (4096, 33), (32768, 33))]
            return [*found, {"B": 3, "S": 1024, "P": 5, "HKV": 2, "G": 11}]
        case "decode_merge":
            return [{"B": b, "HKV": h, "G": g} for b, h, g in ((1, 8, 2), (1, 8, 4), (3, 1, 5), (8, 8, 8))]
        case "qk_norm_rope_kv" | "rope_kv":
            positions = "P" if manifest.kernel == "qk_norm_rope_kv" else "R"
            return [
                {"T": t, "HQ": hq, "HKV": 8, "HEADS": hq + 16, "S": t + 300, positions: 4096}
                for hq in (16, 32, 40, 64)
                for t in (1, 2, 3, 8, 127, 1000)
            ]
        case "rotary_decode_attention_kv" | "rope_decode_attention_kv":
            tile, group = int(manifest.constants["BN"]), int(manifest.constants["G"])
            found = [(1, 2, tile), (3, 2, 2 * tile), (2, 5, 3 * tile), (1, 8, 8 * tile), (8, 8, 2 * tile)]
            return [{"B": b, "HKV": h, "S": s, "R": s + 77} for b, h, s in found if group + 2 * h >= 8]
        case "matvec_argmax":
            batch, inputs = int(manifest.constants["B"]), int(manifest.constants["K"])
            return [{"B": batch, "K": inputs, "V": v, "P": p} for v, p in ((1, 1), (5, 3), (1009, 7), (151936, 1024))]
        case "argmax_blocks":
            block = int(manifest.constants["BLOCK"])
            return [{"B": b, "V": v, "P": -(-v // block)} for v in (8, 1016, 2048, 4104, 151936) for b in (1, 3)]
        case "topk_blocks":
            block = int(manifest.constants["BLOCK"])
            return [
                {"B": b, "V": v, "P": -(-v // block), "K": k}
                for v in (1, 1009, 2048, 4097, 151936)
                for b, k in ((1, 64), (3, 1), (2, 20))
            ]
        case "sample_token":
            return [{"B": b, "P": p, "K": k, "S": 77} for b in (1, 9) for p, k in ((1, 1), (3, 20), (149, 64), (256, 64))]
        case _:
            return []


def adjust(manifest: Manifest, t: Tensors) -> None:
    """Set contents that random numbers do not have, in place."""
    if manifest.kernel in ("decode_attention", "decode_attention_wide"):
        # A single sequence fills its slots, or nearly so in a small cache; of several, only the last one does.
        slots, count = t["k_cache"].shape[1], t["lengths"].numel()
        t["lengths"].copy_(torch.randint(1, slots + 1, (count,)))
        t["lengths"][-1] = slots if slots > 4096 or count > 1 else max(1, slots - 31)
    elif manifest.kernel == "decode_merge":
        t["sums"].abs_().add_(0.5)
        if t["sums"].shape[1] > 1:  # the last part is empty
            t["maxima"][:, -1] = -math.inf
            t["sums"][:, -1] = 0
            t["partial"][:, -1] = 0
    if manifest.kernel in ("topk_blocks", "sample_token"):
        t["top_k"][-1] = t["best"].shape[2]
    if manifest.kernel == "sample_token":  # as written by `topk_blocks`
        t["best"].copy_(t["best"].sort(dim=2, descending=True).values)
        t["indices"].copy_(torch.randperm(t["indices"].numel()).view_as(t["indices"]))
        t["temperature"].uniform_(0.1, 2)
        t["top_p"].uniform_(0.05, 1)
        t["uniforms"].uniform_(0, 1)


def bytes_moved(manifest: Manifest, t: Tensors) -> int | None:
    """Minimum traffic if not every tensor counts once: only the tokens' slots of a cache are written, only lengths are read."""
    match manifest.kernel:
        case "qk_norm_rope_kv" | "rope_kv":
            return 2 * _bytes(t["qkv"]) + t["positions"].numel() * t["table"].shape[1] * 4
        case "decode_attention" | "decode_attention_wide":
            row = _bytes(t["k_cache"][0, 0])
            return 2 * row * int(t["lengths"].sum()) + sum(_bytes(t[name]) for name in ("q", "partial", "maxima", "sums"))
        case _:
            return None


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def fused(t: Tensors) -> Callable[[], Any]:
    """Torch's causal attention on the same cache; its operands are laid out in advance."""
    tokens, heads, group, width = t["q"].shape
    before = past(tokens, t["k_cache"].shape[0])
    queries = t["q"].view(1, tokens, heads * group, width).transpose(1, 2)
    keys, values = (t[name][None, : before + tokens].transpose(1, 2) for name in ("k_cache", "v_cache"))
    mask: dict[str, Any] = {"is_causal": True}
    if before:
        seen = torch.ones(tokens, before + tokens, dtype=torch.bool, device=queries.device).tril(before)
        mask = {"attn_mask": seen}
    return lambda: functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=True, **mask)


def _flash_attention(manifest: Manifest, t: Tensors) -> Tensors:
    q, before = t["q"], past(t["q"].shape[0], t["k_cache"].shape[0])
    tokens, heads, group, width = q.shape
    end = before + tokens
    queries = q.reshape(tokens, heads * group, width).transpose(0, 1)
    keys, values = (t[name][:end].transpose(0, 1).repeat_interleave(group, 0) for name in ("k_cache", "v_cache"))
    seen = torch.ones(tokens, end, dtype=torch.bool, device=q.device).tril(before)
    mask = {"is_causal": True} if not before else {"attn_mask": seen}
    out = functional.scaled_dot_product_attention(queries[None], keys[None], values[None], **mask)[0]
    return {"out": out.transpose(0, 1).reshape(q.shape)}


def _decode_attention(manifest: Manifest, t: Tensors) -> Tensors:
    tile, scale = int(manifest.constants["BN"]), float(manifest.constants["D"]) ** -0.5 / math.log(2)
    found = {
        name: torch.zeros(t[name].shape, dtype=t["q"].dtype, device=t["q"].device) for name in ("partial", "maxima", "sums")
    }
    found["maxima"].fill_(-math.inf)
    parts = t["maxima"].shape[1]
    for b in range(t["q"].shape[0]):
        length = int(t["lengths"][b])
        keys, values = t["k_cache"][b, :length], t["v_cache"][b, :length]
        scores = torch.einsum("hgd,shd->hgs", t["q"][b], keys) * scale
        owner = torch.arange(length, device=scores.device) // tile % parts
        for p in range(min(parts, -(-length // tile))):
            own = owner == p
            top = scores[..., own].amax(-1)
            weights = torch.exp2(scores[..., own] - top[..., None])
            found["maxima"][b, p] = top
            found["sums"][b, p] = weights.sum(-1)
            found["partial"][b, p] = torch.einsum("hgs,shd->hgd", weights, values[own])
    return found


def _decode_merge(manifest: Manifest, t: Tensors) -> Tensors:
    weights = torch.exp2(t["maxima"] - t["maxima"].amax(1, keepdim=True))
    merged = (t["partial"] * weights[..., None]).sum(1) / (t["sums"] * weights).sum(1)[..., None]
    # The inputs are f32, so the library's result is the exact one rounded to the output's dtype.
    return {"out": merged if merged.dtype == torch.float64 else merged.to(t["out"].dtype)}


def _qk_norm_rope_kv(manifest: Manifest, t: Tensors) -> Tensors:
    queries, keys, values = new_rows(t)
    k_cache, v_cache = t["k_cache"].clone(), t["v_cache"].clone()
    slots = t["slots"].long()
    k_cache[slots], v_cache[slots] = keys, values
    return {"q": queries, "k_cache": k_cache, "v_cache": v_cache}


def rotated(x: Any, weight: Any, cos: Any, sin: Any) -> Any:
    """Heads normalized, unless the weight is None, and rotated; (B, heads, D), (D,), two (B, 1, D / 2) -> (B, heads, D)."""
    low, high = (x if weight is None else functional.rms_norm(x, (x.shape[-1],), weight, EPSILON)).chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def new_rows(t: Tensors) -> tuple[Any, Any, Any]:
    """Rotated queries and keys, normalized if there are weights, and values: (B, heads, D) each."""
    heads = t["k_cache"].shape[-2]
    queries, keys, values = t["qkv"].split([t["qkv"].shape[1] - 2 * heads, heads, heads], dim=1)
    cos, sin = t["table"][t["positions"].long()].to(queries.dtype)[:, None].chunk(2, dim=-1)
    return rotated(queries, t.get("q_weight"), cos, sin), rotated(keys, t.get("k_weight"), cos, sin), values


def appended(t: Tensors, slots: list[int]) -> tuple[Any, Tensors]:
    """Rotated queries, and caches with each sequence's new row in its slot."""
    queries, keys, values = new_rows(t)
    k_cache, v_cache = t["k_cache"].clone(), t["v_cache"].clone()
    for b, slot in enumerate(slots):
        k_cache[b, slot], v_cache[b, slot] = keys[b], values[b]
    return queries, {"k_cache": k_cache, "v_cache": v_cache}


def _rotary_decode_attention_kv(manifest: Manifest, t: Tensors) -> Tensors:
    lengths, heads, group = t["lengths"].tolist(), t["k_cache"].shape[2], int(manifest.constants["G"])
    queries, caches = appended(t, [length - 1 for length in lengths])
    out = torch.empty_like(t["out"], dtype=queries.dtype)
    for b, length in enumerate(lengths):
        query = queries[b].view(1, heads, group, -1).transpose(0, 1)  # one row per query head of the group
        scores = torch.einsum("htgd,shd->htgs", query, caches["k_cache"][b, :length]) * query.shape[-1] ** -0.5
        out[b] = torch.einsum("htgs,shd->thgd", scores.softmax(-1), caches["v_cache"][b, :length])[0]
    return {"out": out, **caches}


def _matvec_add(manifest: Manifest, t: Tensors) -> Tensors:
    return {"residual": t["residual"] + t["x"] @ t["w"].T}


def _matvec_argmax(manifest: Manifest, t: Tensors) -> Tensors:
    return argmax_of_parts(t["x"] @ t["w"].T, int(manifest.constants["ROWS"]), t["maxima"].shape[1])


def argmax_of_parts(logits: Any, rows: int, parts: int) -> Tensors:
    """Maximum and its column of each part, which has every `parts`-th group of `rows` columns. Logits are compared rounded from
    f32, although the kernel does not store them, so that a tie goes to the lowest column."""
    own, columns = columns_of_parts(logits, rows, parts)
    top = own.amax(2)
    column = torch.where(own == top[..., None], columns, 2147483647).amin(2)
    return {"maxima": top, "indices": torch.where(top.isinf(), 2147483647, column)}


def columns_of_parts(logits: Any, rows: int, parts: int) -> tuple[Any, Any]:
    """The logits of each part, (B, V) -> (B, P, n), padded with -inf, and their columns, (P, n)."""
    groups = -(-logits.shape[1] // (rows * parts)) * parts
    padded = functional.pad(logits, (0, groups * rows - logits.shape[1]), value=-math.inf)
    columns = torch.arange(groups * rows, device=logits.device).view(-1, parts, rows).transpose(0, 1).reshape(parts, -1)
    return padded[:, columns], columns


def _topk_blocks(manifest: Manifest, t: Tensors) -> Tensors:
    """A stable sort keeps equal logits in the order of their columns, as the kernel does."""
    logits, (rows, parts, count) = t["logits"], t["best"].shape
    size, width = int(manifest.constants["BLOCK"]), logits.shape[1]
    padded = functional.pad(logits, (0, parts * size - width), value=-math.inf).view(rows, parts, size)
    best, order = padded.sort(dim=2, descending=True, stable=True)
    ranks = torch.arange(count, device=logits.device)
    best = torch.where(ranks < t["top_k"][:, None, None], best[..., :count], -math.inf)
    columns = order[..., :count] + (torch.arange(parts, device=logits.device) * size)[:, None]
    return {"best": best, "indices": torch.where(best.isinf(), width, columns)}


def _sample_token(manifest: Manifest, t: Tensors) -> Tensors:
    """Columns are distinct; equal values among random ones are too rare to need an order."""
    rows, _, _ = t["best"].shape
    ranks = torch.arange(int(manifest.constants["KEEP"]), device=t["best"].device)
    values, order = functional.pad(t["best"].view(rows, -1), (0, len(ranks)), value=-math.inf).sort(dim=1, descending=True)
    values = torch.where(ranks < t["top_k"][:, None], values[:, : len(ranks)], -math.inf)
    weights = ((values - values[:, :1]) / t["temperature"][:, None]).exp()
    kept = (weights.cumsum(1) - weights < t["top_p"][:, None] * weights.sum(1, keepdim=True)) & (weights > 0)
    goal = t["uniforms"].gather(1, t["place"][:, None].long()) * (weights * kept).sum(1, keepdim=True)
    drawn = ((weights.cumsum(1) <= goal) & kept).sum(1).minimum(kept.sum(1) - 1)
    columns = functional.pad(t["indices"].view(rows, -1), (0, len(ranks)))
    return {"token": columns.gather(1, order.gather(1, drawn[:, None])).view(-1)}


MEANING: Final[dict[str, Callable[[Manifest, Tensors], Tensors]]] = {
    "flash_attention": _flash_attention, "decode_attention": _decode_attention, "decode_attention_wide": _decode_attention,
    "decode_merge": _decode_merge,
    "qk_norm_rope_kv": _qk_norm_rope_kv, "rotary_decode_attention_kv": _rotary_decode_attention_kv,
    "rope_kv": _qk_norm_rope_kv, "rope_decode_attention_kv": _rotary_decode_attention_kv,
    "matvec_add": _matvec_add, "matvec_argmax": _matvec_argmax,
    "topk_blocks": _topk_blocks, "sample_token": _sample_token,
}  # fmt: skip
