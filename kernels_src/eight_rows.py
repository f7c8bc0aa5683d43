"""Tensor cores multiply by eight columns at once: fewer rows of activations are there several times."""

import tilec
from tilec import Tile, broadcast_to, permute, reshape, sum


@tilec.function
def eight_rows(x: Tile, count: int, width: int) -> Tile:
    """Rows again and again until they are eight; (count, width) -> (8, width), where `count` divides 8."""
    return reshape(broadcast_to(x[None, :, :], (8 // count, count, width)), (8, width))


@tilec.function
def each_once(y: Tile, outputs: int, count: int) -> Tile:
    """Of the products of such rows each once, exactly; (outputs, 8) -> (outputs, count)."""
    return sum(reshape(y, (outputs, 8 // count, count)), axis=1) * (count / 8)


@tilec.function
def weights_in_parts(w: Tile, rows: int, split: int, width: int) -> Tile:
    """Rows of weights as the left operands of products side by side; (rows, split * width) -> (split, rows, width)."""
    return permute(reshape(w, (rows, split, width)), (1, 0, 2))


@tilec.function
def rows_in_parts(x: Tile, count: int, split: int, width: int) -> Tile:
    """Rows of activations as their right operands; (count, split * width) -> (split, width, 8), where `count` divides 8."""
    return permute(reshape(eight_rows(x, count, split * width), (8, split, width)), (1, 2, 0))
