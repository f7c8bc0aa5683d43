"""TMA copies of boxes between a tensor and shared memory, issued by one thread, with a tensor map that the launcher encodes
(PTX ISA, `cp.async.bulk.tensor`; CUDA driver API, `cuTensorMapEncodeTiled`).

A box arrives in rows of 32, 64 or 128 bytes with the swizzle of that span, as `SharedType.offset` describes. Out-of-bounds
elements arrive as zeros and count towards the transferred bytes. A stage with more rows than a box may have is filled by
several copies, and so is one with longer rows: one copy for each sub-tile of 128-byte rows. Available on every target.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import Final

from tilec.ir.facts.tensor_maps import MAP_ELEMENTS, MAP_SWIZZLES, MAX_BOX, MAX_MAP_RANK
from tilec.ir.types import SharedType, TensorType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32, i64

ROWS_REPEAT: Final = 8
"""Rows after which the widest swizzle repeats."""

ALIGNMENT: Final = ROWS_REPEAT * MAP_SWIZZLES[-1]
"""Alignment of a stage in bytes, with which its swizzle phase is that of address 0."""

MOST_BYTES: Final = (1 << 20) - 1
"""Maximum bytes per stage: the limit of an mbarrier's transaction count."""


def aligned(offset: int) -> int:
    """The first aligned offset from this one on."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


_COPY: Final = "cp.async.bulk.tensor.{rank}d.{space}.global.tile.mbarrier::complete_tx::bytes{pair}"


class Names(Enum):
    """How a copy names its destination, which is this block's shared memory in every case: as that of a cluster, or of the
    block (PTX 8.6); or in a pair, of which the mbarrier may be the leader's (PTX ISA, `.cta_group::2`)."""

    CLUSTER = ("shared::cluster", "")
    BLOCK = ("shared::cta", "")
    PAIR = ("shared::cluster", ".cta_group::2")


FEW: Final = 2
"""Sub-tiles that are a copy each. More are one copy together, since the thread that issues copies takes time for each."""


@dataclass(frozen=True, slots=True)
class Box:
    """The box of one copy: its extent on each tensor axis, outermost first, and the bytes of a row, which is the swizzle
    span."""

    extents: tuple[int, ...]
    swizzle: int


def problem(tensor: TensorType, stage: SharedType, sub_tiles: int = 1) -> str | None:
    """Why TMA copies cannot fill a stage from a tensor; None if they can. `sub_tiles`: runs of consecutive tensor rows in a
    stage. The caller and the launcher check that base and strides are multiples of 16 bytes."""
    row_bytes = stage.width * stage.dtype.bytes
    if tensor.dtype.name not in MAP_ELEMENTS:
        return f"a tensor map has no elements of {tensor.dtype}"
    if not 2 <= tensor.rank <= MAX_MAP_RANK:
        return f"a tensor map has 2 to {MAX_MAP_RANK} axes, not {tensor.rank}"
    if tensor.strides is not None and tensor.strides[-1].constant != 1:
        return "a tensor map wants the elements of a row side by side"
    if row_bytes not in MAP_SWIZZLES:
        return f"rows of {row_bytes} bytes; a copy brings {', '.join(map(str, MAP_SWIZZLES[:-1]))} or {MAP_SWIZZLES[-1]}"
    if stage.shape[0] // sub_tiles % ROWS_REPEAT:
        return f"{stage.shape[0] // sub_tiles} rows; a stage has a multiple of {ROWS_REPEAT}"
    return None


