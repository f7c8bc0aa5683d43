"""Shrinks a kernel while a property stays true of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from tests.soundness.description import Branch, Description, Loop, Statement, source
from tests.soundness.mutations import slots
from tests.soundness.sketch import WideKernel, with_imports
from tests.soundness.source_edits import shrink_source
from tests.soundness.verdict import examine


def smallest(kernel: Description | WideKernel) -> str:
    """Text of the smallest kernel found that is accepted although enumeration refutes it; `kernel` itself must be."""
    if isinstance(kernel, Description):
        return source(shrink(kernel, lambda candidate: examine(candidate).kind == "false_accept"))

    def has_property(text: str) -> bool:
        try:
            return examine(WideKernel("", with_imports(text))).kind == "false_accept"
        except Exception:  # a crash of the prover is another property
            return False

    return with_imports(shrink_source(kernel.text, has_property))


def shrink(kernel: Description, has_property: Callable[[Description], bool]) -> Description:
    """The smallest kernel found with the property by removing one thing at a time; `kernel` itself must have it."""
    while True:
        smaller = next((candidate for candidate in _smaller(kernel) if has_property(candidate)), None)
        if smaller is None:
            return kernel
        kernel = smaller


def _smaller(kernel: Description) -> Iterator[Description]:
    for path in list(_statement_paths(kernel.body)):
        candidate = copy.deepcopy(kernel)
        body, index = _find(candidate.body, path)
        del body[index]
        if candidate.body:
            yield candidate
        candidate = copy.deepcopy(kernel)
        body, index = _find(candidate.body, path)
        statement = body[index]
        if isinstance(statement, Branch):
            body[index : index + 1] = statement.then
            yield candidate
    for index in range(len(kernel.requires)):
        candidate = copy.deepcopy(kernel)
        del candidate.requires[index]
        yield candidate
    for index, (container, key, _, _) in enumerate(slots(kernel)):
        expr = container[key] if isinstance(key, int) else getattr(container, key)
        replacements: list[Any] = [expr[1], expr[2]] if isinstance(expr, tuple) else []
        replacements += [0, expr // 2] if isinstance(expr, int) and expr > 1 else []
        for replacement in replacements:
            candidate = copy.deepcopy(kernel)
            holder, name, _, _ = slots(candidate)[index]
            if isinstance(name, int):
                holder[name] = replacement
            else:
                setattr(holder, name, replacement)
            yield candidate


def _statement_paths(body: list[Statement], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for index, statement in enumerate(body):
        yield (*path, index)
        if isinstance(statement, Loop):
            yield from _statement_paths(statement.body, (*path, index, "body"))
        elif isinstance(statement, Branch):
            yield from _statement_paths(statement.then, (*path, index, "then"))
            yield from _statement_paths(statement.otherwise, (*path, index, "otherwise"))


def _find(body: list[Statement], path: tuple[Any, ...]) -> tuple[list[Statement], int]:
    while len(path) > 1:
        body, path = getattr(body[path[0]], path[1]), path[2:]
    return body, path[0]
