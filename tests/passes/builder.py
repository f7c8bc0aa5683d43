"""Builds small kernels in tile IR by hand, for tests of analyses that need no source text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilec.diagnostics.diagnostic import Span
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function, Op, Parameter, Precondition, Value, ValueFact
from tilec.ir.expr import Expr, binary, cdiv, const, sym
from tilec.ir.types import DType, TensorType, TileType, boolean, f32, i32


def as_expr(value: int | str | Expr) -> Expr:
    if isinstance(value, Expr):
        return value
    return const(value) if isinstance(value, int) else sym(value)


class Kernel:
    """One kernel under construction; scalars are i32."""

    def __init__(self, *grid: int | str | Expr) -> None:
        self.body = Block()
        self.block = self.body
        self.function = Function("k", [], self.body, grid=tuple(map(as_expr, grid)))
        self.line = 0
        for extent in self.function.grid:
            self._dims(extent)

    def _dims(self, expr: Expr) -> None:
        names = dict.fromkeys((*self.function.dims, *expr.symbols()))
        self.function.dims = tuple(names)

    def emit(self, op: Op, *types: TileType) -> Op:
        self.line += 1
        op.loc = Span("k.py", self.line, 0, self.line, 1)
        op.define(*types)
        self.block.ops.append(op)
        op.verify()
        return op

    def tensor(self, name: str, access: Access, *dims: int | str | Expr, dtype: DType = f32) -> Value:
        exprs = tuple(map(as_expr, dims))
        for expr in exprs:
            self._dims(expr)
        value = self.body.add_argument(TensorType(dtype, exprs), name)
        self.function.parameters.append(Parameter(name, value, access))
        return value

    def requires(self, condition: Expr) -> None:
        self.function.requires = (*self.function.requires, Precondition(condition))

    def values(self, tensor: str, low: int | str | Expr, high: int | str | Expr, distinct: bool = False) -> None:
        self.function.values = (*self.function.values, ValueFact(tensor, as_expr(low), as_expr(high), distinct))

    def c(self, value: int) -> Value:
        return self.emit(ops.Constant(value=value), TileType(i32)).result

    def bid(self, axis: int = 0) -> Value:
        return self.emit(ops.BlockId(axis=axis), TileType(i32)).result

    def num_blocks(self, axis: int = 0) -> Value:
        return self.emit(ops.NumBlocks(axis=axis), TileType(i32)).result

    def dim(self, name: str) -> Value:
        return self.emit(ops.DimValue(symbol=name), TileType(i32)).result

    def _value(self, value: Value | int | str) -> Value:
        if isinstance(value, int):
            return self.c(value)
        return self.dim(value) if isinstance(value, str) else value

    def op(self, kind: str, left: Value | int | str, right: Value | int | str) -> Value:
        a, b = self._value(left), self._value(right)
        if kind in ops.COMPARE_KINDS:
            op: Op = ops.Compare(kind=kind, operands=[a, b])
            return self.emit(op, TileType(boolean, a.tile.shape)).result
        return self.emit(ops.Binary(kind=kind, operands=[a, b]), a.tile).result

    def mul(self, left: Value | int | str, right: Value | int | str) -> Value:
        return self.op("mul", left, right)

    def add(self, left: Value | int | str, right: Value | int | str) -> Value:
        return self.op("add", left, right)

    def div(self, left: Value | int | str, right: Value | int | str) -> Value:
        return self.op("floordiv", left, right)

    def mod(self, left: Value | int | str, right: Value | int | str) -> Value:
        return self.op("mod", left, right)

    def cdiv(self, left: Value | int | str, right: int) -> Value:
        return self.div(self.add(left, right - 1), right)

    def load(self, tensor: Value, *offsets: Value | int | str, shape: tuple[int, ...], pad: float | None = None) -> Value:
        offset_values = [self._value(o) for o in offsets]
        op = ops.Load(operands=[tensor, *offset_values], pad=pad)
        return self.emit(op, TileType(tensor.tensor.dtype, shape)).result

    def scalar_load(self, tensor: Value, *offsets: Value | int | str) -> Value:
        tile = self.load(tensor, *offsets, shape=(1,) * tensor.tensor.rank)
        return self.emit(ops.Reshape(operands=[tile]), TileType(tensor.tensor.dtype)).result

    def zeros(self, shape: tuple[int, ...], dtype: DType = f32) -> Value:
        zero = 0.0 if dtype.is_float else 0
        return self.emit(ops.Constant(value=zero), TileType(dtype, shape)).result

    def store(self, tensor: Value, *offsets: Value | int | str, shape: tuple[int, ...], mask: bool = False) -> Op:
        tile = self.zeros(shape, tensor.tensor.dtype)
        offset_values = [self._value(o) for o in offsets]
        return self.emit(ops.Store(operands=[tensor, tile, *offset_values], mask=mask))

    def iota(self, extent: int) -> Value:
        return self.emit(ops.Iota(), TileType(i32, (extent,))).result

    def spread(self, value: Value, shape: tuple[int, ...]) -> Value:
        return self.emit(ops.Broadcast(operands=[value]), TileType(value.tile.dtype, shape)).result

    def scatter(self, tensor: Value, *indices: Value, mask: bool = False) -> Op:
        tile = self.zeros(indices[0].tile.shape, tensor.tensor.dtype)
        return self.emit(ops.Scatter(operands=[tensor, tile, *indices], mask=mask))

    @contextmanager
    def loop(
        self, lower: Value | int | str, upper: Value | int | str, step: Value | int | str = 1, name: str = "i"
    ) -> Iterator[Value]:
        bounds = [self._value(v) for v in (lower, upper, step)]
        op = ops.For(operands=bounds, variable=name, regions=[Block()])
        variable = op.regions[0].add_argument(TileType(i32), name)
        self.emit_region(op)
        outer, self.block = self.block, op.regions[0]
        yield variable
        self.emit_yield()
        self.block = outer

    def emit_region(self, op: Op) -> None:
        self.line += 1
        op.loc = Span("k.py", self.line, 0, self.line, 1)
        self.block.ops.append(op)

    def emit_yield(self, *values: Value) -> None:
        self.block.ops.append(ops.Yield(operands=list(values)))

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        op = ops.If(operands=[condition], regions=[Block(), Block()])
        self.emit_region(op)
        outer, self.block = self.block, op.regions[0]
        yield
        self.emit_yield()
        self.block = op.regions[1]
        self.emit_yield()
        self.block = outer


__all__ = ["Access", "Kernel", "as_expr", "binary", "cdiv", "const", "sym"]
