"""One `[[kernel]]` of a build file, checked: its specialisations, targets and schedule overrides."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from tilec.diagnostics.diagnostic import Span
from tilec.progress import DEFAULT_LIMITS, Limits
from tilec.project.read.models import Constant
from tilec.project.read.schedules import Rule
from tilec.target.schedule import Overrides
from tilec.target.targets import Target


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One `[[kernel]]`: the values of each constant, budgets by name, and schedule rules. `targets` are its own if `has_arch`,
    else the project's; `on_request`: those that its own `arch` admits if they are requested; `only` restricts them further.
    `aligned`: a build adds aligned versions (`tilec.ir.aligned`) of those that have a use for them. `requested`: a build that
    names no kernel has only the specialisations that the step of a model requests. `span` and `constant_spans` locate the entry
    and its constants."""

    name: str
    constants: dict[str, tuple[Constant, ...]]
    budget: dict[str, int]
    schedule: tuple[Rule, ...]
    targets: tuple[Target, ...]
    span: Span
    constant_spans: dict[str, Span]
    limits: Limits = DEFAULT_LIMITS
    has_arch: bool = False
    only: tuple[Target, ...] | None = None
    on_request: tuple[Target, ...] = ()
    aligned: bool = True
    requested: bool = False

    def among(self, requested: tuple[Target, ...] | None) -> tuple[Target, ...]:
        """The targets to build out of `requested` (None: those of the build file). An entry with its own `arch` is never built
        for others."""
        targets = (
            self.targets
            if requested is None
            else (target for target in requested if target in (*self.targets, *self.on_request) or not self.has_arch)
        )
        return tuple(target for target in targets if self.only is None or target in self.only)

    def overrides(self, values: dict[str, Constant]) -> tuple[Overrides, ...]:
        """The schedule overrides of a specialisation, for all of its targets."""
        return tuple(rule.overrides for rule in self.schedule if rule.applies_to(values))

    def specialisations(self) -> list[dict[str, Constant]]:
        """All combinations of the constants' values, in the order of the file."""
        names = list(self.constants)
        return [dict(zip(names, values, strict=True)) for values in itertools.product(*self.constants.values())]
