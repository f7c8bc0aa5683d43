"""`wgmma`: accumulator layout, supported shapes, matrix descriptors and inline PTX (PTX ISA, "Asynchronous warpgroup level
matrix instructions"). Available on the targets of the family `wgmma`.

A matrix in shared memory consists of sub-tiles with rows of 128 bytes and the 128-byte swizzle, as `SharedType.offset`
describes. Its stage is aligned to 1024 bytes. A matrix is K-major (rows along M or N); a 16-bit B operand may also be MN-major
(rows along K), here `mn_major`. An instruction takes 32 bytes of each row.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms.mma_sync import M, N
from tilec.atoms.staged_operands import UNIT, Left, Right, descriptor_offset, matrix_descriptor
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, Type, f32, i32, i64
from tilec.target.families import WGMMA

FAMILY: Final = WGMMA

GROUP_M: Final = FAMILY.shape.rows
"""M of one instruction."""

_SWIZZLE_128: Final = 1 << 62

_STRIDE: Final = (8 * FAMILY.row_bytes // UNIT) << 32  # distance between groups of eight rows

_LEADING: Final = 1 << 16  # ignored if a row is exactly one swizzle span


def accumulator(rows: int, columns: int, warps: int) -> Layout:
    """Layout of a (rows, columns) accumulator of `warps // 4` warpgroups, each of which has whole tiles of 64 rows (PTX ISA,
    "Matrix fragments for wgmma.mma_async.m64nNk16"): a warp has 16 rows of a tile, with the C fragments of `mma_sync`."""
    groups = warps // FAMILY.issuer.warps
    tiles = rows // (GROUP_M * groups)
    registers = (Digit(2, 1, 1), Digit(2, 0, 8), Digit(columns // N, 1, N), Digit(tiles, 0, GROUP_M))
    lanes = (Digit(4, 1, 2), Digit(8, 0, 1))
    return Layout(2, registers, lanes, (Digit(4, 0, M), Digit(groups, 0, GROUP_M * tiles)), FAMILY.accumulators)


def fits(rows: int, columns: int, warps: int) -> bool:
    """Whether instructions of these warps compute a (rows, columns) accumulator."""
    issuers = FAMILY.issuers(warps)
    return issuers > 0 and rows % (GROUP_M * issuers) == 0 and columns <= FAMILY.shape.most_columns


def fields(mn_stride: int = 0) -> int:
    """The descriptor of a matrix at address 0 (PTX ISA, "Matrix descriptor format"): K-major by default; MN-major if
    `mn_stride` gives the bytes between sub-tiles of 64 columns."""
    return _SWIZZLE_128 | _STRIDE | (mn_stride // UNIT << 16 or _LEADING)


def descriptor(out: Builder, stage: SsaValue, mn_stride: int = 0) -> SsaValue:
    """The descriptor (i64) of the matrix at a shared pointer."""
    return matrix_descriptor(out, stage, fields(mn_stride))


def own_rows(out: Builder, matrix_descriptor: SsaValue, thread: SsaValue, rows: int) -> SsaValue:
    """The descriptor of operand A advanced to the `rows` rows, a multiple of 64, of this thread's warpgroup."""
    first_row = out.mul(out.lshr(thread, 7), rows)
    return out.add(matrix_descriptor, out.zext(out.mul(first_row, FAMILY.row_bytes // UNIT), i64))


def pack(out: Builder, low: SsaValue, high: SsaValue, dtype: str) -> SsaValue:
    """Two f32 rounded to a 16-bit dtype, as one i32 of operand A. Inline PTX, because LLVM would sink its own conversion from
    after the wait for the MMA that reads the registers to the start of the next MMA, and keep the f32 values live."""
    text = f"cvt.rn.{dtype}x2.f32 $0, $1, $2;"
    return out.inline_ptx(text, "=r,f,f,~{memory}", [high, low], [i32], side_effects=True)[0]


def start(
    out: Builder,
    left: Left,
    right: Right,
    accumulators: list[SsaValue],
    tiles: int,
    columns: int,
    depth: int,
    dtypes: tuple[DType, DType],
    zero_init: bool,
) -> list[SsaValue]:
    """Issue the MMA of `tiles` x 64 rows of `left` with all of `right`, of `dtypes`, into `accumulators`, as one wgmma group;
    with `zero_init` the accumulators start at zero. One inline PTX text, so that nothing is scheduled between the fence and
    its MMAs."""
    results, other_operands = (
        len(accumulators),
        [value for value in (*left.a_registers, left.matrix_descriptor, right.matrix_descriptor) if value is not None],
    )
    first = results if zero_init else 2 * results
    registers_per_tile, num_a_registers = results // tiles, len(left.a_registers)
    dtype, step = dtypes[0], FAMILY.shape.depth_of(dtypes[0].bits)
    sums = "s32" if dtype.is_integer else "f32"
    shape = f"wgmma.mma_async.sync.aligned.m{GROUP_M}n{columns}k{step}.{sums}.{dtype.matrix}.{dtypes[1].matrix}"
    statements = [
        ".reg .pred p; .reg .b32 t; .reg .b64 b; .reg .b64 a<" + str(tiles) + ">;",
        "mov.u32 t, 1; setp.ne.u32 p, t, 0;",
        f"mov.b64 b, ${first + len(other_operands) - 1};",
    ]
    statements += [".reg .pred none; setp.eq.u32 none, t, 0;"] if zero_init else []
    if not num_a_registers:
        statements.append(f"mov.b64 a0, ${first};")
        statements += [f"add.s64 a{tile}, a{tile - 1}, {GROUP_M * FAMILY.row_bytes // UNIT};" for tile in range(1, tiles)]
    statements.append("wgmma.fence.sync.aligned;")
    for k in range(0, depth, step):
        if k:
            increments = [
                descriptor_offset(k, operand.atom_bytes, mn_major, dtype)
                - descriptor_offset(k - step, operand.atom_bytes, mn_major, dtype)
                for operand, mn_major in ((left, False), (right, right.mn_major))
            ]
            statements += [] if num_a_registers else [f"add.s64 a{tile}, a{tile}, {increments[0]};" for tile in range(tiles)]
            statements.append(f"add.s64 b, b, {increments[1]};")
        for tile in range(tiles):
            accumulator_registers = ", ".join(f"${tile * registers_per_tile + i}" for i in range(registers_per_tile))
            first_a = first + tile * (num_a_registers // tiles) + k // step * 4
            a = f"{{${first_a}, ${first_a + 1}, ${first_a + 2}, ${first_a + 3}}}" if num_a_registers else f"a{tile}"
            scale = "none" if zero_init and not k else "p"
            modifiers = _modifiers(dtype, right.mn_major, in_registers=bool(num_a_registers))
            statements.append(f"{shape} {{{accumulator_registers}}}, {a}, b, {scale}{modifiers};")
    statements.append("wgmma.commit_group.sync.aligned;")
    text, type_ = "{ " + " ".join(statements) + " }", i32 if dtype.is_integer else f32
    return _through(out, text, [] if zero_init else accumulators, results, other_operands, type_)


def _modifiers(dtype: DType, mn_major: bool, *, in_registers: bool) -> str:
    """What follows the operands of an instruction: signs of A and B unless they are integers, and, of 16 bits alone, whether A,
    if it is in shared memory, and B are MN-major (PTX ISA, `wgmma.mma_async`)."""
    signs = "" if dtype.is_integer else ", 1, 1"
    if dtype.bits != 16:
        return signs
    return f"{signs}, {int(mn_major)}" if in_registers else f"{signs}, 0, {int(mn_major)}"


def wait(out: Builder, accumulators: list[SsaValue], pending: int, before: list[SsaValue]) -> list[SsaValue]:
    """The accumulators after a wait that leaves at most `pending` groups unfinished; the values `before` (f32) are computed
    first.

    ptxas hoists a wait over independent computation, which then no longer overlaps the MMA. It does not reorder a wait with a
    `nanosleep`, so each value of `before` guards one: it runs only for a NaN bit pattern that no arithmetic produces, and
    sleeps for zero time."""
    first = 2 * len(accumulators)
    sleeps = [f"setp.eq.b32 late, ${first + i}, 0x7f800001; @late nanosleep.u32 0;" for i in range(len(before))]
    text = " ".join(["{ .reg .pred late;", *sleeps, "} "]) if sleeps else ""
    text, type_ = f"{text}wgmma.wait_group.sync.aligned {pending};", accumulators[0].type
    return _through(out, text, accumulators, len(accumulators), before, type_)


def renamed(out: Builder, accumulator: SsaValue) -> SsaValue:
    """A finished accumulator (f32) in another register.

    ptxas injects a wait for all products where the next iteration of a loop computes on what a product has written, also if a
    wait in this iteration covers it (note C7517, release 13.5). A copy after that wait is not the product's; ptxas drops it."""
    return out.inline_ptx("mov.b32 $0, $1;", "=f,f,~{memory}", [accumulator], [f32], side_effects=True)[0]


def _through(
    out: Builder, text: str, registers: list[SsaValue], count: int, other_operands: list[SsaValue], type_: Type
) -> list[SsaValue]:
    """Inline PTX with `count` results of a type: `registers` updated in place, or new registers if there are none."""
    tied = [str(i) for i in range(len(registers))]
    constraint_letters = ["l" if value.type is i64 else "f" if value.type is f32 else "r" for value in other_operands]
    letter = "=f" if type_ is f32 else "=r"
    constraints = ",".join([*[letter] * count, *tied, *constraint_letters, "~{memory}"])
    return out.inline_ptx(text, constraints, [*registers, *other_operands], [type_] * count, side_effects=True)
