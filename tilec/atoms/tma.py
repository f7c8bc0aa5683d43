"""Copies of boxes of a tensor into shared memory, and back, that one thread starts, through a map of the tensor that the
launcher makes (PTX ISA, `cp.async.bulk.tensor`; CUDA driver API, `cuTensorMapEncodeTiled`).

A box arrives in rows of 32, 64 or 128 bytes whose 16-byte chunks are permuted as `SharedType.offset` says, which is the swizzle
of that span. Elements outside of the tensor arrive as zeros, and count as bytes like all others. A stage with more rows than a
box may have comes by several copies, and so does one whose rows are longer, a panel at a time. Exists on every target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.ir.tensor_maps import MAP_ELEMENTS, MAP_SWIZZLES, MAX_BOX, MAX_MAP_RANK
from tilec.ir.types import SharedType, TensorType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, i32, i64

ROWS_REPEAT: Final = 8
"""Rows after which the widest swizzle repeats."""

ALIGNMENT: Final = ROWS_REPEAT * MAP_SWIZZLES[-1]
"""Bytes that a stage begins at a multiple of, so that its rows are permuted as if it began at 0."""

MOST_BYTES: Final = (1 << 20) - 1
"""Of one stage: what an mbarrier counts."""

_COPY: Final = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"


@dataclass(frozen=True, slots=True)
class Box:
    """What one copy brings: elements on each tensor axis, outermost first, and the bytes of a row."""

    extents: tuple[int, ...]
    swizzle: int


def problem(tensor: TensorType, stage: SharedType, slabs: int = 1) -> str | None:
    """Why copies cannot bring a stage of a tensor, in so many slabs; None where they can. That base and strides are multiples
    of 16 bytes is for who has proven it, and for the launcher."""
    row_bytes = stage.width * stage.dtype.bytes
    if tensor.dtype.name not in MAP_ELEMENTS:
        return f"a tensor map has no elements of {tensor.dtype}"
    if not 2 <= tensor.rank <= MAX_MAP_RANK:
        return f"a tensor map has 2 to {MAX_MAP_RANK} axes, not {tensor.rank}"
    if tensor.strides is not None and tensor.strides[-1].constant != 1:
        return "a tensor map wants the elements of a row side by side"
    if row_bytes not in MAP_SWIZZLES:
        return f"rows of {row_bytes} bytes; a copy brings {', '.join(map(str, MAP_SWIZZLES[:-1]))} or {MAP_SWIZZLES[-1]}"
    if stage.shape[0] // slabs % ROWS_REPEAT:
        return f"{stage.shape[0] // slabs} rows; a stage has a multiple of {ROWS_REPEAT}"
    return None


def box_of(tensor: TensorType, stage: SharedType, row_axis: int, slabs: int = 1) -> Box:
    """The box of each copy into a stage; `row_axis` is counted from the end. The rows of each of the `slabs` are cut into equal
    parts that fit."""
    extents = [1] * tensor.rank
    extents[-1] = stage.width
    rows = stage.shape[0] // slabs
    parts = next(n for n in range(-(-rows // MAX_BOX), rows + 1) if rows % n == 0 and rows // n % ROWS_REPEAT == 0)
    extents[row_axis] = rows // parts
    return Box(tuple(extents), stage.width * stage.dtype.bytes)


def fewer_rows(rows: int) -> tuple[int, ...]:
    """Rows of boxes that may come in place of one of so many, where fewer lie inside of a tensor: three quarters, a half and a
    quarter of them, as far as boxes have so many. A stage that comes by several copies is left whole."""
    parts = (rows * quarters // 4 for quarters in (3, 2, 1) if rows * quarters % (4 * ROWS_REPEAT) == 0)
    return tuple(parts) if rows <= MAX_BOX else ()


def panels_of(columns: int, element_bytes: int) -> int:
    """Into how many panels rows are cut so that copies bring them: the fewest."""
    row_bytes = columns * element_bytes
    return row_bytes // MAP_SWIZZLES[-1] if row_bytes > MAP_SWIZZLES[-1] and row_bytes % MAP_SWIZZLES[-1] == 0 else 1


def copied_bytes(stage: SharedType) -> int:
    """Bytes that all copies into a stage bring, zeros included."""
    return stage.shape[0] * stage.shape[1] * stage.dtype.bytes


def copy_stage(
    out: Builder,
    map_: SsaValue,
    box: Box,
    row_axis: int,
    slabs: int,
    stage: SharedType,
    to: SsaValue,
    place: list[SsaValue],
    full: SsaValue,
) -> None:
    """Start the copies of the box at `place` (i32, a coordinate per axis, outermost first) into the stage at shared pointer
    `to`; their bytes count at the mbarrier `full`. `map_` is the address of the map (i64)."""
    rows, each = box.extents[row_axis], stage.shape[0] // slabs
    for panel in range(stage.panels):
        for first in range(0, stage.shape[0], rows):
            at = list(place)
            slab, inside = divmod(first, each)
            if slab:
                at[row_axis - 1] = out.add(at[row_axis - 1], slab)
            at[row_axis] = out.add(at[row_axis], inside) if inside else at[row_axis]
            at[-1] = out.add(at[-1], panel * stage.width) if panel else at[-1]
            _copy(out, map_, out.offset(to, panel * stage.panel_bytes + first * box.swizzle), at, full)


def store_box(out: Builder, map_: SsaValue, place: list[SsaValue], at: SsaValue) -> None:
    """Start copying the box that lies at shared pointer `at` to `place` (i32, a coordinate per axis, outermost first), as a
    group of this thread's; elements outside of the tensor are not written."""
    assert map_.type is i64 and all(value.type is i32 for value in place)
    rank = len(place)
    coordinates = ", ".join(f"${1 + axis}" for axis in range(rank))
    text = (
        f"cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group [$0, {{{coordinates}}}], [${1 + rank}]; "
        "cp.async.bulk.commit_group;"
    )
    out.inline_ptx(text, f"l,{','.join('r' * rank)},l,~{{memory}}", [map_, *reversed(place), at], side_effects=True)


def wait_stores(out: Builder, pending: int, *, complete: bool) -> None:
    """Wait until all groups of this thread but the newest `pending` have read shared memory, or are complete."""
    read = "" if complete else ".read"
    out.inline_ptx(f"cp.async.bulk.wait_group{read} {pending};", "~{memory}", side_effects=True)


def _copy(out: Builder, map_: SsaValue, to: SsaValue, place: list[SsaValue], full: SsaValue) -> None:
    assert map_.type is i64 and all(value.type is i32 for value in place)
    rank = len(place)
    coordinates = ", ".join(f"${2 + axis}" for axis in range(rank))
    text = f"{_COPY.format(rank=rank)} [$0], [$1, {{{coordinates}}}], [${2 + rank}];"
    constraints = f"l,l,{','.join('r' * rank)},l,~{{memory}}"
    out.inline_ptx(text, constraints, [to, map_, *reversed(place), full], side_effects=True)
