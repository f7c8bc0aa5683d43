"""Assignment of terms to names."""

from __future__ import annotations

import ast

from tilec.frontend.emitter import Term, describe
from tilec.frontend.scope import Scope
from tilec.ir.core import Block, Value


def bind(scope: Scope, target: ast.expr, term: Term) -> None:
    """Binds names to a term; E0105 for targets other than names."""
    at = scope.at(target)
    if isinstance(target, ast.Name):
        if term is None:
            raise at.error("E0217", "the right side has no value", hint="call it on a line of its own")
        scope.env[target.id] = term
        scope.emitter.stands_for(at, term)
        if isinstance(term, Value) and not term.name and not isinstance(term.owner, Block):
            term.name = target.id
        return
    if isinstance(target, ast.Tuple | ast.List):
        if not isinstance(term, tuple) or len(term) != len(target.elts):
            raise at.error(
                "E0217", f"cannot unpack {describe(term)} into {len(target.elts)} names", hint="assign to one name per element"
            )
        for element, part in zip(target.elts, term, strict=True):
            bind(scope, element, part)
        return
    hint = "write with `store(out, index, tile)`" if isinstance(target, ast.Subscript) else "assign to a plain name"
    raise at.error("E0105", "only names can be assigned", hint=hint)
