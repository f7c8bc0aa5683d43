"""MMAs of a pipelined loop by `mma.sync`, split along K: operands are loaded from shared memory, or are parts of register
tiles."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.atoms import mma_sync
from tilec.atoms.mma_sync import WarpGrid
from tilec.ir.core import Op, Value
from tilec.ir.layouts.blocked_layouts import conversion_bytes
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops import Binary, Cast, Compare, Constant, For, Mma, Select
from tilec.ir.ops.staging_ops import Part, Relayout, SharedLoad
from tilec.ir.types import DType, TileType, Type, boolean, i32, i64
from tilec.passes.schedule.pipelining.staged_loads import Operand


@dataclass(eq=False, slots=True)
class Product:
    """An `mma` of the loop body; `left` or `right` is None if that operand is in registers, never both. `transposed`: whether
    each is the transpose of what is copied."""

    mma: Mma
    grid: WarpGrid
    left: Operand | None
    right: Operand | None
    transposed: tuple[bool, bool] = (False, False)

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """Those of both operands, which have one width."""
        left, right = (value.tile.dtype for value in self.mma.operands[:2])
        return left, right

    @property
    def operands(self) -> list[Operand]:
        """The staged operands."""
        return [operand for operand in (self.left, self.right) if operand is not None]

    @property
    def in_registers(self) -> list[tuple[int, Layout]]:
        """Indices of the register operands, with the layouts that the instruction requires."""
        rows, columns = self.mma.result.tile.shape
        depth = self.mma.operands[0].tile.shape[1]
        a, b = self.dtypes
        layouts = mma_sync.operand_a(rows, depth, self.grid, a), mma_sync.operand_b(depth, columns, self.grid, b)
        pairs = zip((self.left, self.right), layouts, strict=True)
        return [(index, layout) for index, (operand, layout) in enumerate(pairs) if operand is None]


@dataclass(eq=False, slots=True)
class Emitter:
    """Appends operations to a list."""

    ops: list[Op] = field(default_factory=lambda: list[Op]())

    def add(self, op: Op, *types: Type) -> Value:
        """Append an operation; its first result, or an unused value if it has none."""
        op.define(*types)
        self.ops.append(op)
        return op.results[0] if types else Value(TileType(i32))

    def number(self, value: int, wide: bool = False) -> Value:
        return self.add(Constant(value=value), TileType(i64 if wide else i32))

    def binary(self, kind: str, left: Value, right: Value) -> Value:
        return self.add(Binary(kind=kind, operands=[left, right]), left.tile)

    def compare(self, kind: str, left: Value, right: Value) -> Value:
        return self.add(Compare(kind=kind, operands=[left, right]), TileType(boolean))

    def select(self, condition: Value, on_true: Value, on_false: Value) -> Value:
        return self.add(Select(operands=[condition, on_true, on_false]), on_true.tile)

    def widen(self, value: Value) -> Value:
        return self.add(Cast(operands=[value]), TileType(i64))


def in_ring(value: Value) -> Value:
    """Mark a stage, a parity or an intermediate of one as not wrapping: it is at most a few times the ring's stages, and
    `ring_check` evaluates it."""
    value.fits = True
    return value


def relayout(out: Emitter, value: Value, layout: Layout) -> Value:
    """`value` converted to a layout."""
    converted = out.add(Relayout(operands=[value]), value.tile)
    converted.layout = layout
    return converted


def unstaged_bytes(products: list[Product]) -> int:
    """Bytes of shared memory, in addition to the stage buffers, for the layout conversion of the largest register operand."""
    tiles = [product.mma.operands[index].tile for product in products for index, _ in product.in_registers]
    return max((conversion_bytes(tile) for tile in tiles), default=0)


Converted = dict[tuple[Value, Layout], Value]
"""Values that were converted to a layout before some loop, by value and layout."""


def hoist_constant_operands(before: Emitter, loop: For, products: list[Product], converted: Converted) -> None:
    """Hoist the layout conversions of loop-invariant register operands before the loop."""
    inside = {result for op in loop.regions[0].walk() for result in op.results} | set(loop.regions[0].arguments)
    for product in products:
        for index, layout in product.in_registers:
            value = product.mma.operands[index]
            if value not in inside:
                if (value, layout) not in converted:
                    converted[value, layout] = relayout(before, value, layout)
                product.mma.operands[index] = converted[value, layout]


def sliced(product: Product, current: Value, left_stage: Value | None = None) -> list[Op]:
    """The MMA in slices of an instruction along K; each slice's operands are loaded before the MMA of the preceding slice, from
    stage `current`, the left one from `left_stage` if that is another."""
    mma = product.mma
    rows, columns = mma.result.tile.shape
    depth = mma.operands[0].tile.shape[1]
    out = Emitter()
    layout = mma_sync.accumulator(rows, columns, product.grid)
    for index, required in product.in_registers:
        if mma.operands[index].layout != required:
            mma.operands[index] = relayout(out, mma.operands[index], required)
    total = mma.operands[2]
    if isinstance(total.owner, Op):
        total = relayout(out, total, layout)
    stages = (current if left_stage is None else left_stage, current)
    slices = [_read_slice(out, product, stages, 0)]
    step = mma_sync.depth_of(product.dtypes[0])
    for k in range(0, depth, step):
        if k + step < depth:
            slices.append(_read_slice(out, product, stages, k + step))
        a, b = slices[k // step]
        if k + step < depth:
            total = out.add(Mma(operands=[a, b, total], loc=mma.loc), mma.result.tile)
            total.layout = layout
        else:
            # The original operation becomes the last slice, so that its result keeps its users.
            mma.operands = [a, b, total]
            mma.result.layout = layout
            out.ops.append(mma)
    return out.ops


def _read_slice(out: Emitter, product: Product, stages: tuple[Value, Value], k: int) -> tuple[Value, Value]:
    """An instruction's columns from `k` on of the left operand, and such rows of the right one."""
    rows, columns = product.mma.result.tile.shape
    step = mma_sync.depth_of(product.dtypes[0])
    a = _slice(out, product, 0, stages[0], (rows, step), (0, k))
    b = _slice(out, product, 1, stages[1], (step, columns), (k, 0))
    a.layout = mma_sync.operand_a(rows, step, product.grid, product.dtypes[0])
    b.layout = mma_sync.operand_b(step, columns, product.grid, product.dtypes[1])
    return a, b


def _slice(
    out: Emitter, product: Product, index: int, current: Value, shape: tuple[int, int], origin: tuple[int, int]
) -> Value:  # fmt: skip
    """The box of an operand at `origin`; `index` 0 is the left one."""
    operand, in_registers = (product.left, product.right)[index], product.mma.operands[index]
    tile = TileType(in_registers.tile.dtype, shape)
    row, column = origin
    if operand is None:
        return out.add(Part(operands=[in_registers], row=row, column=column), tile)
    assert operand.buffer is not None
    shared = SharedLoad(operands=[operand.buffer, current], row=row, column=column, transposed=product.transposed[index])
    return out.add(shared, tile)
