"""What the floats of attention's kernels are, with bounds of their errors; see `rounded_kernels`. Part of `cases`."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, Final

from ci.bench.kernels.launch import Tensors, past
from ci.bench.kernels.rounded import Rounded, exact, joined, product
from ci.bench.kernels.rounded_kernels import Results, dtype_of, normed
from tilec.artifact.records import Manifest
from tilec.target.dtypes import DTYPES

torch: Any = importlib.import_module("torch")


def turned_heads(x: Any, weight: Any, cos: Any, sin: Any, dtype: str) -> Rounded:
    """Heads normalized, unless the weight is None, rotated and rounded; (B, heads, D), (D,), two (B, 1, D / 2) each in f32."""
    row = exact(x) if weight is None else normed(exact(x), weight)
    half, c, s = x.shape[-1] // 2, exact(cos), exact(sin)
    low, high = row[..., :half], row[..., half:]
    return joined([low * c - high * s, high * c + low * s], -1).stored(dtype)


def _new_rows(manifest: Manifest, t: Tensors) -> tuple[Rounded, Rounded, Rounded]:
    """Queries, keys and values of new tokens: (B, heads, D) each."""
    heads, qkv, dtype = t["k_cache"].shape[-2], t["qkv"], dtype_of(manifest, "qkv")
    queries = qkv.shape[1] - 2 * heads
    table = t["table"][t["positions"].long()][:, None]
    half = qkv.shape[-1] // 2
    turned = [
        turned_heads(qkv[:, part], t.get(weight), table[..., :half], table[..., half:], dtype)
        for part, weight in ((slice(queries), "q_weight"), (slice(queries, queries + heads), "k_weight"))
    ]
    return turned[0], turned[1], exact(qkv[:, queries + heads :])


def with_rows(cache: Any, index: Any, rows: Rounded) -> Rounded:
    """A cache after rows were written."""
    value = cache.double().clone()
    bound = value * 0
    value[index], bound[index] = rows.value, rows.bound
    return Rounded(value, bound)


def _rope_kv(manifest: Manifest, t: Tensors) -> Results:
    queries, keys, values = _new_rows(manifest, t)
    slots = t["slots"].long()
    return {"q": queries, "k_cache": with_rows(t["k_cache"], slots, keys), "v_cache": with_rows(t["v_cache"], slots, values)}


def _appended(manifest: Manifest, t: Tensors, slots: Any) -> tuple[Rounded, Results]:
    queries, keys, values = _new_rows(manifest, t)
    index = (torch.arange(len(keys.value), device=t["qkv"].device), slots.long())
    return queries, {"k_cache": with_rows(t["k_cache"], index, keys), "v_cache": with_rows(t["v_cache"], index, values)}


def attended(
    manifest: Manifest, queries: Rounded, keys: Rounded, values: Rounded, seen: Any = None
) -> tuple[Rounded, Rounded, Rounded]:
    """Powers of scores summed with values, the greatest score times log2(e), and the sum of powers.

    (.., q, D), (.., n, D), (.., n, D) -> (.., q, D), (.., q), (.., q).

    A tile of slots after another: each may scale the sums so far once more. Powers are rounded to the operands' dtype for the
    product with values, relative to a maximum that depends on the tile.
    """
    width, count = queries.value.shape[-1], keys.value.shape[-2]
    scores = product("...qd,...nd->...qn", queries, keys, width) * (width**-0.5 / math.log(2))
    if seen is not None:
        scores = Rounded(torch.where(seen, scores.value, -1e30), torch.where(seen, scores.bound, 0.0))
    top = scores.max(-1)
    below = scores - top
    if seen is not None:
        below = Rounded(torch.where(seen, below.value, 0.0), torch.where(seen, below.bound, 0.0))
    powers = below.exp2()
    if seen is not None:
        powers = Rounded(torch.where(seen, powers.value, 0.0), torch.where(seen, powers.bound, 0.0))
    steps = -(-count // int(manifest.constants["BN"])) + 1
    rescaled = Rounded(powers.value, powers.bound + steps * 2.0**-19 * powers.value)
    unit = 2.0 ** -DTYPES[str(manifest.constants["E"])].significand
    # The bound of a power may be of its rounded value, so its rounding is a little more.
    total = product("...qn,...nd->...qd", rescaled, values, count, unit * (1 + 2.0**-4))
    return total, top[..., 0], rescaled.sum(-1)


def _flash_attention(manifest: Manifest, t: Tensors) -> Results:
    tokens, heads, group, _ = t["q"].shape
    before = past(tokens, t["k_cache"].shape[0])
    end = before + tokens
    seen = torch.ones(tokens, end, dtype=torch.bool, device=t["q"].device).tril(before)
    out = torch.zeros(t["q"].shape, dtype=torch.float64, device=t["q"].device)
    bound = out.clone()
    for head in range(heads):
        keys, values = (exact(t[name][:end, head]) for name in ("k_cache", "v_cache"))
        for member in range(group):
            total, _, share = attended(manifest, exact(t["q"][:, head, member]), keys, values, seen)
            found = (total / share[..., None]).stored(dtype_of(manifest, "out"))
            out[:, head, member], bound[:, head, member] = found.value, found.bound
    return {"out": Rounded(out, bound)}


def parts_of(manifest: Manifest, t: Tensors, queries: Rounded, caches: Results, apart: bool = False) -> Results:
    """Sums of each part of the slots: every P-th tile; the last slot, if it is `apart`, is of the tile after those of all
    others. Queries are (B, heads, group, D)."""
    found = {name: [torch.zeros(t[name].shape, dtype=torch.float64, device=t[name].device) for _ in range(2)]
             for name in ("partial", "maxima", "sums")}  # fmt: skip
    found["maxima"][0].fill_(-math.inf)
    tile, parts = int(manifest.constants["BN"]), t["maxima"].shape[1]
    for b, length in enumerate(t["lengths"].tolist()):
        owner = torch.arange(length, device=t["lengths"].device) // tile
        if apart:
            owner[-1] = -(-(length - 1) // tile)
        for part in range(min(parts, int(owner[-1]) + 1)):
            own = owner % parts == part
            keys, values = (_by_head(caches[name][b, :length], own) for name in ("k_cache", "v_cache"))
            for name, one in zip(found, attended(manifest, queries[b], keys, values), strict=True):
                found[name][0][b, part], found[name][1][b, part] = one.value, one.bound
    return {name: Rounded(*both) for name, both in found.items()}


def _by_head(rows: Rounded, own: Any) -> Rounded:
    """The chosen rows of a sequence, by head: (n, heads, D) -> (heads, m, D)."""
    bound = None if rows.error is None else rows.error[own].transpose(0, 1)
    return Rounded(rows.value[own].transpose(0, 1), bound)


def _decode_attention(manifest: Manifest, t: Tensors) -> Results:
    return parts_of(manifest, t, exact(t["q"]), {name: exact(t[name]) for name in ("k_cache", "v_cache")})


def grouped(queries: Rounded, t: Tensors) -> Rounded:
    """(B, heads * group, D) -> (B, heads, group, D)."""
    heads = t["k_cache"].shape[2]
    shape = (len(queries.value), heads, queries.value.shape[1] // heads, queries.value.shape[2])
    return Rounded(queries.value.reshape(*shape), queries.bound.reshape(*shape))


def _rotary_decode_attention(manifest: Manifest, t: Tensors) -> Results:
    queries, caches = _appended(manifest, t, t["lengths"] - 1)
    return parts_of(manifest, t, grouped(queries, t), caches)


def _rotary_decode_attention_kv(manifest: Manifest, t: Tensors) -> Results:
    queries, caches = _appended(manifest, t, t["lengths"] - 1)
    return {"out": attention(manifest, t, grouped(queries, t), caches), **caches}


def attention(manifest: Manifest, t: Tensors, queries: Rounded, caches: Results) -> Rounded:
    """Attention of each sequence's queries, (B, heads, group, D), to all its slots, as the kernel stores it."""
    rows: list[Rounded] = []
    for b, length in enumerate(t["lengths"].tolist()):
        every = torch.arange(length, device=t["lengths"].device)
        keys, values = (_by_head(caches[name][b, :length], every) for name in ("k_cache", "v_cache"))
        total, _, share = attended(manifest, queries[b], keys, values)
        rows.append((total / share[..., None]).stored(dtype_of(manifest, "out"))[None])
    found, shape = joined(rows, 0), tuple(t["out"].shape)
    return Rounded(found.value.reshape(*shape), found.bound.reshape(*shape))


