"""The closed world: every artifact that the step of a model can request, found in the build file or reported as missing.

The runtime compiles nothing, so a missing artifact would be missing at run time. A request names a kernel and the constants
that the step and its tuning determine (`tilec.step.requests`). Its artifact is the only specialisation with these constants;
several such specialisations are an error, since the choice would be ambiguous.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tilec.diagnostics.diagnostic import Diagnostic, Label
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant, Family, Model
from tilec.project.read.plan import artifact_name
from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import PAGED
from tilec.step.requests import Request
from tilec.target.targets import Target


@dataclass(frozen=True, slots=True)
class Use:
    """The artifact for one operation of one model's step on one target, for weights and caches in a format each and each of
    some GPUs. `requested` are the constants in the request, `constants` all constants of the artifact."""

    model: str
    op: str
    kernel: str
    requested: dict[str, Constant]
    constants: dict[str, Constant]
    artifact: str
    target: Target
    entry: KernelEntry
    weights: str = SIXTEEN_BIT
    cache: str = SIXTEEN_BIT
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class World:
    """The uses of all models, in the order of models, of groups of targets with equal tuning, and of operations; `problems` are
    requests that the build file does not satisfy."""

    uses: tuple[Use, ...]
    problems: tuple[Diagnostic, ...]

    def artifacts(
        self, model: str, target: Target, weights: str = SIXTEEN_BIT, cache: str = SIXTEEN_BIT, gpus: int = 1
    ) -> dict[str, list[Use]]:  # fmt: skip
        """Uses by artifact for one model and target, formats of weights and caches, and number of GPUs."""
        found: dict[str, list[Use]] = {}
        for use in self.uses:
            if (use.model, use.target, use.weights, use.cache, use.gpus) == (model, target, weights, cache, gpus):
                found.setdefault(use.artifact, []).append(use)
        return found


@dataclass(slots=True)
class _Wrong:
    """A request with no matching artifact, or with several (`fitting`), and its models and targets."""

    family: Family
    request: Request
    fitting: tuple[str, ...]
    models: list[str]
    targets: list[str]


def enumerate_world(
    build: BuildFile, targets: tuple[Target, ...] | None = None, models: Iterable[str] = (),
    weights: Collection[str] = (SIXTEEN_BIT,), caches: Collection[str] = (SIXTEEN_BIT,), gpus: Collection[int] = (1,),
) -> World:  # fmt: skip
    """Every use for `targets` (default: those of the build file) and `models` (default: all), each for those formats of its
    weights and caches, and numbers of GPUs, that are among `weights`, `caches` and `gpus`. E0807: no artifact for a request.
    E0810: several artifacts for a request. E0808: a step uses a number that the model lacks, or a model's sizes do not fit a
    format or a number of GPUs."""
    wanted = tuple(models)
    uses: list[Use] = []
    problems: list[Diagnostic] = []
    wrong: dict[tuple[str, str, tuple[str, ...]], _Wrong] = {}
    by_kernel = _specialisations(build)
    every = [(model, (one[1], one[2], one[3])) for model in build.models for one in model.bundles()]
    for model, form in every:
        if form[0] not in weights or form[1] not in caches or form[2] not in gpus:
            continue
        if wanted and model.name not in wanted:
            continue
        family = build.families[model.family]
        try:
            those_asked = build.targets if targets is None else targets
            requested = _requested_targets(family, model, form, those_asked)
        except StepError as error:
            message = f"the step of `{model.name}`: {error}"
            label, hint = Label(family.span(error)), "add it to `config`, or correct the step"
            problems.append(Diagnostic("E0808", message, label, (Label(model.span),), hint=hint))
            continue
        for request, those in requested:
            fitting = [item for item in by_kernel.get(request.kernel, ()) if _fits(request.constants, item[1])]
            for target in those:
                available = [item for item in fitting if target in item[0].among(targets)]
                if len(available) == 1:
                    uses.append(_use(model, form, request, *available[0], target))
                    continue
                names = tuple(artifact_name(request.kernel, values) for _, values in available)
                key = (request.kernel, repr(sorted(request.constants.items())), names)
                one = wrong.setdefault(key, _Wrong(family, request, names, [], []))
                one.models += [model.name] if model.name not in one.models else []
                one.targets += [target.name] if target.name not in one.targets else []
    problems.extend(_diagnostic(item, by_kernel) for item in wrong.values())
    found = {  # output modes share operations
        (use.model, use.weights, use.cache, use.gpus, use.op, use.artifact, use.target): use for use in uses
    }
    return World(tuple(found.values()), tuple(problems))


def default_entries(build: BuildFile, world: World) -> tuple[KernelEntry, ...]:
    """What a build that names no kernel has: every entry, and of the `requested` ones the specialisations that `world` uses for
    models that are not `requested` themselves. What only steps over pages use is built for a bundle of the model."""
    found: list[KernelEntry] = []
    always = {model.name for model in build.models if not model.requested}
    uses = [use for use in world.uses if use.model in always and use.op.partition("_")[0] not in PAGED]
    for entry in build.entries:
        used = {use.artifact: use.constants for use in uses if use.entry is entry} if entry.requested else {}
        single = [{name: (value,) for name, value in constants.items()} for _, constants in sorted(used.items())]
        found += [replace(entry, constants=constants) for constants in single] if entry.requested else [entry]
    return tuple(found)


def _requested_targets(
    family: Family, model: Model, form: tuple[str, str, int], targets: tuple[Target, ...]
) -> list[tuple[Request, tuple[Target, ...]]]:
    """The requests of a model with their targets. Targets with the same tuning have the same requests."""
    alike: dict[int, list[Target]] = {}
    for target in targets:
        alike.setdefault(id(family.tunings[target]), []).append(target)
    return [(request, tuple(some)) for some in alike.values() for request in family.requests(model, some[0], *form)]


_Specialisations = Mapping[str, list[tuple[KernelEntry, dict[str, Constant]]]]


def _specialisations(build: BuildFile) -> _Specialisations:
    found: dict[str, list[tuple[KernelEntry, dict[str, Constant]]]] = {}
    for entry in build.entries:
        found.setdefault(entry.name, []).extend((entry, values) for values in entry.specialisations())
    return found


def _fits(requested: Mapping[str, Constant], values: Mapping[str, Constant]) -> bool:
    # `True == 1` in Python, but a bool constant and an int constant are different.
    return all(name in values and (type(values[name]), values[name]) == (type(want), want) for name, want in requested.items())


def _use(
    model: Model, form: tuple[str, str, int], request: Request, entry: KernelEntry, values: dict[str, Constant], target: Target
) -> Use:  # fmt: skip
    name = artifact_name(request.kernel, values)
    return Use(model.name, request.op, request.kernel, dict(request.constants), values, name, target, entry, *form)


def _constants_text(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def _diagnostic(item: _Wrong, by_kernel: _Specialisations) -> Diagnostic:
    request, known = item.request, by_kernel.get(item.request.kernel, [])
    kernel, requested = request.kernel, _constants_text(request.constants)
    models = ", ".join(f"`{name}`" for name in item.models)
    note = f"asked for by `{request.op}` of {models}"
    launch_span = item.family.span(request.launch.node)
    if item.fitting:
        message = f"several artifacts of `{kernel}`{f' have {requested}' if requested else ''}: " + " and ".join(
            f"`{name}`" for name in item.fitting[:2]
        )
        hint = f"remove all but one, or choose between them in a `[[tuning]]` of `{kernel}`"
        return Diagnostic("E0810", message, Label(launch_span), notes=(note,), hint=hint)
    message = f"no artifact of `{kernel}`{f' with {requested}' if requested else ''} for {', '.join(item.targets)}"
    unknown = [name for name in request.constants if known and all(name not in values for _, values in known)]
    if not known:
        hint = f'add `[[kernel]]` with `name = "{kernel}"`'
    elif unknown:
        hint = f"`{kernel}` has no constant {', '.join(f'`{name}`' for name in unknown)}; correct the step"
    else:
        hint = f"add {requested} to an entry of `{kernel}`"
    expression = request.launch.constants.get(unknown[0]) if unknown else None
    label = item.family.span(expression.node) if expression is not None else launch_span
    return Diagnostic("E0807", message, Label(label), notes=(note,), hint=hint)


def as_json(world: World) -> list[dict[str, Any]]:
    """The uses as plain data."""
    return [
        {
            "model": use.model,
            "weights": use.weights,
            "cache": use.cache,
            "gpus": use.gpus,
            "op": use.op,
            "kernel": use.kernel,
            "requested": use.requested,
            "artifact": use.artifact,
            "arch": use.target.name,
        }
        for use in world.uses
    ]
