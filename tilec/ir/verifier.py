"""Structural rules of the tile IR, checked between passes: values are used in their scope after their definition, types fit.

A violation is a bug in tilec, never the kernel author's fault, so it raises `VerifyError` rather than giving a diagnostic.
"""

from __future__ import annotations

from collections.abc import Iterable

from tilec.ir.core import Access, Block, Effect, Function, Op, Value, VerifyError
from tilec.ir.expr import Expr
from tilec.ir.loop_claim_rules import verify_loop_claims
from tilec.ir.ops import If, Meet, Yield
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.ops.tmem_ops import TmemFree
from tilec.ir.types import TensorType, TileType
from tilec.target.schedule import PAIR


def verify(function: Function) -> None:
    """Raise VerifyError at the first broken rule; the message names the operation and its source location."""
    _verify_signature(function)
    _Verifier(function).block(function.body, set(), outermost=True)
    _verify_wait(function)
    _verify_ranks(function)
    verify_loop_claims(function)


def _verify_signature(function: Function) -> None:
    def violation(rule: str) -> VerifyError:
        return VerifyError(f"{function.name}: {rule}")

    if not 1 <= len(function.grid) <= 3:
        raise violation(f"a grid has 1 to 3 extents, not {len(function.grid)}")
    if function.num_warps < 0:
        raise violation(f"{function.num_warps} warps")
    if function.cluster not in (1, PAIR):
        raise violation(f"clusters of {function.cluster} blocks; a pair has {PAIR}")
    names = [p.name for p in function.parameters]
    scalars = [p.name for p in function.parameters if p.access is None]
    symbols = [*function.dims, *scalars]
    if len(set(names)) != len(names) or len(set(symbols)) != len(symbols):
        raise violation("two parameters or dims share a name")
    if not set(function.strides) <= set(function.dims):
        raise violation("a stride is not among the dims")
    if [id(p.value) for p in function.parameters] != [id(value) for value in function.body.arguments]:
        raise violation("the body's arguments are not the parameters' values")
    for parameter in function.parameters:
        expected_type = TileType if parameter.access is None else TensorType
        if not isinstance(parameter.value.type, expected_type) or getattr(parameter.value.type, "shape", ()):
            raise violation(f"parameter {parameter.name} is neither a scalar nor a tensor with an access")
        if isinstance(parameter.value.type, TensorType):
            _verify_tensor(parameter.name, parameter.value.type)
    for expr in _host_expressions(function):
        unknown = sorted(set(expr.symbols()) - set(symbols))
        if unknown:
            raise violation(f"{expr} uses the unknown symbol {unknown[0]}")
    shared = {p.name for p in function.parameters if p.access in (Access.PEER, Access.SIGNAL)}
    for fact in function.values:
        if fact.tensor not in names or fact.tensor in scalars:
            raise violation(f"a values fact names {fact.tensor}, which is not a tensor")
        if fact.tensor in shared:
            raise violation(f"a values fact names {fact.tensor}, which a launch cannot check before ranks meet")
    for fact in (*function.values, *function.promises):
        if fact.distinct_in_rows and function.parameter(fact.tensor).value.tensor.rank < 2:
            raise violation(f"rows of {fact.tensor}, which has fewer than two axes")
    read = {p.name for p in function.parameters if p.access in (Access.IN, Access.INOUT)}
    written = {p.name for p in function.parameters if p.access in (Access.OUT, Access.INOUT)}
    for promise in function.promises:
        if promise.tensor not in written or not read.issuperset(promise.above):
            raise violation(f"a promise of {promise.tensor}, which is not written, or above what is not read")
    for resident in function.residents:
        if resident.tensor not in read:
            raise violation(f"{resident.tensor} is resident, and no tensor that holds something")


def _verify_wait(function: Function) -> None:
    """The grid dependency wait of a kernel, if it has one, is on every path and before any access to memory that earlier
    kernels may write. It occurs once at the top level, preceded only by arithmetic, shared memory, and reads of resident
    tensors; or once at the top level of each role, if the kernel ends with its roles."""
    waits = [op for op in function.body.walk() if isinstance(op, DependencyWait)]
    if not waits:
        return
    *before, last = [op for op in function.body.ops if not isinstance(op, TmemFree)]
    blocks = last.regions if isinstance(last, Roles) and waits[0] not in function.body.ops else [function.body]
    wait_indices = [[index for index, op in enumerate(block.ops) if isinstance(op, DependencyWait)] for block in blocks]
    if len(waits) != len(blocks) or any(len(indices) != 1 for indices in wait_indices):
        raise VerifyError(_at(waits[0], "a kernel waits once, outside of loops and branches, or each of its roles does"))
    prologue = Block(ops=[op for block, (index,) in zip(blocks, wait_indices, strict=True) for op in block.ops[:index]])
    if function.body not in blocks:
        prologue.ops += before
    for op in prologue.walk():
        tensors = [(tensor, effect) for tensor, effect in op.touched() if isinstance(tensor.type, TensorType)]
        accessed = [tensor for tensor, effect in tensors if effect is not Effect.READ or not function.is_resident(tensor)]
        if accessed or not (isinstance(op, (If, Yield)) or op.effect in (Effect.NONE, Effect.READ, Effect.SHARED)):
            raise VerifyError(_at(op, "accesses memory before the grid dependency wait"))


