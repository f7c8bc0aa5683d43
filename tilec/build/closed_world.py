"""The closed world: every artifact that the step of a model can ask for, found in the build file or reported as missing.

The runtime compiles nothing, so what is missing here would be missing on the machine that serves. A request names a kernel and
the constants that the model decides; the artifacts for it are all specialisations that have these constants, because which
of several tunings runs (tiles by the length of a prompt) is decided when shapes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tilec.build.buildfile import BuildFile, Constant, KernelEntry
from tilec.build.models import Model, Step
from tilec.build.plan import artifact_name
from tilec.diagnostics import Diagnostic, Label
from tilec.target import Target


@dataclass(frozen=True, slots=True)
class Use:
    """One artifact for one operation of one model's step on one target. `requested` are the constants that the model decides,
    `constants` all of the artifact's."""

    model: str
    op: str
    kernel: str
    requested: dict[str, Constant]
    constants: dict[str, Constant]
    artifact: str
    target: Target
    entry: KernelEntry


@dataclass(frozen=True, slots=True)
class World:
    """What the models need, in the order of models, operations and targets, and what of it the build file does not have."""

    uses: tuple[Use, ...]
    problems: tuple[Diagnostic, ...]

    def artifacts(self, model: str, target: Target) -> dict[str, list[Use]]:
        """Uses by artifact for one model and target."""
        found: dict[str, list[Use]] = {}
        for use in self.uses:
            if (use.model, use.target) == (model, target):
                found.setdefault(use.artifact, []).append(use)
        return found


@dataclass(slots=True)
class _Missing:
    step: Step
    requested: dict[str, Constant]
    models: list[str]
    targets: list[str]


def enumerate_world(build: BuildFile, targets: tuple[Target, ...] | None = None, models: Iterable[str] = ()) -> World:
    """Every use, for `targets` (those of the build file) and `models` (all). A missing artifact is a diagnostic E0807, a step
    that asks a model for a number it does not have is an E0808."""
    wanted = tuple(models)
    uses: list[Use] = []
    problems: list[Diagnostic] = []
    missing: dict[tuple[str, str, str], _Missing] = {}
    by_kernel = _specialisations(build)
    for model in build.models:
        if wanted and model.name not in wanted:
            continue
        steps = [step for step in build.steps if step.family == model.family]
        if not steps:
            message = f"no operation is in the step of `{model.name}`"
            hint = "write a `[[step]]`" + (f' with `family = "{model.family}"`' if model.family else "")
            problems.append(Diagnostic("E0808", message, Label(model.span), hint=hint))
        for step in steps:
            try:
                requests = list(step.requests(model.config))
            except ValueError as error:
                message = f"operation `{step.op}` of `{model.name}`: the model {error}"
                hint = "add it to `config`, or correct the expression"
                problems.append(Diagnostic("E0808", message, Label(step.span), (Label(model.span),), hint=hint))
                continue
            for requested in requests:
                found = [item for item in by_kernel.get(step.kernel, ()) if _fits(requested, item[1])]
                for target in build.targets if targets is None else targets:
                    here = [item for item in found if targets is not None or target in item[0].targets]
                    if not here:
                        key = (step.op, step.kernel, repr(sorted(requested.items())))
                        one = missing.setdefault(key, _Missing(step, requested, [], []))
                        one.models += [model.name] if model.name not in one.models else []
                        one.targets += [target.name] if target.name not in one.targets else []
                    uses.extend(_use(model, step, requested, entry, values, target) for entry, values in here)
    problems.extend(_diagnostic(item, by_kernel) for item in missing.values())
    return World(tuple(uses), tuple(problems))


_Specialisations = Mapping[str, list[tuple[KernelEntry, dict[str, Constant]]]]


def _specialisations(build: BuildFile) -> _Specialisations:
    found: dict[str, list[tuple[KernelEntry, dict[str, Constant]]]] = {}
    for entry in build.entries:
        found.setdefault(entry.name, []).extend((entry, values) for values in entry.specialisations())
    return found


def _fits(requested: Mapping[str, Constant], values: Mapping[str, Constant]) -> bool:
    # `True == 1` in Python, but a constant that is a bool is another constant than one that is an int.
    return all(name in values and (type(values[name]), values[name]) == (type(want), want) for name, want in requested.items())


def _use(
    model: Model, step: Step, requested: dict[str, Constant], entry: KernelEntry, values: dict[str, Constant], target: Target
) -> Use:  # fmt: skip
    return Use(model.name, step.op, step.kernel, requested, values, artifact_name(step.kernel, values), target, entry)


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _diagnostic(item: _Missing, by_kernel: _Specialisations) -> Diagnostic:
    step, known = item.step, by_kernel.get(item.step.kernel, [])
    models = ", ".join(f"`{name}`" for name in item.models)
    message = f"no artifact of `{step.kernel}` with {_words(item.requested)} for {', '.join(item.targets)}"
    note = f"asked for by `{step.op}` of {models}"
    unknown = [name for name in item.requested if known and all(name not in values for _, values in known)]
    if not known:
        hint = f'add `[[kernel]]` with `name = "{step.kernel}"`'
    elif unknown:
        hint = f"`{step.kernel}` has no constant {', '.join(f'`{name}`' for name in unknown)}; correct the step"
    else:
        hint = f"add {_words(item.requested)} to an entry of `{step.kernel}`"
    label = step.constant_spans.get(unknown[0], step.span) if unknown else step.span
    return Diagnostic("E0807", message, Label(label), notes=(note,), hint=hint)


def as_json(world: World) -> list[dict[str, Any]]:
    """The uses as plain data."""
    return [
        {
            "model": use.model,
            "op": use.op,
            "kernel": use.kernel,
            "requested": use.requested,
            "artifact": use.artifact,
            "arch": use.target.name,
        }
        for use in world.uses
    ]
