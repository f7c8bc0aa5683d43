"""From a kernel description straight to tile IR, without the frontend: lines are statement numbers."""

from __future__ import annotations

from collections.abc import Collection

from tests.soundness.description import COMPARISONS, Assign, Branch, Description, Expr, LoadIndex, Loop, Move, Pick, Statement
from tilec.diagnostics.diagnostic import Span
from tilec.ir import expr as host
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function, Op, Parameter, Precondition, Value, ValueFact
from tilec.ir.types import TensorType, TileType, boolean, f32, i32

_KINDS = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "min": "min", "max": "max",
          ">>": "shr", "<<": "shl", "&": "and", "|": "or", "^": "xor"}  # fmt: skip
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}


class Unbuildable(Exception):
    """The description uses a name that is not defined there; the frontend would refuse it too."""


def host_expr(expr: Expr, constants: dict[str, int], scalars: Collection[str] = ()) -> host.Expr:
    """The launch expression of a grid extent, dim or precondition."""
    if isinstance(expr, int):
        return host.const(expr)
    if isinstance(expr, str):
        if not expr.isupper() and expr not in scalars:
            raise Unbuildable(expr)
        return host.const(constants[expr]) if expr in constants else host.sym(expr)
    op, left, right = expr[0], host_expr(expr[1], constants, scalars), host_expr(expr[2], constants, scalars)
    return host.cdiv(left, right) if op == "cdiv" else host.binary(op, left, right)


