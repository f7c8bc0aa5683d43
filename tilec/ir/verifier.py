"""Structural rules of the tile IR, checked between passes: every use after its definition, every region closed, types fit.

A violation is a bug in tilec, never the kernel author's fault, so it is a `VerifyError`, not a diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tilec.ir.core import Block, Effect, Function, Op, Value, VerifyError
from tilec.ir.expr import Expr
from tilec.ir.ops import (
    AtomicUpdate,
    Binary,
    BlockId,
    Broadcast,
    Cast,
    Compare,
    Constant,
    DimValue,
    For,
    Gather,
    If,
    Iota,
    Load,
    Mma,
    NumBlocks,
    Permute,
    Reduce,
    Reshape,
    Scatter,
    Select,
    Store,
    Unary,
    Yield,
)
from tilec.ir.ops_launch import WaitPrior
from tilec.ir.ops_staging import (
    AsyncCopy,
    BlockBarrier,
    CommitCopies,
    GroupMma,
    Part,
    Relayout,
    SharedAlloc,
    SharedLoad,
    WaitCopies,
    WaitMma,
)
from tilec.ir.types import SharedType, TensorType, TileType, i32, i64

_NO_RESULT: Final = (Store, Scatter, AtomicUpdate, Yield, AsyncCopy, CommitCopies, WaitCopies, BlockBarrier, WaitPrior)
_ARITY: Final[tuple[tuple[int, tuple[type[Op], ...]], ...]] = (
    (0, (Constant, Iota, BlockId, NumBlocks, DimValue, SharedAlloc, CommitCopies, WaitCopies, BlockBarrier, WaitPrior)),
    (1, (Unary, Cast, Broadcast, Reshape, Permute, Reduce, If, Relayout, Part, WaitMma)),
    (2, (Binary, Compare, SharedLoad)),
    (3, (Select, Mma)),
    (5, (GroupMma,)),
)
_OPERANDS: Final[dict[type[Op], int]] = {kind: count for count, kinds in _ARITY for kind in kinds}
"""How many operands an operation takes; those left out say so in their own rules."""

_ACCESSES: Final[tuple[type[Op], ...]] = (Load, Store, Gather, Scatter, AtomicUpdate)
_LEADING: Final[dict[type[Op], tuple[type, ...]]] = {
    **dict.fromkeys(_ACCESSES, (TensorType,)),
    AsyncCopy: (TensorType, SharedType),
    SharedLoad: (SharedType,),
    GroupMma: (SharedType, TileType, SharedType),
}
"""What the first operands are; all others are tiles."""


def verify(function: Function) -> None:
    """Raise VerifyError at the first broken rule; the message names the operation and its place in the source."""
    _verify_signature(function)
    _Verifier(function).block(function.body, set(), outermost=True)
    _verify_wait(function)


def _verify_signature(function: Function) -> None:
    def refuse(rule: str) -> VerifyError:
        return VerifyError(f"{function.name}: {rule}")

    if not 1 <= len(function.grid) <= 3:
        raise refuse(f"a grid has 1 to 3 extents, not {len(function.grid)}")
    if function.num_warps < 0:
        raise refuse(f"{function.num_warps} warps")
    names = [p.name for p in function.parameters]
    scalars = [p.name for p in function.parameters if p.access is None]
    symbols = [*function.dims, *scalars]
    if len(set(names)) != len(names) or len(set(symbols)) != len(symbols):
        raise refuse("two parameters or dims share a name")
    if not set(function.strides) <= set(function.dims):
        raise refuse("a stride is not among the dims")
    if [id(p.value) for p in function.parameters] != [id(value) for value in function.body.arguments]:
        raise refuse("the body's arguments are not the parameters' values")
    for parameter in function.parameters:
        wanted = TileType if parameter.access is None else TensorType
        if not isinstance(parameter.value.type, wanted) or getattr(parameter.value.type, "shape", ()):
            raise refuse(f"parameter {parameter.name} is neither a scalar nor a tensor with an access")
        if isinstance(parameter.value.type, TensorType):
            _verify_tensor(parameter.name, parameter.value.type)
    for expr in _host_expressions(function):
        unknown = sorted(set(expr.symbols()) - set(symbols))
        if unknown:
            raise refuse(f"{expr} uses the unknown symbol {unknown[0]}")
    for fact in function.values:
        if fact.tensor not in names or fact.tensor in scalars:
            raise refuse(f"a values fact names {fact.tensor}, which is no tensor")


def _verify_wait(function: Function) -> None:
    """Where a kernel waits for the ones before it, it does so on every path and before any access to memory: at the top, once,
    with nothing in front of it but arithmetic."""
    waits = [op for op in function.body.walk() if isinstance(op, WaitPrior)]
    if not waits:
        return
    if len(waits) > 1 or waits[0] not in function.body.ops:
        raise VerifyError(_at(waits[0], "a kernel waits once, outside of loops and branches"))
    for op in function.body.ops[: function.body.ops.index(waits[0])]:
        if op.regions or op.effect is not Effect.NONE:
            raise VerifyError(_at(op, "touches memory before the kernels before this one are complete"))


def _verify_tensor(name: str, type: TensorType) -> None:
    if type.strides is not None and len(type.strides) != len(type.dims):
        raise VerifyError(f"{name}: {len(type.strides)} strides for {len(type.dims)} dims")
    if type.align < type.dtype.bytes or type.align & (type.align - 1):
        raise VerifyError(f"{name}: {type.dtype} cannot be aligned to {type.align} bytes")


def _host_expressions(function: Function) -> Iterable[Expr]:
    yield from function.grid
    yield from (precondition.condition for precondition in function.requires)
    for fact in function.values:
        yield from (fact.low, fact.high)
    for parameter in function.parameters:
        if isinstance(parameter.value.type, TensorType):
            yield from (*parameter.value.tensor.dims, *(parameter.value.tensor.strides or ()))


class _Verifier:
    def __init__(self, function: Function) -> None:
        self.function = function

    def block(self, block: Block, visible: set[int], *, outermost: bool) -> None:
        """`visible` holds the ids of all values in scope; those defined here leave it at the end."""
        defined = [*block.arguments]
        for argument in block.arguments:
            if not outermost:
                self.tile(f"argument {argument.name or argument.type}", argument)
        visible |= {id(argument) for argument in block.arguments}
        for position, op in enumerate(block.ops):
            self.op(op, visible)
            if isinstance(op, Yield) and (outermost or position != len(block.ops) - 1):
                raise VerifyError(_at(op, "yield ends the block of a region, and stands nowhere else"))
            defined += op.results
            visible |= {id(result) for result in op.results}
        visible -= {id(value) for value in defined}

    def op(self, op: Op, visible: set[int]) -> None:
        for value in op.operands:
            if id(value) not in visible:
                raise VerifyError(_at(op, f"operand {value.name or value.type} is used where it is not defined"))
        self.operands(op)
        self.results(op)
        if op.regions and not isinstance(op, For | If):
            raise VerifyError(_at(op, "only loops and branches have regions"))
        if isinstance(op, If) and any(region.arguments for region in op.regions):
            raise VerifyError(_at(op, "a branch takes no arguments"))
        for region in op.regions:
            self.block(region, visible, outermost=False)
        self.launch_value(op)
        unsafe = op.attributes().get("unsafe")
        if unsafe is not None and not 0 <= unsafe < len(self.function.unsafe):
            raise VerifyError(_at(op, f"there is no unsafe block {unsafe}"))
        if isinstance(op, Load | Store) and op.vector not in (0, 1, 2, 4, 8, 16):
            raise VerifyError(_at(op, f"an access moves no {op.vector} bytes at once"))
        if isinstance(op, WaitCopies) and op.pending < 0:
            raise VerifyError(_at(op, f"{op.pending} groups cannot be pending"))
        if isinstance(op, SharedLoad) and min(op.row, op.column) < 0:
            raise VerifyError(_at(op, "the box lies before its matrix"))
        try:
            op.verify()
        except VerifyError as error:
            raise VerifyError(f"{op.loc}: {error}" if op.loc else str(error)) from error
        except (ValueError, IndexError, AssertionError) as error:  # a wrong number or kind of operands
            raise VerifyError(_at(op, f"malformed: {error}")) from error

    def operands(self, op: Op) -> None:
        wanted = _OPERANDS.get(type(op))
        if wanted is not None and len(op.operands) != wanted:
            raise VerifyError(_at(op, f"{len(op.operands)} operands instead of {wanted}"))
        leading = _LEADING.get(type(op), ())
        if len(op.operands) < len(leading):
            raise VerifyError(_at(op, f"{len(op.operands)} operands, at least {len(leading)} are needed"))
        kinds = (*leading, *[TileType] * (len(op.operands) - len(leading)))
        for position, (value, kind) in enumerate(zip(op.operands, kinds, strict=True)):
            if not isinstance(value.type, kind):
                raise VerifyError(_at(op, f"operand {position} is {value.type}"))

    def results(self, op: Op) -> None:
        if not isinstance(op, For | If) and len(op.results) != (0 if isinstance(op, _NO_RESULT) else 1):
            raise VerifyError(_at(op, f"{len(op.results)} results"))
        for result in op.results:
            if result.owner is not op:
                raise VerifyError(_at(op, "a result belongs to another operation"))
            if isinstance(op, SharedAlloc):
                _verify_buffer(op)
            else:
                self.tile(_at(op, "its result"), result)

    def tile(self, place: str, value: Value) -> None:
        """A value inside the kernel is a tile with elements, and its layout holds each of them."""
        if not isinstance(value.type, TileType) or min(value.type.shape, default=1) < 1:
            raise VerifyError(f"{place}: {value.type} is no tile")
        if value.layout is None:
            return
        if not self.function.num_warps:
            raise VerifyError(f"{place}: a layout before the number of warps is known")
        problem = value.layout.problem(value.type.shape, self.function.num_warps)
        if problem:
            raise VerifyError(f"{place}: {value.layout} on {value.type}: {problem}")

    def launch_value(self, op: Op) -> None:
        """Block ids, grid extents and dims, which no operand type ties down."""
        if not isinstance(op, BlockId | NumBlocks | DimValue):
            return
        wanted = i64 if isinstance(op, DimValue) and op.symbol in self.function.strides else i32
        if op.result.type != TileType(wanted):
            raise VerifyError(_at(op, f"the result is an {wanted} scalar"))
        if isinstance(op, DimValue):
            if op.symbol not in self.function.dims:
                raise VerifyError(_at(op, f"{op.symbol} is no dim"))
        elif not 0 <= op.axis < len(self.function.grid):
            raise VerifyError(_at(op, f"the grid has no axis {op.axis}"))


def _verify_buffer(op: SharedAlloc) -> None:
    type = op.result.type
    if not isinstance(type, SharedType) or min(*type.shape, type.stages) < 1:
        raise VerifyError(_at(op, f"{type} is no shared buffer"))
    if type.shape[1] * type.dtype.bytes % 16:
        raise VerifyError(_at(op, f"rows of {type} are not whole 16-byte chunks"))
    if op.offset < 0:
        raise VerifyError(_at(op, f"{op.offset} lies before shared memory"))


def _at(op: Op, rule: str) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}: {rule}"
