"""`tilec bundle push|pull`."""

from __future__ import annotations

import dataclasses
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.cli.bundle_commands import opened, with_sidecar
from tilec.cli.project import UsageError, chosen_targets, print_line
from tilec.diagnostics.diagnostic import CompileError, Diagnostic

if TYPE_CHECKING:
    from tilec.ship.registry.push import Shipment
    from tilec.ship.registry.reference import Reference


def _reference(text: str) -> Reference:
    from tilec.ship.registry.reference import read_reference

    try:
        return read_reference(text)
    except ValueError as error:
        raise UsageError(f"`{text}` {error}") from None


def push_command(files: tuple[str, ...], destination: str, trust: str | None, *, plain_http: bool, as_json: bool) -> int:
    """Push bundles and their attestations, and print the digest of the index."""
    from tilec.ship.registry.client import Client
    from tilec.ship.registry.errors import RegistryError
    from tilec.ship.registry.push import push

    reference = _reference(destination)
    if not reference.tag or reference.digest:
        raise UsageError(f"`{destination}` has no tag to push to; write `{destination.partition('@')[0]}:TAG`")
    shipments = [_shipment(path, trust) for path in files]
    named = [(one.model, one.arch) for one in shipments]
    twin = next((pair for pair in named if named.count(pair) > 1), None)
    if twin is not None:
        raise UsageError(f"two bundles are for `{twin[0]}` and `{twin[1]}`, so a pull could not choose; push one of them")
    try:
        with Client(reference, push=True, plain_http=plain_http) as client:
            done = push(client, shipments, reference.tag)
    except RegistryError as error:
        raise CompileError(Diagnostic(error.code, error.message, hint=error.hint)) from None
    if as_json:
        print(json.dumps({"reference": str(reference), **dataclasses.asdict(done)}, indent=1))
        return 0
    for path, digest in zip(files, done.manifests, strict=True):
        print(f"{path}: manifest {digest}")
    print(f"{reference}: index {done.index}, {done.sent} of {done.blobs} bytes were not there yet")
    return 0


def _shipment(path: str, trust: str | None) -> Shipment:
    from tilec.ship.registry.push import Shipment

    with opened(path, trust=trust) as bundle:
        data, attestations = with_sidecar(bundle)
        return Shipment(data, bundle.model, bundle.arch, bundle.digest, attestations)


def pull_command(
    source: str, arch: str | None, model: str | None, output: str | None, trust: str | None, *, plain_http: bool, as_json: bool
) -> int:  # fmt: skip
    """Pull bundles into a folder and print one line for each. Returns 1 if some are refused, and lists them."""
    from tilec.runtime import BundleError
    from tilec.ship.finder import checked, own_bundles_folder, refusal_of
    from tilec.ship.registry.client import Client
    from tilec.ship.registry.errors import RegistryError
    from tilec.ship.registry.pull import Refused, Wanted, pull
    from tilec.untrusted.temporary_files import sweep

    reference = _reference(source)
    targets = chosen_targets(arch)
    if targets is not None and len(targets) != 1:
        raise UsageError("name one architecture with `--arch`, or none for all")
    wanted = Wanted(arch=targets[0].name if targets else "", model=model or "")
    refused: list[Refused] = []
    try:
        folder = Path(output) if output is not None else own_bundles_folder()
        sweep(folder)  # removes temporary files of killed pulls
        with Client(reference, plain_http=plain_http) as client:
            check = partial(checked, trust=trust)
            found = pull(client, wanted, folder, check, refusals=(BundleError,), report_refused=refused.append)
    except RegistryError as error:
        raise CompileError(Diagnostic(error.code, error.message, hint=error.hint)) from None
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message, hint=error.hint)) from None
    except OSError as error:
        hint = "free space or permissions there, or choose another folder with `-o`"
        message = f"`{error.filename or output}` cannot be written: {error.strerror}"
        raise CompileError(Diagnostic("E0702", message, hint=hint)) from None
    rows: list[dict[str, Any]] = [{**dataclasses.asdict(one), "path": str(one.path)} for one in found]
    errors = [refusal_of(one, str(reference)) for one in refused]
    if as_json:
        refused_rows = [
            {"model": one.model, "arch": one.arch, "manifest": one.manifest, "code": error.code, "message": error.message}
            for one, error in zip(refused, errors, strict=True)
        ]
        print(json.dumps({"reference": str(reference), "bundles": rows, "refused": refused_rows}, indent=1))
    for one in () if as_json else found:
        end = "with attestations" if one.attested else "without attestations"
        print(f"{one.path}: intact, {one.model} for {one.arch}, {end}, sha256 {one.sha256}")
    for error in errors:
        print_line("warning", f"skipped a bundle: {error.message} ({error.code})")
    return int(bool(refused))
