"""Sums of all elements of rows up to each, and counts of numbers in bins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op, multiple
from tilec.kernels.shapes import flat, rows_of, whole

LONGEST: Final = 1 << 30
"""Elements of a row."""
SHORT: Final = {128: 16, 1024: 4}
"""Elements of a row that shares a block with others, and how many rows a block has: a warp reads several kilobytes at once."""
TILE: Final = 2048
"""Elements that a block adds up at a time."""
PART: Final = 8 * TILE
"""Elements of a part of a long row, of which each has a block."""
BLOCKS: Final = 264
"""Two for each multiprocessor of an H100 or H200: so many rows need no parts."""
FEW: Final = 256
"""Bins of which a block has COPIES counts each in shared memory, so that few threads update one at once."""
COPIES: Final = 16
SEVERAL: Final = 4096
"""Bins of which a block has one count each in shared memory, which pays if it counts many numbers."""
MANY: Final = 1 << 22
"""Numbers of which blocks that count 32 tiles fill the multiprocessors."""


def _row_tile(known: Mapping[str, Any]) -> dict[str, int]:
    block = next((most for most in SHORT if known["N"] <= most), TILE)
    return {"ROWS": SHORT.get(block, 1), "BLOCK": block} | {"REVERSE": int(known["reverse"]), "MULTIPLE": multiple(known["N"])}


def _sum_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return {"TILES": PART // TILE, "BLOCK": TILE, "MULTIPLE": multiple(known["N"])}


def _part_tile(known: Mapping[str, Any]) -> dict[str, int]:
    return _sum_tile(known) | {"REVERSE": int(known["reverse"]), "PARTS": 512}


def _bins(known: Mapping[str, Any]) -> dict[str, int]:
    bins, is_long = known["BINS"], known["N"] >= MANY
    if bins <= FEW:
        return {"FEW": FEW, "COPIES": COPIES, "TILES": 32 if is_long else 8, "BLOCK": 2048}
    if bins <= SEVERAL and is_long:
        return {"FEW": SEVERAL, "COPIES": 1, "TILES": 32, "BLOCK": 2048}
    return {"FEW": LONGEST, "COPIES": 1, "TILES": 4, "BLOCK": 1024}


def _keep_cumsum(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.reverse = inputs[-1]


def _cumsum_gradient(ctx: Any, dout: Any) -> tuple[Any, None]:
    return _cumsum_of(whole(dout), 1 - ctx.reverse), None


def _parts_gradient(ctx: Any, dout: Any) -> tuple[Any, None, None]:
    return _cumsum_of(whole(dout), 1 - ctx.reverse), None, None


_cumsum = library_op("cumsum", _row_tile, gradient=(_cumsum_gradient, _keep_cumsum))
_part_sums = library_op("part_sums", _sum_tile, dims=lambda known: {"S": -(-known["N"] // PART)})
_cumsum_parts = library_op("cumsum_parts", _part_tile, gradient=(_parts_gradient, _keep_cumsum))
_bincount = library_op("bincount", _bins)
_histogram = library_op("histogram", _bins)
_sum_counts = library_op("sum_counts", {"MOST": COPIES, "BLOCK": 32})


def _cumsum_of(rows: Any, reverse: int) -> Any:
    """Of rows without gaps; those of few long rows are computed in parts."""
    count, length = rows.shape
    if count >= BLOCKS or length <= PART:
        return _cumsum()(rows, reverse)
    return _cumsum_parts()(rows, _part_sums()(rows.detach()), reverse)


def cumsum(x: Any, reverse: bool = False) -> Any:
    """Sums of all elements of a row up to each, itself included, along the last axis; with `reverse`, from each to the last.

    x: `[..., N]`, bf16, f16 or f32, N at most 2^30. Returns the shape and dtype of `x`; summed in f32, in the same order at
    every call, and rounded once. Gradient: of `x`, a sum in the other direction. ValueError for longer rows."""
    return _cumsum_of(rows_of("cumsum", x, LONGEST), int(reverse)).reshape(x.shape)


def bincount(x: Any, bins: int) -> Any:
    """How often each number from 0 to below `bins` occurs, as `torch.bincount`; other numbers do not count.

    x: i32 or i64, of any shape, at most 2^30 elements. Returns i32 `[bins]`. ValueError for more elements, and for no bins."""
    numbers, counts = _counted("bincount", x, bins)
    _bincount()(numbers, counts)
    return _of_bins(counts)


def histogram(x: Any, bins: int, low: float, high: float) -> Any:
    """How many elements of `x` are in each of `bins` equal bins from `low` to `high`, as `torch.histc`.

    x: bf16, f16 or f32, of any shape, at most 2^30 elements. Element v is in bin `(v - low) / (high - low) * bins`, computed in
    f32 and rounded down, and `high` in the last one; others, NaN and infinities do not count. Returns i32 `[bins]`. ValueError
    for more elements, for no bins, and for a `high` that is not above `low`."""
    if not low < high:
        raise ValueError(f"histogram: `low` is {low} and `high` {high}; `high` is above `low`")
    numbers, counts = _counted("histogram", x, bins)
    _histogram()(numbers, counts, low, high)
    return _of_bins(counts)


def _counted(function: str, x: Any, bins: int) -> tuple[Any, Any]:
    """The elements of `x` along one axis, and counts of 0: for each bin as many as its kernel takes."""
    if bins < 1:
        raise ValueError(f"{function}: `bins` is {bins}; at least 1 is needed")
    if x.numel() > LONGEST:
        raise ValueError(f"{function}: `x` has {x.numel()} elements; at most {LONGEST} are supported")
    numbers = flat("x", x.detach())
    return numbers, numbers.new_zeros((bins, COPIES if bins <= FEW else 1)).int()


def _of_bins(counts: Any) -> Any:
    """The sum of the counts of each bin."""
    return counts.reshape((counts.shape[0],)) if counts.shape[1] == 1 else _sum_counts()(counts)
