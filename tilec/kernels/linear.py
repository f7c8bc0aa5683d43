"""Cross entropy of a linear layer, of which no logits are stored, with its gradients.

The forward multiplies once and keeps of each tile of logits a maximum and a sum for each token. The backward takes the
vocabulary in parts: it computes the gradient of a part's logits, and multiplies it for both gradients. Where gradients are
asked for and there are at most `KEPT` logits, the forward keeps their exponentials too, rounded to the dtype. So forward and
backward make three products, as a layer and its loss do. With more logits the backward multiplies again, which is a fourth
product, in memory for one part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from tilec.kernels.attention import DTYPES
from tilec.kernels.chips import of_architecture
from tilec.kernels.losses import check_reduction, reduced
from tilec.kernels.ops import Constants, differentiated, library_op, without_gradient
from tilec.kernels.shapes import whole

Tile = Mapping[str, int]
TILES: Final[Mapping[str, Tile]] = {
    "linear_sums": {"BM": 128, "BN": 256, "BK": 64},
    "linear_exponentials": {"BM": 128, "BN": 256, "BK": 64},
    "linear_cross_entropy_backward": {"BM": 128, "BN": 128, "BK": 64},
    "product": {"BM": 128, "BN": 256, "BK": 64, "GROUP": 16},
    "product_into": {"BM": 128, "BN": 128, "BK": 64, "GROUP": 16},
}
DATA_CENTER_TILES: Final[Mapping[str, Tile]] = {**TILES, "product": {"BM": 128, "BN": 128, "BK": 64, "GROUP": 16}}
"""The same for chips of compute capability 10."""
SMALL_TILES: Final[Mapping[str, Tile]] = {
    **DATA_CENTER_TILES,
    "linear_sums": {"BM": 128, "BN": 128, "BK": 64},
    "linear_exponentials": {"BM": 128, "BN": 128, "BK": 64},
}
"""The same for chips of compute capability 12, whose blocks have 99 KB of shared memory."""
OTHER_TILES: Final = {"sm_10": DATA_CENTER_TILES, "sm_12": SMALL_TILES}
PART: Final = 1 << 26
"""Most logits of a part of the vocabulary, of which two copies are stored; a part has at least `LEAST` classes."""
LEAST: Final = 256
"""A multiple of the classes of every tile of `linear_exponentials`."""
KEPT: Final = 1 << 31
"""Most logits whose exponentials are kept for the gradient, 4 GiB, where a vocabulary is whole multiples of `LEAST`."""


def linear_cross_entropy(x: Any, weight: Any, labels: Any, reduction: str = "mean", ignore_index: int = -100) -> Any:
    """Cross entropy of `x @ weight.T` and labels in f32, as `F.cross_entropy(F.linear(x, weight).float(), labels)`, without a
    tensor of all logits in f32.

    x: `[..., H]`, bf16 or f16, with H a multiple of 8. weight: `[V, H]` of the same dtype. labels: `[...]`, i64 or i32.
    Logits are not rounded to the dtype. Returns f32, as `cross_entropy` of this library for each reduction and label.
    Gradients: of `x` and `weight`, in their dtype, sums in a fixed order; those of logits are rounded to the dtype before they
    meet `x` and `weight`. If one of them is asked for and there are at most 2^31 logits, the forward keeps their
    exponentials for it, rounded to the dtype: 2 bytes for each token and class, at most 4 GiB, with V rounded up to a
    multiple of 256. Gradients take another 256 MiB at a time, or 1 KiB for each token if that is more. ValueError for another
    reduction, for other dtypes and shapes."""
    check_reduction(reduction)
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in DTYPES or weight.dtype != x.dtype:
        raise ValueError(f"`x` is {dtype}; linear_cross_entropy takes {' or '.join(DTYPES)}, one for `x` and `weight`")
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or x.shape[-1] % 8 or 0 in weight.shape:
        shapes = f"{list(x.shape)} and {list(weight.shape)}"
        raise ValueError(
            f"`x` and `weight` are {shapes}; they are [..., H] and [V, H], with H a multiple of 8 and V at least 1"
        )
    if labels.shape != x.shape[:-1]:
        raise ValueError(f"`labels` has the shape {list(labels.shape)}; one label for each token is {list(x.shape[:-1])}")
    tokens, classes = whole(x.reshape(-1, x.shape[-1])), whole(weight)
    loss = _losses(tokens, classes, whole(labels.reshape(-1)), ignore_index)
    return reduced(loss, labels, reduction, ignore_index)


def _losses(x: Any, weight: Any, labels: Any, ignore_index: int) -> Any:
    """The loss of each token, with what its gradient needs."""
    if differentiated(x, weight) and x.shape[0] * -(-weight.shape[0] // LEAST) * LEAST <= KEPT:
        maxima, sums, kept = _exponentials()(x.detach(), weight.detach())
        return _loss_kept()(x, weight, labels, maxima, sums, kept, ignore_index)[0]
    maxima, sums = _sums()(x.detach(), weight.detach())
    return _loss()(x, weight, labels, maxima, sums, ignore_index)[0]


def _tile(kernel: str) -> Constants:
    """Constants of a kernel, which depend on the chip alone."""

    def chosen(known: dict[str, Any]) -> Tile:
        return of_architecture(TILES, OTHER_TILES)[kernel]

    return chosen


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    x, weight, labels, _, _, ctx.ignore_index = inputs
    without_gradient(ctx, output[1])
    ctx.save_for_backward(x, weight, labels, output[1])


def _save_kept(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    x, weight, labels, maxima, _, kept, ctx.ignore_index = inputs
    without_gradient(ctx, output[1])
    ctx.save_for_backward(x, weight, labels, output[1], maxima, kept)


def _differentiate(ctx: Any, dloss: Any, _: Any) -> tuple[Any, ...]:
    x, weight, labels, lse = ctx.saved_tensors
    dloss = whole(dloss)

    def slopes(first: int, rows: Any) -> tuple[Any, Any]:
        return _dlogits()(x, rows, labels, lse, dloss, first, ctx.ignore_index)

    return *_gradients(ctx, x, weight, lse, slopes), None, None, None, None


def _differentiate_kept(ctx: Any, dloss: Any, _: Any) -> tuple[Any, ...]:
    x, weight, labels, lse, maxima, kept = ctx.saved_tensors
    dloss, width = whole(dloss), kept.shape[2]

    def slopes(first: int, rows: Any) -> tuple[Any, Any]:
        count = rows.shape[0]
        tiles = slice(first // width, -(-(first + count) // width))
        return _slopes()(kept[tiles], maxima[tiles], labels, lse, dloss, first, count, ctx.ignore_index)

    return *_gradients(ctx, x, weight, lse, slopes), None, None, None, None, None


def _gradients(
    ctx: Any, x: Any, weight: Any, lse: Any, slopes: Callable[[int, Any], tuple[Any, Any]]
) -> tuple[Any, Any]:  # fmt: skip
    """Those of `x` and `weight`, from the gradient of the logits of a part and its transpose, which may have rows of 0 more.
    Sums of `x`'s gradient in f32 over parts of the vocabulary; each part has its own rows of that of `weight`."""
    if x.shape[0] == 0:
        return x.new_zeros(x.shape), weight.new_zeros(weight.shape)
    of_x, of_weight = lse.new_zeros(x.shape), weight.new_empty(weight.shape)
    part = max(LEAST, PART // x.shape[0] // LEAST * LEAST)
    for first in range(0, weight.shape[0], part):
        rows = weight[first : first + part]
        dlogits, transposed = slopes(first, rows)
        if ctx.needs_input_grad[0]:
            _product_into()(dlogits, rows, of_x)
        if ctx.needs_input_grad[1]:
            product()(transposed[: rows.shape[0]], x, of_weight[first : first + part])
    dx = of_x.to(x.dtype) if ctx.needs_input_grad[0] else None
    return dx, of_weight if ctx.needs_input_grad[1] else None


_sums = library_op("linear_sums", _tile("linear_sums"))
_loss = library_op("linear_cross_entropy", {"ROWS": 8, "BLOCK": 256}, gradient=(_differentiate, _save))
_exponentials = library_op("linear_exponentials", _tile("linear_exponentials"))
_loss_kept = library_op("linear_cross_entropy_kept", {"ROWS": 8, "BLOCK": 256}, gradient=(_differentiate_kept, _save_kept))
_slopes = library_op("linear_cross_entropy_slopes", {"BM": 64, "BN": 64})
_dlogits = library_op("linear_cross_entropy_backward", _tile("linear_cross_entropy_backward"))
product = library_op("product", _tile("product"), mutates=["out"])
_product_into = library_op("product_into", _tile("product_into"))
