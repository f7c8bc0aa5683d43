"""What a kernel asks of its launch, where a block is, and what it reads and writes: functions of the kernel language.

Offsets and indices count elements, tile indices count tiles. An access that may reach outside its tensor needs `pad` or `mask`;
without them the compiler must prove that it stays inside.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from tilec.language.parameters import Signal, Tensor
from tilec.language.tiles import Index, Operand, Scalar, Shape, Tile, not_compiled

F = TypeVar("F", bound=Callable[..., Any])


def kernel(function: F) -> F:
    """Mark the kernel of a file. Its body is the work of one block; the file is parsed, the function is never called."""
    return function


def function(function: F) -> F:
    """Mark a tile function: it is inlined where a kernel calls it, and other kernel files may import it."""
    return function


def unsafe(reason: str) -> AbstractContextManager[None]:
    """`with unsafe("reason"):` accepts the accesses inside without proof; the artifact records the reason."""
    not_compiled()


def grid(x: Scalar, y: Scalar = 1, z: Scalar = 1, /) -> None:
    """Number of blocks per axis, computed from dims, constants and integer scalar parameters. Called once, at the top level."""
    not_compiled()


def requires(*conditions: Any) -> None:
    """Predicates over the integers of a launch that the launcher checks before the kernel runs, such as `H % 8 == 0`. A float
    cannot be in one (E0215)."""
    not_compiled()


def resident(*tensors: Tensor) -> None:
    """States that no kernel that may overlap this one writes these tensors, such as a model's weights: they may be read before
    this kernel's grid dependency wait. This kernel may itself write one that is `InOut`. Checked where overlapping launches are
    ordered."""
    not_compiled()


def values(
    tensor: Tensor,
    low: Scalar,
    high: Scalar,
    /,
    *,
    distinct: bool = False,
    distinct_in_rows: bool = False,
    sorted: bool = False,
    ends: bool = False,
) -> None:
    """Every integer stored in `tensor` lies in `low <= v < high`; with `distinct`, no two are equal. With `distinct_in_rows`,
    for a tensor of two axes or more, no two of a row are: elements whose indices differ on the last axis only. With `sorted`,
    for a tensor of one axis, no element is smaller than the one before it. With `ends` too, the first is `low` and the last
    `high - 1`, so that `values(cu, 0, T + 1, sorted=True, ends=True)` says that the segments from row `cu[i]` to below
    `cu[i + 1]` together are all `T` rows. Checked at launch."""
    not_compiled()


def ensures(
    tensor: Tensor,
    low: Scalar,
    high: Scalar,
    /,
    *,
    above: Tensor | tuple[Tensor, ...] = (),
    distinct: bool = False,
    distinct_in_rows: bool = False,
    sorted: bool = False,
) -> None:
    """Every integer in `tensor`, which the kernel writes, lies in `low <= v < high` after a launch. With `above`, tensors of
    the same extents that are read, the bounds apply to the difference between `v` and the sum of their elements at the same
    index before the launch: `ensures(positions, 1, 2, above=positions)` says that each position grows by one. `distinct`,
    `distinct_in_rows` and `sorted` mean what they mean in `values`. Proven, and recorded in the artifact, so that a kernel that
    reads `tensor` later may state it with `values`."""
    not_compiled()


def bid(axis: int, /) -> int:
    """This block's index on a grid axis."""
    not_compiled()


def num_blocks(axis: int, /) -> int:
    """Extent of a grid axis; the step of a persistent loop."""
    not_compiled()


def cdiv(a: Scalar, b: Scalar, /) -> int:
    """`ceil(a / b)` of integers, for a positive `b`."""
    not_compiled()


def load(tensor: Tensor, index: Index | None = None, /, *, offset: Index | None = None, shape: Shape | None = None,
         pad: float | None = None) -> Tile:  # fmt: skip
    """Read a box of a tensor as a tile.

    `index` counts tiles of `shape` per axis; `offset=` counts elements instead. Without `shape`, one element is read as a
    scalar. With `pad`, elements outside the tensor read as that value; without, the box must lie inside.
    """
    not_compiled()


