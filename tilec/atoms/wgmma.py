"""`wgmma`: accumulator layout, supported shapes, matrix descriptors and inline PTX (PTX ISA, "Asynchronous warpgroup level
matrix instructions"). Available on the targets of the family `wgmma`.

A matrix in shared memory consists of sub-tiles with rows of 128 bytes and the 128-byte swizzle, as `SharedType.offset`
describes. Its stage is aligned to 1024 bytes. A matrix is K-major (rows along M or N); a 16-bit B operand may also be MN-major
(rows along K), here `turned`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tilec.atoms.mma_sync import K, M, N
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32, i32, i64

GROUP_M: Final = 64
"""M of one instruction."""

GROUP_N_LIMIT: Final = 256
"""Maximum N of one instruction."""

GROUP_ROW_BYTES: Final = 128
"""Row bytes of an operand in shared memory: the widest swizzle span."""

REGISTERS_OF_BLOCKS: Final = 65536
"""Registers of an SM, which its blocks share (CUDA programming guide, "Technical Specifications per Compute Capability")."""

_UNIT: Final = 16  # descriptors encode byte counts divided by 16

_ADDRESS_MASK: Final = 0x3FFFF

_SWIZZLE_128: Final = 1 << 62

_STRIDE: Final = (8 * GROUP_ROW_BYTES // _UNIT) << 32  # distance between groups of eight rows

_LEADING: Final = 1 << 16  # ignored if a row is exactly one swizzle span


def group_accumulator(rows: int, columns: int, warps: int) -> Layout:
    """Layout of a (rows, columns) accumulator of `warps // 4` warpgroups, each of which has whole tiles of 64 rows (PTX ISA,
    "Matrix fragments for wgmma.mma_async.m64nNk16"): a warp has 16 rows of a tile, with the C fragments of `mma_sync`."""
    groups = warps // 4
    tiles = rows // (GROUP_M * groups)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(columns // N, 1, N), Digit(tiles, 0, GROUP_M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(4, 0, M), Digit(groups, 0, GROUP_M * tiles)))


def least_registers(columns: int) -> int:
    """Minimum registers per thread with which ptxas (13.5) accepts an instruction with N = `columns`: its accumulators plus
    26."""
    return columns // 2 + 26


def fields(turned_by: int = 0) -> int:
    """The descriptor of a matrix at address 0 (PTX ISA, "Matrix descriptor format"): K-major by default; MN-major if
    `turned_by` gives the bytes between sub-tiles of 64 columns."""
    return _SWIZZLE_128 | _STRIDE | (turned_by // _UNIT << 16 or _LEADING)


def descriptor(out: Builder, stage: SsaValue, turned_by: int = 0) -> SsaValue:
    """The descriptor (i64) of the matrix at a shared pointer."""
    short = out.lshr(out.bit_and(out.address(stage, i32), _ADDRESS_MASK), 4)
    return out.bit_or(out.zext(short, i64), fields(turned_by))


def rows_below(out: Builder, described: SsaValue, rows: SsaValue) -> SsaValue:
    """The descriptor advanced by `rows` (i32) rows, a multiple of 64."""
    return out.add(described, out.zext(out.mul(rows, GROUP_ROW_BYTES // _UNIT), i64))


@dataclass(frozen=True, slots=True)
class Left:
    """Operand A: a descriptor and the bytes of a sub-tile; or packed registers (i32), four for each 16 of K, grouped by tiles
    of 64 rows."""

    described: SsaValue | None = None
    panel_bytes: int = 0
    held: tuple[SsaValue, ...] = ()


@dataclass(frozen=True, slots=True)
class Right:
    """Operand B: a descriptor, the bytes of a sub-tile, and whether it is MN-major (`turned`)."""

    described: SsaValue
    panel_bytes: int
    turned: bool = False


def pack(out: Builder, low: SsaValue, high: SsaValue, dtype: str) -> SsaValue:
    """Two f32 rounded to a 16-bit dtype, as one i32 of operand A. Inline PTX, because LLVM would sink its own conversion from
    after the wait for the MMA that reads the registers to the start of the next MMA, and keep the f32 values live."""
    text = f"cvt.rn.{dtype}x2.f32 $0, $1, $2;"
    return out.inline_ptx(text, "=r,f,f,~{memory}", [high, low], [i32], side_effects=True)[0]


def start(
    out: Builder,
    left: Left,
    right: Right,
    total: list[SsaValue],
    tiles: int,
    columns: int,
    depth: int,
    dtype: DType,
    fresh: bool,
) -> list[SsaValue]:
    """Issue the MMA of `tiles` x 64 rows of `left` with all of `right` into the accumulators `total`, as one wgmma group; with
    `fresh` the accumulators start at zero. One inline PTX text, so that nothing is scheduled between the fence and its MMAs."""
    results, others = len(total), [value for value in (*left.held, left.described, right.described) if value is not None]
    first = results if fresh else 2 * results
    each, held = results // tiles, len(left.held)
    kind = dtype.name
    shape = f"wgmma.mma_async.sync.aligned.m{GROUP_M}n{columns}k{K}.f32.{kind}.{kind}"
    lines = [
        ".reg .pred p; .reg .b32 t; .reg .b64 b; .reg .b64 a<" + str(tiles) + ">;",
        "mov.u32 t, 1; setp.ne.u32 p, t, 0;",
        f"mov.b64 b, ${first + len(others) - 1};",
    ]
    lines += [".reg .pred none; setp.eq.u32 none, t, 0;"] if fresh else []
    if not held:
        lines.append(f"mov.b64 a0, ${first};")
        lines += [f"add.s64 a{tile}, a{tile - 1}, {GROUP_M * GROUP_ROW_BYTES // _UNIT};" for tile in range(1, tiles)]
    lines.append("wgmma.fence.sync.aligned;")
    for k in range(0, depth, K):
        if k:
            steps = [place(k, one.panel_bytes, turned, dtype) - place(k - K, one.panel_bytes, turned, dtype)
                     for one, turned in ((left, False), (right, right.turned))]  # fmt: skip
            lines += [] if held else [f"add.s64 a{tile}, a{tile}, {steps[0]};" for tile in range(tiles)]
            lines.append(f"add.s64 b, b, {steps[1]};")
        for tile in range(tiles):
            registers = ", ".join(f"${tile * each + i}" for i in range(each))
            at = first + tile * (held // tiles) + k // K * 4
            a = f"{{${at}, ${at + 1}, ${at + 2}, ${at + 3}}}" if held else f"a{tile}"
            turns = f"{int(right.turned)}" if held else f"0, {int(right.turned)}"
            lines.append(f"{shape} {{{registers}}}, {a}, b, {'none' if fresh and not k else 'p'}, 1, 1, {turns};")
    lines.append("wgmma.commit_group.sync.aligned;")
    return _through(out, "{ " + " ".join(lines) + " }", [] if fresh else total, results, others)


def place(k: int, panel_bytes: int, turned: bool, dtype: DType) -> int:
    """The descriptor increment for offset `k` along K."""
    if turned:
        return k * GROUP_ROW_BYTES // _UNIT
    panel, inside = divmod(k * dtype.bytes, GROUP_ROW_BYTES)
    return (panel * panel_bytes + inside) // _UNIT


def wait(out: Builder, total: list[SsaValue], pending: int, before: list[SsaValue]) -> list[SsaValue]:
    """The accumulators after a wait that leaves at most `pending` groups unfinished; the values `before` (f32) are computed
    first.

    ptxas hoists a wait over independent computation, which then no longer overlaps the MMA. It does not reorder a wait with a
    `nanosleep`, so each value of `before` guards one: it runs only for a NaN bit pattern that no arithmetic produces, and
    sleeps for zero time."""
    first = 2 * len(total)
    naps = [f"setp.eq.b32 late, ${first + i}, 0x7f800001; @late nanosleep.u32 0;" for i in range(len(before))]
    text = " ".join(["{ .reg .pred late;", *naps, "} "]) if naps else ""
    return _through(out, f"{text}wgmma.wait_group.sync.aligned {pending};", total, len(total), before)


def _through(out: Builder, text: str, registers: list[SsaValue], count: int, others: list[SsaValue]) -> list[SsaValue]:
    """Inline PTX with `count` f32 results: `registers` updated in place, or new registers if there are none."""
    tied = [str(i) for i in range(len(registers))]
    letters = ["l" if value.type is i64 else "f" if value.type is f32 else "r" for value in others]
    constraints = ",".join([*["=f"] * count, *tied, *letters, "~{memory}"])
    return out.inline_ptx(text, constraints, [*registers, *others], [f32] * count, side_effects=True)
