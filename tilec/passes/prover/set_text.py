"""isl text of polynomials, formulas and cases.

isl reads `nan`, `Max` or `INFTY` as words of its own, in any case, and a set that mentions NaN is empty to it. So no list of
words decides what may name a variable: isl itself is asked (`is_name`).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field

import islpy

from tilec.passes.prover.nonlinear import Case
from tilec.passes.prover.terms import Formula, Monomial, Poly

VALUE = 7
"""What a variable is set to when isl is asked whether it is one."""


@functools.cache
def is_name(text: str) -> bool:
    """Whether isl reads a text as the name of a variable in every form that is written here: integer and rational sets, with a
    coefficient, and bound by `exists`."""
    other = f"{text}__"
    forms = (
        f"{{ [{other}, {text}] : 2*{text} = {2 * VALUE} and {other} = {text} }}",
        f"{{ rat: [{other}, {text}] : {text} = {VALUE} and {other} = {text} }}",
        f"{{ [first_, {other}] : (exists ({text} : {text} = {VALUE} and {other} = {text})) }}",
    )
    try:
        return all(_holds(islpy.Set.read_from_str(_context(), form)) for form in forms)
    except islpy.Error:
        return False


def _holds(points: islpy.Set) -> bool:
    """Whether the second coordinate of a point of the set is what the variable was set to."""
    return not points.is_empty() and points.sample_point().get_coordinate_val(islpy.dim_type.set, 1).to_python() == VALUE


@functools.cache
def _context() -> islpy.Context:
    return islpy.Context()


@dataclass(slots=True)
class Names:
    """isl identifiers of monomials, in order of first use."""

    order: list[Monomial] = field(default_factory=list[Monomial])
    _text: dict[Monomial, str] = field(default_factory=dict[Monomial, str])
    _used: set[str] = field(default_factory=set[str])

    def copy(self) -> Names:
        """The same names so far; later additions are independent."""
        return Names(list(self.order), dict(self._text), set(self._used))

    def of(self, monomial: Monomial) -> str:
        """The identifier of a monomial."""
        text = self._text.get(monomial)
        if text is None:
            self.order.append(monomial)
            joined = "_x_".join(atom.name for atom in monomial)
            text = re.sub(r"\W|^(?=\d)", "_", joined, flags=re.ASCII)
            while text in self._used or not is_name(text):
                text += "_"
            self._used.add(text)
            self._text[monomial] = text
        return text


def poly_text(poly: Poly, names: Names) -> str:
    parts: list[str] = []
    for monomial, coefficient in poly.terms.items():
        if not monomial:
            parts.append(str(coefficient))
        else:
            parts.append(names.of(monomial) if coefficient == 1 else f"{coefficient}*{names.of(monomial)}")
    return " + ".join(parts) or "0"


def formula_text(formula: Formula, names: Names) -> str:
    if formula.op == "ge":
        return f"{poly_text(formula.poly, names)} >= 0"
    if formula.op == "eq":
        return f"{poly_text(formula.poly, names)} = 0"
    if not formula.parts:
        return "true" if formula.op == "and" else "false"
    return f" {formula.op} ".join(
        f"({formula_text(part, names)})" if part.parts else formula_text(part, names) for part in formula.parts
    )


def set_text(formula: Formula, names: Names | None = None) -> str:
    """isl text of the set of all atom values that satisfy a formula."""
    names = names or Names()
    body = formula_text(formula, names)
    return f"{{ [{', '.join(map(names.of, names.order))}] : {body} }}"


def case_text(case: Case, names: Names) -> str:
    parts = [f"{poly_text(p, names)} >= 0" for p in case.inequalities]
    parts += [f"{poly_text(p, names)} = 0" for p in case.equalities]
    body = " and ".join(parts) or "true"
    return f"{{ [{', '.join(map(names.of, names.order))}] : {body} }}"
