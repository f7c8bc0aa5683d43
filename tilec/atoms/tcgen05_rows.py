"""`tcgen05` with a row for each thread: loads, stores, fills and scales of accumulators, and products with operand A in tensor
memory (PTX ISA, "tcgen05.ld", "tcgen05.st", "tcgen05.mma"). Available on the targets of the family `tcgen05`.

Thread t of warp w of a role has lane 32 * (w % 4) + t of tile w / 4, which is row 32 * w + t of a matrix. Reductions of a row
then need no other thread. Operand A in tensor memory has 16-bit elements, two in one column: its 16 columns of one instruction
are 8 columns of tensor memory. `tilec.atoms.tcgen05` has what all `tcgen05` texts have in common.
"""

from __future__ import annotations

from typing import Final

from tilec.atoms import tcgen05
from tilec.atoms.staged_operands import Left, Right, descriptor_offset
from tilec.atoms.tcgen05 import AFTER, BEFORE, FAMILY, WARP_LANES, K, instruction, left_offset
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.types import TMEM_LANES, DType
from tilec.mlir.builder import Builder
from tilec.mlir.types import SsaValue, f32

GROUP: Final = 4
"""Warps that access the lanes of a tile."""
STEP: Final = 32
"""Most columns of one load or store."""


def fits(rows: int, columns: int, warps: int) -> bool:
    """Whether `warps` warps have a (rows, columns) matrix by rows, and instructions compute it."""
    shape = FAMILY.shape
    whole = warps % GROUP == 0 and rows == warps * WARP_LANES and rows % TMEM_LANES == 0
    return whole and columns % STEP == 0 and 0 < columns <= shape.most_columns


def layout(columns: int, warps: int) -> Layout:
    """Layout of a matrix of `columns` columns: each thread has a whole row."""
    lanes, groups = Digit(WARP_LANES, 0, 1), warps // GROUP
    return Layout(2, (Digit(columns, 1, 1),), (lanes,), (Digit(GROUP, 0, WARP_LANES), Digit(groups, 0, TMEM_LANES)))


def row_layout(warps: int) -> Layout:
    """Layout of one value for each row."""
    lanes, groups = Digit(WARP_LANES, 0, 1), warps // GROUP
    return Layout(1, (), (lanes,), (Digit(GROUP, 0, WARP_LANES), Digit(groups, 0, TMEM_LANES)))


def own_lanes(out: Builder, stage: SsaValue, tile_columns: int, warp: SsaValue) -> SsaValue:
    """Address (i32) of the first element of a warp's lanes, in its tile of the stage at address `stage` (i32)."""
    return out.add(out.add(stage, tcgen05.own_lanes(out, warp)), out.mul(out.lshr(warp, 2), tile_columns))


def load(out: Builder, source: SsaValue, columns: int) -> list[SsaValue]:
    """The first columns (f32) of this thread's lane at address `source` (i32), in one text with one wait."""
    texts = [AFTER]
    for first in range(0, columns, STEP):
        registers = ", ".join(f"${number}" for number in range(first, min(first + STEP, columns)))
        count = min(STEP, columns - first)
        texts.append(f"tcgen05.ld.sync.aligned.32x32b.x{count}.b32 {{{registers}}}, [${columns} + {first}];")
    texts.append(f"tcgen05.wait::ld.sync.aligned; {BEFORE}")
    constraints = ",".join([*["=f"] * columns, "r", "~{memory}"])
    return out.inline_ptx(" ".join(texts), constraints, [source], [f32] * columns, side_effects=True)


def store(out: Builder, target: SsaValue, words: list[SsaValue]) -> None:
    """Store words (i32) to the first columns of this thread's lane at address `target` (i32), and wait for that."""
    texts = [AFTER]
    for first in range(0, len(words), STEP):
        registers = ", ".join(f"${number + 1}" for number in range(first, min(first + STEP, len(words))))
        count = min(STEP, len(words) - first)
        texts.append(f"tcgen05.st.sync.aligned.32x32b.x{count}.b32 [$0 + {first}], {{{registers}}};")
    texts.append(f"tcgen05.wait::st.sync.aligned; {BEFORE}")
    constraints = ",".join(["r"] * (1 + len(words)) + ["~{memory}"])
    out.inline_ptx(" ".join(texts), constraints, [target, *words], side_effects=True)


