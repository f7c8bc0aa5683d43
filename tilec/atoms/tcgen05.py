"""`tcgen05`: products of one thread from shared memory into tensor memory, and loads of accumulators from there (PTX ISA,
"TensorCore 5th Generation Family Instructions"). Available on the targets of the family `tcgen05`.

Operands lie in shared memory as for `wgmma`: sub-tiles with rows of 128 bytes and the 128-byte swizzle, in stages aligned to
1024 bytes. Tensor memory has 128 lanes and 512 columns of 32 bits; an address is a lane in its upper and a column in its lower
16 bits. An accumulator of M 128 has row m in lane m and column n in column n; one of M 64 has row m in lane 32 * (m / 16) +
m % 16. Warp w of a role that begins at a multiple of four warps accesses lanes 32 * (w % 4) to 32 * (w % 4) + 31.

Every text has its fence: a fence orders `tcgen05` accesses with the mbarriers that roles signal each other with (PTX ISA,
"tcgen05.fence"), and emits no machine code.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms.staged_operands import UNIT, Left, Right, descriptor_offset, matrix_descriptor
from tilec.atoms.wgmma import fields as wgmma_fields
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import TMEM_COLUMNS, TMEM_LANES, DType, TmemType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32, i32
from tilec.target.families import TCGEN05

FAMILY: Final = TCGEN05
K: Final = FAMILY.shape.depth
"""Depth of one instruction of 16-bit elements: 32 bytes of an operand's row."""
LEAST_ROWS: Final = FAMILY.shape.rows
"""The smaller M of an instruction; the larger one is `TMEM_LANES`."""
WARP_LANES: Final = 32
"""Lanes that a warp accesses."""
HALF: Final = 16
"""Lanes of one load."""
LOAD_COLUMNS: Final = 8
"""Columns of the smallest load of 256 bits a lane."""
VERSION: Final = 1 << 46
"""The field that distinguishes a descriptor of shared memory from that of `wgmma` (PTX ISA, "Shared memory descriptor")."""
_FORMATS: Final = {"f16": 0, "bf16": 1} | {"e4m3": 0, "e5m2": 1} | {"u8": 0, "s8": 1}
"""Formats of A and B, by `DType.matrix`, in an instruction descriptor (PTX ISA, "Instruction descriptor")."""
_RESULT_F32: Final = 1 << 4
_RESULT_S32: Final = 2 << 4
LANE_SHIFT: Final = 16
"""The lane in an address of tensor memory."""
AFTER: Final = "tcgen05.fence::after_thread_sync;"
BEFORE: Final = "tcgen05.fence::before_thread_sync;"
"""The fences after a wait for other threads, and before a signal to them."""


