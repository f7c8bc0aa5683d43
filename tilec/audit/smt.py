"""The interface to z3: terms go in as they are built, verdicts and models come out.

Terms are z3 expressions over unbounded integers (`Int`) and booleans; the callers encode wrap-around and division. `check`
decides whether assertions have a model, within a budget counted in z3's own steps. It uses no clock, so a verdict does not
depend on the load of the machine. Products of unknowns are tried unchanged, then by case splits over terms that the caller
lists, then with the solver for non-linear integers, then with another random seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

z3: Any = import_module("z3")
"""z3 has no type stubs; everything typed as `Term` is a z3 expression."""

Term = Any

STEPS: Final = 6_000_000
"""Budget of one attempt in z3's resource units (`rlimit`), about two to five seconds of a core."""
OBLIGATION_STEPS: Final = 120_000_000
"""Budget of all attempts for one obligation together, about one to two minutes."""
OUT_OF_STEPS: Final = ("canceled", "max. resource limit exceeded")
"""z3's reasons for an attempt that used up its resource units."""

_context: list[Any] = [z3.main_ctx()]


def fresh() -> None:
    """Discards all terms. Term ids influence z3's search, so a new context makes results independent of earlier queries."""
    _context[0] = z3.Context()


def version() -> str:
    return z3.get_version_string()


def integer(value: int) -> Term:
    return z3.IntVal(value, _context[0])


def unknown(name: str) -> Term:
    """An unconstrained integer."""
    return z3.Int(name, _context[0])


def unknown_boolean(name: str) -> Term:
    """An unconstrained boolean."""
    return z3.Bool(name, _context[0])


def boolean(value: bool) -> Term:
    """A boolean constant."""
    return z3.BoolVal(value, _context[0])


def constant(term: Term) -> int | None:
    """The value of a constant, otherwise None."""
    return term.as_long() if z3.is_int_value(term) else None


def constant_boolean(term: Term) -> bool | None:
    """The value of a boolean constant, otherwise None."""
    if z3.is_true(term):
        return True
    return False if z3.is_false(term) else None


def identity(term: Term) -> int:
    """An id that equal terms share while one of them is alive."""
    return term.get_id()


def add(left: Term, right: Term) -> Term:
    """Sum, folded if both are constants or one is zero."""
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return integer(a + b)
    if a == 0:
        return right
    return left if b == 0 else left + right


def sub(left: Term, right: Term) -> Term:
    """Difference, folded likewise."""
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return integer(a - b)
    return left if b == 0 else left - right


def mul(left: Term, right: Term) -> Term:
    """Product, folded likewise."""
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return integer(a * b)
    if a == 0 or b == 0:
        return integer(0)
    if a == 1:
        return right
    return left if b == 1 else left * right


def choose(condition: Term, on_true: Term, on_false: Term) -> Term:
    """One of two terms of one type, by a condition."""
    known = constant_boolean(condition)
    if known is not None:
        return on_true if known else on_false
    return on_true if on_true.eq(on_false) else z3.If(condition, on_true, on_false)


def smaller(left: Term, right: Term) -> Term:
    """The minimum."""
    a, b = constant(left), constant(right)
    return integer(min(a, b)) if a is not None and b is not None else choose(left <= right, left, right)


def larger(left: Term, right: Term) -> Term:
    """The maximum."""
    a, b = constant(left), constant(right)
    return integer(max(a, b)) if a is not None and b is not None else choose(left >= right, left, right)


def compare(kind: str, left: Term, right: Term) -> Term:
    """`left kind right` for eq, ne, lt, le, gt, ge; folded if both are constants."""
    match kind:
        case "eq":
            found = left == right
        case "ne":
            found = left != right
        case "lt":
            found = left < right
        case "le":
            found = left <= right
        case "gt":
            found = left > right
        case _:
            found = left >= right
    if constant(left) is not None and constant(right) is not None:
        return z3.simplify(found)
    return found


def every(terms: Iterable[Term]) -> Term:
    """Conjunction, folded."""
    kept = [term for term in terms if not z3.is_true(term)]
    if any(z3.is_false(term) for term in kept):
        return boolean(False)
    return boolean(True) if not kept else kept[0] if len(kept) == 1 else z3.And(*kept)


def some(terms: Iterable[Term]) -> Term:
    """Disjunction, folded."""
    kept = [term for term in terms if not z3.is_false(term)]
    if any(z3.is_true(term) for term in kept):
        return boolean(True)
    return boolean(False) if not kept else kept[0] if len(kept) == 1 else z3.Or(*kept)


