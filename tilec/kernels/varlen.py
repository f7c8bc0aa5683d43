"""Attention of sequences of several lengths, one after the other in memory, with gradients (Dao, FlashAttention-2, 2023).

`attention_spans` finds which keys each query attends to, and which queries each key is seen by. The other kernels take any such
spans: a block of 128 rows may have rows of several sequences, so that short ones share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from tilec.kernels.attention import ALL, Tiles, checked_heads, checked_scale, strided
from tilec.kernels.chips import of_architecture
from tilec.kernels.ops import library_op, without_gradient
from tilec.kernels.scored import ROWS, checked_scores, query_rows, scored_attention, spans_of
from tilec.kernels.shapes import zeros

TILES: Final[Mapping[str, Tiles]] = {
    "attention_varlen": {64: (ROWS, 128), 128: (ROWS, 128)},
    "attention_varlen_backward_q": {64: (ROWS, 128), 128: (ROWS, 128)},
    "attention_varlen_backward_kv": {64: (112, 128), 128: (64, 128)},
}
"""BM and BN for each size of a head."""
DATA_CENTER_TILES: Final[Mapping[str, Tiles]] = {
    "attention_varlen": {64: (ROWS, 128), 128: (ROWS, 128)},
    "attention_varlen_backward_q": {64: (ROWS, 80), 128: (ROWS, 48)},
    "attention_varlen_backward_kv": {64: (64, 128), 128: (32, 64)},
}
"""The same for chips of compute capability 10, whose products of gradients take their operands from registers."""
SMALL_TILES: Final[Mapping[str, Tiles]] = {
    "attention_varlen": {64: (ROWS, 64), 128: (ROWS, 64)},
    "attention_varlen_backward_q": {64: (ROWS, 32), 128: (ROWS, 32)},
    "attention_varlen_backward_kv": {64: (32, 128), 128: (32, 64)},
}
"""The same for chips of compute capability 12, whose blocks have 99 KB of shared memory."""
OTHER_TILES: Final = {"sm_10": DATA_CENTER_TILES, "sm_12": SMALL_TILES}


def attention_varlen(
    q: Any, k: Any, v: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, *, causal: bool = False, scale: float | None = None,
    window: int | None = None, alibi_slopes: Any = None, softcap: float | None = None,
) -> Any:  # fmt: skip
    """`softmax(q @ k.T * scale) @ v` of each sequence and head, in f32, rounded once; gradients of `q`, `k` and `v` are
    deterministic.

    q: (T, HQ, D) of bf16 or f16, queries of all sequences, one after the other, with D 64 or 128; k, v: (S, HKV, D) of the same
        dtype, where HQ is a multiple of HKV, at most 64 times it. Strides as for `attention`.
    cu_seqlens_q, cu_seqlens_k: i32 (B + 1), from 0 up: sequence b has queries `cu_seqlens_q[b]` to `cu_seqlens_q[b + 1] - 1`.
        They stay on the GPU and are not checked: rows of wrong ones attend to other rows, never outside of the tensors. Rows
        after the last sequence attend to none.
    causal, window: of each sequence, as for `attention`: its last query is at the position of its last key.
    scale: above 0. Default: `D ** -0.5`. In f16, scores before scaling must stay below 2^24.
    alibi_slopes: f32 (HQ) or (B, HQ), and softcap, as for `attention`; distances are those in a sequence.

    A block of 128 queries multiplies values of neighbouring sequences by 0, so all values must be finite.
    Returns (T, HQ, D); 0 for a query that attends to no key. ValueError for other dtypes, shapes or numbers.
    """
    checked_heads("attention_varlen", "T, HQ, D", "S, HKV, D", q, k, v)
    scale = checked_scale("attention_varlen", q, scale, window)
    given = checked_scores("attention_varlen", q, cu_seqlens_q.shape[0] - 1, alibi_slopes, softcap)
    for name, offsets in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if offsets.dim() != 1 or offsets.shape != cu_seqlens_q.shape or offsets.shape[0] < 1:
            raise ValueError(f"`{name}` has the shape {list(offsets.shape)}; both offsets are [B + 1]")
    if q.numel() == 0 or k.numel() == 0 or cu_seqlens_q.shape[0] == 1:
        return zeros(q, k, v)
    before = ALL if window is None else min(window - 1, ALL)
    spans, tiles = spans_of(q, k, cu_seqlens_q, cu_seqlens_k, before, 0 if causal else before)
    if given is not None:
        return scored_attention(strided(q), strided(k), strided(v), spans, tiles, given, scale)
    grouped = strided(q).unflatten(1, (k.shape[1], -1))
    out, _ = _attention()(grouped, strided(k), strided(v), spans, tiles, scale)
    return out.flatten(1, 2)


def _tiles(kernel: str, known: Mapping[str, Any]) -> dict[str, int]:
    """The tile of a kernel."""
    rows, columns = of_architecture(TILES, OTHER_TILES)[kernel][int(known["D"])]  # of a traced call it may be symbolic
    return {"BM": rows, "BN": columns}


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, spans, tiles, ctx.scale = inputs
    out, lse = output
    without_gradient(ctx, lse)
    ctx.save_for_backward(q, k, v, spans, tiles, out, lse)


def _backward(ctx: Any, dout: Any, _: Any) -> tuple[Any, ...]:
    """Gradients of the tensors; None of spans and numbers."""
    q, k, v, spans, tiles, out, lse = ctx.saved_tensors
    dout = strided(dout)
    rows = query_rows()(out[None], dout[None], lse[None])[0]
    dq = dk = dv = None
    if ctx.needs_input_grad[0]:
        dq = _backward_q()(q, k, v, dout, rows, spans, tiles, ctx.scale)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dk, dv = _backward_kv()(q, k, v, dout, rows, spans, tiles, ctx.scale)
    return dq, dk, dv, None, None, None


_attention = library_op("attention_varlen", partial(_tiles, "attention_varlen"), gradient=(_backward, _keep))
_backward_q = library_op("attention_varlen_backward_q", partial(_tiles, "attention_varlen_backward_q"))
_backward_kv = library_op(
    "attention_varlen_backward_kv", lambda known: {"ROWS": ROWS, **_tiles("attention_varlen_backward_kv", known)}
)
