"""Attention with gradients (Dao, FlashAttention-2, 2023), in memory that grows with the length, not with its square."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.chips import of_architecture
from tilec.kernels.ops import library_op, without_gradient
from tilec.kernels.scored import Given, checked_scores, equal_offsets, query_rows, scored_attention, spans_of
from tilec.kernels.shapes import copied, is_aligned, remembered, zeros

SIZES: Final = (64, 128)
"""Elements of a head that kernels are prebuilt for."""
DTYPES: Final = ("bfloat16", "float16")
ALL: Final = 16777216
"""No sequence is longer, so that a window of as many keys has all of them."""
MAX_GROUP: Final = 64
"""Most heads of queries for each head of keys."""
VECTOR: Final = 8
"""Elements of which strides are multiples, so that TMA copies rows."""
Tiles = Mapping[int, tuple[int, int]]
"""BM and BN for each size of a head."""
TILES: Final[Mapping[str, Tiles]] = {
    "attention": {64: (128, 128), 128: (128, 128)},
    "attention_backward_q": {64: (128, 128), 128: (192, 64)},
    "attention_backward_kv": {64: (112, 128), 128: (64, 128)},
}
DATA_CENTER_TILES: Final[Mapping[str, Tiles]] = {
    "attention": {64: (128, 128), 128: (128, 128)},
    "attention_backward_q": {64: (128, 80), 128: (128, 48)},
    "attention_backward_kv": {64: (64, 128)},
    "attention_backward_k": {128: (64, 128)},
    "attention_backward_v": {128: (128, 128)},
}
"""The same for chips of compute capability 10, whose products of gradients take their operands from registers."""
SMALL_TILES: Final[Mapping[str, Tiles]] = {
    "attention": {64: (128, 64), 128: (128, 64)},
    "attention_backward_q": {64: (128, 32), 128: (128, 32)},
    "attention_backward_kv": {64: (32, 128)},
    "attention_backward_k": {128: (32, 128)},
    "attention_backward_v": {128: (32, 128)},
}
"""The same for chips of compute capability 12, whose blocks have 99 KB of shared memory."""
OTHER_TILES: Final = {"sm_10": DATA_CENTER_TILES, "sm_12": SMALL_TILES}


def attention(
    q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None, window: int | None = None,
    alibi_slopes: Any = None, softcap: float | None = None,
) -> Any:  # fmt: skip
    """`softmax(q @ k.T * scale) @ v` for each head, in f32, rounded once; gradients of `q`, `k` and `v` are deterministic.

    q: (B, T, HQ, D) of bf16 or f16, with D 64 or 128; k, v: (B, S, HKV, D) of the same dtype, where HQ is a multiple of HKV, at
        most 64 times it. The layout in which projections leave them; `x.transpose(1, 2)` of (B, H, T, D) is such a tensor too.
        Strides may be any multiples of 8 elements, with 1 for the last axis; others are copied first.
    causal: query t attends to keys up to `t + S - T`: the last query to all of them, as in FlashAttention-2.
    scale: above 0. Default: `D ** -0.5`. In f16, scores before scaling must stay below 2^24.
    window: with `causal`, a query attends to so many keys, its own and those before; otherwise to keys at a distance below it.
    alibi_slopes: f32 (HQ) or (B, HQ): scores have `slope * distance` less, where query t is at key `t + S - T` (Press et al.,
        ALiBi, 2021). They have no gradient. All sequences together have at most 2^24 queries and keys.
    softcap: above 0, and without slopes: scores become `softcap * tanh(score / softcap)`, as in Gemma 2, with the chip's
        approximation of tanh, whose relative error is 2^-11. With it or slopes, all values must be finite: a block of 128
        queries multiplies those of neighbouring sequences by 0.

    Returns (B, T, HQ, D); 0 for a query that attends to no key. ValueError for other dtypes, shapes or numbers.
    """
    checked_heads("attention", "B, T, HQ, D", "B, S, HKV, D", q, k, v)
    scale = checked_scale("attention", q, scale, window)
    given = checked_scores("attention", q, q.shape[0], alibi_slopes, softcap)
    if q.numel() == 0 or k.numel() == 0:
        return zeros(q, k, v)
    before = ALL if window is None else min(window - 1, ALL)
    if given is not None:
        return _scored(q, k, v, before, 0 if causal else before, given, scale)
    grouped = strided(q).unflatten(2, (k.shape[2], -1))
    out, _ = _attention()(grouped, strided(k), strided(v), before, 0 if causal else before, scale)
    return out.flatten(2, 3)


def _scored(q: Any, k: Any, v: Any, before: int, after: int, given: Given, scale: float) -> Any:
    """With a score function: sequences one after the other."""
    queries, keys, values = (strided(x.flatten(0, 1)) for x in (q, k, v))
    spans, tiles = spans_of(queries, keys, equal_offsets(q), equal_offsets(k), before, after)
    return scored_attention(queries, keys, values, spans, tiles, given, scale).unflatten(0, tuple(q.shape[:2]))


def checked_heads(function: str, queries: str, keys: str, q: Any, k: Any, v: Any) -> None:
    """ValueError for tensors that no kernel takes; `queries` and `keys` name the axes of both."""
    _checked(function, queries, keys, q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype)


@remembered
def _checked(function: str, queries: str, keys: str, q: Any, k: Any, v: Any, *dtypes: Any) -> bool:
    """Whether kernels take tensors of given shapes and dtypes: True, or ValueError."""
    axes = len(queries.split(","))
    for name, shape, given in zip("qkv", (q, k, v), dtypes, strict=True):
        if len(shape) != axes:
            raise ValueError(f"`{name}` has {len(shape)} axes; {function} takes {axes}, ({queries}) and twice ({keys})")
        dtype = str(given).removeprefix("torch.")
        if dtype not in DTYPES or given != dtypes[0]:
            raise ValueError(f"`{name}` is {dtype}; {function} takes {' or '.join(DTYPES)}, one for `q`, `k` and `v`")
        if shape[-1] not in SIZES:
            raise ValueError(f"heads of `{name}` have {shape[-1]} elements; {function} takes 64 or 128")
    if k != v or (q[:-3], q[-1]) != (k[:-3], k[-1]):
        raise ValueError(
            f"`q`, `k` and `v` are {tuple(q)}, {tuple(k)} and {tuple(v)}; {function} takes ({queries}) and twice ({keys})"
        )
    heads, key_heads = q[-2], k[-2]
    if heads < key_heads or key_heads < 1 or heads % key_heads or heads > MAX_GROUP * key_heads:
        raise ValueError(f"`q` has {heads} heads; {function} takes 1 to {MAX_GROUP} for each of the {key_heads} of `k`")
    return True


def checked_scale(function: str, q: Any, scale: float | None, window: int | None) -> float:
    """The scale, by default that of the size of a head; ValueError for numbers that no kernel takes."""
    if window is not None and window < 1:
        raise ValueError(f"`window` is {window}; {function} takes at least 1, or None")
    if scale is None:
        return q.shape[-1] ** -0.5
    if not 0 < scale < math.inf:
        raise ValueError(f"`scale` is {scale}; {function} takes a finite number above 0")
    return float(scale)


def strided(x: Any) -> Any:
    """`x` if kernels take its strides and address, else a copy without gaps."""
    *steps, last = x.stride()
    fits = last == 1 and all(step > 0 and step % VECTOR == 0 for step in steps)
    return x if fits and is_aligned(x) else copied(x)


def _current() -> Mapping[str, Tiles]:
    return of_architecture(TILES, OTHER_TILES)


def _tiles(kernel: str, known: Mapping[str, Any]) -> dict[str, int]:
    """The tile of a kernel."""
    rows, columns = _current()[kernel][int(known["D"])]  # of a traced call it may be symbolic
    return {"BM": rows, "BN": columns}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, ctx.before, ctx.after, ctx.scale = inputs
    out, lse = output
    without_gradient(ctx, lse)
    ctx.save_for_backward(q, k, v, out, lse)


def _backward(ctx: Any, dout: Any, _: Any) -> tuple[Any, ...]:
    """Gradients of the tensors; None of the numbers."""
    q, k, v, out, lse = ctx.saved_tensors
    visible = ctx.before, ctx.after, ctx.scale
    dout = strided(dout)
    rows = query_rows()(out, dout, lse)
    dq = dk = dv = None
    if ctx.needs_input_grad[0]:
        dq = _backward_q()(q, k, v, dout, rows, *visible)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        if int(q.shape[4]) in _current()["attention_backward_kv"]:
            dk, dv = _backward_kv()(q, k, v, dout, rows, *visible)
        else:
            dk = _backward_k()(q, k, v, dout, rows, *visible) if ctx.needs_input_grad[1] else None
            dv = _backward_v()(q, k, dout, rows, *visible) if ctx.needs_input_grad[2] else None
    return dq, dk, dv, None, None, None


_attention = library_op("attention", lambda known: _tiles("attention", known), gradient=(_backward, _keep))
_backward_q = library_op("attention_backward_q", lambda known: _tiles("attention_backward_q", known))
_backward_kv = library_op("attention_backward_kv", lambda known: _tiles("attention_backward_kv", known))
_backward_k = library_op("attention_backward_k", lambda known: _tiles("attention_backward_k", known))
_backward_v = library_op("attention_backward_v", lambda known: _tiles("attention_backward_v", known))
