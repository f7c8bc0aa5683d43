"""Sums of a block of products of eight bits, times the scales of its rows and columns: what FP8 products at prefill share."""

import tilec as tl


@tl.function
def scaled(sums: tl.Tile, scales: tuple[tl.Tile, tl.Tile], rows: int, columns: int, part: int) -> tl.Tile:
    """`sums` (rows, columns) times `scales`: of rows, (1, rows), and of each `part` columns, (columns / part)."""
    of_rows, of_parts = scales
    scale = tl.reshape(of_rows, (rows, 1, 1)) * of_parts[None, :, None]
    return tl.reshape(tl.reshape(sums, (rows, columns // part, part)) * scale, (rows, columns))
