"""Builders of words that are short for an expression of other words."""

from __future__ import annotations

import math

from tilec.frontend import arithmetic
from tilec.frontend.arguments import Call
from tilec.frontend.emitter import Term, as_float, tile_type
from tilec.frontend.vocabulary import word


@word("clamp")
def clamp(call: Call) -> Term:
    """`minimum(maximum(x, low), high)`."""
    term, low, high = call.bind("x low high")
    return arithmetic.binary(call.emitter, "min", arithmetic.binary(call.emitter, "max", term, low, call.at), high, call.at)


@word("isnan", "isinf", "isfinite")
def kind_of_float(call: Call) -> Term:
    """`x != x`, `abs(x) == inf`, `abs(x) < inf`; E0204 if `x` has no floats."""
    (term,) = call.bind("x")
    at = call.location(0)
    if isinstance(term, bool | int | float):
        term = as_float(term, at)
    elif not (dtype := tile_type(term, at).dtype).is_float:
        raise at.error("E0204", f"`{call.word}` takes floats, not {dtype}", hint="every integer and bool is a finite number")
    if call.word == "isnan":
        return arithmetic.compare(call.emitter, "ne", term, term, call.at)
    size = arithmetic.function(call.emitter, "abs", term, at)
    return arithmetic.compare(call.emitter, "eq" if call.word == "isinf" else "lt", size, math.inf, call.at)
