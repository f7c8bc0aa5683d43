"""Mixtures of experts: the experts of each token, and the rows of tokens in the order of experts, with gradients.

Choice `t * K + j` is the j-th expert of token t. A counting sort gives their order: counts of experts in tiles of choices, a
scan of these, and the slot of each choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op, multiple, without_gradient
from tilec.kernels.shapes import flat, rows_of, whole

EXPERTS: Final = (64, 128, 256, 512)
"""Numbers of experts for which routes are prebuilt; the kernel takes fewer."""
COUNTED: Final = (16, 64, 128, 256, 512)
"""The same of counts."""
MOST: Final = 16
"""Experts of a token."""
CHOICES: Final = 256
"""Choices that a block sorts."""


def _route_tile(known: Mapping[str, Any]) -> dict[str, int]:
    most = next(most for most in EXPERTS if known["X"] <= most)
    return {"ROWS": 16 if most == EXPERTS[0] else 4, "EXPERTS": most}


def _topk_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return _route_tile(known) | {"MOST": MOST}


def _counted(known: Mapping[str, Any]) -> dict[str, int]:
    return {"EXPERTS": next(most for most in COUNTED if known["X"] <= most), "BLOCK": CHOICES}


def _tiles(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"P": -(-known["N"] // CHOICES)}


def _row_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BLOCK": 1024, "MULTIPLE": multiple(known["H"])}


def _keep_route(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    without_gradient(ctx, output[1])
    ctx.normalize = inputs[2]
    ctx.save_for_backward(inputs[0], *output)


def _route_gradient(ctx: Any, dweights: Any, of_experts: Any) -> tuple[Any, None, None]:
    return _moe_route_backward()(whole(dweights), *ctx.saved_tensors, ctx.normalize), None, None


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _expand_gradient(ctx: Any, dout: Any) -> tuple[Any, Any, None, None]:
    x, weights, order, slots = ctx.saved_tensors
    rows = whole(dout)
    dx = _combine_rows()(rows, weights, slots, order)
    return dx, _combine_rows_dots()(x, rows, weights, slots), None, None


def _combine_gradient(ctx: Any, dout: Any) -> tuple[Any, Any, None, None]:
    y, weights, slots, order = ctx.saved_tensors
    rows = whole(dout)
    dy = _expand_rows()(rows, weights, order, slots)
    return dy, _combine_rows_dots()(rows, y, weights, slots), None, None


_moe_route = library_op("moe_route", _topk_tile, dims=lambda known: {"K": known["k"]}, gradient=(_route_gradient, _keep_route))
_moe_route_backward = library_op("moe_route_backward", _route_tile)
_expert_counts = library_op("expert_counts", _counted, dims=_tiles)
_expert_starts = library_op("expert_starts", {"EXPERTS": EXPERTS[-1], "ROWS": 1024, "COLUMNS": 4})
_expert_slots = library_op("expert_slots", {"BLOCK": CHOICES})
_expand_rows = library_op("expand_rows", _row_tile, gradient=(_expand_gradient, _keep))
_combine_rows = library_op("combine_rows", _row_tile, gradient=(_combine_gradient, _keep))
_combine_rows_dots = library_op("combine_rows_dots", _row_tile)


def moe_route(logits: Any, k: int, normalize: bool = True) -> tuple[Any, Any]:
    """The k experts with the largest logits of each token, and the weights with which they are summed.

    logits: `[..., X]`, bf16, f16 or f32, X at most 512 and k at most 16. Returns weights, f32, and experts, i32, both `[...,
    k]` and the largest first; of equal logits that of the lower expert is taken. Weights are the softmax of the k logits, or
    with `normalize=False` theirs in the softmax of all. Gradient: of `logits`, by the weights. ValueError for other numbers."""
    rows = rows_of("moe_route", logits, EXPERTS[-1], "logits")
    if not 1 <= k <= min(rows.shape[1], MOST):
        raise ValueError(f"moe_route: `k` is {k}; it is from 1 to {MOST}, and not more than the {rows.shape[1]} experts")
    weights, experts = _moe_route()(rows, k, int(normalize))
    shape = (*logits.shape[:-1], k)
    return weights.reshape(shape), experts.reshape(shape)


def sort_by_expert(choices: Any, experts: int) -> tuple[Any, Any, Any]:
    """The order of choices by their expert, by a counting sort; those of one expert stay in order.

    choices: `[...]`, i32, of N choices in all, such as `[T, K]`; those that are no number from 0 to below `experts`, at most
    512, are left out. Returns i32 tensors: `order` `[N]`, the numbers of choices in the order of experts, -1 after the last
    one; `slots` `[...]`, where choices are in that order, -1 of those that are left out; and `ends` `[experts]`, the number of
    choices of all experts up to each, the offsets of a grouped product. ValueError for another number of experts."""
    if not 1 <= experts <= EXPERTS[-1]:
        raise ValueError(f"sort_by_expert: `experts` is {experts}; it is from 1 to {EXPERTS[-1]}")
    ids = flat("choices", choices)
    order, totals = ids.new_full((ids.shape[0],), -1), ids.new_zeros((experts,))
    if ids.shape[0] == 0:
        return order, ids.reshape(choices.shape), totals
    counts = _expert_counts()(ids, totals)
    starts, ends = _expert_starts()(counts, totals)
    slots = _expert_slots()(ids, starts, order)
    return order, slots.reshape(choices.shape), ends


def _slotted(function: str, order: Any, slots: Any, tokens: int) -> tuple[Any, Any]:
    """`order`, and `slots` as `[T, K]`; ValueError if they are not of `tokens` tokens."""
    if slots.ndim < 2 or math.prod(slots.shape[:-1]) != tokens or order.shape[0] != math.prod(slots.shape):
        given = f"`order` has the shape {list(order.shape)} and `slots` {list(slots.shape)}"
        raise ValueError(f"{function}: {given}; of {tokens} tokens they are `[{tokens} * K]` and `[{tokens}, K]`")
    return whole(order), whole(slots.reshape(tokens, slots.shape[-1]))


def moe_permute(x: Any, order: Any, slots: Any) -> Any:
    """The rows of tokens in the order of experts: a row for each choice of `sort_by_expert`.

    x: `[..., H]`, bf16, f16 or f32, of T tokens in all; order: `[T * K]` and slots: `[..., K]`, i32, as `sort_by_expert`
    returns them. Returns `[T * K, H]`, row i that of token `order[i] // K`, 0 after the last choice. Gradient: of `x`, a sum in
    f32 over the K rows of a token, the same at every call. ValueError for other shapes."""
    tokens = rows_of("moe_permute", x)
    own_order, own_slots = _slotted("moe_permute", order, slots, tokens.shape[0])
    return _expand_rows()(tokens, tokens.new_ones(tuple(own_slots.shape)), own_order, own_slots)


def moe_combine(y: Any, weights: Any, order: Any, slots: Any) -> Any:
    """The weighted sum of the rows of each token, which lie in the order of experts: `sum over j of weights[t, j] *
    y[slots[t, j]]`, in f32 and in the order of j, rounded once.

    y: `[T * K, H]`, bf16, f16 or f32; weights: `[..., K]`, f32 or of the dtype of `y`; order: `[T * K]` and slots: `[..., K]`,
    i32, as `sort_by_expert` returns them. Returns `[..., H]`. Gradients: of `y` and of `weights`. ValueError for other
    shapes."""
    if y.ndim != 2 or y.shape[0] != order.shape[0] or weights.shape != slots.shape:
        shapes = f"`y` has the shape {list(y.shape)} and `weights` {list(weights.shape)}"
        raise ValueError(f"moe_combine: {shapes}; they are a row for each choice of `order`, and the shape of `slots`")
    shape = (*weights.shape[:-1], y.shape[1])
    own_order, own_slots = _slotted("moe_combine", order, slots, math.prod(weights.shape[:-1]))
    rows = _combine_rows()(whole(y), whole(weights.reshape(tuple(own_slots.shape))), own_slots, own_order)
    return rows.reshape(shape)