def fill(out: Builder, target: SsaValue, columns: int, value: SsaValue) -> None:
    """Store `value` (f32) to the first columns of this thread's lane at address `target` (i32), and wait for that."""
    registers = ", ".join(["$1"] * STEP)
    stores = [
        f"tcgen05.st.sync.aligned.32x32b.x{STEP}.b32 [$0 + {first}], {{{registers}}};" for first in range(0, columns, STEP)
    ]  # fmt: skip
    text = " ".join([AFTER, *stores, f"tcgen05.wait::st.sync.aligned; {BEFORE}"])
    out.inline_ptx(text, "r,f,~{memory}", [target, value], side_effects=True)


def scale(out: Builder, target: SsaValue, columns: int, factor: SsaValue) -> None:
    """Multiply the columns of this thread's lane at address `target` (i32) by `factor` (f32), and wait for that; nothing if the
    factor of every thread of the warp is 1."""
    names = [f"x{number}" for number in range(STEP)]
    texts = [
        f".reg .pred own, some; .reg .b64 both, pair; .reg .f32 {', '.join(names)};",
        "setp.neu.f32 own, $1, 0f3F800000; vote.sync.any.pred some, own, 0xffffffff; @!some bra equal;",
        AFTER,
    ]
    registers = ", ".join(names)
    texts.append("mov.b64 both, {$1, $1};")
    for first in range(0, columns, STEP):
        texts.append(f"tcgen05.ld.sync.aligned.32x32b.x{STEP}.b32 {{{registers}}}, [$0 + {first}];")
        texts.append("tcgen05.wait::ld.sync.aligned;")
        for pair in (f"{{{low}, {high}}}" for low, high in zip(names[::2], names[1::2], strict=True)):
            texts.append(f"mov.b64 pair, {pair}; mul.rn.f32x2 pair, pair, both; mov.b64 {pair}, pair;")
        texts.append(f"tcgen05.st.sync.aligned.32x32b.x{STEP}.b32 [$0 + {first}], {{{registers}}};")
    texts.append(f"tcgen05.wait::st.sync.aligned; {BEFORE} equal:")
    out.inline_ptx("{ " + " ".join(texts) + " }", "r,f,~{memory}", [target, factor], side_effects=True)


def multiply(
    out: Builder,
    left: Left | SsaValue,
    right: Right,
    target: SsaValue,
    accumulate: SsaValue,
    columns: int,
    depth: int,
    dtype: DType,
    tile: int,
) -> None:
    """Start the product of 128 rows into the accumulator at address `target` (i32); it is added to that accumulator if
    `accumulate` (i1). `left`: rows of tile `tile` of an operand in shared memory, or the address (i32) of operand A in tensor
    memory. One text, so that nothing comes between its instructions."""
    code = instruction(TMEM_LANES, columns, dtype, b_is_mn_major=right.mn_major)
    statements = [
        ".reg .pred more; .reg .b32 code, from; .reg .b64 a, b;",
        f"{AFTER} mov.b32 code, {code}; setp.eq.u32 more, 0, 0;",
    ]
    for k in range(0, depth, K):
        second = descriptor_offset(k, right.atom_bytes, right.mn_major, dtype)
        if isinstance(left, Left):
            statements.append(f"add.s64 a, $1, {left_offset(left, tile, k, dtype)};")
        else:
            statements.append(f"add.u32 from, $1, {k // 2};")
        matrix = "a" if isinstance(left, Left) else "[from]"
        statements.append(f"add.s64 b, $2, {second};")
        statements.append(f"tcgen05.mma.cta_group::1.kind::f16 [$0], {matrix}, b, code, {'more' if k else '$3'};")
    first_operand = left.matrix_descriptor if isinstance(left, Left) else left
    assert first_operand is not None
    letter = "l" if isinstance(left, Left) else "r"
    operands = [target, first_operand, right.matrix_descriptor, accumulate]
    out.inline_ptx("{ " + " ".join(statements) + " }", f"r,{letter},l,b,~{{memory}}", operands, side_effects=True)
