"""Instructions of the tensor-core path as MLIR text: asynchronous copies, `ldmatrix`, `mma.sync`.

Functions append to a `Writer` and speak of SSA names only; which tile they belong to is the business of the rules in
`tilec.lowering.mma`. Global addresses are 64-bit, shared ones 32-bit offsets from the dynamic shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from tilec.ir.layout import Layout
from tilec.ir.types import DType, SharedType, bf16

GLOBAL: Final = "!llvm.ptr<1>"
SHARED: Final = "!llvm.ptr<3>"


class Writer(Protocol):
    """Where MLIR text goes."""

    def value(self, text: str) -> str:
        """Append an operation with one result; the result's name, `%` included."""
        ...

    def effect(self, text: str) -> None:
        """Append an operation without results."""
        ...


class Edge(Protocol):
    """A position that a mask is made from (`tilec.lowering.positions`)."""

    @property
    def name(self) -> str:
        """Its SSA name."""
        ...

    @property
    def type(self) -> str:
        """i32 or i64."""
        ...

    def moved(self, out: Writer, step: str) -> Edge:
        """Further on by `step` (i32)."""
        ...

    def below(self, out: Writer, extent: str) -> str:
        """Whether this lies in `0 .. extent` (i32)."""
        ...

    def extent(self, out: Writer, extent: str) -> str:
        """An extent (i32) in this type."""
        ...


def number(out: Writer, value: int, type: str = "i32") -> str:
    """An integer constant."""
    return out.value(f"llvm.mlir.constant({value} : {type}) : {type}")


def arith(out: Writer, kind: str, left: str, right: str | int, type: str = "i32") -> str:
    """`left kind right` of the LLVM dialect (`add`, `mul`, `and`, `xor`, `shl`, `lshr`, `udiv`, `urem`, ...)."""
    if isinstance(right, int):
        if (kind, right) in (("add", 0), ("mul", 1), ("shl", 0), ("lshr", 0), ("udiv", 1)):
            return left
        right = number(out, right, type)
    return out.value(f"llvm.{kind} {left}, {right} : {type}")


def compare(out: Writer, kind: str, left: str, right: str, type: str = "i32") -> str:
    """`left kind right` (`slt`, `sge`, ...) as i1."""
    return out.value(f'llvm.icmp "{kind}" {left}, {right} : {type}')


def select(out: Writer, condition: str, on_true: str, on_false: str, type: str = "i32") -> str:
    """`condition ? on_true : on_false`."""
    return out.value(f"llvm.select {condition}, {on_true}, {on_false} : i1, {type}")


def offset_pointer(out: Writer, pointer: str, offset: str | int, space: str, index: str = "i32") -> str:
    """`pointer` moved by a number of bytes."""
    if isinstance(offset, int):
        return out.value(f"llvm.getelementptr {pointer}[{offset}] : ({space}) -> {space}, i8") if offset else pointer
    return out.value(f"llvm.getelementptr {pointer}[{offset}] : ({space}, {index}) -> {space}, i8")


def commit_copies(out: Writer) -> None:
    """End this thread's group of copies."""
    out.effect("nvvm.cp.async.commit.group")


def wait_copies(out: Writer, pending: int, matrices: bool) -> None:
    """Wait for all but `pending` groups of this thread, then for all threads of the block; with `matrices`, let the tensor
    cores see what arrived (PTX ISA, `fence.proxy.async`)."""
    out.effect(f"nvvm.cp.async.wait.group {pending}")
    if matrices:
        out.effect('llvm.inline_asm has_side_effects "fence.proxy.async.shared::cta;", "~{memory}" : () -> ()')
    out.effect("nvvm.barrier")


@dataclass(frozen=True, slots=True)
class Box:
    """The part of a tensor that a copy reads, in SSA names: `pointer` is its first element; `row_stride` (i64, bytes).
    With padding, `row` and `column` are the box's position on the two axes that it spans, `row_extent`, `column_extent` (i32)
    the tensor's, `inside` (i1 or "") whether the other axes are. Where rows are `whole` copies, each copy is inside or outside
    as a whole."""

    pointer: str
    row_stride: str
    padded: bool = False
    whole: bool = False
    row: Edge | None = None
    column: Edge | None = None
    row_extent: str = ""
    column_extent: str = ""
    inside: str = ""