def _decode_merge(manifest: Manifest, t: Tensors) -> Results:
    """Maxima of empty parts are -inf, and their weights zero."""
    maxima = t["maxima"].double()
    empty = maxima.isinf()
    below = exact(torch.where(empty, -200.0, maxima))
    weights = (below - below.max(1)).exp2()
    weights = Rounded(torch.where(empty, 0.0, weights.value), torch.where(empty, 0.0, weights.bound))
    total = (exact(t["partial"]) * weights[..., None]).sum(1)
    mean = total / (exact(t["sums"]) * weights).sum(1)[..., None]
    return {"out": mean.stored(dtype_of(manifest, "out"))}


def _decode_merge_kv(manifest: Manifest, t: Tensors) -> Results:
    return {**_decode_merge(manifest, t), **_appended(manifest, t, t["slots"])[1]}


ROUNDED: Final[dict[str, Callable[[Manifest, Tensors], Results]]] = {
    "flash_attention": _flash_attention, "decode_attention": _decode_attention, "decode_attention_wide": _decode_attention,
    "decode_merge": _decode_merge, "decode_merge_kv": _decode_merge_kv, "rope_merge_kv": _decode_merge_kv,
    "qk_norm_rope_kv": _rope_kv, "rope_kv": _rope_kv,
    "rotary_decode_attention": _rotary_decode_attention, "rope_decode_attention": _rotary_decode_attention,
    "rotary_decode_attention_kv": _rotary_decode_attention_kv, "rope_decode_attention_kv": _rotary_decode_attention_kv,
}  # fmt: skip
