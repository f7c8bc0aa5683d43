"""Sorts and the largest elements of rows, with gradients.

A row that is longer than a tile is sorted by merging: its tiles first, then runs of twice the length until one is left. The
largest elements of a long row are found in parts of it, then among those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op, multiple, without_gradient
from tilec.kernels.shapes import rows_of, whole

LONGEST: Final = 1 << 29
"""Elements of a row."""
SORTED: Final = (128, 1024, 4096)
"""Elements of a row that is sorted as one tile; the largest is that of the tiles that are merged."""
MERGED: Final = 2048
"""Elements of a tile of merged runs; those that are merged are multiples of it."""
TAKEN: Final = (128, 1024, 2048)
"""Elements of a row that `topk` sorts; the largest is that of the tiles of which it takes the largest elements."""
MOST: Final = (64, 1024)
"""Elements that are found in a row of several tiles: by one sort for each part of it, or by one for each tile."""
TILES: Final = (4, 16)
"""Tiles of a part of which one sort finds the largest elements."""
BLOCKS: Final = 264
"""Two for each multiprocessor of an H100 or H200: long rows are divided into parts until so many blocks have work."""


def _first(extent: int, choices: tuple[int, ...]) -> int:
    """The first of `choices` that is not smaller."""
    return next(choice for choice in choices if extent <= choice)


def _sort_tile(known: Mapping[str, Any]) -> dict[str, int]:
    tile = _first(known["N"], SORTED)
    return {"ROWS": 8 if tile == SORTED[0] else 1, "BLOCK": tile, "MULTIPLE": multiple(known["N"])}


def _long_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"BLOCK": SORTED[-1], "MULTIPLE": multiple(known["N"])}


def _topk_tile(known: Mapping[str, Any]) -> dict[str, int]:
    if known["N"] > TAKEN[-1]:
        return {"ROWS": 1, "BLOCK": TAKEN[-1], "MOST": MOST[-1]}
    tile = _first(known["N"], TAKEN)
    return {"ROWS": 8 if tile == TAKEN[0] else 1, "BLOCK": tile, "MOST": tile}


def _part_tile(known: Mapping[str, Any]) -> dict[str, int]:
    tiles = next(tiles for tiles in TILES if _parts(known["N"], tiles) == known["parts"])
    return {"MOST": MOST[0], "TILES": tiles, "BLOCK": TAKEN[-1], "MULTIPLE": multiple(known["N"])}


def _parts(length: int, tiles: int) -> int:
    """How many parts of `tiles` tiles a row has."""
    return -(-length // (tiles * TAKEN[-1]))


def _found(known: Mapping[str, Any]) -> dict[str, Any]:
    return {"S": known["parts"], "K": known["k"]}


def _keep_columns(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    """The shape of the rows, and the columns that were taken, which have no gradient."""
    without_gradient(ctx, output[1])
    ctx.shape = inputs[0].shape
    ctx.save_for_backward(output[1])


def _keep_taken(ctx: Any, inputs: tuple[Any, Any], output: Any) -> None:
    ctx.shape = inputs[0].shape
    ctx.save_for_backward(inputs[1])


def _put_back(ctx: Any, dout: Any) -> Any:
    """The gradient of rows of which elements were taken."""
    (columns,) = ctx.saved_tensors
    dx = dout.new_zeros(tuple(ctx.shape))
    _put_columns()(whole(dout.reshape(dx.shape[0], -1)), columns.reshape(dx.shape[0], -1), dx)
    return dx


def _sort_gradient(ctx: Any, dout: Any, of_columns: Any) -> tuple[Any, None]:
    return _put_back(ctx, dout), None


def _topk_gradient(ctx: Any, dout: Any, of_columns: Any) -> tuple[Any, None, None]:
    return _put_back(ctx, dout), None, None


def _take_gradient(ctx: Any, dout: Any) -> tuple[Any, None]:
    return _put_back(ctx, dout), None


_sort = library_op("sort", _sort_tile, gradient=(_sort_gradient, _keep_columns))
_sort_tiles = library_op("sort_tiles", _long_tile)
_merge_shares = library_op("merge_shares", {"TILE": MERGED, "BLOCK": 32}, dims=lambda known: {"S": -(-known["N"] // MERGED)})
_merge_runs = library_op("merge_runs", {"BLOCK": MERGED})
_topk = library_op("topk", _topk_tile, dims=_found, gradient=(_topk_gradient, _keep_columns))
_topk_long = library_op("topk_long", _part_tile, dims=_found, gradient=(_topk_gradient, _keep_columns))
_take_columns = library_op("take_columns", {"BLOCK": 1024}, gradient=(_take_gradient, _keep_taken))
_put_columns = library_op("put_columns", {"BLOCK": 1024})


def merged(keys: Any, positions: Any) -> tuple[Any, Any]:
    """Keys in order and their positions, of rows whose tiles are sorted."""
    run = SORTED[-1]
    while run < keys.shape[1]:
        keys, positions = _merge_runs()(keys, positions, _merge_shares()(keys, run), run)
        run *= 2
    return keys, positions


def taken(x: Any, columns: Any) -> Any:
    """Elements of rows at columns, 0 where there is none."""
    return _take_columns()(x, columns)


def _long_positions(rows: Any, descending: bool) -> Any:
    """Where the elements of sorted rows of several tiles are."""
    return merged(*_sort_tiles()(rows.detach(), int(descending)))[1]


def sort(x: Any, descending: bool = False) -> tuple[Any, Any]:
    """Rows in order along the last axis, and where their elements were, as `torch.sort` with `stable=True`.

    x: `[..., N]`, bf16, f16 or f32, N at most 2^29. Returns values and positions of the shape of `x`, the positions as i32.
    Equal elements keep their order, and NaN is above all numbers; -0 is below 0, which differs from PyTorch. Gradient: of `x`,
    by the values. Rows of up to 4096 elements are sorted by one block, longer ones by merging. ValueError for longer rows."""
    rows = rows_of("sort", x, LONGEST)
    if rows.shape[1] <= SORTED[-1]:
        values, positions = _sort()(rows, int(descending))
    else:
        positions = _long_positions(rows, descending)
        values = _take_columns()(rows, positions)
    return values.reshape(x.shape), positions.reshape(x.shape)


def argsort(x: Any, descending: bool = False) -> Any:
    """The positions of `sort(x, descending)`: i32, of the shape of `x`."""
    rows = rows_of("argsort", x.detach(), LONGEST)
    if rows.shape[1] <= SORTED[-1]:
        return _sort()(rows, int(descending))[1].reshape(x.shape)
    return _long_positions(rows, descending).reshape(x.shape)


def _largest(rows: Any, k: int) -> tuple[Any, Any]:
    """Those of rows of one tile, or of at most `MOST[-1]` elements of longer ones; of these the largest of each part first."""
    count, length = rows.shape
    parts = 1
    if length <= TAKEN[-1]:
        values, positions = _topk()(rows, parts, k)
    elif k <= MOST[0]:
        fills = count * _parts(length, TILES[-1]) >= BLOCKS // 2
        parts = _parts(length, TILES[-1] if fills else TILES[0])
        values, positions = _topk_long()(rows, parts, k)
    else:
        parts = max(1, min(_parts(length, 1) // 2, -(-BLOCKS // max(count, 1))))
        values, positions = _topk()(rows, parts, k)
    if parts == 1:
        return values.reshape(count, k), positions.reshape(count, k)
    values, which = _largest(values.reshape(count, parts * k), k)
    return values, _take_columns()(positions.reshape(count, parts * k), which)


def topk(x: Any, k: int) -> tuple[Any, Any]:
    """The k largest elements along the last axis in descending order, and where they are, as `torch.topk`.

    x: `[..., N]`, bf16, f16 or f32, N at most 2^29 and k at most N. Returns values and positions `[..., k]`, the positions as
    i32. Of equal elements those that come first are taken, and NaN is above all numbers. Gradient: of `x`, by the values. Short
    rows are sorted, and those in which k is more than 1024. ValueError for longer rows and another k."""
    rows = rows_of("topk", x, LONGEST)
    length = rows.shape[1]
    if not 1 <= k <= length:
        raise ValueError(f"topk: `k` is {k}; it is from 1 to the {length} elements of the last axis of `x`")
    shape = (*x.shape[:-1], k)
    if length > TAKEN[-1] and k > MOST[-1]:
        values, positions = sort(rows, descending=True)
        return values[:, :k].reshape(shape), positions[:, :k].reshape(shape)
    values, positions = _largest(rows, k)
    return values.reshape(shape), positions.reshape(shape)
