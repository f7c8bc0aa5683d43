"""Tensor cores multiply by eight columns at once: fewer rows of activations are there several times."""

import tilec
from tilec import Tile, broadcast_to, reshape, sum


@tilec.function
def eight_rows(x: Tile, count: int, width: int) -> Tile:
    """Rows again and again until they are eight; (count, width) -> (8, width), where `count` divides 8."""
    return reshape(broadcast_to(x[None, :, :], (8 // count, count, width)), (8, width))


@tilec.function
def each_once(y: Tile, outputs: int, count: int) -> Tile:
    """Of the products of such rows each once, exactly; (outputs, 8) -> (outputs, count)."""
    return sum(reshape(y, (outputs, 8 // count, count)), axis=1) * (count / 8)
