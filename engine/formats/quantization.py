"""What a `quantization_config` says, as a value: which modules are quantised, and by which scheme their weights are stored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from engine.formats.fields import Fields
from engine.formats.forms import Form
from engine.formats.stored import Stored

LINEAR: Final = "Linear"
"""The class that groups may name; modules of other classes have no weights that could be quantised."""

EXPRESSION: Final = "re:"
"""Begins a regular expression in a list of names."""
EXPRESSIONS: Final = 64
EXPRESSION_LENGTH: Final = 200
REPETITIONS: Final = 4
"""Limits of expressions: the time that a hostile one takes grows with the length of a name to the power of its repetitions."""


class Scheme(Protocol):
    """How the weight of one module is stored."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """Ends of the names of the tensors that a module has or may have."""
        ...

    @property
    def unused(self) -> tuple[str, ...]:
        """Those of tensors that are accepted and not read: scales of activations, which stay in 16 bits."""
        ...

    def check(self, stored: Stored) -> None:
        """ModelError unless the headers of the module's tensors fit the scheme and the weight's shape."""
        ...

    def form(self, stored: Stored) -> Form:
        """The weight of a checked module; ModelError for data that are no numbers."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """Modules by class, full name or, after `re:`, an expression that matches from the first character; and their scheme."""

    targets: tuple[str, ...]
    scheme: Scheme


@dataclass(frozen=True, slots=True)
class Quantization:
    """`method` is `quant_method`. Modules in `skipped` (names, or expressions as in a group) have weights of 16 bits."""

    method: str
    groups: tuple[Group, ...]
    skipped: tuple[str, ...] = ()

    def scheme_of(self, module: str) -> Scheme | None:
        """The scheme of a module if its weight is quantised: a group that names it goes before one of its class."""
        if matches(self.skipped, module):
            return None
        named = (group.scheme for group in self.groups if matches(group.targets, module))
        of_class = (group.scheme for group in self.groups if LINEAR in group.targets)
        return next(named, None) or next(of_class, None)


def every_linear(method: str, scheme: Scheme, skipped: tuple[str, ...]) -> Quantization:
    """One scheme for all modules that are not skipped."""
    return Quantization(method, (Group((LINEAR,), scheme),), skipped)


def matches(patterns: Iterable[str], module: str) -> bool:
    """Whether a list of names and expressions has a module."""
    return any(
        re.match(pattern.removeprefix(EXPRESSION), module) is not None if pattern.startswith(EXPRESSION) else pattern == module
        for pattern in patterns
    )


def check_expressions(fields: Fields, key: str, patterns: Sequence[str]) -> None:
    """ModelError for an expression that is none, or could take long."""
    expressions = [pattern.removeprefix(EXPRESSION) for pattern in patterns if pattern.startswith(EXPRESSION)]
    if len(expressions) > EXPRESSIONS:
        fields.refuse(key, f"a list with at most {EXPRESSIONS} regular expressions")
    for expression in expressions:
        repetitions = len(re.findall(r"[*+{]", expression))
        if len(expression) > EXPRESSION_LENGTH or repetitions > REPETITIONS or re.search(r"\)[*+{]", expression):
            limits = f"at most {EXPRESSION_LENGTH} characters and {REPETITIONS} repetitions, none of them of a group"
            fields.refuse(key, f"names, or regular expressions of {limits}")
        try:
            re.compile(expression)
        except (re.error, OverflowError, RecursionError):
            fields.refuse(key, f"names, or valid regular expressions after `{EXPRESSION}`")
