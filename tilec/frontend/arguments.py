"""Arguments of a call to a word: binding by position and name, and checks of the forms that words accept."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from tilec.diagnostics.spelling import ask_first
from tilec.frontend.emitter import MAX_TILE, At, Emitter, Term, describe, refuse_codes, usable
from tilec.frontend.scope import Scope
from tilec.ir.core import Access, Parameter, Value
from tilec.ir.types import DTYPES, PACKED, DType, TensorType


class Missing:
    """An optional argument that was not given."""


MISSING: Final = Missing()

_OF_RANKS: Final[dict[Access | None, str]] = {
    Access.PEER: "each rank writes its part in a launch before this one, and others read it until they have left the next meet",
    Access.SIGNAL: "only `meet` takes signals",
}

TAKE_FUNCTION: Final = ("scan",)
"""Words whose first argument is a tile function of two arguments."""


_TAKE_CODES: Final = ("astype", "store")
"""Words that take tiles of packed dtypes."""


@dataclass(slots=True)
class Call:
    """A call with its arguments evaluated."""

    scope: Scope
    node: ast.Call
    word: str
    arguments: list[Term]
    keywords: dict[str, Term]
    function: Callable[[Term, Term], Term] | None = None
    """Applies the tile function that is the first argument of a word in `TAKE_FUNCTION`; the other arguments are counted
    from there."""

    @property
    def at(self) -> At:
        return self.scope.at(self.node)

    @property
    def emitter(self) -> Emitter:
        return self.scope.emitter

    def location(self, position: int) -> At:
        """Location of a positional argument, else of the call itself."""
        args = self.node.args[1:] if self.function is not None else self.node.args
        return self.scope.at(args[position]) if position < len(args) else self.at

    def bind_optional(self, positional: str, keywords: str = "") -> list[Term | Missing]:
        """Values in the order of the names; a name that ends in `?` is optional; E0113."""
        names = [name.rstrip("?") for name in positional.split()]
        every = [*names, *(name.rstrip("?") for name in keywords.split())]
        optional = {name[:-1] for name in (*positional.split(), *keywords.split()) if name.endswith("?")}
        shown = self.word.removeprefix("builtins.")
        if len(self.arguments) > len(names):
            count = f"{len(names)} argument{'s' * (len(names) != 1)}" + " by position" * bool(keywords)
            hint = f"its parameters: {', '.join(every)}"
            if keywords:
                hint = f"by position: {', '.join(names)}; by name: {', '.join(every[len(names) :])}"
            raise self.at.error("E0113", f"`{shown}` takes {count}, {len(self.arguments)} given", hint=hint)
        found: dict[str, Term] = dict(zip(names, self.arguments, strict=False))
        for name, term in self.keywords.items():
            if name not in every or name in found:
                wrong = "is given twice" if name in found else "is not a parameter"
                hint = ask_first(name, set(every) - found.keys(), f"its parameters: {', '.join(every)}")
                raise self.at.error("E0113", f"`{name}` {wrong} of `{shown}`", hint=hint)
            found[name] = term
        for name in every:
            if name not in found and name not in optional:
                raise self.at.error(
                    "E0113", f"`{shown}` needs an argument for `{name}`", hint=f"its parameters: {', '.join(every)}"
                )
        if self.word not in _TAKE_CODES:
            for term in found.values():
                refuse_codes(term, self.at)
        return [usable(found[name]) if name in found else MISSING for name in every]

    def bind(self, positional: str) -> list[Term]:
        """Values of required arguments."""
        return [term for term in self.bind_optional(positional) if not isinstance(term, Missing)]

    def tensor(self, term: Term, allowed: tuple[Access, ...], verb: str) -> tuple[Value, Parameter]:
        """A tensor argument whose declared access allows `verb`; E0207, E0217."""
        parts = term if isinstance(term, tuple) else ()
        if parts and all(isinstance(one, Value) and isinstance(one.type, TensorType) for one in parts):
            hint = "name one of them, such as `x[0]`, or loop over all: `for part in x:`"
            raise self.location(0).error(
                "E0217", f"`{self.word}` takes one tensor, found those of {len(parts)} ranks", hint=hint
            )
        if not isinstance(term, Value) or not isinstance(term.type, TensorType):
            raise self.location(0).error("E0217", f"`{self.word}` takes a tensor, found {describe(term)}",
                               hint="pass a parameter declared `In`, `Out`, `InOut`, `Scratch` or `Atomic`")  # fmt: skip
        parameter = self.scope.function.parameter_of(term)
        if parameter.access not in allowed:
            names = [{"INOUT": "InOut"}.get(a.name, a.name.title()) for a in allowed if a is not Access.PEER]
            declared = parameter.access.name if parameter.access else ""
            shown = {"INOUT": "InOut"}.get(declared, declared.title())
            hint = _OF_RANKS.get(parameter.access) or f"declare it `{'` or `'.join(names)}`"
            message = f"`{parameter.name}` is declared `{shown}` and cannot be {verb}"
            raise self.location(0).error("E0207", message, hint=hint)
        return term, parameter

    def dtype(self, term: Term) -> DType:
        """A dtype argument; E0201."""
        if isinstance(term, DType):
            if term in PACKED.values() and self.word != "astype":
                raise self.at.error("E0201", f"`{self.word}` makes no {term}, whose elements share a byte",
                             hint=f"compute with a wider dtype, and store it with `.astype({term})`")  # fmt: skip
            return term
        if isinstance(term, str) and term in DTYPES:
            return DTYPES[term]
        raise self.at.error("E0201", f"`{self.word}` takes a dtype, found {describe(term)}", hint="one of " + ", ".join(DTYPES))

    def dims(self, term: Term, what: str = "a shape", *, infer: bool = False) -> tuple[int, ...]:
        """A shape argument: static positive extents; E0203."""
        items = term if isinstance(term, tuple) else (term,)
        size, shape = 1, list[int]()
        for item in items:
            item = usable(item)
            if not isinstance(item, int) or isinstance(item, bool):
                hint = "tile shapes are constants: make the dim a `Const`, or use a constant block size"
                raise self.at.error("E0203", f"{what} is static, found {describe(item)}", hint=hint)
            if item < 1 and not (infer and item == -1):
                raise self.at.error("E0203", f"{what} has extent {item}", hint="extents are positive")
            size *= abs(item)
            shape.append(item)
        if size > MAX_TILE:
            count = size if size.bit_length() <= 64 else "over 2^64"  # beyond what is readable, or what Python prints
            raise self.at.error(
                "E0203", f"the tile has {count} elements", hint=f"a tile has at most {MAX_TILE}; use a smaller block"
            )
        return tuple(shape)

    def axis(self, term: Term, rank: int) -> int:
        """An axis argument; negative axes count from the end; E0203."""
        hint = f"name an axis from 0 to {rank - 1}" if rank else "a scalar has no axes"
        if not isinstance(term, int) or isinstance(term, bool):
            if self.word in ("max", "min") and isinstance(term, Value):
                hint = f"to compare two tiles, use `{self.word}imum(a, b)`"
            raise self.at.error("E0203", f"`{self.word}` takes an axis, found {describe(term)}", hint=hint)
        if not -rank <= term < rank:
            raise self.at.error("E0203", f"no axis {describe(term)} in a tile with {rank} axes", hint=hint)
        return term % rank

    def flag(self, term: Term | Missing, name: str) -> bool:
        """A True or False argument; E0203."""
        if isinstance(term, Missing):
            return False
        if not isinstance(term, bool):
            raise self.at.error("E0203", f"`{name}` is `True` or `False`, found {describe(term)}", hint=f"write `{name}=True`")
        return term