class _Builder:
    def __init__(self, kernel: Description) -> None:
        self.kernel = kernel
        self.body = self.block = Block()
        self.names: dict[str, Value] = {}
        self.tensors: dict[str, Value] = {}
        self.lanes: int | None = None
        self.line = 0

    def function(self) -> Function:
        constants, scalars = self.kernel.constants, self.kernel.scalars
        grid = tuple(host_expr(e, constants, scalars) for e in self.kernel.grid)
        parameters: list[Parameter] = []
        for tensor in self.kernel.tensors:
            dims = tuple(host_expr(e, constants) for e in tensor.dims)
            value = self.body.add_argument(TensorType(i32 if tensor.integer else f32, dims), tensor.name)
            self.tensors[tensor.name] = value
            parameters.append(Parameter(tensor.name, value, Access(tensor.access.lower())))
        for name in self.kernel.scalars:
            self.names[name] = self.body.add_argument(TileType(i32), name)
            parameters.append(Parameter(name, self.names[name]))
        requires = tuple(Precondition(host_expr(e, constants, scalars)) for e in self.kernel.requires)
        values = tuple(
            ValueFact(
                t.name, host_expr(t.low, constants), host_expr(t.high, constants), t.distinct, sorted=t.sorted, ends=t.ends
            )
            for t in self.kernel.tensors
            if t.low is not None and t.high is not None
        )
        for axis in range(len(grid)):
            self.names[f"b{axis}"] = self.emit(ops.BlockId(axis=axis), TileType(i32)).result
        self.statements(self.kernel.body)
        used = [name for name in self.kernel.dims() if name not in constants]
        bound = {s for p in parameters if p.access for d in p.value.tensor.dims for s in d.symbols()}
        if not set(used) <= bound:
            raise Unbuildable("a dim of no tensor")
        return Function("random_kernel", parameters, self.body, grid, tuple(used), (), dict(constants), requires, values)

    def emit(self, op: Op, *types: TileType) -> Op:
        op.loc = Span("random_kernel.py", self.line, 0, self.line, 1)
        op.define(*types)
        self.block.ops.append(op)
        op.verify()
        return op

    def constant(self, number: int) -> Value:
        return self.emit(ops.Constant(value=number), TileType(i32)).result

    def spread(self, value: Value) -> Value:
        if self.lanes is None or value.tile.rank:
            return value
        return self.emit(ops.Broadcast(operands=[value]), TileType(i32, (self.lanes,))).result

    def value(self, expr: Expr) -> Value:
        if isinstance(expr, int):
            return self.constant(expr)
        if isinstance(expr, str):
            return self.named(expr)
        op, left, right = expr
        if op == "cdiv":
            return self.value(("//", ("+", left, ("-", right, 1)), right))
        a, b = self.value(left), self.value(right)
        if a.tile.rank or b.tile.rank:
            a, b = self.spread(a), self.spread(b)
        if op in COMPARISONS:
            return self.emit(ops.Compare(kind=_COMPARE[op], operands=[a, b]), TileType(boolean, a.tile.shape)).result
        return self.emit(ops.Binary(kind=_KINDS[op], operands=[a, b]), a.tile).result

    def named(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        if name == "lane" and self.lanes is not None:
            return self.emit(ops.Iota(), TileType(i32, (self.lanes,))).result
        if name.startswith("num_blocks("):
            axis = int(name[11:-1])
            if axis >= len(self.kernel.grid):
                raise Unbuildable(name)
            return self.emit(ops.NumBlocks(axis=axis), TileType(i32)).result
        if not name.isupper():
            raise Unbuildable(name)
        if name in self.kernel.constants:
            return self.constant(self.kernel.constants[name])
        return self.emit(ops.DimValue(symbol=name), TileType(i32)).result

    def statements(self, body: list[Statement]) -> None:
        for statement in body:
            self.line += 1
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Assign(name, value):
                self.names[name] = self.value(value)
            case LoadIndex(name, tensor, index):
                offsets = [self.value(i) for i in index]
                shape = (1,) * len(index)
                tile = self.emit(ops.Load(operands=[self.tensors[tensor], *offsets]), TileType(i32, shape)).result
                self.names[name] = self.emit(ops.Reshape(operands=[tile]), TileType(i32)).result
            case Move():
                self.move(statement)
            case Pick():
                self.pick(statement)
            case Loop():
                self.loop(statement)
            case Branch():
                self.branch(statement)

    def move(self, move: Move) -> None:
        tensor = self.tensors[move.tensor]
        index: list[Expr] = [("*", i, n) if move.tiled and n > 1 else i for i, n in zip(move.index, move.shape, strict=True)]
        offsets = [self.value(i) for i in index]
        tile = TileType(tensor.tensor.dtype, tuple(move.shape))
        if move.kind == "load":
            self.emit(ops.Load(operands=[tensor, *offsets], pad=0.0 if move.loose else None), tile)
            return
        zeros = self.emit(ops.Constant(value=0.0 if tile.dtype.is_float else 0), tile).result
        self.emit(ops.Store(operands=[tensor, zeros, *offsets], mask=move.loose))

    def pick(self, pick: Pick) -> None:
        tensor = self.tensors[pick.tensor]
        self.lanes = pick.extent
        indices = [self.spread(self.value(i)) for i in pick.index]
        self.lanes = None
        tile = TileType(tensor.tensor.dtype, (pick.extent,))
        if pick.kind == "gather":
            self.emit(ops.Gather(operands=[tensor, *indices], pad=0.0 if pick.loose else None), tile)
            return
        zeros = self.emit(ops.Constant(value=0.0), tile).result
        self.emit(ops.Scatter(operands=[tensor, zeros, *indices], mask=pick.loose))

    def loop(self, loop: Loop) -> None:
        carried = [name for name in assigned(loop.body) if name in self.names]
        bounds = [self.value(e) for e in (loop.lower, loop.upper, loop.step)]
        op = ops.For(operands=[*bounds, *(self.names[n] for n in carried)], variable=loop.name, regions=[Block()])
        op.loc = Span("random_kernel.py", self.line, 0, self.line, 1)
        before, outer = dict(self.names), self.block
        self.block = op.regions[0]
        self.names[loop.name] = self.block.add_argument(TileType(i32), loop.name)
        for name in carried:
            self.names[name] = self.block.add_argument(TileType(i32), name)
        self.statements(loop.body)
        self.block.ops.append(ops.Yield(operands=[self.names[n] for n in carried]))
        self.finish(op, outer, before, carried)

    def branch(self, branch: Branch) -> None:
        merged = [n for n in dict.fromkeys([*assigned(branch.then), *assigned(branch.otherwise)]) if n in self.names]
        op = ops.If(operands=[self.value(branch.condition)], regions=[Block(), Block()])
        op.loc = Span("random_kernel.py", self.line, 0, self.line, 1)
        before, outer = dict(self.names), self.block
        for region, body in zip(op.regions, (branch.then, branch.otherwise), strict=True):
            self.block, self.names = region, dict(before)
            self.statements(body)
            region.ops.append(ops.Yield(operands=[self.names[n] for n in merged]))
        self.finish(op, outer, before, merged)

    def finish(self, op: Op, outer: Block, before: dict[str, Value], kept: list[str]) -> None:
        self.block, self.names = outer, before
        op.define(*(TileType(i32) for _ in kept))
        self.block.ops.append(op)
        for name, result in zip(kept, op.results, strict=True):
            self.names[name] = result
        op.verify()


def assigned(body: list[Statement]) -> list[str]:
    """Names that a body assigns, in order."""
    found: list[str] = []
    for statement in body:
        if isinstance(statement, Assign | LoadIndex):
            found.append(statement.name)
        elif isinstance(statement, Loop):
            found += assigned(statement.body)
        elif isinstance(statement, Branch):
            found += [*assigned(statement.then), *assigned(statement.otherwise)]
    return list(dict.fromkeys(found))


def assemble(kernel: Description) -> Function:
    """Tile IR of a description; Unbuildable if a name is used where it is not defined."""
    return _Builder(kernel).function()
