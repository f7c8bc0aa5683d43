"""Translates launch values that the host knows (sizes, grid, preconditions) into polynomials and formulas."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilec.ir.core import Function
from tilec.ir.expr import COMPARISONS, Expr
from tilec.passes.analysis.declared_ranges import required
from tilec.passes.analysis.ranges import GRID_LIMITS, Range, expr_range
from tilec.passes.prover import terms
from tilec.passes.prover.atoms import Atoms
from tilec.passes.prover.terms import Atom, Formula, Kind, Poly


def compare(operator: str, left: Poly, right: Poly) -> Formula:
    match operator:
        case "==":
            return terms.eq(left, right)
        case "!=":
            return terms.ne(left, right)
        case "<":
            return terms.lt(left, right)
        case "<=":
            return terms.ge(right, left)
        case ">":
            return terms.lt(right, left)
        case _:
            return terms.ge(left, right)


@dataclass(slots=True)
class HostTerms:
    """The translation of launch values, and arithmetic on translated values. `positive`: those of `positive_symbols`;
    `divided_by_host`: the quotients that are unknowns, each with its expression."""

    function: Function
    atoms: Atoms = field(default_factory=Atoms)
    symbols: dict[str, Range] = field(default_factory=dict[str, Range])
    grid: tuple[Poly, ...] = ()
    positive: frozenset[str] = frozenset()
    divided_by_host: dict[Atom, Expr] = field(default_factory=dict[Atom, Expr])

    def symbol(self, name: str) -> Poly:
        """A dim, stride or integer scalar parameter."""
        bounds = self.symbols[name]
        return terms.of(self.atoms.make(name, Kind.SYMBOL, name, (bounds.low, bounds.high), varies=False))

    def block(self, axis: int) -> Poly:
        """The block id on a grid axis."""
        if axis >= len(self.grid) or self.grid[axis] == terms.ONE:
            return terms.ZERO
        high = min(terms.interval(self.grid[axis])[1], GRID_LIMITS[axis])
        args = (self.grid[axis],)
        return terms.of(self.atoms.make(axis, Kind.BLOCK, f"b{axis}", (0, max(0, high - 1)), args=args, level=axis))

    def expression(self, expr: Expr) -> Poly:
        """A host expression."""
        if expr.op == "const":
            return terms.const(expr.value)
        if expr.op == "sym":
            return self.symbol(expr.name)
        if expr.op not in ("+", "-", "*", "//", "%", "min", "max"):
            return self.choose(self.predicate(expr), terms.ONE, terms.ZERO)
        left, right = (self.expression(arg) for arg in expr.args)
        kind = {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}.get(expr.op, expr.op)
        if kind in ("floordiv", "mod") and terms.interval(right)[0] < 1 and not self._is_positive(right):
            # The host may divide by a negative number, which a quotient atom does not describe. It never divides by zero: such
            # a launch is rejected.
            fact = expr_range(expr, self.symbols)
            atom = self.atoms.make(str(expr), Kind.OPAQUE, "h", (fact.low, fact.high), varies=False)
            self.divided_by_host[atom] = expr
            return terms.of(atom)
        result = self.arithmetic(kind, left, right)
        assert result is not None
        return result

    def _is_positive(self, value: Poly) -> bool:
        return any(value == self.symbol(name) for name in self.positive)

    def predicate(self, expr: Expr) -> Formula:
        """A host predicate; an expression that is no comparison or connective is true if it is not zero."""
        if expr.op in COMPARISONS:
            return compare(expr.op, self.expression(expr.args[0]), self.expression(expr.args[1]))
        if expr.op in ("and", "or"):
            parts = [self.predicate(arg) for arg in expr.args]
            return terms.conjunction(parts) if expr.op == "and" else terms.disjunction(parts)
        return terms.ne(self.expression(expr))

    def choose(self, condition: Formula, on_true: Poly, on_false: Poly) -> Poly:
        """`on_true` or `on_false`, by a condition."""
        return self.atoms.choice(((condition, on_true), (terms.negate(condition), on_false)))

    def arithmetic(self, kind: str, left: Poly, right: Poly) -> Poly | None:
        """`left kind right` over the integers; None if it is no polynomial or derived atom."""
        match kind:
            case "add":
                return left + right
            case "sub":
                return left - right
            case "mul":
                return left * right
            case "floordiv":
                return self.atoms.quotient(left, right)
            case "mod":
                return left - right * self.atoms.quotient(left, right)
            case "min":
                return self.atoms.minimum(left, right)
            case "max":
                return self.atoms.maximum(left, right)
            case _:
                return None


def positive_symbols(function: Function) -> frozenset[str]:
    """Symbols that `requires` makes positive, and that no precondition divides by: a quotient that a precondition compares with
    a size is one unknown, which keeps systems linear."""
    divided: set[str] = set()
    pending = [precondition.condition for precondition in function.requires]
    while pending:
        expr = pending.pop()
        pending += expr.args
        if expr.op in ("//", "%") and expr.args[1].op == "sym":
            divided.add(expr.args[1].name)
    return frozenset(bound.symbol for bound in required(function) if bound.low >= 1 and bound.symbol not in divided)