def fits(rows: int, columns: int, warps: int) -> bool:
    """Whether instructions compute a (rows, columns) accumulator that fits tensor memory and that `warps` warps can load."""
    whole = rows == LEAST_ROWS or (rows > 0 and rows % TMEM_LANES == 0)
    columns_fit = columns % FAMILY.shape.columns == 0 and columns <= FAMILY.shape.most_columns
    groups = warps // 4
    divided = warps % 4 == 0 and groups >= 1 and _run(columns, groups) > 0
    return whole and columns_fit and divided and max(1, rows // TMEM_LANES) * columns <= TMEM_COLUMNS


def accumulator(rows: int, columns: int, warps: int) -> Layout:
    """Layout of a loaded (rows, columns) accumulator on `warps` warps: fragments of 16 x 8 as those of `mma_sync`, in the rows
    that each warp accesses. Several groups of four warps share the columns in runs (`_run`)."""
    groups, own_rows = warps // 4, min(rows // 4, WARP_LANES)
    run = _run(columns, groups)
    registers = (
        Digit(2, 1, 1),
        Digit(2, 0, 8),
        Digit(run // LOAD_COLUMNS, 1, LOAD_COLUMNS),
        Digit(columns // (run * groups), 1, run * groups),
        Digit(own_rows // HALF, 0, HALF),
        Digit(max(1, rows // TMEM_LANES), 0, TMEM_LANES),
    )
    return Layout(2, registers, (Digit(4, 1, 2), Digit(8, 0, 1)), (Digit(4, 0, own_rows), Digit(groups, 1, run)))


def _run(columns: int, groups: int) -> int:
    """Adjacent columns that a group of warps loads at once; 0 if the groups cannot share the columns. Instructions load 8
    columns times a power of two. A run is 16-byte chunks of 16-bit elements in pairs, as `stmatrix` stores them, and if there
    are several groups no longer than a register budget for one load."""
    runs = (256, 128, 64, 32, 16) if groups == 1 else (32, 16)
    return next((run for run in runs if columns % (run * groups) == 0), 0)


def fields(mn_stride: int = 0) -> int:
    """The descriptor of a matrix at address 0 (PTX ISA, "Shared memory descriptor")."""
    return wgmma_fields(mn_stride) | VERSION


def descriptor(out: Builder, stage: SsaValue, mn_stride: int = 0) -> SsaValue:
    """The descriptor (i64) of the matrix at a shared pointer; `mn_stride`: bytes between sub-tiles if it is MN-major."""
    return matrix_descriptor(out, stage, fields(mn_stride))


def instruction(rows: int, columns: int, dtype: DType, other: DType | None = None, *, b_is_mn_major: bool = False) -> int:
    """The instruction descriptor of a product of `rows` rows of A, K-major, of `dtype`, and B, of `other` if that differs (PTX
    ISA, "Instruction descriptor")."""
    result = _RESULT_S32 if dtype.is_integer else _RESULT_F32
    formats = _FORMATS[dtype.matrix or ""] << 7 | _FORMATS[(other or dtype).matrix or ""] << 10
    return result | formats | int(b_is_mn_major) << 16 | columns >> 3 << 17 | rows >> 4 << 24


def kind(dtype: DType) -> str:
    """The kind of a product (PTX ISA, `tcgen05.mma`, `.kind`)."""
    return "f16" if dtype.bits == 16 else "i8" if dtype.is_integer else "f8f6f4"


def reserve(out: Builder, target: SsaValue, columns: int, blocks: int = 1) -> None:
    """Allocate columns in one warp, store their address at a shared pointer, and give up the right to allocate more; one warp
    of each block of a pair if `blocks` is 2."""
    text = (
        f"tcgen05.alloc.cta_group::{blocks}.sync.aligned.shared::cta.b32 [$0], {columns}; "
        f"tcgen05.relinquish_alloc_permit.cta_group::{blocks}.sync.aligned;"
    )
    out.inline_ptx(text, "l,~{memory}", [target], side_effects=True)


def address(out: Builder, source: SsaValue) -> SsaValue:
    """The address (i32) that `reserve` stored at a shared pointer."""
    return out.inline_ptx("ld.shared.b32 $0, [$1];", "=r,l,~{memory}", [source], [i32], side_effects=True)[0]


def free(out: Builder, space: SsaValue, columns: int, blocks: int = 1) -> None:
    """Free columns, in the warp that allocated them; in those of each block of a pair if `blocks` is 2."""
    text = f"tcgen05.dealloc.cta_group::{blocks}.sync.aligned.b32 $0, {columns};"
    out.inline_ptx(text, "r,~{memory}", [space], side_effects=True)


def multiply(
    out: Builder,
    left: Left,
    right: Right,
    target: SsaValue,
    accumulate: SsaValue,
    shape: tuple[int, int, int],
    dtype: DType,
    blocks: int = 1,
    other: DType | None = None,
) -> None:
    """Start the product of a stage, of `shape` M, N and K, into the accumulator at address `target` (i32); it is added to that
    accumulator if `accumulate` (i1). If `blocks` is 2, of a pair: M is that of each block, and each has half of B's rows.
    `other`: the dtype of B if it differs. One text, so that nothing comes between its instructions."""
    rows, columns, depth = shape
    instruction_rows = blocks * min(rows, TMEM_LANES)
    code = instruction(instruction_rows, columns, dtype, other, b_is_mn_major=right.mn_major)
    statements = [
        ".reg .pred more; .reg .b32 code, to; .reg .b64 a, b;",
        AFTER,
        f"mov.b32 code, {code}; setp.eq.u32 more, 0, 0;",
    ]
    for tile in range(max(1, rows // TMEM_LANES)):
        statements.append(f"add.u32 to, $0, {tile * columns};")
        for k in range(0, depth, FAMILY.shape.depth_of(dtype.bits)):
            first, second = left_offset(left, tile, k, dtype), descriptor_offset(k, right.atom_bytes, right.mn_major, dtype)
            statements.append(f"add.s64 a, $1, {first}; add.s64 b, $2, {second};")
            name = f"tcgen05.mma.cta_group::{blocks}.kind::{kind(dtype)}"
            statements.append(f"{name} [to], a, b, code, {'more' if k else '$3'};")
    assert left.matrix_descriptor is not None
    operands = [target, left.matrix_descriptor, right.matrix_descriptor, accumulate]
    out.inline_ptx("{ " + " ".join(statements) + " }", "r,l,l,b,~{memory}", operands, side_effects=True)


def left_offset(left: Left, tile: int, k: int, dtype: DType) -> int:
    """The descriptor increment for tile `tile`, 128 rows, and offset `k` along K of operand A."""
    return tile * TMEM_LANES * FAMILY.row_bytes // UNIT + descriptor_offset(k, left.atom_bytes, False, dtype)


def own_lanes(out: Builder, warp: SsaValue) -> SsaValue:
    """What a warp's first lane adds to an address of tensor memory (i32); `warp` (i32) is its index in its role."""
    return out.shl(out.mul(out.bit_and(warp, 3), WARP_LANES), LANE_SHIFT)


def commit(out: Builder, barrier: SsaValue) -> None:
    """Arrive at an mbarrier, given by a shared pointer, once all products that this thread has started are complete."""
    text = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [$0];"
    out.inline_ptx(text, "l,~{memory}", [barrier], side_effects=True)


def commit_in_pair(out: Builder, barrier: SsaValue) -> None:
    """Arrive at an mbarrier, given by this block's shared pointer, in both blocks of a pair, once all products of the pair that
    this thread has started are complete."""
    text = (
        "{ .reg .b16 both; mov.b16 both, 3; "
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [$0], both; }"
    )
    out.inline_ptx(text, "l,~{memory}", [barrier], side_effects=True)


def load(out: Builder, buffer: TmemType, source: SsaValue, layout: Layout, warp: SsaValue) -> list[SsaValue]:
    """Load an accumulator at address `source` (i32) into the registers of `layout`, made by `accumulator`; `warp` (i32) is the
    warp's index in its role. One text with one wait, so that the loads overlap and no register is used before it."""
    (_, _, chunk, runs, halves, tiles), (_, groups) = layout.registers, layout.warps
    run, columns = chunk.extent * LOAD_COLUMNS, buffer.shape[1]
    first = out.add(source, own_lanes(out, warp))
    if groups.extent > 1:
        first = out.add(first, out.mul(out.lshr(warp, 2), run))
    count, number = layout.num_registers, 0
    texts = [AFTER]
    for tile in range(tiles.extent):
        for half in range(halves.extent):
            for index in range(runs.extent):
                offset = (half * HALF << LANE_SHIFT) + tile * columns + index * run * groups.extent
                registers = ", ".join(f"${number + i}" for i in range(4 * chunk.extent))
                number += 4 * chunk.extent
                texts.append(f"tcgen05.ld.sync.aligned.16x256b.x{chunk.extent}.b32 {{{registers}}}, [${count} + {offset}];")
    texts.append(f"tcgen05.wait::ld.sync.aligned; {BEFORE}")
    letter, type_ = ("=r", i32) if buffer.dtype.is_integer else ("=f", f32)
    constraints = ",".join([*[letter] * count, "r", "~{memory}"])
    return out.inline_ptx(" ".join(texts), constraints, [first], [type_] * count, side_effects=True)
