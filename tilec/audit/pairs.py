"""Copies of a pair: the two blocks of a cluster copy a tile together, and each the half that its products need.

Both blocks run one text, in which the rank is a number (`flow`). Confirmed is that both execute every copy at the same bases
(`alike`); that the boxes of both partition the tile of the tile IR; that each block copies the half of its rank (`halves`), for
the union alone would be the same with the halves exchanged; and that the bytes of both are those that the leader's mbarrier
expects. A pair whose blocks all have the other's rows of the left operand, and store them, may be right, and is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, Final

from tilec.audit.alike import Alike
from tilec.audit.copies import BlockCopies, Copy, Differs, Unclear, cut, named
from tilec.audit.flow import Flow, Peer, Sum
from tilec.audit.halves import LEFT, RIGHT, Rows, halves, rows_of
from tilec.audit.positions import tile_shape
from tilec.ir.core import Function
from tilec.ir.ops import MemoryOp
from tilec.ir.types import DTYPES

BLOCKS: Final = 2
"""Blocks of a pair."""
KINDS: Final = frozenset({"kind::f16", "kind::tf32", "kind::f8f6f4", "kind::i8"})
"""Products whose instruction descriptor has the number of columns, divided by 8, in bits 17 to 22 (PTX ISA, "Instruction
descriptor")."""


def check(function: Function, alike: Alike, copies_of: Callable[[int], BlockCopies]) -> None:
    """Raises Differs or Unclear unless the copies of both blocks, given by rank, are confirmed. What depends on fewer
    properties of the PTX comes first."""
    _executed_by_both(alike)
    blocks = [copies_of(rank) for rank in range(BLOCKS)]
    both = list(zip(*(block.copies for block in blocks), strict=True))
    _counted_by_leader(both, alike)
    _bytes(function, blocks)
    for block in blocks:
        _expected_with_copies(alike.flow, block)
    _at_equal_coordinates(both, alike)
    pair = _Pair(function, set(_columns(alike.flow)))
    for tile in _tiles(both):
        pair.add(tile)
    pair.compare()
    if pair.doubts:
        raise Unclear(pair.doubts[0])


Both = tuple[Copy, Copy]
"""One copy of the PTX in both blocks, by rank."""


def _executed_by_both(alike: Alike) -> None:
    """Raises Unclear unless both blocks execute each copy and count of bytes, and each copy is one of a pair."""
    for position, one in enumerate(alike.flow.instructions):
        where = f"PTX line {one.line}: "
        tensor = one.opcode == "cp" and "tensor" in one.modifiers and "bulk" in one.modifiers
        counts = one.opcode == "mbarrier" and ("expect_tx" in one.modifiers or "complete_tx" in one.modifiers)
        if (tensor or counts) and not alike.executed(position):
            raise Unclear(where + "which block of a pair executes it")
        if counts and "complete_tx" in one.modifiers:
            raise Unclear(where + "bytes that a block of a pair counts in place of a copy's")
        if tensor and any(word.startswith("mbarrier") for word in one.modifiers) and "cta_group::2" not in one.modifiers:
            raise Unclear(where + "a copy of a pair without `.cta_group::2`")


def _counted_by_leader(both: Sequence[Both], alike: Alike) -> None:
    """Raises Unclear unless both blocks copy by the same map and count bytes at one mbarrier, in the block of rank 0."""
    for first, second in both:
        where = f"PTX line {first.line}: "
        if [spec for _, spec in first.maps] != [spec for _, spec in second.maps] or len(first.maps) != 1:
            raise Unclear(where + "which boxes both blocks of a pair copy")
        if first.barrier is not None:
            base, _ = first.barrier
            if first.barrier != second.barrier or not isinstance(base, Peer) or base.rank != 0 or not alike.base(base):
                raise Unclear(where + "whether the leader's mbarrier counts the bytes of both blocks of a pair")


def _at_equal_coordinates(both: Sequence[Both], alike: Alike) -> None:
    """Raises Unclear unless coordinates of both blocks differ by constants."""
    for first, second in both:
        if first.bases != second.bases or not all(map(alike.base, first.bases)):
            raise Unclear(f"PTX line {first.line}: whether coordinates of both blocks of a pair differ by a constant")


def _bytes(function: Function, blocks: Sequence[BlockCopies]) -> None:
    """The bytes that both blocks expect at each mbarrier of the leader are those that both copy."""
    copied: dict[Any, int] = {}
    for block in blocks:
        seen: set[Any] = set()
        for copy in block.copies:
            if copy.barrier is None:
                continue
            ((_, spec),) = copy.maps
            if (key := (copy.barrier, spec.tensor, copy.bases, copy.offsets)) in seen:
                raise Unclear(f"PTX line {copy.line}: whether a block of a pair copies a box twice")
            seen.add(key)
            size = DTYPES[function.parameter(spec.tensor).value.tensor.dtype.name].bytes
            copied[copy.barrier] = copied.get(copy.barrier, 0) + prod(spec.box) * size
    for address, count in copied.items():
        expected = [
            set(block.barriers[address].expected.values()) if address in block.barriers else set[int]() for block in blocks
        ]
        if any(len(numbers) != 1 for numbers in expected) or sum(map(sum, expected)) != count:
            known = " and ".join(" or ".join(map(str, sorted(numbers))) or "none" for numbers in expected)
            raise Differs(f"both blocks copy {count} bytes, where they expect {known} ({named(address)})")


def _expected_with_copies(flow: Flow, block: BlockCopies) -> None:
    """Raises Unclear unless a block expects the bytes of copies once, and executes all of them equally often: one after the
    other, by the same guard."""
    for address, barrier in block.barriers.items():
        copies = [copy.position for copy in block.copies if copy.barrier == address]
        together = {
            (flow.graph.block_of(at), one.guard and flow.symbolic(one.guard, at), one.guard_negated)
            for at in (*copies, *barrier.expected)
            for one in (flow.instructions[at],)
        }
        if len(barrier.expected) != 1 or not copies or len(together) != 1:
            raise Unclear(f"which copies the bytes are expected for ({named(address)})")


def _columns(flow: Flow) -> Iterator[int]:
    """The columns of each product; raises Unclear if there is none, or one that is not a pair's."""
    found = False
    for position, one in enumerate(flow.instructions):
        if one.opcode != "tcgen05" or "mma" not in one.modifiers:
            continue
        where = f"PTX line {one.line}: "
        if "cta_group::2" not in one.modifiers or not KINDS & set(one.modifiers) or len(one.operands) < 4:
            raise Unclear(where + "the columns of each block of a pair in a product of this kind")
        described = flow.symbolic(one.operands[3], position)
        if not isinstance(described, Sum) or described.base is not None:
            raise Unclear(where + "how many columns a product has")
        found = True
        yield (described.constant >> 17 & 63) * 8
    if not found:
        raise Unclear("the blocks of a pair compute no product together")


def _tiles(both: Sequence[Both]) -> Iterable[list[Both]]:
    """The copies that have bases and an mbarrier in common."""
    found: dict[Any, list[Both]] = {}
    for copies in both:
        ((_, spec),) = copies[0].maps
        found.setdefault((copies[0].barrier, spec.tensor, copies[0].bases), []).append(copies)
    return found.values()


class _Pair:
    """Which halves the blocks copy. `doubts` are the properties that are not derived, `exchanged` says of each side's tiles
    whether the block of rank 0 has the second half, with a line of the PTX."""

    def __init__(self, function: Function, columns: set[int]) -> None:
        self.function, self.columns = function, columns
        self.doubts: list[str] = []
        self.exchanged: dict[str, dict[bool, str]] = {LEFT: {}, RIGHT: {}}

    def add(self, tile: list[Both]) -> None:
        """Raises Differs if the copies do not partition a tile of the tile IR."""
        copies = [copy for both in tile for copy in both]
        ((_, full),) = copies[0].maps
        where = f"PTX line {copies[0].line}: "
        ops = list(self._accesses(copies[0], full.tensor))
        wrong: list[str] = []
        for shape in sorted({tile_shape(op) for op in ops}):
            boxes = cut({copy.offsets for copy in copies}, shape)
            bad = [copy for copy in copies if boxes.get(copy.offsets) != copy.maps[0][1].box]
            if not bad:
                rows = {rows_of(self.function, op) for op in ops if tile_shape(op) == shape}
                self._halves(tile, shape, rows.pop() if len(rows) == 1 else None, where, full.tensor)
                return
            wrong.append(f"{list(boxes.get(bad[0].offsets, ()))} of a tile of {list(shape)}")
        known = " or ".join(wrong) or "none"
        raise Differs(f"{where}each block of a pair copies {list(full.box)} of `{full.tensor}`, and by the tile IR {known}")

    def _accesses(self, copy: Copy, tensor: str) -> Iterator[MemoryOp]:
        opcode = "store" if copy.barrier is None else "load"
        for op in self.function.body.walk():
            if isinstance(op, MemoryOp) and op.opcode == opcode and op.tensor is self.function.parameter(tensor).value:
                yield op

    def _halves(self, tile: list[Both], shape: tuple[int, ...], rows: Rows | None, where: str, tensor: str) -> None:
        divided = halves(rows, shape) if rows is not None else None
        if rows is None or divided is None:
            self.doubts.append(f"{where}which half of `{tensor}` a block of a pair needs")
            return
        if rows.side == RIGHT and self.columns != {prod(shape[: rows.axes])}:
            self.doubts.append(f"{where}which columns of a product the halves of `{tensor}` belong to")
        axis, half = divided
        lowest = min(copy.offsets[axis] for both in tile for copy in both)
        found = [{_half(both[rank], axis, lowest, half) for both in tile} for rank in range(BLOCKS)]
        if found not in ([{0}, {1}], [{1}, {0}]):
            self.doubts.append(f"{where}the blocks of a pair do not copy a half of the rows of `{tensor}` each")
            return
        self.exchanged[rows.side].setdefault(found[0] == {1}, f"{where}`{tensor}`")

    def compare(self) -> None:
        """Raises Differs if a block has the other's half where products decide which one it has."""
        right, left = self.exchanged[RIGHT], self.exchanged[LEFT]
        if True in right:
            raise Differs(f"{right[True]}: each block of a pair copies the other's half")
        if len(left) > 1:
            raise Differs(f"{left[True]}: each block of a pair has the other's half, and not at {left[False]}")
        if True in left:
            self.doubts.append(f"{left[True]}: whether a block of a pair stores the other's rows")


def _half(copy: Copy, axis: int, lowest: int, half: int) -> int | None:
    """The half that a box lies in; None if it is in both."""
    begin = copy.offsets[axis] - lowest
    end = begin + copy.maps[0][1].box[axis]
    return begin // half if begin // half == (end - 1) // half else None
