"""Products that a warpgroup makes from shared memory: descriptors and `wgmma` as MLIR text (PTX ISA, "Asynchronous warpgroup
level matrix instructions").

A matrix lies in rows of 128 bytes whose 16-byte chunks are permuted within each group of eight rows (the 128-byte swizzle), as
`SharedType.offset` lays out a matrix of eight chunks a row. Its stage begins at a multiple of 1024 bytes.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.mma_layouts import GROUP_M, GROUP_ROW_BYTES, K
from tilec.ir.types import DType
from tilec.lowering.tensor_core import SHARED, Writer, arith, number

_UNIT: Final = 16  # descriptors count bytes in sixteens
_ADDRESS_MASK: Final = 0x3FFFF
_SWIZZLE_128: Final = 1 << 62
_STRIDE: Final = (8 * GROUP_ROW_BYTES // _UNIT) << 32  # from eight rows to the next eight
_LEADING: Final = 1 << 16  # not used with a swizzle and rows as wide as it


def descriptor(out: Writer, stage: str) -> str:
    """The i64 that describes the matrix at a shared pointer."""
    address = out.value(f"llvm.ptrtoint {stage} : {SHARED} to i32")
    short = arith(out, "lshr", arith(out, "and", address, _ADDRESS_MASK), 4)
    wide = out.value(f"llvm.zext {short} : i32 to i64")
    return arith(out, "or", wide, number(out, _SWIZZLE_128 | _STRIDE | _LEADING, "i64"), "i64")


def rows_below(out: Writer, described: str, rows: str) -> str:
    """The descriptor of the matrix `rows` (i32) rows further on, whole tiles of 64."""
    step = out.value(f"llvm.zext {arith(out, 'mul', rows, GROUP_ROW_BYTES // _UNIT)} : i32 to i64")
    return arith(out, "add", described, step, "i64")


def start(out: Writer, a: str, b: str, total: list[str], tiles: int, columns: int, dtype: DType) -> list[str]:
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


def wait(out: Writer, total: list[str], pending: int) -> list[str]:
    """The accumulators, once at most `pending` groups are unfinished."""
    return _through(out, f"wgmma.wait_group.sync.aligned {pending};", total, [])


def _through(out: Writer, text: str, registers: list[str], others: list[str]) -> list[str]:
    """Inline PTX that changes f32 registers in place; `others` are i64."""
    count = len(registers)
    tied = ",".join(str(i) for i in range(count))
    constraints = ",".join(["=f"] * count) + f",{tied}" + ",l" * len(others) + ",~{memory}"
    types = ", ".join(["f32"] * count + ["i64"] * len(others))
    result = f"!llvm.struct<({', '.join(['f32'] * count)})>"
    operands = ", ".join([*registers, *others])
    made = out.value(f'llvm.inline_asm has_side_effects "{text}", "{constraints}" {operands} : ({types}) -> {result}')
    return [out.value(f"llvm.extractvalue {made}[{i}] : {result}") for i in range(count)]