def negate(term: Term) -> Term:
    """Negation, folded."""
    known = constant_boolean(term)
    return boolean(not known) if known is not None else z3.Not(term)


def implies(condition: Term, then: Term) -> Term:
    """Implication, folded."""
    return some([negate(condition), then])


def mentioned(terms: Iterable[Term]) -> set[str]:
    """Names of all unknowns in terms."""
    found: set[str] = set()
    seen: set[int] = set()
    pending = list(terms)
    while pending:
        term = pending.pop()
        if term.get_id() in seen:
            continue
        seen.add(term.get_id())
        if term.num_args():
            pending += term.children()
        elif z3.is_const(term) and term.decl().kind() == z3.Z3_OP_UNINTERPRETED:
            found.add(term.decl().name())
    return found


def replaced(term: Term, pairs: Sequence[tuple[Term, Term]]) -> Term:
    """`term` with the first of each pair replaced by the second, simultaneously."""
    return z3.substitute(term, *pairs) if pairs else term


@dataclass(frozen=True, slots=True)
class SolverResult:
    """`verdict`: none (no model), found, or undecided (with a `reason`); `model` has the integers of a model by name."""

    verdict: str
    model: dict[str, int] = field(default_factory=dict[str, int])
    reason: str = ""


@dataclass(slots=True)
class Budget:
    """The budget of an obligation in z3's resource units: `steps` per attempt, `total` for all attempts since `begin`. They
    are the same on every machine under any load. `used` counts them."""

    steps: int = STEPS
    total: int = OBLIGATION_STEPS
    used: int = 0

    def begin(self) -> None:
        """Starts the next obligation."""
        self.used = 0

    def exhausted(self) -> bool:
        """Whether nothing is left for this obligation."""
        return self.used >= self.total

    def reason_exhausted(self) -> str:
        """The reason why an obligation without remaining budget is undecided."""
        return f"the solver's budget of {self.total} steps for one obligation is spent"


def check(assertions: Sequence[Term], budget: Budget, splits: Sequence[tuple[Term, int, int]] = ()) -> SolverResult:
    """Whether the assertions have a model. `splits` are integer terms with their bounds that may be tried value by value."""
    result = _attempt(assertions, budget, "default")
    if result.verdict == "undecided" and splits:
        result = _by_cases(assertions, budget, splits)
    for kind in ("QF_NIA", "other order"):
        if result.verdict == "undecided":
            result = _attempt(assertions, budget, kind)
    return result


def _by_cases(assertions: Sequence[Term], budget: Budget, splits: Sequence[tuple[Term, int, int]]) -> SolverResult:
    (term, low, high), rest = splits[0], splits[1:]
    cases = [some([term < low, term > high]), *(term == value for value in range(low, high + 1))]
    for case in cases:
        result = _attempt([*assertions, case], budget, "default")
        if result.verdict == "undecided" and rest:
            result = _by_cases([*assertions, case], budget, rest)
        if result.verdict != "none":
            return result
    return SolverResult("none")


def _attempt(assertions: Sequence[Term], budget: Budget, kind: str) -> SolverResult:
    if budget.exhausted():
        return SolverResult("undecided", reason=budget.reason_exhausted())
    limit = min(3 * budget.steps if kind == "other order" else budget.steps, budget.total - budget.used)
    solver = z3.SolverFor(kind, ctx=_context[0]) if kind == "QF_NIA" else z3.Solver(ctx=_context[0])
    solver.set("rlimit", limit)
    if kind == "other order":
        solver.set("random_seed", 7)
    used_before = _steps(solver)
    solver.add(*assertions)
    verdict = solver.check()
    budget.used += max(_steps(solver) - used_before, 1)
    if verdict == z3.unsat:
        return SolverResult("none")
    if verdict == z3.sat:
        model = solver.model()
        values = {str(one): model[one] for one in model.decls() if one.arity() == 0}
        numbers = {name: value.as_long() for name, value in sorted(values.items()) if z3.is_int_value(value)}
        return SolverResult("found", numbers)
    if budget.exhausted():
        return SolverResult("undecided", reason=budget.reason_exhausted())
    message = str(solver.reason_unknown())
    explanation = f"within {limit} steps" if message in OUT_OF_STEPS else f"and gave up ({message})"
    return SolverResult("undecided", reason=f"z3 found neither a proof nor a counterexample {explanation}")


def _steps(solver: Any) -> int:
    """The resource units that a solver's context has used."""
    statistics = solver.statistics()
    return statistics.get_key_value("rlimit count") if "rlimit count" in statistics.keys() else 0  # noqa: SIM118
