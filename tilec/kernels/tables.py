"""Rows of tables and sums of them, with gradients.

The gradient of a table sorts the numbers of the rows that were taken, and adds each run of equal ones in a fixed order, so that
it is the same at every call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op, multiple
from tilec.kernels.ordering import SORTED, merged, taken
from tilec.kernels.shapes import whole

MODES: Final = ("mean", "sum")
MOST: Final = 1 << 29
"""Rows that are taken, and rows of a table."""


def _row_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BLOCK": 1024, "MULTIPLE": multiple(known["H"])}


def _run_tile(known: Mapping[str, Any]) -> dict[str, int]:
    rows, block = (32, 128) if known["H"] <= 256 else (8, 512)
    return {"ROWS": rows, "BLOCK": block, "MULTIPLE": multiple(known["H"])}


def _keep_rows(ctx: Any, inputs: tuple[Any, Any], output: Any) -> None:
    ctx.rows = inputs[1].shape[0]
    ctx.save_for_backward(inputs[0])


def _rows_gradient(ctx: Any, dout: Any) -> tuple[None, Any]:
    (ids,) = ctx.saved_tensors
    keys, order = _in_order(ids)
    scales = dout.new_ones((ids.shape[0],)).float()
    return None, _of_table(whole(dout), scales, keys, order, ctx.rows)


def _keep_bags(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.rows = inputs[3].shape[0]
    ctx.save_for_backward(*inputs[:3])


def _bags_gradient(ctx: Any, dout: Any) -> tuple[None, None, None, Any]:
    ids, offsets, scales = ctx.saved_tensors
    keys, order = _in_order(ids)
    bags = _count_below()(offsets, ids.shape[0] + 1)[1:] - 1
    return None, None, None, _of_table(whole(dout), scales, keys, taken(bags.reshape(1, -1), order), ctx.rows)


def _in_order(ids: Any) -> tuple[Any, Any]:
    """Numbers in order, and where they were, both `[1, N]`."""
    return merged(*_sort_numbers()(ids.reshape(1, ids.shape[0])))


def _of_table(dout: Any, scales: Any, keys: Any, rows: Any, count: int) -> Any:
    """The gradient of a table of `count` rows: `rows` of `dout` for each of the sorted numbers."""
    starts = _count_below()(keys.reshape(-1), count + 1)
    return _table_gradient()(dout, scales, rows.reshape(-1), starts)


_take_rows = library_op("take_rows", _row_tile, gradient=(_rows_gradient, _keep_rows))
_embedding_bag = library_op("embedding_bag", _row_tile, gradient=(_bags_gradient, _keep_bags))
_bag_scales = library_op("bag_scales", {"BLOCK": 256})
_sort_numbers = library_op("sort_numbers", {"BLOCK": SORTED[-1]})
_count_below = library_op("count_below", {"BLOCK": 256}, dims=lambda known: {"Q": known["count"]})
_table_gradient = library_op("table_gradient", _run_tile)


def _checked(function: str, ids: Any, table: Any) -> None:
    """ValueError for another number of axes of the table, and for more rows than are supported."""
    if table.ndim != 2:
        raise ValueError(f"{function}: `table` has {table.ndim} axes; it is `[V, H]`")
    for name, what, count in (("ids", "numbers", ids.numel()), ("table", "rows", table.shape[0])):
        if count > MOST:
            raise ValueError(f"{function}: `{name}` has {count} {what}; at most {MOST} are supported")


def _nothing(table: Any, *shape: int) -> Any:
    """0 in a shape, with a gradient of 0 for a table."""
    return table.new_zeros(shape) + table.reshape(-1)[:0].sum()


def embedding(ids: Any, table: Any) -> Any:
    """The rows of a table that numbers name, as `torch.nn.functional.embedding`.

    ids: i32 or i64, of any shape, at most 2^29 numbers; table: `[V, H]`, bf16, f16 or f32, V at most 2^29. Returns `[..., H]`;
    0 for a number that the table does not have, which PyTorch refuses. Gradient: of `table`, summed in f32, in the same order
    at every call, and rounded once. ValueError for other shapes."""
    _checked("embedding", ids, table)
    shape = (*ids.shape, table.shape[1])
    if ids.numel() == 0:
        return _nothing(table, *shape)
    return _take_rows()(whole(ids.reshape(-1)), whole(table)).reshape(shape)


def embedding_bag(ids: Any, table: Any, offsets: Any = None, mode: str = "mean") -> Any:
    """The sum or mean of the rows of a table that each bag of numbers names, as `torch.nn.functional.embedding_bag`.

    ids: i32 or i64, `[B, L]` of B bags, or `[N]` with offsets: `[B]`, i32 or i64, where each bag begins; they do not decrease,
    and a bag ends where the next one begins, the last one with `ids`. table: `[V, H]`, bf16, f16 or f32. At most 2^29 numbers,
    rows and bags. Returns `[B, H]`, summed in f32 and rounded once, 0 for an empty bag; rows that the table does not have are
    0. Gradient: of `table`, as that of `embedding`. ValueError for other shapes and another mode."""
    _checked("embedding_bag", ids, table)
    if mode not in MODES:
        raise ValueError(f"embedding_bag: `mode` is {mode!r}; it is one of {', '.join(map(repr, MODES))}")
    if ids.ndim != (1 if offsets is not None else 2):
        raise ValueError(f"embedding_bag: `ids` has {ids.ndim} axes; it is `[B, L]`, or `[N]` with `offsets`")
    begins = ids.new_full((ids.shape[0],), ids.shape[1]).cumsum(0) - ids.shape[1] if offsets is None else offsets
    if begins.ndim != 1 or begins.shape[0] > MOST:
        raise ValueError(f"embedding_bag: `offsets` has the shape {list(begins.shape)}; it is `[B]`, B at most {MOST}")
    if ids.numel() == 0 or begins.shape[0] == 0:
        return _nothing(table, begins.shape[0], table.shape[1])
    own = whole(begins.int())
    scales = _bag_scales()(own, ids.numel(), int(mode == "mean"))
    return _embedding_bag()(whole(ids.reshape(-1)), own, scales, whole(table))
