"""`tilec bundle pack`: bundles of models, and bundles of kernels without a model."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.artifact.bundle_format import MODEL
from tilec.cli.project import (
    UsageError,
    chosen_caches,
    chosen_entries,
    chosen_gpus,
    chosen_targets,
    chosen_weights,
    notify,
    open_project,
    open_store,
    print_diagnostics,
    print_line,
    status_of,
    toolchain,
)
from tilec.diagnostics.diagnostic import CompileError
from tilec.diagnostics.spelling import or_mean
from tilec.untrusted.output import Output

if TYPE_CHECKING:
    from tilec.project.read.buildfile import BuildFile
    from tilec.project.read.closed_world import World
    from tilec.project.read.kernel_entry import KernelEntry
    from tilec.ship.bundle.pack import Packing
    from tilec.target.targets import Target


def pack_command(
    project: str | None, models: tuple[str, ...], arch: str | None, output: str | None, jobs: int,
    weights: str | None = None, caches: str | None = None, gpus: str | None = None, *, as_json: bool,
) -> int:  # fmt: skip
    """Build the artifacts of the models, write their bundles and print one line for each. Returns the exit status."""
    from tilec.project.read.closed_world import enumerate_world
    from tilec.ship.bundle.pack import model_packing

    build = open_project(project)
    formats, of_caches, numbers = chosen_weights(build, weights), chosen_caches(build, caches), chosen_gpus(build, gpus)
    chosen = chosen_models(build, models, formats, of_caches, numbers)
    targets = chosen_targets(arch) or build.targets
    world = enumerate_world(build, targets, chosen, formats, of_caches, numbers)
    if world.problems:
        raise CompileError(world.problems)
    packings = [
        (target, model_packing(model, build.families[model.family], target, world, each, cache, number))
        for model in build.models
        for _, each, cache, number in (model.bundles() if model.name in chosen else ())
        if each in formats and cache in of_caches and number in numbers
        for target in targets
    ]
    return _build_and_pack(build, needed_entries(world), targets, packings, output, jobs, as_json=as_json)


def pack_kernels_command(
    project: str | None, kernels: tuple[str, ...], name: str | None, arch: str | None, output: str | None, jobs: int, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Build every specialisation of the kernels, or with `all` of every kernel, write one bundle per architecture, called
    `name`, and print a line for each. Returns the exit status. UsageError for a name that no bundle can have, or an
    architecture that none is built for."""
    from tilec.ship.bundle.pack import kernels_packing

    build = open_project(project)
    entries = chosen_entries(build, () if "all" in kernels else kernels)
    chosen_name = _bundle_name(build, name, entries)
    requested = chosen_targets(arch)
    by_target = _kernels_by_target(build, entries, requested)
    packings = [(target, kernels_packing(chosen_name, entries, requested, target)) for target in by_target]
    status = _build_and_pack(build, entries, requested, packings, output, jobs, as_json=as_json, aligned=True)
    for target, found in by_target.items():
        for missing in sorted({entry.name for entry in entries} - found):
            print_line("note", f"`{missing}` is not built for {target}, so the bundle for {target} does not have it")
    return status


def _build_and_pack(
    build: BuildFile, entries: tuple[KernelEntry, ...], targets: tuple[Target, ...] | None,
    packings: Iterable[tuple[Target, Packing]], output: str | None, jobs: int, *, as_json: bool, aligned: bool = False,
) -> int:  # fmt: skip
    from tilec.project.build.driver import build_project
    from tilec.project.build.report import diagnostic_json, progress
    from tilec.ship.bundle.describe import summary
    from tilec.ship.bundle.pack import pack

    destination = Output(Path(output), None) if output is not None else Output(build.root / "artifacts" / "bundles", build.root)
    destination.check()
    rows: list[dict[str, Any]] = []
    with contextlib.closing(open_store()) as store:
        with progress() as show:
            built = build_project(
                build, entries, targets, store, toolchain(store), jobs=jobs, progress=show, notify=notify, aligned=aligned
            )  # fmt: skip
        print_diagnostics(built.diagnostics, build.root)
        for target, packing in () if built.diagnostics else packings:
            with pack(packing, target, built, store, destination) as bundle:
                rows.append({"file": str(bundle.path), **summary(bundle)})
    if as_json:
        errors = [diagnostic_json(item, build.root) for item in built.diagnostics]
        print(json.dumps({"bundles": rows, "errors": errors}, indent=1))
    else:
        for row in rows:
            print(f"{row['file']}  {len(row['kernels'])} kernels  {row['bytes']} bytes  sha256 {row['sha256']}")
    return status_of(built.diagnostics)