def box_of(tensor: TensorType, stage: SharedType, row_axis: int, sub_tiles: int = 1, gap: int = 1) -> Box:
    """The box of each copy into a stage; `row_axis` is counted from the end. It has all sub-tiles, which lie one after the
    other in the stage too. If they are no more than `FEW`, or the rows of one more than `MAX_BOX`, it has one sub-tile, or an
    equal part of its rows."""
    extents = [1] * tensor.rank
    extents[-1] = stage.width
    rows = stage.shape[0] // sub_tiles
    parts = next(n for n in range(-(-rows // MAX_BOX), rows + 1) if rows % n == 0 and rows // n % ROWS_REPEAT == 0)
    extents[row_axis] = rows // parts
    if FEW < sub_tiles <= MAX_BOX and parts == 1:
        extents[row_axis - gap] = sub_tiles
    return Box(tuple(extents), stage.width * stage.dtype.bytes)


def smaller_box_rows(rows: int) -> tuple[int, ...]:
    """Row counts of smaller boxes that may replace a box of `rows` rows if fewer are in bounds: three quarters, a half and a
    quarter, as far as these are multiples of `ROWS_REPEAT`. Empty if a stage needs several copies."""
    parts = (rows * quarters // 4 for quarters in (3, 2, 1) if rows * quarters % (4 * ROWS_REPEAT) == 0)
    return tuple(parts) if rows <= MAX_BOX else ()


def swizzle_atoms_of(columns: int, element_bytes: int) -> int:
    """Number of sub-tiles into which the columns are divided, so that rows have at most the widest swizzle span."""
    row_bytes = columns * element_bytes
    return row_bytes // MAP_SWIZZLES[-1] if row_bytes > MAP_SWIZZLES[-1] and row_bytes % MAP_SWIZZLES[-1] == 0 else 1


def copied_bytes(stage: SharedType) -> int:
    """Bytes that all copies into a stage transfer, zero fill included."""
    return stage.shape[0] * stage.shape[1] * stage.dtype.bytes


def copy_stage(
    out: Builder,
    map_: SsaValue,
    box: Box,
    row_axis: int,
    sub_tiles: int,
    gap: int,
    stage: SharedType,
    target: SsaValue,
    origin: list[SsaValue],
    full: SsaValue,
    names: Names = Names.CLUSTER,
) -> None:
    """Issue the copies of the box at coordinates `origin` (i32, outermost axis first) into the stage at shared pointer
    `target`; they complete on the mbarrier `full`. `map_` is the address of the tensor map (i64)."""
    rows, sub_tile_rows = prod(box.extents[:-1]), stage.shape[0] // sub_tiles
    for atom in range(stage.swizzle_atoms):
        for first in range(0, stage.shape[0], rows):
            coordinates = list(origin)
            sub_tile, row = divmod(first, sub_tile_rows)
            if sub_tile:
                coordinates[row_axis - gap] = out.add(coordinates[row_axis - gap], sub_tile)
            coordinates[row_axis] = out.add(coordinates[row_axis], row) if row else coordinates[row_axis]
            coordinates[-1] = out.add(coordinates[-1], atom * stage.width) if atom else coordinates[-1]
            _copy(out, map_, out.offset(target, atom * stage.atom_bytes + first * box.swizzle), coordinates, full, names)


def store_box(out: Builder, map_: SsaValue, origin: list[SsaValue], source: SsaValue) -> None:
    """Store the box at shared pointer `source` to coordinates `origin` (i32, outermost axis first), as one bulk group of this
    thread; out-of-bounds elements are not written."""
    assert map_.type is i64 and all(value.type is i32 for value in origin)
    rank = len(origin)
    coordinates = ", ".join(f"${1 + axis}" for axis in range(rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{coordinates}}}], [${1 + rank}]; "
        "cp.async.bulk.commit_group;"
    )
    out.inline_ptx(text, f"l,{','.join('r' * rank)},l,~{{memory}}", [map_, *reversed(origin), source], side_effects=True)


def wait_stores(out: Builder, pending: int, *, complete: bool) -> None:
    """Wait until all bulk groups of this thread but the newest `pending` have read shared memory, or, with `complete`, are
    complete."""
    read = "" if complete else ".read"
    out.inline_ptx(f"cp.async.bulk.wait_group{read} {pending};", "~{memory}", side_effects=True)


def _copy(
    out: Builder, map_: SsaValue, target: SsaValue, origin: list[SsaValue], full: SsaValue, names: Names
) -> None:  # fmt: skip
    assert map_.type is i64 and all(value.type is i32 for value in origin)
    rank = len(origin)
    coordinates = ", ".join(f"${2 + axis}" for axis in range(rank))
    space, pair = names.value
    copy = _COPY.format(rank=rank, space=space, pair=pair)
    text = f"{copy} [$0], [$1, {{{coordinates}}}], [${2 + rank}];"
    constraints = f"l,l,{','.join('r' * rank)},l,~{{memory}}"
    out.inline_ptx(text, constraints, [target, map_, *reversed(origin), full], side_effects=True)
