"""The names of the operations in which ranks meet (`tilec.step.ranks`); they are in graphs where kernels are."""

from __future__ import annotations

from typing import Final

REDUCE: Final = "all_reduce"
REDUCE_ADD: Final = "all_reduce_add"
REDUCE_ADD_SCALED: Final = "all_reduce_add_scaled"
GATHER: Final = "all_gather"

COLLECTIVES: Final = (REDUCE, REDUCE_ADD, REDUCE_ADD_SCALED, GATHER)
"""Every collective reads the parameter `x` of all ranks."""

MEET: Final = "rank_meet"
"""The kernel in which ranks wait for each other at the end of a step; it moves no data, and is no operation of a graph."""

READ_BY_PEERS: Final = "x"
"""The parameter that other ranks read."""