def store(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
          mask: bool = False) -> None:  # fmt: skip
    """Write a tile over a box of a tensor: `store(out, index, tile)` or `store(out, tile, offset=...)`.

    `index` counts tiles, `offset` elements. With `mask=True`, elements outside the tensor are not written.
    """
    not_compiled()


def gather(tensor: Tensor, indices: Index, /, *, pad: float | None = None) -> Tile:
    """Read one element per position of the index tiles, one index per tensor axis, broadcast against each other.

    With `pad`, positions with an index outside the tensor read as that value.
    """
    not_compiled()


def scatter(tensor: Tensor, indices: Index, tile: Operand, /, *, mask: bool = False) -> None:
    """Write one element per position of the index tiles. With `mask=True`, positions outside the tensor are skipped."""
    not_compiled()


def atomic_add(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
               at: Index | None = None, mask: bool = False) -> Tile:  # fmt: skip
    """Add a tile to a box of an `Atomic` tensor, atomically per element, in no particular order.

    `atomic_add(out, index, tile)` and `atomic_add(out, tile, offset=...)` name a box, as for `store`. `old = atomic_add(out,
    tile, at=indices)` adds one element per position of the index tiles, as `scatter` has them, and gives the elements that were
    there before; several positions may name one element. With `mask=True`, elements outside the tensor are skipped, and their
    old value is 0.
    """
    not_compiled()


def atomic_max(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
               at: Index | None = None, mask: bool = False) -> Tile:  # fmt: skip
    """Replace each element of a box, or `at` positions, of an `Atomic` tensor by the larger of itself and the tile's; the rest
    as for `atomic_add`."""
    not_compiled()


def atomic_min(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
               at: Index | None = None, mask: bool = False) -> Tile:  # fmt: skip
    """Replace each element of a box, or `at` positions, of an `Atomic` tensor by the smaller of itself and the tile's; the rest
    as for `atomic_add`."""
    not_compiled()


def atomic_and(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
               at: Index | None = None, mask: bool = False) -> Tile:  # fmt: skip
    """Replace each integer of a box, or `at` positions, of an `Atomic` tensor by its bits that the tile's has too; the rest
    as for `atomic_add`."""
    not_compiled()


def atomic_or(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
               at: Index | None = None, mask: bool = False) -> Tile:  # fmt: skip
    """Set in each integer of a box, or `at` positions, of an `Atomic` tensor the bits of the tile's; the rest as for
    `atomic_add`."""
    not_compiled()


def atomic_xor(tensor: Tensor, index: Index | None = None, tile: Operand = 0, /, *, offset: Index | None = None,
               at: Index | None = None, mask: bool = False) -> Tile:  # fmt: skip
    """Flip in each integer of a box, or `at` positions, of an `Atomic` tensor the bits of the tile's; the rest as for
    `atomic_add`."""
    not_compiled()


def atomic_exchange(tensor: Tensor, tile: Operand, /, *, at: Index, mask: bool = False) -> Tile:
    """Put one element per position of the index tiles `at` into an `Atomic` tensor; gives those that were there before. Where
    several positions name one element, one of them comes last. `mask` as for `atomic_add`."""
    not_compiled()


def atomic_cas(tensor: Tensor, compare: Operand, tile: Operand, /, *, at: Index, mask: bool = False) -> Tile:
    """Put one integer per position of the index tiles `at` into an `Atomic` tensor where it has `compare`'s element; gives
    those that were there before, equal to `compare` where it was put. `mask` as for `atomic_add`."""
    not_compiled()


def meet(signals: Signal[Any, Any], rank: Scalar, /) -> None:
    """Wait until this block of every rank is in this launch; `rank` is the number of this one, an `i32` parameter. After it
    `Peer` tensors may be read: each has what the launches before this one wrote in its rank.

    Called once, at the top level. The grid is a constant of one axis, of no more blocks than a GPU has multiprocessors, because
    the blocks that wait must all be resident.
    """
    not_compiled()
