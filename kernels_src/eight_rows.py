"""Tensor cores multiply by eight columns at once: fewer rows of activations are there several times."""

import tilec as tl


@tl.function
def eight_rows(x: tl.Tile, count: int, width: int) -> tl.Tile:
    """Rows again and again until they are eight; (count, width) -> (8, width), where `count` divides 8."""
    return tl.reshape(tl.broadcast_to(x[None, :, :], (8 // count, count, width)), (8, width))


@tl.function
def each_once(y: tl.Tile, outputs: int, count: int) -> tl.Tile:
    """Of the products of such rows each once, exactly; (outputs, 8) -> (outputs, count)."""
    return tl.sum(tl.reshape(y, (outputs, 8 // count, count)), axis=1) * (count / 8)


@tl.function
def weights_in_parts(w: tl.Tile, rows: int, split: int, width: int) -> tl.Tile:
    """Rows of weights as the left operands of products side by side; (rows, split * width) -> (split, rows, width)."""
    return tl.permute(tl.reshape(w, (rows, split, width)), (1, 0, 2))


@tl.function
def rows_in_parts(x: tl.Tile, count: int, split: int, width: int) -> tl.Tile:
    """Rows of activations as their right operands; (count, split * width) -> (split, width, 8), where `count` divides 8."""
    return tl.permute(tl.reshape(eight_rows(x, count, split * width), (8, split, width)), (1, 2, 0))
