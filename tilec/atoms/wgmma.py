"""Products that groups of four warps make straight from shared memory: layout, what fits, descriptors and `wgmma` as MLIR text
(PTX ISA, "Asynchronous warpgroup level matrix instructions"). Exists on the targets of the family `wgmma`.

A matrix lies in rows of 128 bytes whose 16-byte chunks are permuted within each group of eight rows (the 128-byte swizzle), as
`SharedType.offset` lays out a matrix of eight chunks a row. Its stage begins at a multiple of 1024 bytes.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms.mma_sync import K, M, N
from tilec.ir.layout import Digit, Layout
from tilec.ir.types import DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32, i32, i64

GROUP_M: Final = 64
"""Rows of a product that a group of four warps makes at once."""

GROUP_N_LIMIT: Final = 256
"""Columns that it makes at most."""

GROUP_ROW_BYTES: Final = 128
"""Bytes of a row of its operands in shared memory, the span of the widest swizzle."""

REGISTERS_OF_BLOCKS: Final = 65536
"""Of a multiprocessor, which its blocks share (CUDA programming guide, "Technical Specifications per Compute Capability")."""

_UNIT: Final = 16  # descriptors count bytes in sixteens

_ADDRESS_MASK: Final = 0x3FFFF

_SWIZZLE_128: Final = 1 << 62

_STRIDE: Final = (8 * GROUP_ROW_BYTES // _UNIT) << 32  # from eight rows to the next eight

_LEADING: Final = 1 << 16  # not used with a swizzle and rows as wide as it


def group_accumulator(rows: int, columns: int, warps: int) -> Layout:
    """Layout of a (rows, columns) accumulator of `wgmma` on `warps` warps, in groups of four that each take whole tiles of 64
    rows (PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16"): a warp holds 16 rows of a tile as in C above."""
    groups = warps // 4
    tiles = rows // (GROUP_M * groups)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(columns // N, 1, N), Digit(tiles, 0, GROUP_M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(4, 0, M), Digit(groups, 0, GROUP_M * tiles)))


def least_registers(columns: int) -> int:
    """Of a thread, with which ptxas (13.5) takes an instruction of so many columns: its accumulators, and 26 beside them."""
    return columns // 2 + 26


def descriptor(out: Builder, stage: SsaValue) -> SsaValue:
    """The i64 that describes the matrix at a shared pointer."""
    short = out.lshr(out.bit_and(out.address(stage, i32), _ADDRESS_MASK), 4)
    return out.bit_or(out.zext(short, i64), _SWIZZLE_128 | _STRIDE | _LEADING)


def rows_below(out: Builder, described: SsaValue, rows: SsaValue) -> SsaValue:
    """The descriptor of the matrix `rows` (i32) rows further on, whole tiles of 64."""
    return out.add(described, out.zext(out.mul(rows, GROUP_ROW_BYTES // _UNIT), i64))


def start(
    out: Builder, a: SsaValue, b: SsaValue, total: list[SsaValue], tiles: int, columns: int, dtype: DType
) -> list[SsaValue]:
    """Start the product of `tiles` times 64 rows at descriptor `a` and all rows at `b`, onto the accumulators `total`, as one
    group. One text, so that nothing comes between the fence and the instructions it is for."""
    count = len(total)
    each = count // tiles
    kind = dtype.name
    shape = f"wgmma.mma_async.sync.aligned.m{GROUP_M}n{columns}k{K}.f32.{kind}.{kind}"
    lines = [
        ".reg .pred p; .reg .b32 t; .reg .b64 b; .reg .b64 a<" + str(tiles) + ">;",
        "mov.u32 t, 1; setp.ne.u32 p, t, 0;",
        f"mov.b64 b, ${2 * count + 1}; mov.b64 a0, ${2 * count};",
    ]
    lines += [f"add.s64 a{tile}, a{tile - 1}, {GROUP_M * GROUP_ROW_BYTES // _UNIT};" for tile in range(1, tiles)]
    lines.append("wgmma.fence.sync.aligned;")
    step = K * dtype.bytes // _UNIT
    for k in range(0, GROUP_ROW_BYTES // dtype.bytes, K):
        for tile in range(tiles):
            registers = ", ".join(f"${tile * each + i}" for i in range(each))
            lines.append(f"{shape} {{{registers}}}, a{tile}, b, p, 1, 1, 0, 0;")
        if k + K < GROUP_ROW_BYTES // dtype.bytes:
            lines += [f"add.s64 a{tile}, a{tile}, {step};" for tile in range(tiles)]
            lines.append(f"add.s64 b, b, {step};")
    lines.append("wgmma.commit_group.sync.aligned;")
    return _through(out, "{ " + " ".join(lines) + " }", total, [a, b])


def wait(out: Builder, total: list[SsaValue], pending: int) -> list[SsaValue]:
    """The accumulators, once at most `pending` groups are unfinished."""
    return _through(out, f"wgmma.wait_group.sync.aligned {pending};", total, [])


def _through(out: Builder, text: str, registers: list[SsaValue], others: list[SsaValue]) -> list[SsaValue]:
    """Inline PTX that changes f32 registers in place; `others` are i64."""
    count = len(registers)
    tied = ",".join(str(i) for i in range(count))
    constraints = ",".join(["=f"] * count) + f",{tied}" + ",l" * len(others) + ",~{memory}"
    return out.inline_ptx(text, constraints, [*registers, *others], [f32] * count, side_effects=True)
