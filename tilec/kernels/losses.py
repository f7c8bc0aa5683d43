"""Cross entropy with its gradient."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilec.kernels.ops import library_op, multiple, without_gradient
from tilec.kernels.shapes import whole

REDUCTIONS = ("mean", "sum", "none")


def _row(known: Mapping[str, Any]) -> dict[str, int]:
    """Rows are taken in tiles, those that begin at whole vectors by whole vectors."""
    return {"BLOCK": 4096, "MULTIPLE": multiple(known["V"])}


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    logits, labels, ctx.ignore_index = inputs
    without_gradient(ctx, output[1])
    ctx.save_for_backward(logits, labels, output[1])


def _differentiate(ctx: Any, dloss: Any, dlse: Any) -> tuple[Any, None, None]:
    """`dlse` is not used: the sum of exponentials serves the gradient only."""
    logits, labels, lse = ctx.saved_tensors
    return _cross_entropy_backward()(logits, labels, lse, whole(dloss), ctx.ignore_index), None, None


_cross_entropy = library_op("cross_entropy", _row, gradient=(_differentiate, _save))
_cross_entropy_backward = library_op("cross_entropy_backward", _row)


def cross_entropy(logits: Any, labels: Any, reduction: str = "mean", ignore_index: int = -100) -> Any:
    """Cross entropy of logits and labels in f32, as `torch.nn.functional.cross_entropy`; the classes are the last axis.

    logits: `[..., V]`, bf16, f16 or f32, below 2.3e38; any V, fastest if it is a multiple of 8. labels: `[...]`, i64 or i32.
    Returns f32: the mean over tokens whose label is not `ignore_index` (NaN if there are none), their sum, or, for "none", the
    loss of each token as `[...]`, 0 where it is ignored. A label outside of `0 <= label < V` other than `ignore_index` is not
    refused: its loss is inf. Gradient: of `logits`, in their dtype.
    ValueError for another reduction, and for labels of another shape."""
    check_reduction(reduction)
    if logits.ndim == 0 or logits.shape[-1] == 0:
        raise ValueError(f"`logits` has the shape {list(logits.shape)}; its last axis has at least 1 class")
    if labels.shape != logits.shape[:-1]:
        given, required = list(labels.shape), list(logits.shape[:-1])
        raise ValueError(f"`labels` has the shape {given}; one label for each row of `logits` has the shape {required}")
    tokens = whole(logits.reshape(-1, logits.shape[-1]))
    loss = _cross_entropy()(tokens, whole(labels.reshape(-1)), ignore_index)[0]
    return reduced(loss, labels, reduction, ignore_index)


def check_reduction(reduction: str) -> None:
    """ValueError for a reduction that there is not."""
    if reduction not in REDUCTIONS:
        raise ValueError(f"`reduction` is {reduction!r}; it is one of {', '.join(map(repr, REDUCTIONS))}")


def reduced(loss: Any, labels: Any, reduction: str, ignore_index: int) -> Any:
    """Losses of tokens in the shape of their labels, or their sum, or the mean of those that are not ignored."""
    if reduction == "none":
        return loss.reshape(labels.shape)
    return loss.sum() if reduction == "sum" else loss.sum() / (labels != ignore_index).sum()
