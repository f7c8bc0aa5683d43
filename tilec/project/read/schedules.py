"""Reads the schedule overrides of a kernel in the build file: a table, or a list of tables with optional conditions.

    schedule = { warps = 8, blocks = 6 }
    schedule = [{ warps = 4 }, { constants = { H = [2560, 5120] }, warps = 5 }, { arch = ["sm_90"], stages = 5 }]

In: the value, the entry's constants and targets. Out: rules, of which later ones take precedence. A problem is reported for
each key that is unknown or has the wrong type, each value that a target does not support (E0809), and each condition that no
specialisation of the entry satisfies (E0804).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from tilec.diagnostics.diagnostic import CompileError, Span
from tilec.diagnostics.spelling import ask_first
from tilec.project.read.architectures import Architectures
from tilec.project.read.models import Constant
from tilec.target.families import CP_ASYNC, LOAD, MMA_SYNC, TMA
from tilec.target.schedule import (
    AFTER_WAIT,
    GRID,
    OVERRIDES,
    PINGPONG,
    THREADS,
    VECTOR,
    Overrides,
    Pipeline,
    Role,
    Schedule,
    block_roles,
    fed_family,
    problems,
)
from tilec.target.targets import Target

CONDITIONS: Final = ("constants", "arch")
_KEYS: Final = (*OVERRIDES, *CONDITIONS)
_EXPECTED: Final = {int: "a number from {least} to 1024", str: "a string", bool: "true or false"}
_LEAST: Final = {"early": 0}
_EXAMPLES: Final = {
    "copy": f'"{TMA}"',
    "mma": f'"{MMA_SYNC.name}"',
    "order": f'"{GRID}"',
    "next": f'"{AFTER_WAIT}"',
    "store": f'"{TMA}"',
    "persistent": "true",
}
_ELSEWHERE: Final = {
    "split": "write split-K in the kernel: a grid axis for the parts, and a second "
    "kernel that adds them, as in `matmul_split.py` and `add_rms_norm_splits.py` of tilec's `kernels_src`"
}
"""Properties that are not part of a schedule, and the place that determines them."""
Refuse = Callable[[str, str, Span, str], None]
Locate = Callable[[str, str], Span]


@dataclass(frozen=True, slots=True)
class Rule:
    """Overrides for the specialisations whose constants are among `constants`; `overrides.target` restricts them to one
    target."""

    constants: dict[str, tuple[Constant, ...]]
    overrides: Overrides

    def applies_to(self, values: dict[str, Constant]) -> bool:
        """Whether the rule applies to a specialisation."""
        return all(_among(values[name], wanted) for name, wanted in self.constants.items())


def read_schedule(
    value: Any, constants: dict[str, tuple[Constant, ...]], architectures: Architectures, refuse: Refuse, span_of: Locate
) -> tuple[Rule, ...]:  # fmt: skip
    """The rules of one `[[kernel]]`; `span_of(key, inner)` is the span of a key in its table."""
    tables: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
    rules: list[Rule] = []
    for table in tables:
        if not isinstance(table, dict):
            refuse(
                "E0802",
                "`schedule` is not a table, nor a list of tables",
                span_of("schedule", ""),
                "write `schedule = { warps = 8 }`",
            )
            continue
        rules += _rules(table, constants, architectures, refuse, span_of)  # pyright: ignore[reportUnknownArgumentType]
    return tuple(rules)


def _rules(
    table: dict[str, Any], constants: dict[str, tuple[Constant, ...]], architectures: Architectures, refuse: Refuse,
    span_of: Locate,
) -> list[Rule]:  # fmt: skip
    for key in table:
        if key not in _KEYS:
            known = f"the keys of a schedule are {', '.join(f'`{name}`' for name in _KEYS)}"
            hint = _ELSEWHERE.get(key) or ask_first(key, _KEYS, known)
            refuse("E0802", f"unknown key `{key}` of a schedule", span_of("schedule", key), hint)
    found: dict[str, Any] = {}
    for key, kind in OVERRIDES.items():
        if key not in table:
            continue
        least = _LEAST.get(key, 1)
        if type(table[key]) is kind and (kind is not int or least <= table[key] <= 1024):
            found[key] = table[key]
        else:
            expected = _EXPECTED[kind].format(least=least)
            refuse(
                "E0802", f"`{key}` is not {expected}", span_of("schedule", key), f"write `{key} = {_EXAMPLES.get(key, '4')}`"
            )
    condition = _condition(table.get("constants", {}), constants, refuse, span_of)
    wanted = _targets(table["arch"], architectures, refuse, span_of) if "arch" in table else architectures.built
    overrides = Overrides(**found, locations=tuple((key, span_of("schedule", key)) for key in found))
    for target in wanted:
        for problem in problems(_alone(overrides, target), target):
            refuse("E0809", problem.text, overrides.location(problem.part) or span_of("schedule", ""), problem.hint)
    if "arch" not in table:
        return [Rule(condition, overrides)]
    return [Rule(condition, replace(overrides, target=target.name)) for target in wanted]


def _alone(overrides: Overrides, target: Target) -> Schedule:
    """A schedule with the overrides, and with other values that cause no problem by themselves."""
    stages, order = overrides.stages or 2, overrides.order or GRID
    pingpong = order == PINGPONG
    copy = overrides.copy or (
        TMA if overrides.consumers or pingpong or overrides.store == TMA else LOAD if stages == 1 else CP_ASYNC
    )
    by_tma = copy == TMA
    family = fed_family(TMA, target, overrides.mma) if by_tma else MMA_SYNC
    feeds = overrides.vector in (None, VECTOR) or any((overrides.stages, overrides.copy, overrides.mma, overrides.consumers))
    loops = (Pipeline(stages, copy, overrides.mma or family.name),) if feeds else ()
    roles = (Role("all", overrides.warps or 1),)
    if by_tma:
        roles = block_roles(family, overrides.consumers or 1 + pingpong, order=order)
    persistent = pingpong if overrides.persistent is None else overrides.persistent
    return Schedule(
        roles, loops, overrides.blocks, persistent, overrides.cluster or 1, order, overrides.early,
        overrides.next or AFTER_WAIT, overrides.store or THREADS, overrides.vector or VECTOR,
    )  # fmt: skip


def _condition(
    value: Any, constants: dict[str, tuple[Constant, ...]], refuse: Refuse, span_of: Locate
) -> dict[str, tuple[Constant, ...]]:
    if not isinstance(value, dict):
        refuse(
            "E0802",
            "`constants` of a schedule is not a table",
            span_of("schedule", "constants"),
            "write `constants = { H = [1024] }`",
        )
        return {}
    items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]
    found: dict[str, tuple[Constant, ...]] = {}
    for name, given in items.items():
        values: list[Any] = given if isinstance(given, list) else [given]  # pyright: ignore[reportUnknownVariableType]
        if name not in constants:
            hint = ask_first(name, constants, f"its constants are {', '.join(f'`{one}`' for one in constants)}")
            refuse("E0804", f"the kernel has no constant `{name}`", span_of("schedule", name), hint)
            continue
        for one in values:
            if not _among(one, constants[name]):
                hint = f"it is one of {', '.join(str(known) for known in constants[name])}"
                refuse("E0804", f"this schedule is for `{name} = {one}`, which is not built", span_of("schedule", name), hint)
        found[name] = tuple(values)
    return found


def _among(value: Any, values: tuple[Any, ...]) -> bool:
    return any(type(value) is type(one) and value == one for one in values)


def _targets(value: Any, architectures: Architectures, refuse: Refuse, span_of: Locate) -> tuple[Target, ...]:
    items: list[Any] = value if isinstance(value, list) else [value]  # pyright: ignore[reportUnknownVariableType]
    found: list[Target] = []
    for item in items:
        try:
            target = Target.parse(item) if isinstance(item, str) else None
        except CompileError:
            target = None
        if target is None or target not in architectures.known:
            hint = f"the kernel is built for {', '.join(one.name for one in architectures.known)}"
            refuse("E0802", f"this schedule is for `{item}`, which is not built", span_of("schedule", "arch"), hint)
        else:
            found.append(target)
    return architectures.meant(tuple(found))
