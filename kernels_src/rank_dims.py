"""What the collectives share: dims, and the sum over ranks."""

import tilec as tl

MOST_TILES = 1 << 30
"""So many tiles can be counted in i32, and a step of the loop more."""


class RANKS(tl.Dim):
    """GPUs that run one model together"""


class BLOCKS(tl.Dim):
    """blocks of a launch"""


@tl.function
def sum_of_ranks(x: tuple[tl.Tensor, ...], row: int, column: int, TOKENS: int, BLOCK: int) -> tl.Tile:
    """The f32 sum of a tile of `x` of all ranks, in the order of ranks; rows past the last are 0."""
    total = tl.load(x[0], (row, column), shape=(TOKENS, BLOCK), pad=0).astype(tl.f32)
    for part in x[1:]:
        total = total + tl.load(part, (row, column), shape=(TOKENS, BLOCK), pad=0).astype(tl.f32)
    return total
