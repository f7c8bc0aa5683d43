"""Cross entropy of a linear layer, of which no logits are stored, with its gradients.

The forward multiplies once and keeps of each tile of logits a maximum and a sum for each token. The backward takes the
vocabulary in parts: it multiplies again for a part's logits, and then for both gradients. So both make four products where a
layer and its loss make three, in memory for one part of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.attention import DTYPES
from tilec.kernels.chips import of_architecture
from tilec.kernels.losses import check_reduction, reduced
from tilec.kernels.ops import Constants, library_op, without_gradient
from tilec.kernels.shapes import whole

Tile = Mapping[str, int]
TILES: Final[Mapping[str, Tile]] = {
    "linear_sums": {"BM": 128, "BN": 256, "BK": 64},
    "linear_cross_entropy_backward": {"BM": 128, "BN": 128, "BK": 64},
    "product": {"BM": 128, "BN": 256, "BK": 64, "GROUP": 16},
    "product_into": {"BM": 128, "BN": 128, "BK": 64, "GROUP": 16},
}
DATA_CENTER_TILES: Final[Mapping[str, Tile]] = {**TILES, "product": {"BM": 128, "BN": 128, "BK": 64, "GROUP": 16}}
"""The same for chips of compute capability 10."""
SMALL_TILES: Final[Mapping[str, Tile]] = {**DATA_CENTER_TILES, "linear_sums": {"BM": 128, "BN": 128, "BK": 64}}
"""The same for chips of compute capability 12, whose blocks have 99 KB of shared memory."""
OTHER_TILES: Final = {"sm_10": DATA_CENTER_TILES, "sm_12": SMALL_TILES}
PART: Final = 1 << 26
"""Most logits of a part of the vocabulary, of which two copies are stored; a part has at least `LEAST` classes."""
LEAST: Final = 256


def linear_cross_entropy(x: Any, weight: Any, labels: Any, reduction: str = "mean", ignore_index: int = -100) -> Any:
    """Cross entropy of `x @ weight.T` and labels in f32, as `F.cross_entropy(F.linear(x, weight).float(), labels)`, without a
    tensor of all logits.

    x: `[..., H]`, bf16 or f16, with H a multiple of 8. weight: `[V, H]` of the same dtype. labels: `[...]`, i64 or i32.
    Logits are not rounded to the dtype. Returns f32, as `cross_entropy` of this library for each reduction and label.
    Gradients: of `x` and `weight`, in their dtype, sums in a fixed order; those of logits are rounded to the dtype before they
    meet `x` and `weight`. ValueError for another reduction, for other dtypes and shapes."""
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
    maxima, sums = _sums()(tokens.detach(), classes.detach())
    loss = _loss()(tokens, classes, whole(labels.reshape(-1)), maxima, sums, ignore_index)[0]
    return reduced(loss, labels, reduction, ignore_index)


def _tile(kernel: str) -> Constants:
    """Constants of a kernel, which depend on the chip alone."""

    def chosen(known: dict[str, Any]) -> Tile:
        return of_architecture(TILES, OTHER_TILES)[kernel]

    return chosen


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    x, weight, labels, _, _, ctx.ignore_index = inputs
    without_gradient(ctx, output[1])
    ctx.save_for_backward(x, weight, labels, output[1])


def _differentiate(ctx: Any, dloss: Any, _: Any) -> tuple[Any, ...]:
    """Sums of `x`'s gradient in f32 over parts of the vocabulary; each part has its own rows of that of `weight`."""
    x, weight, labels, lse = ctx.saved_tensors
    dloss, count = whole(dloss), weight.shape[0]
    of_x, of_weight = lse.new_zeros(x.shape), weight.new_empty(weight.shape)
    part = max(LEAST, PART // x.shape[0] // LEAST * LEAST)
    for first in range(0, count, part):
        rows = weight[first : first + part]
        dlogits, transposed = _dlogits()(x, rows, labels, lse, dloss, first, ctx.ignore_index)
        if ctx.needs_input_grad[0]:
            _product_into()(dlogits, rows, of_x)
        if ctx.needs_input_grad[1]:
            _product()(transposed, x, of_weight[first : first + part])
    dx = of_x.to(x.dtype) if ctx.needs_input_grad[0] else None
    return dx, of_weight if ctx.needs_input_grad[1] else None, None, None, None, None


_sums = library_op("linear_sums", _tile("linear_sums"))
_loss = library_op("linear_cross_entropy", {"ROWS": 8, "BLOCK": 256}, gradient=(_differentiate, _save))
_dlogits = library_op("linear_cross_entropy_backward", _tile("linear_cross_entropy_backward"))
_product = library_op("product", _tile("product"), mutates=["out"])
_product_into = library_op("product_into", _tile("product_into"))