def chosen_models(
    build: BuildFile, names: tuple[str, ...], formats: tuple[str, ...], caches: tuple[str, ...], gpus: tuple[int, ...]
) -> tuple[str, ...]:  # fmt: skip
    """The names of the chosen models, without `names` those that are not `requested`; UsageError for one that is unknown, has
    weights or caches in none of the formats, or is shared by none of the numbers of GPUs."""
    known = {model.name: model.weights for model in build.models}
    of_caches = {model.name: model.caches for model in build.models}
    of_gpus = {model.name: model.gpus for model in build.models}
    if not known:
        raise UsageError(f"`{build.path.name}` has no `[[model]]`; `--kernel NAME` chooses kernels without a model")
    wanted = [name for text in names for name in text.split(",") if name]
    if not wanted or "all" in wanted:
        left = {model.name for model in build.models if model.requested and not wanted}
        fitting = (name for name in known if set(known[name]) & set(formats) and set(of_caches[name]) & set(caches))
        return tuple(name for name in fitting if name not in left and set(of_gpus[name]) & set(gpus))
    for name in wanted:
        if name not in known:
            listed = f"; the models are {', '.join(known)}"
            raise UsageError(f"no model `{name}` in `{build.path.name}`{or_mean(name, known) or listed}")
        if not set(known[name]) & set(formats):
            has = f"has weights in {', '.join(known[name])}, not in {', '.join(formats)}"
            raise UsageError(f"`{name}` of `{build.path.name}` {has}; choose with `--weights`, or add to its `weights`")
        if not set(of_caches[name]) & set(caches):
            has = f"has caches in {', '.join(of_caches[name])}, not in {', '.join(caches)}"
            raise UsageError(f"`{name}` of `{build.path.name}` {has}; choose with `--cache`, or add to its `caches`")
        if not set(of_gpus[name]) & set(gpus):
            has = f"is for {' or '.join(map(str, of_gpus[name]))} GPUs, not for {' or '.join(map(str, gpus))}"
            raise UsageError(f"`{name}` of `{build.path.name}` {has}; choose with `--gpus`, or add to its `gpus`")
    return tuple(dict.fromkeys(wanted))


def _bundle_name(build: BuildFile, given: str | None, entries: Iterable[KernelEntry]) -> str:
    """The name for a bundle of kernels: the given one, else the sorted names of the kernels with `-` between them. UsageError
    if the format does not allow it, or if a model has it, whose bundle it would overwrite."""
    name = "-".join(sorted({entry.name for entry in entries})) if given is None else given
    if not MODEL.fullmatch(name):
        rule = "a name has at most 64 small letters, digits, `-`, `_` and `.`"
        ask = "; give one with `--name`" if given is None else ""
        raise UsageError(f"`{name:.80}` cannot be the name of a bundle: {rule}{ask}")
    if any(one == name for model in build.models for one, *_ in model.bundles()):
        raise UsageError(f"`{name}` is a model of `{build.path.name}`; give the bundle of kernels another name with `--name`")
    return name


def _kernels_by_target(
    build: BuildFile, entries: Iterable[KernelEntry], requested: tuple[Target, ...] | None
) -> dict[Target, set[str]]:  # fmt: skip
    """The names of the kernels that are built for each target. UsageError if there is none for a requested one."""
    found: dict[Target, set[str]] = {target: set() for target in requested or ()}
    for entry in entries:
        for target in entry.among(requested):
            found.setdefault(target, set()).add(entry.name)
    empty = [target.name for target, names in found.items() if not names]
    if empty:
        raise UsageError(f"`{build.path.name}` builds none of these kernels for {', '.join(empty)}")
    return found


def needed_entries(world: World) -> tuple[KernelEntry, ...]:
    """One entry per specialisation and schedule that a model uses, with the options and budget of the original entry."""
    found = {
        (use.artifact, repr(use.entry.schedule), repr(use.entry.only)): replace(
            use.entry, constants={k: (v,) for k, v in use.constants.items()}
        )
        for use in world.uses
    }
    return tuple(found[key] for key in sorted(found))