def _verify_ranks(function: Function) -> None:
    """Tensors of other ranks are only read, after the meet once the kernel has a schedule; only a meet takes signals."""
    met = False
    for op in function.body.walk():
        met |= isinstance(op, Meet)
        for tensor, effect in op.touched() if not isinstance(op, Meet) else ():
            access = function.parameter_of(tensor).access if isinstance(tensor.type, TensorType) else None
            if access is Access.SIGNAL or (access is Access.PEER and effect is not Effect.READ):
                raise VerifyError(_at(op, f"it has no right to {tensor.name}, which ranks share"))
            is_early = function.num_warps and not met and op.attributes().get("unsafe") is None
            if access is Access.PEER and is_early:
                raise VerifyError(_at(op, f"reads {tensor.name} before ranks have met"))


def _verify_tensor(name: str, type: TensorType) -> None:
    if type.strides is not None and len(type.strides) != len(type.dims):
        raise VerifyError(f"{name}: {len(type.strides)} strides for {len(type.dims)} dims")
    if type.align < type.dtype.bytes or type.align & (type.align - 1):
        raise VerifyError(f"{name}: {type.dtype} cannot be aligned to {type.align} bytes")


def _host_expressions(function: Function) -> Iterable[Expr]:
    yield from function.grid
    yield from (precondition.condition for precondition in function.requires)
    for fact in (*function.values, *function.promises):
        yield from (fact.low, fact.high)
    for parameter in function.parameters:
        if isinstance(parameter.value.type, TensorType):
            yield from (*parameter.value.tensor.dims, *(parameter.value.tensor.strides or ()))


class _Verifier:
    def __init__(self, function: Function) -> None:
        self.function = function
        self.warps = function.num_warps  # of the current role
        self.tiles: set[int] = set()  # values distributed over several threads

    def block(self, block: Block, visible: set[int], *, outermost: bool) -> None:
        """`visible` contains the ids of all values in scope; those defined here are removed at the end."""
        defined = [*block.arguments]
        for argument in block.arguments:
            if not outermost:
                self.tile(argument)
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
        if op.regions and not op.has_regions:
            raise VerifyError(_at(op, "only loops, branches and roles have regions"))
        if isinstance(op, Roles):
            self.roles(op, visible)
        for region in op.regions if not isinstance(op, Roles) else ():
            self.block(region, visible, outermost=False)
        unsafe: int | None = getattr(op, "unsafe", None)
        if unsafe is not None and not 0 <= unsafe < len(self.function.unsafe):
            raise VerifyError(_at(op, f"there is no unsafe block {unsafe}"))
        try:
            op.verify()
            op.verify_in(self.function)
        except VerifyError as error:
            raise VerifyError(f"{op.loc}: {error}" if op.loc else str(error)) from error
        except (ValueError, IndexError, AssertionError) as error:  # a wrong number or kind of operands
            raise VerifyError(_at(op, f"malformed: {error}")) from error

    def roles(self, op: Roles, visible: set[int]) -> None:
        """Each region runs on its own warps; it must not use a tile from outside, which is distributed over the threads of all
        roles."""
        op.verify()
        if self.warps != self.function.num_warps:
            raise VerifyError(_at(op, "a role has no roles"))
        if sum(op.warps) != self.function.num_warps:
            raise VerifyError(_at(op, f"roles of {sum(op.warps)} warps in a block of {self.function.num_warps}"))
        outer_warps = self.warps
        for region, warps in zip(op.regions, op.warps, strict=True):
            visible_in_role = visible - self.tiles
            self.warps = warps
            self.block(region, visible_in_role, outermost=False)
        self.warps = outer_warps

    def operands(self, op: Op) -> None:
        if op.num_operands is not None and len(op.operands) != op.num_operands:
            raise VerifyError(_at(op, f"{len(op.operands)} operands instead of {op.num_operands}"))
        if len(op.operands) < len(op.leading):
            raise VerifyError(_at(op, f"{len(op.operands)} operands, at least {len(op.leading)} are needed"))
        leading = len(op.leading)
        for position, value in enumerate(op.operands):
            if not isinstance(value.type, op.leading[position] if position < leading else op.others):
                raise VerifyError(_at(op, f"operand {position} is {value.type}"))

    def results(self, op: Op) -> None:
        if op.num_results is not None and len(op.results) != op.num_results:
            raise VerifyError(_at(op, f"{len(op.results)} results"))
        for result in op.results:
            if result.owner is not op:
                raise VerifyError(_at(op, "a result belongs to another operation"))
            if op.makes_tiles:
                self.tile(result, op)

    def tile(self, value: Value, op: Op | None = None) -> None:
        """A value inside the kernel, a result of `op` or an argument of a block, is a tile with elements, and its layout covers
        all of them."""
        rule = self.broken_rule(value)
        if rule:
            location = f"argument {value.name or value.type}" if op is None else _at(op, "its result")
            raise VerifyError(f"{location}: {rule}")

    def broken_rule(self, value: Value) -> str:
        """The rule that a tile breaks; an empty string if none."""
        if not isinstance(value.type, TileType) or (value.type.shape and min(value.type.shape) < 1):
            return f"{value.type} is not a tile"
        if value.type.shape:
            self.tiles.add(id(value))
        if value.layout is None:
            return ""
        if not self.warps:
            return "a layout before the number of warps is known"
        problem = value.layout.problem(value.type.shape, self.warps)
        return f"{value.layout} on {value.type}: {problem}" if problem else ""


def _at(op: Op, rule: str) -> str:
    return f"{op.opcode}{f' at {op.loc}' if op.loc else ''}: {rule}"
