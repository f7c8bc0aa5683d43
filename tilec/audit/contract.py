"""The properties of every launch that the launcher enforces: a manifest goes in, assumptions for z3 come out.

Assumed are the launch checks of the manifest, the range of every symbol (a dim is 1 to `MAX_DIM`, a scalar within its dtype),
every extent of a tensor (1 to `MAX_DIM`), the grid limits, and nonzero divisors in expressions that the launcher evaluates.
The tile IR's own `requires` is not used: what the launcher does not check is not assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tilec.artifact.records import Manifest, TensorSpec, ValueCheck, value_check, value_promise
from tilec.audit import smt
from tilec.audit.definitions import Definitions
from tilec.audit.smt import Term
from tilec.ir.core import Function, Value
from tilec.ir.expr import ARITHMETIC, COMPARISONS, Expr
from tilec.ir.ops import BlockId, MemoryOp
from tilec.ir.types import MAX_DIM, TensorType

GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
"""Maximum number of blocks per grid axis (CUDA C++ programming guide, compute capabilities)."""
STRIDE_LIMIT: Final = 2**63 - 1
_KINDS: Final = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


@dataclass(slots=True)
class Contract:
    """Assumptions about launch values. `symbols` are ranges by name, `checks` the predicates of the launcher, `values` the
    ranges of stored integers by tensor, `grid` the extents."""

    symbols: dict[str, tuple[int, int]]
    grid: tuple[Expr, ...]
    checks: tuple[Expr, ...] = ()
    extents: tuple[Expr, ...] = ()
    values: dict[str, list[ValueCheck]] = field(default_factory=dict[str, list[ValueCheck]])


def symbol_ranges(function: Function) -> dict[str, tuple[int, int]]:
    """The range of every launch value by name."""
    ranges: dict[str, tuple[int, int]] = {}
    for name in function.dims:
        ranges[name] = (0, STRIDE_LIMIT) if name in function.strides else (1, MAX_DIM)
    for parameter in function.parameters:
        if parameter.access is None and not parameter.value.tile.dtype.is_float:
            ranges[parameter.name] = parameter.value.tile.dtype.integer_range()
    return ranges


def contract_of(manifest: Manifest, function: Function) -> Contract:
    """The contract that a launcher enforces for a manifest."""
    values: dict[str, list[ValueCheck]] = {}
    for check in manifest.value_checks:
        values.setdefault(check.tensor, []).append(check)
    return Contract(
        symbol_ranges(function),
        manifest.grid,
        tuple(check.condition for check in manifest.launch_checks),
        tuple(dim for tensor in manifest.tensors for dim in tensor.dims),
        values,
    )


def contract_of_function(function: Function) -> Contract:
    """The contract stated by the tile IR, for a function without a manifest."""
    values: dict[str, list[ValueCheck]] = {}
    for fact in function.values:
        values.setdefault(fact.tensor, []).append(value_check(fact))
    extents = [d for p in function.parameters if isinstance(p.value.type, TensorType) for d in p.value.type.dims]
    return Contract(
        symbol_ranges(function),
        function.grid,
        tuple(requirement.condition for requirement in function.requires),
        tuple(extents),
        values,
    )


def disagreements(manifest: Manifest, function: Function) -> Iterator[str]:
    """Differences between the interface of the manifest and that of the tile IR, with which a launcher would enforce another
    contract."""
    if manifest.kernel != function.name:
        yield f"the manifest describes `{manifest.kernel}`, the tile IR `{function.name}`"
    tensors = [
        TensorSpec(
            p.name, p.access.value if p.access else "", t.dtype.name, t.dims, t.strides, t.align, function.is_resident(p.value),
            row_of(function, p.value),
        )
        for p in function.parameters
        if isinstance(t := p.value.type, TensorType)
    ]  # fmt: skip
    if tensors != _with_own_alignments(manifest.tensors, tensors):
        yield "the tensors differ from the tile IR's"
    scalars = [(p.name, p.value.tile.dtype.name) for p in function.parameters if p.access is None]
    if scalars != [(scalar.name, scalar.dtype) for scalar in manifest.scalars]:
        yield "the scalars differ from the tile IR's"
    if manifest.grid != function.grid:
        yield "the grid differs from the tile IR's"
    if _exact(manifest.constants) != _exact(function.constants):
        yield "the constants differ from the tile IR's"
    if tuple(map(value_promise, function.promises)) != manifest.promises:
        yield "the promises differ from the tile IR's"
    disjoint = {frozenset(pair) for pair in manifest.no_alias}
    for position, left in enumerate(tensors):
        for right in tensors[position + 1 :]:
            if (left.access != "in" or right.access != "in") and frozenset((left.name, right.name)) not in disjoint:
                yield f"`{left.name}` and `{right.name}` may overlap in memory, and one of them is written"


def _with_own_alignments(stated: Sequence[TensorSpec], own: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The manifest's tensors, with the alignment of the tile IR where theirs is stricter: a launcher then only refuses more."""
    alignments = {spec.name: spec.align for spec in own}
    return [
        replace(spec, align=alignments.get(spec.name, spec.align)) if spec.align > alignments.get(spec.name, 0) else spec
        for spec in stated
    ]


