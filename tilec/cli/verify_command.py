"""`tilec bundle verify`."""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.cli.bundle_commands import opened
from tilec.cli.project import UsageError, chosen_entries, open_project, print_diagnostics, status_of, toolchain
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.runtime import Bundle, BundleError
from tilec.runtime.trust import TrustSource, trust_keys
from tilec.runtime.trust_location import NO_POLICY
from tilec.untrusted.output import Output

if TYPE_CHECKING:
    from tilec.project.read.buildfile import BuildFile
    from tilec.project.read.kernel_entry import KernelEntry
    from tilec.ship.bundle.pack import Packing
    from tilec.target.targets import Target

MAX_DIFFERENCES = 20
"""Most differences printed per bundle; `--json` prints all."""


def policy_of(trust: str | None, keys: tuple[str, ...]) -> TrustSource:
    """The trust policy of the options: signatures by all public keys in `keys`, or `trust`."""
    if not keys:
        return trust
    if trust is not None:
        raise UsageError("`--key` and `--trust` cannot be combined; give one of them")
    try:
        return trust_keys(keys)
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message, hint=error.hint)) from None


def verify_command(
    paths: tuple[str, ...], arch: str | None, digest: str | None, trust: TrustSource, rebuild: tuple[str | None, int] | None, *,
    as_json: bool,
) -> int:  # fmt: skip
    """Verify bundles and print one line for each that is intact and signed as `trust` requires. Returns 1 if one is refused.
    `rebuild` is the project for a rebuild, and the number of workers."""
    from tilec.project.build.report import diagnostic_json

    if digest is not None and len(paths) != 1:
        raise UsageError("`--digest` is of one bundle; name one")
    results: list[dict[str, Any]] = []
    problems: list[Diagnostic] = []
    for path in paths:
        row: dict[str, Any] = {"file": path, "intact": False}
        results.append(row)
        try:
            with opened(path, arch, digest, trust) as bundle:
                _check_texts(bundle)
                row |= {"intact": True, "model": bundle.model, "arch": bundle.arch}
                row |= {"sha256": bundle.digest, "bytes": bundle.size}
                line = f"{path}: intact, {bundle.model} for {bundle.arch}, {len(bundle.kernels)} kernels, {bundle.size} bytes"
                if not as_json:
                    print(f"{line}, sha256 {bundle.digest}", flush=True)
                _show_signed(row, bundle, as_json=as_json)
                if rebuild is not None:
                    found = differences_of(bundle, *rebuild)
                    row |= {"rebuilt": not found, "differences": found}
                    if found:
                        raise CompileError(_differs(path, found))
                    if not as_json:
                        print(f"{path}: built again, {len(bundle.kernels)} kernels, every product equal to the last bit")
        except CompileError as error:
            problems.extend(error.diagnostics)
            row["errors"] = [diagnostic_json(item) for item in error.diagnostics]
    print_diagnostics(problems)
    if as_json:
        print(json.dumps({"bundles": results}, indent=1))
    return status_of(problems)


def _show_signed(row: dict[str, Any], bundle: Bundle, *, as_json: bool) -> None:
    signed = bundle.signed
    row["signed"] = signed and {
        "keys": [{"keyid": key, "name": name} for key, name in signed.keys],
        "release": signed.release,
        "builder": signed.builder,
    }
    if signed is not None and not as_json:
        keys = ", ".join(f"{key} ({name})" for key, name in signed.keys)
        print(f"{bundle.path}: signed by {keys}, release {signed.release}, built by {signed.builder}", flush=True)


def _check_texts(bundle: Bundle) -> None:
    """Decompress tile IR and PTX, which opening a bundle does not do; CompileError if one is damaged."""
    try:
        bundle.texts()
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message)) from None


def _differs(path: str, found: list[str]) -> Diagnostic:
    notes = found[:MAX_DIFFERENCES]
    if len(found) > len(notes):
        notes.append(f"and {len(found) - len(notes)} more; `--json` lists all")
    hint = "check out the sources and install the toolchain that its manifest names; see `tilec explain E0921`"
    return Diagnostic("E0921", f"`{path}` differs from what its sources build", notes=tuple(notes), hint=hint)


def differences_of(bundle: Bundle, project: str | None, jobs: int) -> list[str]:
    """Build every artifact of a bundle again, in an empty store so that no cache is trusted. Returns a line for each product
    that differs. CompileError if something cannot be built, UsageError if the project lacks the model or a kernel."""
    from tilec.cache import Store
    from tilec.project.build.driver import build_project
    from tilec.project.build.report import progress
    from tilec.runtime import open_bundle
    from tilec.ship.bundle.pack import bundle_bytes
    from tilec.ship.bundle.rebuild import differences
    from tilec.target.targets import TARGETS

    build = open_project(project)
    target = next((target for target in TARGETS if target.name == bundle.arch), None)
    if target is None:
        raise UsageError(f"this tilec builds nothing for `{bundle.arch}`")
    entries, packing = _sources(bundle, build, target)
    with tempfile.TemporaryDirectory(prefix="tilec-rebuild-") as name:
        folder = Path(name)
        with contextlib.closing(Store(folder / "store")) as store:
            with progress() as show:
                built = build_project(
                    build, entries, (target,), store, toolchain(store), jobs=jobs, progress=show,
                    output=Output(folder / "build", None),
                )  # fmt: skip
            if built.diagnostics:
                raise CompileError(built.diagnostics)
            data = bundle_bytes(packing, target, built, store)
        path = folder / "again.bundle"
        Output(folder, None).write(path.name, data, durable=False)
        with open_bundle(path, trust=NO_POLICY) as rebuilt:
            return differences(bundle, rebuilt)


def _sources(bundle: Bundle, build: BuildFile, target: Target) -> tuple[tuple[KernelEntry, ...], Packing]:
    """What the project packs under the bundle's name: the entries to build, and what of them goes into it. Without a step, that
    is every specialisation of the kernels that the bundle has."""
    from tilec.cli.pack_command import needed_entries
    from tilec.project.read.closed_world import enumerate_world
    from tilec.ship.bundle.pack import kernels_packing, model_packing

    named = {name: (model, weights, cache, gpus) for model in build.models for name, weights, cache, gpus in model.bundles()}
    model, weights, cache, gpus = named.get(bundle.model, (None, "", "", 1))
    if model is None and not bundle.has_step:
        names = sorted({kernel.manifest.kernel for kernel in bundle.kernels})
        entries = chosen_entries(build, names) if names else ()
        return entries, kernels_packing(bundle.model, entries, (target,), target)
    if model is None:
        known = ", ".join(named) or "none"
        raise UsageError(
            f"no model `{bundle.model}` in `{build.path}`; its models are {known}; name the project with `--project`"
        )
    world = enumerate_world(build, (target,), (model.name,), (weights,), (cache,), (gpus,))
    if world.problems:
        raise CompileError(world.problems)
    return needed_entries(world), model_packing(model, build.families[model.family], target, world, weights, cache, gpus)
