"""The architectures of a build file: those that are built, and those that are built if `--arch` asks for them.

    [build]
    arch = ["sm_90", "sm_100", "sm_120"]
    also = ["sm_80"]
    like = { sm_86 = "sm_80", sm_100f = "sm_100" }

`arch` of a kernel or of a schedule may name any of them. One in `like` is taken to be named wherever the other one is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tilec.diagnostics.diagnostic import CompileError
from tilec.target.targets import Target

Problem = Callable[[str, str, str], None]
"""Takes the key, what is wrong with it, and a hint."""


@dataclass(frozen=True, slots=True)
class Architectures:
    """`built` by default; `others` on request; `like`: those of `others` that take the kernels and schedules of another."""

    built: tuple[Target, ...]
    others: tuple[Target, ...] = ()
    like: Mapping[Target, Target] = field(default_factory=dict[Target, Target])

    @property
    def known(self) -> tuple[Target, ...]:
        """All of them."""
        return (*self.built, *(one for one in self.others if one not in self.built))

    def meant(self, named: tuple[Target, ...]) -> tuple[Target, ...]:
        """What a list of architectures means: those, and all that are like one of them."""
        return (*named, *(one for one in self.others if one not in named and self.like.get(one) in named))

    def of_kernel(self, named: tuple[Target, ...]) -> Architectures:
        """Those of a kernel whose `arch` names these: by default it is built for those that are not for requests alone."""
        meant = self.meant(named)
        requested = tuple(one for one in meant if one in self.others and one not in self.built)
        return Architectures(tuple(one for one in meant if one not in requested), requested, self.like)


def read_others(table: Mapping[str, Any], built: tuple[Target, ...], problem: Problem) -> Architectures:
    """The architectures of `[build]`, whose `arch` has been read."""
    found: list[Target] = []
    for name, target in named_targets(table.get("also", []), "also", problem, 'write `also = ["sm_80", "sm_89"]`'):
        if target in (*built, *found):
            problem("also", f"architecture `{name}` is named twice", "")
        else:
            found.append(target)
    like: dict[Target, Target] = {}
    pairs: dict[str, Any] | None = table.get("like", {})
    if not isinstance(pairs, dict):
        problem("like", "`like` is not a table of architectures", 'write `like = { sm_103 = "sm_100" }`')
        return Architectures(built, tuple(found))
    for name, other in pairs.items():
        one, same = _parsed(name, "like", problem), _parsed(other, "like", problem)
        if one is None or same is None:
            continue
        if one in (*built, *found) or same not in (*built, *found):
            problem(
                "like",
                f"`{name}` cannot be like `{other}`",
                "name one that `arch` and `also` leave out, and one that they list",
            )
            continue
        like[one] = same
    return Architectures(built, (*found, *like), like)


def named_targets(value: Any, key: str, problem: Problem, hint: str) -> list[tuple[str, Target]]:
    """Each architecture of a list in a build file as (name as written, target); one may be there twice. Whatever is none is a
    problem of `key` and left out; `hint` is for a value that is no list of names."""
    items: list[Any] = value if isinstance(value, list) else [None]  # pyright: ignore[reportUnknownVariableType]
    if not all(isinstance(item, str) for item in items):
        problem(key, f"`{key}` is not a list of architectures", hint)
        return []
    parsed = ((name, _parsed(name, key, problem)) for name in items)
    return [(name, target) for name, target in parsed if target is not None]


def _parsed(name: Any, key: str, problem: Problem) -> Target | None:
    try:
        return Target.parse(name if isinstance(name, str) else "")
    except CompileError as error:
        (found,) = error.diagnostics
        problem(key, found.message, found.hint)
        return None
