"""Context of the statements of one function: names, module, emitter and the kernel being built."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from tilec.diagnostics.diagnostic import Diagnostic, Fix
from tilec.diagnostics.spelling import nearest
from tilec.frontend.emitter import At, Emitter, Poison, Term, usable
from tilec.frontend.liveness import Liveness
from tilec.frontend.module import (
    NUMBERS,
    WORDS,
    DimName,
    ElementName,
    Entry,
    Foreign,
    Module,
    Routine,
    Word,
    dtype_word,
    is_word,
)
from tilec.frontend.signature import Signature, dtype_named
from tilec.ir.core import Function
from tilec.ir.types import DTYPES

BUILTINS = frozenset({"range", "min", "max", "abs", "round", "float", "int", "bool", "len", "print"})


@dataclass(frozen=True, slots=True)
class Returned:
    """The function returned this value."""

    value: Term


@dataclass(frozen=True, slots=True)
class Builders:
    """Callbacks that build a call, and the body of a called function. Expressions contain calls, calls inline bodies, and
    bodies contain expressions; passing the callbacks down keeps the imports among `expressions`, `calls` and `statements`
    acyclic."""

    call: Callable[[Scope, ast.Call], Term]
    body: Callable[[Scope, list[ast.stmt]], Returned | None]


@dataclass(eq=False, slots=True)
class Scope:
    """One function being built: the kernel, or a tile function inlined into it."""

    module: Module
    function: Function
    signature: Signature
    emitter: Emitter
    env: dict[str, Term]
    locals: frozenset[str]
    liveness: Liveness
    problems: list[Diagnostic]
    builders: Builders
    callers: tuple[Routine, ...] = ()
    depth: int = 0
    """Nesting depth inside `for`, `with`, and `if` with a condition that is no constant; launch directives are valid only at
    depth 0 of the kernel."""

    def at(self, node: ast.AST) -> At:
        """The location of a node."""
        return At(self.module.source, node)

    grid_axes: dict[int, At] = field(default_factory=dict[int, At])
    """First use of each grid axis."""

    @property
    def is_kernel(self) -> bool:
        return len(self.callers) == 1

    def name(self, node: ast.Name) -> Term | Entry:
        """The meaning of a name; E0108."""
        at = self.at(node)
        if node.id in self.env:
            return usable(self.env[node.id])
        if node.id in self.locals:
            raise at.error("E0108", f"`{node.id}` is used before it is set", hint="set it before this line")
        return self.entry(node, at)

    def _known(self) -> set[str]:
        """Candidates for spelling suggestions."""
        return {*self.env, *self.locals, *self.module.names, *BUILTINS, *WORDS}

    def entry(self, node: ast.Name, at: At) -> Term | Entry:
        """The meaning of a module-level name."""
        entry = self.module.names.get(node.id)
        if entry is None:
            if node.id in BUILTINS:
                return Word(f"builtins.{node.id}")
            fixes: tuple[Fix, ...] = ()
            if is_word(node.id):
                hint = f"import it: `from tilec import {node.id}`"
                fixes = (Fix("import it", "import", node.id, at.span, certain=True),)
            else:
                near = nearest(node.id, self._known())
                hint = f"did you mean `{near}`?" if near else "check the spelling"
                fixes = at.source.instead(node, near) if near else ()
            raise at.error("E0108", f"`{node.id}` is not defined", hint=hint, fixes=fixes)
        if isinstance(entry, Foreign):
            raise at.error("E0108", f"`{node.id}` is {entry.why}", hint="kernels use the words of `tilec` and tile functions")
        if isinstance(entry, DimName):
            return self.dim(entry.name, at)
        if isinstance(entry, ElementName):
            value = self.signature.constants.get(entry.name)
            if not isinstance(value, str):
                raise at.error("E0214", f"Element `{entry.name}` has no constant of its name",
                        hint=f"add `{entry.name}: Const` to the kernel, after the `*`")  # fmt: skip
            return DTYPES[value]
        if isinstance(entry, Word) and dtype_word(entry.name):
            return dtype_named(entry.name)
        if isinstance(entry, Word) and entry.name in NUMBERS:
            return NUMBERS[entry.name]
        return entry

    def dim(self, name: str, at: At) -> Term:
        """Value of a dim: its constant, the integer parameter of that name, or the symbolic value; E0214."""
        value = self.signature.constants.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        for parameter in self.function.parameters:
            if parameter.name == name and parameter.access is None:
                return parameter.value
        if name not in self.signature.dims:
            raise at.error("E0214", f"dim `{name}` is in no tensor of the kernel, so its value is unknown at launch",
                    hint=f"use it in a tensor's type, or make it a constant: `{name}: Const`")  # fmt: skip
        return self.emitter.dim(name, at)

    def poison(self, names: list[str], diagnostic: Diagnostic | None = None) -> None:
        """Makes names unusable; later uses are silent, or report `diagnostic`."""
        for name in names:
            self.env[name] = Poison(diagnostic)
