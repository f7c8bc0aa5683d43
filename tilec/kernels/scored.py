"""Attention with a score function: ALiBi (Press et al., 2021) or a soft cap (Gemma Team, Gemma 2, 2024), with gradients.

Sequences of several lengths and those of one length have the same kernels: the latter are taken one after the other.
`attention_spans` says which keys each query attends to, and where its own position is among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from tilec.kernels.chips import of_architecture
from tilec.kernels.ops import Gradient, library_op, without_gradient
from tilec.kernels.shapes import whole

ROWS: Final = 128
"""Rows of a tile of spans."""
ALIBI: Final = 1
SOFTCAP: Final = 2
TILES: Final[Mapping[str, Mapping[int, tuple[int, int]]]] = {
    "attention_scored": {64: (ROWS, 128), 128: (ROWS, 128)},
    "attention_scored_backward_q": {64: (ROWS, 112), 128: (ROWS, 96)},
    "attention_scored_backward_kv": {64: (80, 128), 128: (48, 128)},
}
"""BM and BN for each size of a head. What a score function keeps takes registers: backward tiles are smaller than others."""
SMALL_TILES: Final[Mapping[str, Mapping[int, tuple[int, int]]]] = {
    "attention_scored": {64: (ROWS, 64), 128: (ROWS, 64)},
    "attention_scored_backward_q": {64: (ROWS, 32), 128: (ROWS, 32)},
    "attention_scored_backward_kv": {64: (32, 128), 128: (32, 64)},
}
"""The same for chips of compute capability 10 and 12, whose products take their operands from registers."""
OTHER_TILES: Final = {"sm_10": SMALL_TILES, "sm_12": SMALL_TILES}
Given = tuple[Any, float]
"""Slopes and a cap: one of both decides."""


def checked_scores(function: str, q: Any, sequences: int, slopes: Any, softcap: float | None) -> Given | None:
    """Slopes (1 or `sequences`, heads) of f32 and the cap, 0 with slopes; None if neither is given. ValueError for what no
    kernel takes."""
    heads = q.shape[-2]
    if softcap is None:
        if slopes is None:
            return None
        dtype = str(slopes.dtype).removeprefix("torch.")
        if dtype != "float32" or tuple(slopes.shape) not in ((heads,), (sequences, heads)):
            raise ValueError(
                f"`alibi_slopes` is {dtype} {list(slopes.shape)}; {function} takes float32 [{heads}] or [{sequences}, {heads}]"
            )
        return slopes.reshape(-1, heads), 0.0
    if slopes is not None:
        raise ValueError(f"{function} takes `alibi_slopes` or `softcap`, not both")
    if not 0 < softcap < math.inf:
        raise ValueError(f"`softcap` is {softcap}; {function} takes a finite number above 0, or None")
    return q.new_ones((1, heads)).float(), float(softcap)


def spans_of(q: Any, k: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, before: int, after: int) -> tuple[Any, Any]:
    """What the queries and keys of sequences see of each other."""
    return _spans()(whole(cu_seqlens_q), whole(cu_seqlens_k), q.shape[0], k.shape[0], before, after)


def scored_attention(q: Any, k: Any, v: Any, spans: Any, tiles: Any, given: Given, scale: float) -> Any:
    """Attention of (T, HQ, D), whose strides kernels take, with what `checked_scores` and `spans_of` return."""
    grouped = q.unflatten(1, (k.shape[1], -1))
    slopes, softcap = given
    own = whole(slopes).reshape(slopes.shape[0], k.shape[1], -1)
    rows = _slopes()(own, spans, q.shape[0], k.shape[0])
    out, _ = _of_score(_attention, softcap)(grouped, k, v, spans, tiles, rows, scale, softcap)
    return out.flatten(1, 2)


def equal_offsets(x: Any) -> Any:
    """Where each sequence of (B, T, ...) begins, and the end of the last, i32."""
    numbers = x.new_ones((x.shape[0] + 1,)).int().cumsum(0).int() - 1
    return numbers * x.shape[1]


def _of_score(ops: Mapping[int, Callable[[], Any]], cap: float) -> Any:
    """The op of a score function: a kernel has one, and a call's floats choose no kernel."""
    return ops[SOFTCAP if cap > 0 else ALIBI]()


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    q, k, v, spans, tiles, slopes, ctx.scale, ctx.cap = inputs
    out, lse = output
    without_gradient(ctx, lse)
    ctx.save_for_backward(q, k, v, spans, tiles, slopes, out, lse)


def _backward(ctx: Any, dout: Any, _: Any) -> tuple[Any, ...]:
    """Gradients of the tensors of queries, keys and values; None of what they see, and of numbers."""
    q, k, v, spans, tiles, slopes, out, lse = ctx.saved_tensors
    dout = whole(dout)
    rows = query_rows()(out[None], dout[None], lse[None])[0]
    given = q, k, v, dout, rows, spans, tiles, slopes, ctx.scale, ctx.cap
    dq = dk = dv = None
    if ctx.needs_input_grad[0]:
        dq = _of_score(_backward_q, ctx.cap)(*given)
    if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
        dk, dv = _of_score(_backward_kv, ctx.cap)(*given)
    return dq, dk, dv, None, None, None, None, None


def _ops(kernel: str, more: Mapping[str, int], gradient: Gradient | None = None) -> dict[int, Callable[[], Any]]:
    """A kernel's op for each score function."""

    def made(score: int, name: str) -> Callable[[], Any]:
        def constants(known: Mapping[str, Any]) -> dict[str, int]:
            rows, columns = of_architecture(TILES, OTHER_TILES)[kernel][int(known["D"])]  # of a traced call it may be symbolic
            return {**more, "SCORE": score, "BM": rows, "BN": columns}

        return library_op(kernel, constants, name=name, gradient=gradient)

    return {ALIBI: made(ALIBI, f"{kernel}_alibi"), SOFTCAP: made(SOFTCAP, f"{kernel}_softcap")}


query_rows = library_op("attention_rows", {"BM": 64})
"""What the gradients of every attention need of a query."""
_spans = library_op("attention_spans", {"ROWS": ROWS})
_slopes = library_op("attention_slopes", {"ROWS": ROWS})
_attention = _ops("attention_scored", {}, (_backward, _keep))
_backward_q = _ops("attention_scored_backward_q", {})
_backward_kv = _ops("attention_scored_backward_kv", {"ROWS": ROWS})
