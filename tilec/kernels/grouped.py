"""Products of the rows of each group with the group's own matrix, such as those of a mixture of experts, with gradients.

Rows are sorted by group, and groups begin anywhere: a block multiplies its tile of rows by the matrix of each group that has
rows in it. Tiles have 16 rows if groups are small, else 128.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.attention import DTYPES
from tilec.kernels.ops import Constants, library_op
from tilec.kernels.shapes import whole

FEW: Final = 32
"""Rows of a group, in the mean, up to which tiles have 16 rows."""
TILES: Final[Mapping[str, Mapping[str, int]]] = {
    "grouped_matmul": {"BM": 128, "BN": 128, "BK": 64},
    "grouped_matmul_few": {"BM": 16, "BN": 64, "BK": 64},
    "grouped_matmul_backward_x": {"BM": 128, "BN": 128, "BK": 64},
    "grouped_matmul_backward_weights": {"BM": 128, "BN": 128, "BK": 64},
    "grouped_swiglu": {"BM": 128, "BN": 64, "BK": 64},
}


def grouped_matmul(x: Any, weights: Any, offsets: Any) -> Any:
    """`x[t] @ weights[g].T` for each row t of group g, in f32, rounded once.

    x: (T, K) of bf16 or f16, rows of all groups, one group after the other. weights: (X, N, K) of the same dtype, with K and N
        multiples of 8. offsets: i32 (X + 1), from 0 up: group g has rows `offsets[g]` to `offsets[g + 1] - 1`. They stay on the
        GPU and are not checked: with wrong ones, rows meet other matrices.
    Returns (T, N); 0 for rows after the last group. Gradients: of `x` and `weights`, sums in a fixed order.
    ValueError for other dtypes, shapes and extents."""
    _check("grouped_matmul", x, weights, offsets, weights.shape[1:-1])
    if x.shape[0] == 0:
        return x @ weights[0].T + 0 * weights.sum()
    rows, matrices, starts = whole(x), whole(weights), whole(offsets)
    op = _few if x.shape[0] <= FEW * weights.shape[0] else _matmul
    return op()(rows, matrices, _tiles()(starts, rows.shape[0]), starts)


def grouped_swiglu(x: Any, weights: Any, offsets: Any) -> Any:
    """`silu(x[t] @ weights[g, 0].T) * (x[t] @ weights[g, 1].T)` for each row t of group g, in f32, rounded once: the first half
    of the SwiGLU layer of each expert.

    x, offsets: as for `grouped_matmul`. weights: (X, 2, N, K), of gate and up. Returns (T, N). Gradients: of `x` and `weights`;
    they compute both projections again, rounded to the dtype. ValueError for other dtypes, shapes and extents."""
    _check("grouped_swiglu", x, weights, offsets, (2, weights.shape[-2]))
    if x.shape[0] == 0:
        return x @ weights[0, 0].T + 0 * weights.sum()
    rows, matrices, starts = whole(x), whole(weights), whole(offsets)
    return _swiglu()(rows, matrices, _tiles()(starts, rows.shape[0]), starts)


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


def _constants(kernel: str) -> Constants:
    """Constants of a kernel, the same for every call."""

    def chosen(known: dict[str, Any]) -> Mapping[str, int]:
        return TILES[kernel]

    return chosen


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weights, groups, offsets = ctx.saved_tensors
    return (*_gradients(x, weights, groups, offsets, whole(dout), ctx.needs_input_grad), None, None)


def _gradients(x: Any, weights: Any, groups: Any, offsets: Any, dout: Any, needed: Any) -> tuple[Any, Any]:
    """Gradients of `x` and `weights`, those that are needed. Rows of the left operand of a product do not lie along the depth,
    so that `dout` is transposed for the latter."""
    of_x = _backward_x()(dout, weights, groups, offsets) if needed[0] else None
    if not needed[1]:
        return of_x, None
    count, columns = dout.shape
    transposed = dout.new_zeros((columns, -(-count // 8) * 8))
    transposed[:, :count] = dout.T
    return of_x, _backward_weights()(transposed, x, offsets)


def _swiglu_gradient(ctx: Any, dout: Any) -> tuple[Any, ...]:
    x, weights, groups, offsets = ctx.saved_tensors
    count, width = dout.shape
    joined = weights.reshape(weights.shape[0], 2 * width, weights.shape[3])
    both = _matmul()(x, joined, groups, offsets)
    gate, up = (whole(part).reshape(-1) for part in (both[:, :width], both[:, width:]))
    of_gate, of_up = _swiglu_backward()(gate, up, whole(dout).reshape(-1))
    slope = both.new_empty(both.shape)
    slope[:, :width], slope[:, width:] = of_gate.reshape(count, width), of_up.reshape(count, width)
    of_x, of_weights = _gradients(x, joined, groups, offsets, slope, ctx.needs_input_grad)
    return of_x, None if of_weights is None else of_weights.reshape(weights.shape), None, None


_tiles = library_op("group_tiles", {"BLOCK": 32})
_matmul = library_op("grouped_matmul", _constants("grouped_matmul"), gradient=(_backward, _save))
_few = library_op("grouped_matmul_few", _constants("grouped_matmul_few"), gradient=(_backward, _save))
_backward_x = library_op("grouped_matmul_backward_x", _constants("grouped_matmul_backward_x"))
_backward_weights = library_op("grouped_matmul_backward_weights", _constants("grouped_matmul_backward_weights"))
_swiglu = library_op("grouped_swiglu", _constants("grouped_swiglu"), gradient=(_swiglu_gradient, _save))
_swiglu_backward = library_op("swiglu_backward", {"BLOCK": 2048})
