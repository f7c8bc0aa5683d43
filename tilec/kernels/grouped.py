"""Products of the rows of each group with the group's own matrix, such as those of a mixture of experts, with gradients.

Rows are sorted by group, and groups begin anywhere. Tiles of 128 rows begin at the first row of their group, so that a tile has
rows of one group: `group_starts` and `group_blocks` find them on the GPU. If groups are small, tiles of 16 rows lie anywhere,
and a block multiplies its rows by the matrix of each group that has rows among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.attention import DTYPES
from tilec.kernels.ops import Constants, library_op
from tilec.kernels.shapes import whole

FEW: Final = 32
"""Rows of a group, in the mean, up to which tiles have 16 rows."""
WIDE: Final = (192, 256)
"""Columns of a tile of a product; the first ones if both leave as many idle."""
DEPTH: Final = 64


def grouped_matmul(x: Any, weights: Any, offsets: Any) -> Any:
    """`x[t] @ weights[g].T` for each row t of group g, in f32, rounded once.

    x: (T, K) of bf16 or f16, rows of all groups, one group after the other. weights: (X, N, K) of the same dtype, with K and N
        multiples of 8. offsets: i32 (X + 1), from 0 up: group g has rows `offsets[g]` to `offsets[g + 1] - 1`. They stay on the
        GPU and are not checked: with wrong ones, rows meet other matrices.
    Returns (T, N); 0 for rows after the last group. Gradients: of `x` and `weights`, sums in a fixed order; that of `weights`
    multiplies some rows of the next group by 0, so all of them must be finite.
    ValueError for other dtypes, shapes and extents."""
    _check("grouped_matmul", x, weights, offsets, weights.shape[1:-1])
    if x.shape[0] == 0:
        return x @ weights[0].T + 0 * weights.sum()
    rows, matrices, starts = whole(x), whole(weights), whole(offsets)
    if x.shape[0] <= FEW * weights.shape[0]:
        return _few()(rows, matrices, _tiles()(starts, rows.shape[0]), starts)
    return _matmul()(rows, matrices, *_blocks_of(starts, rows.shape[0]))


def grouped_swiglu(x: Any, weights: Any, offsets: Any) -> Any:
    """`silu(x[t] @ weights[g, 0].T) * (x[t] @ weights[g, 1].T)` for each row t of group g, in f32, rounded once: the first half
    of the SwiGLU layer of each expert.

    x, offsets: as for `grouped_matmul`. weights: (X, 2, N, K), of gate and up. Returns (T, N). Gradients: of `x` and `weights`;
    they compute both projections again, rounded to the dtype. ValueError for other dtypes, shapes and extents."""
    _check("grouped_swiglu", x, weights, offsets, (2, weights.shape[-2]))
    if x.shape[0] == 0:
        return x @ weights[0, 0].T + 0 * weights.sum()
    rows, matrices, starts = whole(x), whole(weights), whole(offsets)
    return _swiglu()(rows, matrices, *_blocks_of(starts, rows.shape[0]))


def _check(function: str, x: Any, weights: Any, offsets: Any, middle: Any) -> None:
    """ValueError for tensors that no kernel takes; `middle`: extents between groups and the depth."""
    dtype = str(x.dtype).removeprefix("torch.")
    if dtype not in DTYPES or weights.dtype != x.dtype:
        raise ValueError(f"`x` is {dtype}; {function} takes {' or '.join(DTYPES)}, one for `x` and `weights`")
    wanted = ("X", "N", "K") if len(middle) == 1 else ("X", "2", "N", "K")
    fits = x.ndim == 2 and weights.ndim == len(wanted) and tuple(weights.shape[1:-1]) == tuple(middle)
    if not fits or x.shape[1] != weights.shape[-1] or x.shape[1] % 8 or weights.shape[-2] % 8 or 0 in weights.shape:
        shapes = f"{list(x.shape)} and {list(weights.shape)}"
        raise ValueError(f"`x` and `weights` are {shapes}; they are [T, K] and [{', '.join(wanted)}], K and N multiples of 8")
    if tuple(offsets.shape) != (weights.shape[0] + 1,):
        raise ValueError(f"`offsets` has the shape {list(offsets.shape)}; for {weights.shape[0]} groups it is [X + 1]")


def _blocks_of(offsets: Any, count: int) -> tuple[Any, Any, Any]:
    """Groups and first rows of the tiles of `count` rows, and the tiles before each group."""
    begins, before = _starts()(offsets, count)
    groups, starts = _blocks()(begins, before, count)
    return groups, starts, before


def _columns(extent: str) -> Constants:
    """The tile of a product with as many columns as a dim."""

    def chosen(known: dict[str, Any]) -> Mapping[str, int]:
        return {"BN": min(WIDE, key=lambda columns: -(-known[extent] // columns) * columns), "BK": DEPTH}

    return chosen


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weights, groups, starts, before = ctx.saved_tensors
    return (*_gradients(x, weights, (groups, starts, before), whole(dout), ctx.needs_input_grad), None, None, None)


def _few_backward(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weights, _, offsets = ctx.saved_tensors
    return (*_gradients(x, weights, _blocks_of(offsets, x.shape[0]), whole(dout), ctx.needs_input_grad), None, None)


def _gradients(x: Any, weights: Any, blocks: tuple[Any, Any, Any], dout: Any, needed: Any) -> tuple[Any, Any]:
    """Gradients of `x` and `weights`, those that are needed. Rows of the left operand of a product do not lie along the depth,
    so that `dout` is transposed for the latter."""
    groups, starts, before = blocks
    of_x = _backward_x()(dout, weights, groups, starts, before) if needed[0] else None
    return of_x, _backward_weights()(_transposed()(dout, starts), x, starts, before) if needed[1] else None


def _swiglu_gradient(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weights, *blocks = ctx.saved_tensors
    joined = weights.reshape(weights.shape[0], 2 * weights.shape[2], weights.shape[3])
    both = _matmul()(x, joined, *blocks)
    slope = _slopes()(both.reshape(x.shape[0], 2, -1), whole(dout)).reshape(both.shape)
    of_x, of_weights = _gradients(x, joined, tuple(blocks), slope, ctx.needs_input_grad)
    return of_x, None if of_weights is None else of_weights.reshape(weights.shape), None, None, None


_tiles = library_op("group_tiles", {"BLOCK": 32})
_starts = library_op("group_starts", {"BLOCK": 1024})
_blocks = library_op("group_blocks", {"BLOCK": 128})
_matmul = library_op("grouped_matmul", _columns("N"), trusted=("starts",), gradient=(_backward, _save))
_few = library_op("grouped_matmul_few", {"BM": 16, "BN": 64, "BK": DEPTH}, gradient=(_few_backward, _save))
_backward_x = library_op("grouped_matmul_backward_x", _columns("K"), trusted=("starts",))
_transposed = library_op("grouped_columns", {"BN": 64})
_backward_weights = library_op("grouped_matmul_backward_weights", {"BM": 128, "BN": 256, "BK": DEPTH})
_swiglu = library_op("grouped_swiglu", {"BN": 128, "BK": DEPTH}, trusted=("starts",), gradient=(_swiglu_gradient, _save))
_slopes = library_op("grouped_swiglu_slopes", {"ROWS": 4, "BLOCK": 512})
