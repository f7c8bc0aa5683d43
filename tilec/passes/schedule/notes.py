"""Performance notes on an accepted kernel, as far as its schedule shows the cause, each with a suggestion.

In: a function from `tilec.passes.schedule.prepare`. Out: notes, plain data that the build stores next to the artifact: `kind`,
the `line` of the tile IR's text (0: the whole kernel), `text` and `hint`. Kinds: `narrow_access` (an access of less than 16
bytes per thread), `tensor_core` (a matrix product without tensor cores, or by a slower instruction), `layout_change` (a tile
that passes between threads in every iteration), and `spill`, which names the tile with the most registers; the build keeps it
only if ptxas spilled.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tilec.atoms import ldmatrix, mma_sync
from tilec.atoms.staged_operands import ROW_BYTES
from tilec.ir.aligned import ALIGNED, aligned_text
from tilec.ir.core import Block, Function, Op, Value
from tilec.ir.layouts.thread_elements import elements_text, fewer_elements, largest, tile_warps
from tilec.ir.ops import AtomicScatter, AtomicUpdate, Binary, Broadcast, Cast, For, Load, Mma, Reduce, Reshape, Store
from tilec.ir.ops.reduction_ops import ReduceCombine
from tilec.ir.ops.staging_ops import (
    GroupProduct,
    Relayout,
    ScratchLoad,
    ScratchStore,
    SharedLoad,
    StageCopy,
)
from tilec.ir.text.lines import text_line
from tilec.passes.schedule.access_notes import Narrow, aligned_rows, narrow_access, narrow_sum
from tilec.passes.schedule.layouts.alignments import Alignments
from tilec.passes.schedule.pipelining.warpgroups import MAX_ACCUMULATORS
from tilec.passes.schedule.register_need import MOST_WITH_ALL_REGISTERS
from tilec.target.families import FAMILIES
from tilec.target.targets import Target

LEAST_COLUMNS: Final = 64
"""Minimum N for a note about `wgmma`; narrower MMAs are memory-bound with either instruction."""


@dataclass(frozen=True, slots=True)
class Note:
    """One note; the module docstring lists the kinds. `aligned`: it does not hold of the aligned version of the kernel."""

    kind: str
    line: int
    text: str
    hint: str
    aligned: bool = False


def notes(function: Function, target: Target, faster: str | None = None) -> tuple[Note, ...]:
    """All notes in program order without duplicates; always includes `spill` if the function has a register tile. `faster`: a
    schedule, as text, that gives products of loops an instruction that reads shared memory."""
    found: list[Note] = []
    warps = tile_warps(function)
    stored = {op.operands[0]: op.operands[1] for op in function.body.walk() if isinstance(op, ScratchStore)}
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    repeated = {op for loop in loops for op in loop.regions[0].walk()}
    for op in function.body.walk():
        match op:
            case Load() | Store():
                found += _narrow(op, narrow_access(op, function, warps))
            case AtomicUpdate() | AtomicScatter() if target.adds_vectors:
                found += _narrow(op, narrow_sum(op, function))
            case Reduce() | ReduceCombine():
                found += _summed_product(op, stored)
            case Mma() if op in repeated:  # the other instructions are fed by loops
                found += _slow_product(op, target, warps, faster)
            case SharedLoad():
                found += _operand_by_element(op)
            case _:
                pass
    if not any(isinstance(op, Mma | GroupProduct | StageCopy) for op in function.body.walk()):
        found += _layout_changes(function.body, 32 * warps)
    heaviest = largest(function)
    if heaviest is not None:
        op, value = heaviest
        hint = fewer_elements(function, value, MOST_WITH_ALL_REGISTERS)
        found.append(
            Note("spill", text_line(op), elements_text(value), f"set `{faster}` for this kernel, or {hint}" if faster else hint)
        )
    return tuple({(note.kind, note.text): note for note in reversed(found)}.values())[::-1]


def _narrow(op: Op, narrow: Narrow | None) -> list[Note]:
    return [Note("narrow_access", text_line(op), narrow.text, narrow.hint, narrow.by_rows)] if narrow else []


def aligned_version(function: Function, found: Iterable[Note]) -> str:
    """The precondition of the aligned version of a kernel with these notes, as `tilec.ir.aligned` has it: it aligns all rows
    that multiples can align. Empty if there is no note that it answers, or the kernel is such a version already."""
    if ALIGNED in function.constants or not any(note.aligned for note in found):
        return ""
    alignments, multiples = Alignments(function), dict[str, int]()
    for op in function.body.walk():
        if isinstance(op, Load | Store) and op.tile.tile.rank:
            for name, number in aligned_rows(op, alignments).items():
                multiples[name] = max(number, multiples.get(name, 1))
    return aligned_text(multiples)


def _layout_changes(block: Block, threads: int, is_repeated: bool = False) -> list[Note]:
    """Notes on conversions in loops, without those of products, whose operands staging has placed, and of tiles of which not
    every thread has an element: those are what is left of reductions."""
    found: list[Note] = []
    for op in block.ops:
        if is_repeated and type(op) is ScratchStore and op.operands[1].tile.size >= threads:
            tile = op.operands[1].tile
            shown = f"a tile of {' x '.join(map(str, tile.shape))} {tile.dtype}"
            text = f"{shown} passes between threads through shared memory in every iteration, with two barriers"
            hint = (
                "let the threads that use it have its elements: load the parts of a tile apart instead of by `split`, "
                "`reshape` or a sum of neighbors, or use it before the loop"
            )
            found.append(Note("layout_change", text_line(op), text, hint))
        for region in op.regions:
            found += _layout_changes(region, threads, is_repeated or isinstance(op, For))
    return found


def _summed_product(op: Reduce | ReduceCombine, stored: dict[Value, Value]) -> list[Note]:
    """Note on `sum(a[:, :, None] * b[None, :, :], axis=1)`, a matrix product without `mma`. `stored`: scratch to stored
    tile."""
    product = _definition(op.operands[-1], stored)
    if op.kind != "sum" or not isinstance(product, Binary) or product.kind != "mul" or product.result.tile.rank != 3:
        return []
    if not product.result.tile.dtype.is_float:
        return []  # no tile that `mma` takes has these numbers
    sides = [_definition(value, stored) for value in product.operands]
    repeated: list[set[int]] = []
    for side in sides:
        if not isinstance(side, Broadcast) or side.operands[0].tile.rank != 3:
            return []
        repeated.append(
            {a for a, (n, m) in enumerate(zip(side.operands[0].tile.shape, side.result.tile.shape, strict=True)) if n < m}
        )
    if [len(axes) for axes in repeated] != [1, 1] or repeated[0] == repeated[1] or op.axis in repeated[0] | repeated[1]:
        return []
    tile = product.result.tile.shape
    kept = [extent for axis, extent in enumerate(tile) if axis != op.axis]
    if not any(rows % mma_sync.M == 0 and columns % mma_sync.N == 0 for rows, columns in (kept, kept[::-1])):
        return []  # `mma` would be refused (E0506)
    text = "this sum is a product of matrices, made element by element"
    return [Note("tensor_core", text_line(op), text, "write it as `mma` of bf16 or f16 tiles, which tensor cores make")]


def _definition(value: Value, stored: dict[Value, Value]) -> Op | None:
    """The operation that defines a value, skipping casts, layout conversions and reshapes to the same shape."""
    owner = value.owner
    while isinstance(owner, Cast | Relayout | ScratchLoad) or _keeps_shape(owner):
        assert isinstance(owner, Op)
        owner = (stored[owner.operands[0]] if isinstance(owner, ScratchLoad) else owner.operands[0]).owner
    return owner if isinstance(owner, Op) else None


def _keeps_shape(owner: object) -> bool:
    return isinstance(owner, Reshape) and owner.operands[0].tile.shape == owner.result.tile.shape


def _operand_by_element(op: SharedLoad) -> list[Note]:
    """Note on an operand whose rows in shared memory are not along the depth, which only 16-bit elements may be."""
    layout, dtype = op.result.layout, op.result.tile.dtype
    if layout is None or ldmatrix.loads(layout, dtype, op.transposed):
        return []
    text = f"an operand of {dtype} is read one element at a time: its rows are not along the depth of the product"
    hint = "let the tensor have rows along the depth: `mma(x, y.T, acc)` with `x` of (M, K) and `y` of (N, K)"
    return [Note("tensor_core", text_line(op), text, hint)]


def _staged_row(operand: Value, transposed: bool) -> int:
    """Bytes along the depth in each row of an operand's stage, of which `transposed` says how it is read if rows are along the
    depth; 0 if they are not, or if it is read from no stage."""
    op = operand.owner
    if not isinstance(op, SharedLoad) or op.transposed != transposed:
        return 0
    return operand.tile.dtype.bytes_of(op.buffer.shared.shape[-1])


def _slow_product(op: Mma, target: Target, warps: int, faster: str | None) -> list[Note]:
    """Note on an `mma.sync` if the target has a family that reads shared memory, and the tile's shape or the number of warps
    prevents its use, or it would be used with the schedule `faster`."""
    *batch, rows, columns = op.result.tile.shape
    family = next((family for family in FAMILIES if family.runs_ahead and target.has(family)), None)
    if batch or family is None or rows < family.shape.rows or columns < LEAST_COLUMNS:
        return []
    issuers, most_columns = family.issuers(warps), family.shape.most_columns
    dtypes = [value.tile.dtype for value in op.operands[:2]]
    if not target.multiplies(family, dtypes):
        reason = f"it has none of {dtypes[0]} on {target}"
        hint = "with operands of 16 bits it has"
        if dtypes[0].bits == 32:
            reason = "it reads shared memory, and these operands are rounded to tf32 in registers"
            hint = "convert the operands with `.astype(bf16)` where that is accurate enough"
    elif not issuers:
        reason, hint = f"{warps} warps are no groups of four", "set `warps` of its schedule to a multiple of 4"
    elif rows % (multiple := family.shape.rows * issuers) and faster is None:
        reason = f"{rows} rows are no multiple of {multiple}"
        fitting = next((count for count in range(issuers - 1, 0, -1) if rows % (family.shape.rows * count) == 0), 0)
        other = f"set `warps = {warps // issuers * fitting}` of its schedule, or " if fitting else ""
        hint = f"{other}use a multiple of {multiple} rows"
    elif not all(family.has_columns(columns, dtype) for dtype in dtypes) and columns <= most_columns:
        reason, hint = f"it has no {columns} columns of {dtypes[0]}", "use a multiple of 16 columns"
    elif columns > most_columns or rows * columns > MAX_ACCUMULATORS * 32 * warps:
        reason = f"each thread would hold {rows * columns // (32 * warps)} sums, of {columns} columns"
        hint = f"use at most {most_columns} columns and {MAX_ACCUMULATORS} sums a thread"
    elif faster is not None:
        reason, hint = "no producer copies its operands", f"set `{faster}` for this kernel"
    elif (row := min(_staged_row(op.operands[0], False), _staged_row(op.operands[1], True))) and row % ROW_BYTES:
        reason = f"it reads rows of {ROW_BYTES} bytes along the depth, and those of these operands have {row}"
        hint = f"use tiles of {8 * ROW_BYTES // dtypes[0].bits} elements along the depth, or a multiple"
    else:
        return []
    text = f"a product of {rows} x {columns} does without `{family.name}`: {reason}"
    return [Note("tensor_core", text_line(op), text, hint)]
