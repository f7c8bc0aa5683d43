"""How many warps a kernel without products has: by its largest tile, and by the rows that it reduces.

In: such a kernel. Out: warps for what it loads or stores, more if computed tiles would not fit a thread's registers, fewer
where each row of a tile then is one warp's: a sum of a row passes no shared memory then, and no barrier. A thread has up to
twice the elements for that, where it has registers for them: a loss of 4 rows of 1000 passed eleven barriers on 8
warps, and took 223 us on an H200 where 4 take 184.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.core import Function
from tilec.ir.layouts.thread_elements import FITTING_ELEMENTS
from tilec.ir.ops import Broadcast, Constant, Load, Reduce, Store

DEFAULT_WARPS: Final = 4
MAX_WARPS: Final = 16
TARGET_REGISTERS: Final = 16
"""Elements of the largest 16-bit tile per thread to aim for."""
MOST_ELEMENTS: Final = 32
"""Elements of the largest tile that a thread has at most for a row to be one warp's, as f32 in registers."""


def tile_warps(function: Function) -> int:
    """Warps for a kernel without MMAs: about `TARGET_REGISTERS` elements of the largest loaded tile per thread, or of the
    largest stored one if no tile is loaded, computed tiles fit registers, and few warps are idle."""
    loaded = max((op.result.tile.size for op in function.body.walk() if isinstance(op, Load)), default=1)
    if loaded == 1:
        loaded = max((op.tile.tile.size for op in function.body.walk() if isinstance(op, Store)), default=1)
    computed = [
        value.tile.size for op in function.body.walk() for value in op.results if not isinstance(op, Constant | Broadcast)
    ]
    warps = _warps_to_load(loaded)
    while warps < MAX_WARPS and max(computed, default=1) > warps * 32 * FITTING_ELEMENTS:
        warps = min(MAX_WARPS, 2 * warps)
    return _warps_of_rows(function, warps, max(computed, default=1))


def _warps_to_load(size: int) -> int:
    units = -(-size // 8 // 32)
    if size < 8 * 32:
        return 1 if size <= 32 else DEFAULT_WARPS
    wanted = max(1, min(MAX_WARPS, units * 8 // TARGET_REGISTERS))
    exact = max(count for count in range(1, wanted + 1) if units % count == 0)
    if 2 * exact > wanted:
        return exact
    # If only a much smaller number divides the tile, choose the number that leaves the smallest fraction of warps idle.
    return min(range(wanted, wanted // 2, -1), key=lambda count: -(-units // count) * count)


def _warps_of_rows(function: Function, warps: int, largest: int) -> int:
    """At most `warps`, and at least `DEFAULT_WARPS`, so that no warps share a row of a reduced tile; `largest`: elements of the
    largest tile."""
    reduced = [op for op in function.body.walk() if isinstance(op, Reduce)]
    shapes = {op.operands[0].tile.shape for op in reduced}
    along_last = all(op.axis == op.operands[0].tile.rank - 1 == 1 for op in reduced)
    if not along_last or len(shapes) != 1:
        return warps
    ((rows, _),) = shapes
    fewer = warps
    while fewer > max(DEFAULT_WARPS, rows) and largest <= MOST_ELEMENTS * 32 * (fewer // 2):
        fewer //= 2
    return fewer if rows % fewer == 0 else warps