def async_copy(out: Writer, box: Box, type: SharedType, stage: str, thread: str, threads: int, vector: int) -> None:
    """Copy a box into the stage at shared pointer `stage`, `vector` bytes per thread and step, elements outside as zero.

    `thread` is the thread's index as i32. Neighbouring threads take neighbouring addresses of a row.
    """
    per_row = type.shape[1] * type.dtype.bytes // vector
    total = type.shape[0] * per_row
    aligned = threads % per_row == 0
    for first in range(0, total, threads):
        if aligned:
            row = arith(out, "add", arith(out, "udiv", thread, per_row), first // per_row)
            part = arith(out, "urem", thread, per_row)
            fixed_row = first // per_row
        else:
            index = arith(out, "add", thread, first)
            row, part = arith(out, "udiv", index, per_row), arith(out, "urem", index, per_row)
            fixed_row = 0
        byte = arith(out, "mul", part, vector)
        target = offset_pointer(out, stage, shared_offset(out, type, row, byte), SHARED)
        own_row = arith(out, "udiv", thread, per_row) if aligned else row
        source = _source(out, box, own_row, fixed_row, byte)
        column = box.column.moved(out, arith(out, "udiv", byte, type.dtype.bytes)) if box.column else None
        inside = _inside(out, box, row, column)
        last = first + threads <= total
        if not last:
            out.effect(f"scf.if {compare(out, 'ult', thread, number(out, total - first))} {{")
        if inside and box.whole:
            _copy_or_zero(out, target, source, vector, inside)
        else:
            size = _copied_bytes(out, box, type.dtype, column, inside, vector) if column else None
            _copy(out, target, source, vector, size)
        if not last:
            out.effect("}")


def shared_offset(out: Writer, type: SharedType, row: str, byte: str) -> str:
    """Byte offset in a stage of the byte `byte` of row `row`: `SharedType.offset` in SSA form."""
    line = arith(out, "mul", row, type.pitch)
    if not type.swizzle_mask:
        return arith(out, "add", line, byte)
    phase = arith(out, "and", arith(out, "lshr", row, type.swizzle_shift), type.swizzle_mask)
    return arith(out, "add", line, arith(out, "xor", byte, arith(out, "shl", phase, 4)))


def _source(out: Writer, box: Box, row: str, fixed_row: int, byte: str) -> str:
    # The thread's part is added first: it is loop invariant, and the fixed part is the same for all threads.
    wide_row = out.value(f"llvm.zext {row} : i32 to i64")
    wide_byte = out.value(f"llvm.zext {byte} : i32 to i64")
    own = arith(out, "add", arith(out, "mul", wide_row, box.row_stride, "i64"), wide_byte, "i64")
    pointer = offset_pointer(out, box.pointer, own, GLOBAL, "i64")
    if fixed_row:
        pointer = offset_pointer(out, pointer, arith(out, "mul", box.row_stride, fixed_row, "i64"), GLOBAL, "i64")
    return pointer


def _inside(out: Writer, box: Box, row: str, column: Edge | None) -> str:
    """Whether row `row` of the box (i32) and column `column` of the tensor lie inside the tensor; "" where all are known to.
    Columns are multiples of the vector, so a copy that begins before column 0 lies outside as a whole."""
    if box.row is None or column is None:
        return ""
    at_row = box.row.moved(out, row).below(out, box.row_extent)
    at_column = column.below(out, box.column_extent)
    if box.inside:
        at_column = out.value(f"llvm.and {at_column}, {box.inside} : i1")
    return out.value(f"llvm.and {at_row}, {at_column} : i1")


def _copied_bytes(out: Writer, box: Box, dtype: DType, column: Edge, inside: str, vector: int) -> str:
    """How many of the `vector` bytes lie inside the tensor."""
    type_ = column.type
    left = arith(out, "sub", column.extent(out, box.column_extent), column.name, type_)
    whole = number(out, vector // dtype.bytes, type_)
    elements = select(out, compare(out, "slt", left, whole, type_), left, whole, type_)
    if type_ == "i64":
        elements = out.value(f"llvm.trunc {elements} : i64 to i32")
    return select(out, inside, arith(out, "mul", elements, dtype.bytes), number(out, 0))


def _copy_or_zero(out: Writer, target: str, source: str, vector: int, inside: str) -> None:
    """A copy that writes zeros, and reads nothing, where `inside` is false (PTX ISA, `cp.async`, "ignore-src"). As text: the
    intrinsic takes a size of any value, for which addresses are corrected at run time."""
    cache = "cg" if vector == 16 else "ca"
    text = f"{{ .reg .pred q; not.pred q, $2; cp.async.{cache}.shared.global [$0], [$1], {vector}, q; }}"
    types = f"({SHARED}, {GLOBAL}, i1) -> ()"
    out.effect(f'llvm.inline_asm has_side_effects "{text}", "l,l,b,~{{memory}}" {target}, {source}, {inside} : {types}')


def _copy(out: Writer, target: str, source: str, vector: int, size: str | None) -> None:
    cache = "cg" if vector == 16 else "ca"
    name = f"llvm.nvvm.cp.async.{cache}.shared.global.{vector}"
    if size is None:
        out.effect(f'llvm.call_intrinsic "{name}"({target}, {source}) : ({SHARED}, {GLOBAL}) -> ()')
    else:
        out.effect(f'llvm.call_intrinsic "{name}.s"({target}, {source}, {size}) : ({SHARED}, {GLOBAL}, i32) -> ()')


@dataclass(frozen=True, slots=True)
class LaneOrigins:
    """How lanes address 8 x 8 matrices: groups of `width` (1, 2 or 4) matrices per instruction; the origin of matrix i of a
    group is the group's plus `(i & 1) * first + (i >> 1) * second`; `trans` swaps rows and columns on the way."""

    width: int
    first: tuple[int, int]
    second: tuple[int, int]
    trans: bool


def lane_origins(layout: Layout, transposed: bool) -> LaneOrigins:
    """The matrix addressing of an operand layout; origins are (row, column) in the buffer, after transposition."""
    pair_axis = layout.registers[0].axis
    count = layout.num_registers // 2
    origins = [_matrix_origin(layout, i, 0, transposed) for i in range(count)]
    contiguous_axis = 0 if transposed else 1
    trans = pair_axis != contiguous_axis
    width = next(w for w in (4, 2, 1) if count % w == 0)
    first = _minus(origins[1], origins[0]) if width > 1 else (0, 0)
    second = _minus(origins[2], origins[0]) if width > 2 else (0, 0)
    return LaneOrigins(width, first, second, trans)


def _matrix_origin(layout: Layout, matrix: int, warp: int, transposed: bool) -> tuple[int, int]:
    row, column = layout.coordinates(2 * matrix, 0, warp)
    return (column, row) if transposed else (row, column)


def _minus(left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
    return left[0] - right[0], left[1] - right[1]


def load_matrices(
    out: Writer,
    type: SharedType,
    stage: str,
    layout: Layout,
    lane: str,
    warp: str,
    origin: tuple[int, int],
    transposed: bool,
) -> list[str]:
    """Read an operand whose box begins at (row, column) `origin` of the tile from the stage at shared pointer `stage`.

    Returns one i32 per two registers of the layout, in order. `lane` and `warp` are i32 names.
    """
    pattern = lane_origins(layout, transposed)
    start = (origin[1], origin[0]) if transposed else origin
    inner = arith(out, "and", lane, 7)
    matrix = arith(out, "lshr", lane, 3)
    low, high = arith(out, "and", matrix, 1), arith(out, "and", arith(out, "lshr", matrix, 1), 1)
    row, column = _warp_origin(out, layout, warp, transposed)
    row = arith(out, "add", row, inner)
    for bit, step in ((low, pattern.first), (high, pattern.second)):
        row = arith(out, "add", row, arith(out, "mul", bit, step[0])) if step[0] else row
        column = arith(out, "add", column, arith(out, "mul", bit, step[1])) if step[1] else column
    # Matrices begin at multiples of 8 rows, and the swizzle repeats every 8 rows, so it depends on the lane alone.
    phase = arith(out, "and", arith(out, "lshr", inner, type.swizzle_shift), type.swizzle_mask)
    line = offset_pointer(out, stage, arith(out, "mul", row, type.pitch), SHARED)
    registers: list[str] = []
    for group in range(0, layout.num_registers // 2, pattern.width):
        fixed_row, fixed_column = _matrix_origin(layout, group, 0, transposed)
        chunk = arith(out, "lshr", arith(out, "add", column, start[1] + fixed_column), 3)
        if type.swizzle_mask:
            chunk = arith(out, "xor", chunk, phase)
        pointer = offset_pointer(out, line, arith(out, "shl", chunk, 4), SHARED)
        pointer = offset_pointer(out, pointer, (start[0] + fixed_row) * type.pitch, SHARED)
        registers.extend(_ldmatrix(out, pointer, pattern.width, pattern.trans))
    return registers


def _warp_origin(out: Writer, layout: Layout, warp: str, transposed: bool) -> tuple[str, str]:
    parts = [number(out, 0), number(out, 0)]
    weight = 1
    for digit in layout.warps:
        if digit.axis is not None and digit.extent > 1:
            step = arith(out, "urem", arith(out, "udiv", warp, weight), digit.extent)
            parts[digit.axis] = arith(out, "add", parts[digit.axis], arith(out, "mul", step, digit.stride))
        weight *= digit.extent
    return (parts[1], parts[0]) if transposed else (parts[0], parts[1])


def _ldmatrix(out: Writer, pointer: str, width: int, trans: bool) -> list[str]:
    name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{width}{'.trans' if trans else ''}.b16.p3"
    result = "i32" if width == 1 else f"!llvm.struct<({', '.join(['i32'] * width)})>"
    loaded = out.value(f'llvm.call_intrinsic "{name}"({pointer}) : ({SHARED}) -> {result}')
    if width == 1:
        return [loaded]
    return [out.value(f"llvm.extractvalue {loaded}[{i}] : {result}") for i in range(width)]


def multiply(out: Writer, a: list[str], b: list[str], c: list[str], dtype: DType) -> list[str]:
    """One `mma.sync.m16n8k16`: four i32 of A, two of B, four f32 of C; the four f32 of the result."""
    result = "!llvm.struct<(f32, f32, f32, f32)>"
    if dtype == bf16:
        name, type, operands = "bf16", "i32", [*a, *b]
    else:
        name, type = "f32.f32", "vector<2xf16>"
        operands = [out.value(f"llvm.bitcast {value} : i32 to {type}") for value in (*a, *b)]
    types = ", ".join([type] * 6 + ["f32"] * 4)
    call = f'llvm.call_intrinsic "llvm.nvvm.mma.m16n8k16.row.col.{name}"({", ".join([*operands, *c])})'
    product = out.value(f"{call} : ({types}) -> {result}")
    return [out.value(f"llvm.extractvalue {product}[{i}] : {result}") for i in range(4)]


def pack(out: Writer, low: str, high: str, dtype: DType) -> str:
    """Two 16-bit floats as one i32."""
    vector = f"vector<2x{dtype}>"
    filled = out.value(f"llvm.mlir.zero : {vector}")
    for position, value in enumerate((low, high)):
        filled = out.value(f"llvm.insertelement {value}, {filled}[{number(out, position)} : i32] : {vector}")
    return out.value(f"llvm.bitcast {filled} : {vector} to i32")


def unpack(out: Writer, packed: str, dtype: DType) -> list[str]:
    """The two 16-bit floats of an i32."""
    vector = f"vector<2x{dtype}>"
    whole = out.value(f"llvm.bitcast {packed} : i32 to {vector}")
    return [out.value(f"llvm.extractelement {whole}[{number(out, i)} : i32] : {vector}") for i in range(2)]