def row_of(function: Function, tensor: Value) -> int | None:
    """The grid axis whose block index is the first coordinate of every access of a tensor, each of one row; None if there is
    none. Derived here, not with the analysis that the compiler uses."""
    axes = {_row_axis(op) for op in function.body.walk() if isinstance(op, MemoryOp) and op.operands[0] is tensor}
    return axes.pop() if len(axes) == 1 else None


def _row_axis(op: MemoryOp) -> int | None:
    shape = op.tile.tile.shape
    if op.indexed or (shape and shape[0] != 1):
        return None
    source = op.indices[0].owner
    return source.axis if isinstance(source, BlockId) else None


def _exact(constants: Mapping[str, object]) -> dict[str, tuple[type, str]]:
    """Constants with their exact types and values: Python treats 1, 1.0 and True as equal, and 0.0 and -0.0."""
    return {name: (type(value), repr(value)) for name, value in constants.items()}


def arguments_agree(manifest: Manifest, function: Function) -> bool:
    """Whether the arguments are in the order of the tile IR: tensors, dims and strides, scalars, then tensor maps. A launcher
    encodes each map from a whole tensor, so none reaches memory outside the contract."""
    slots = [("pointer", p.name) for p in function.parameters if p.access is not None]
    slots += [("stride" if name in function.strides else "dim", name) for name in function.dims]
    slots += [("scalar", p.name) for p in function.parameters if p.access is None]
    slots += [("tensor_map", one.tensor) for one in manifest.tensor_maps]
    return slots == [(slot.kind, slot.name) for slot in manifest.abi]


class HostTerms:
    """Launch expressions as z3 terms: exact integers, division rounds toward minus infinity. `definitions` defines quotients,
    `facts` are conditions that hold because the launcher evaluates the expressions."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.facts: list[Term] = []
        self.definitions = Definitions("u")

    def symbol(self, name: str) -> Term:
        """A launch value."""
        return smt.unknown(name)

    def expression(self, expr: Expr, certain: bool = False) -> Term:
        """An integer expression. `certain`: the launcher evaluates it on every launch, so its divisors are not zero. A
        predicate inside may be true or false, so only the left operands of its `and` and `or` are certain to be evaluated."""
        if expr.op == "const":
            return smt.integer(expr.value)
        if expr.op == "sym":
            return self.symbol(expr.name)
        if expr.op not in ARITHMETIC:
            return smt.choose(self.predicate(expr, certain), smt.integer(1), smt.integer(0))
        left, right = (self.expression(arg, certain) for arg in expr.args)
        match expr.op:
            case "+":
                return smt.add(left, right)
            case "-":
                return smt.sub(left, right)
            case "*":
                return self.definitions.product(left, right)
            case "min":
                return smt.smaller(left, right)
            case "max":
                return smt.larger(left, right)
            case _:
                if certain and smt.constant(right) is None:
                    self.facts.append(right != 0)
                quotient, rest = self.definitions.divided(left, right, False, None)
                return quotient if expr.op == "//" else rest

    def predicate(self, expr: Expr, certain: bool = False, asserted: bool = False) -> Term:
        """A predicate; a nonzero integer counts as true. The launcher evaluates the right operand of `and` only if the left
        one is true, which is certain only if the whole is `asserted`. Evaluation of the right operand of `or` is never
        certain."""
        if expr.op in COMPARISONS:
            left, right = (self.expression(arg, certain) for arg in expr.args)
            return smt.compare(_KINDS[expr.op], left, right)
        if expr.op in ("and", "or"):
            both = asserted and expr.op == "and"
            parts = [self.predicate(expr.args[0], certain, both), self.predicate(expr.args[1], certain and both, both)]
            return smt.every(parts) if expr.op == "and" else smt.some(parts)
        return smt.compare("ne", self.expression(expr, certain), smt.integer(0))

    def assumptions(self) -> list[Term]:
        """All conditions that every launch satisfies, without the definitions of their quotients."""
        assumptions: list[Term] = []
        for name, (low, high) in self.contract.symbols.items():
            assumptions += [self.symbol(name) >= low, self.symbol(name) <= high]
        for check in self.contract.checks:
            assumptions.append(self.predicate(check, certain=True, asserted=True))
        for extent in self.contract.extents:
            if extent.op != "const":
                term = self.expression(extent, certain=True)
                assumptions += [term >= 1, term <= MAX_DIM]
        for extent, limit in zip(self.contract.grid, GRID_LIMITS, strict=False):
            term = self.expression(extent, certain=True)
            assumptions += [term >= 1, term <= limit]
        return [*self.facts, *assumptions]
