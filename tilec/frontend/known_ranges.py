"""Ranges of integers while a kernel is built, from the declarations and operations before a line.

They decide between two ways to compute the same number, so a range that is too wide costs an instruction and nothing else. The
proofs have ranges of their own (`tilec.passes.analysis.ranges`).
"""

from __future__ import annotations

from typing import Final

from tilec.frontend.emitter import Term
from tilec.frontend.scope import Scope
from tilec.ir import ops
from tilec.ir.core import Access, Op, Value
from tilec.ir.expr import Expr, sym
from tilec.ir.facts.range_facts import Range, arithmetic, exactly, join, of_dtype, within
from tilec.ir.types import MAX_DIM, TensorType

_DEPTH: Final = 48
"""Operations followed from a value towards its operands; beyond them a value has the range of its dtype."""
_GRID_LIMITS: Final = (2**31 - 1, 65535, 65535)
_KINDS: Final = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod", "min": "min", "max": "max"}


def known_range(scope: Scope, term: Term) -> Range:
    """Range of every element of an integer term, in each launch that satisfies the declarations so far."""
    return _Ranges(scope).of(term, 0)


class _Ranges:
    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.known: dict[Value, Range] = {}

    def of(self, term: Term, depth: int) -> Range:
        if isinstance(term, int):
            return exactly(int(term))
        assert isinstance(term, Value)
        if isinstance(term.type, TensorType) or term.tile.dtype.is_float:
            return Range(-(2**63), 2**63)
        if term not in self.known:
            top = of_dtype(term.tile.dtype)
            found = self._computed(term, depth) if depth < _DEPTH else None
            host = self.scope.emitter.host(term)
            found = found if host is None else self._required(host, found or top)
            self.known[term] = found if found is not None and top.low <= found.low and found.high <= top.high else top
        return self.known[term]

    def _computed(self, value: Value, depth: int) -> Range | None:
        op = value.owner
        if not isinstance(op, Op):
            bounds = self.scope.emitter.counted.get(value)
            if bounds is not None:
                lower, upper = (self.of(bound, depth + 1) for bound in bounds)
                return Range(lower.low, upper.high - 1) if lower.low < upper.high else lower
            return self._symbol(value.name) if value in self.scope.emitter.body.arguments else None
        match op:
            case ops.DimValue():
                return Range(0, 2**63 - 1) if op.symbol in self.scope.signature.strides else Range(1, MAX_DIM)
            case ops.BlockId() | ops.NumBlocks():
                return self._grid(op)
            case ops.Load() | ops.Gather():
                return self._stored(op)
            case ops.Select():
                return join(*(self.of(operand, depth + 1) for operand in op.operands[1:]))
            case _ if not op.regions:
                return op.result_range([self.of(operand, depth + 1) for operand in op.operands])
            case _:
                return None

    def _grid(self, op: ops.BlockId | ops.NumBlocks) -> Range:
        limit = _GRID_LIMITS[op.axis]
        grid = self.scope.function.grid
        if op.axis < len(grid):
            limit = max(1, min(limit, self._expression(grid[op.axis]).high))
        return Range(0, limit - 1) if isinstance(op, ops.BlockId) else Range(1, limit)

    def _stored(self, op: ops.Load | ops.Gather) -> Range | None:
        """The range that `values` declares, joined with that of the padding. It is about elements inside the tensor before the
        launch, so that it says nothing of a tensor that the kernel writes, or of an unsafe read."""
        if self.scope.function.parameter_of(op.source).access is not Access.IN or op.unsafe is not None:
            return None
        found: Range | None = None
        for fact in self.scope.function.values:
            if fact.tensor == op.source.name:
                declared = Range(self._expression(fact.low).low, self._expression(fact.high).high - 1)
                found = within(found or declared, declared.low, declared.high) if declared.low <= declared.high else found
        return found if found is None or op.pad is None else join(found, exactly(int(op.pad)))

    def _expression(self, expr: Expr, restricted: bool = True) -> Range:
        if expr.op == "const":
            return exactly(expr.value)
        if expr.op == "sym":
            return self._symbol(expr.name) if restricted else self._symbol_of_type(expr.name)
        kind = _KINDS.get(expr.op)
        operands = [self._expression(arg, restricted) for arg in expr.args]
        return (arithmetic(kind, operands[0], operands[1]) if kind is not None else None) or Range(0, 1)

    def _symbol_of_type(self, name: str) -> Range:
        scalar = self.scope.emitter.scalars.get(name)
        if scalar is not None:
            return of_dtype(scalar.tile.dtype)
        return Range(0, 2**63 - 1) if name in self.scope.signature.strides else Range(1, MAX_DIM)

    def _symbol(self, name: str) -> Range:
        """Range of a launch value, within the bounds of `requires`."""
        return self._required(sym(name), self._symbol_of_type(name))

    def _required(self, expr: Expr, found: Range) -> Range:
        """`found` within the bounds that `requires` states for an expression."""
        pending = [one.condition for one in self.scope.function.requires]
        while pending:
            part = pending.pop()
            if part.op == "and":
                pending += part.args
            for low, high in self._bounds(part, expr):
                found = within(found, low, high) or found
        return found

    def _bounds(self, part: Expr, expr: Expr) -> list[tuple[int, int]]:
        """Bounds that one comparison states for an expression that is one of its sides."""
        if part.op not in ("<", "<=", ">", ">=", "=="):
            return []
        found: list[tuple[int, int]] = []
        for side, other in (part.args, part.args[::-1]):
            if side == expr:
                known = self._expression(other, restricted=False)
                below = part.op[0] == ("<" if side is part.args[0] else ">")
                strict = int(len(part.op) == 1)
                low = known.low if part.op == "==" else -(2**64) if below else known.low + strict
                high = known.high if part.op == "==" else known.high - strict if below else 2**64
                found.append((low, high))
        return found
