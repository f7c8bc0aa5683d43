"""Generates the page of the Python interface: `tilec.op`, `tilec.compile` and `tilec.runtime`, with signatures and
docstrings."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import tilec.runtime
from ci.docs.signatures import laid_out
from tilec.ops import Op, op
from tilec.project.build.just_in_time import compile


def api() -> str:
    """The page. Of `tilec.runtime`, all exports."""
    parts = ["# Python interface\n", "Made from the sources. [Launching](launching.md) shows how it is used.\n", "## tilec\n"]
    parts += [_entry("tilec.op", op), _entry("tilec.compile", compile), _entry("Op", Op), "## tilec.runtime\n"]
    parts += [_entry(f"tilec.runtime.{name}", getattr(tilec.runtime, name)) for name in sorted(tilec.runtime.__all__)]
    return "\n".join(parts)


def _entry(name: str, what: Any) -> str:
    parts = [f"### {name} {{: #{name.lower().replace('.', '-')} }}\n"]
    if callable(what):
        parts += [_signature(name.rpartition(".")[2], what), _text(what)]
    else:
        parts.append(f"`{name}` is a value of type `{type(what).__name__}`: what to pass where its words are asked for.\n")
    if inspect.isclass(what):
        parts += [f"**`{member}`**\n\n{_signature(member, method)}\n{_text(method)}" for member, method in _methods(what)]
    return "\n".join(parts)


def _methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Methods defined in the class itself that have a docstring."""
    for name, value in vars(owner).items():
        if inspect.isfunction(value) and value.__doc__ and (not name.startswith("_") or name == "__call__"):
            yield name, value


def _signature(name: str, what: Any) -> str:
    try:
        text = str(inspect.signature(what))
    except ValueError:  # exceptions implemented in C have no signature
        return ""
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text)  # a default, by its name
    text = re.sub(r"\(self(?:, )?", "(", text.replace("'", "")).replace(" -> None", "")
    inner, _, returned = text[1:].rpartition(")")
    return laid_out(name, inner, returned)


def _text(what: Any) -> str:
    """A docstring in which a line `name: ...` about an argument becomes a list item."""
    text = inspect.cleandoc(what.__doc__ or "")
    return re.sub(r"(?m)^(\w+): ", r"- `\1`: ", re.sub(r"(?m)^(?=\w+: )", "\n", text)) + "\n"
