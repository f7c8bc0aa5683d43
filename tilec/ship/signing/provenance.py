"""Builds the SLSA provenance v1 predicate of a verified bundle, as plain data.

Everything comes from the bundle, so anyone who packs it again gets the same predicate, except for the release and the builder,
which the signer sets. If the project is available, its files are listed one by one, after comparison with the source digests in
the bundle's manifests.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tilec.artifact.bundle_format import canonical
from tilec.artifact.signature_format import BUILD_TYPE
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.link import digest_of_files
from tilec.project.read.buildfile import BuildFile
from tilec.runtime import Bundle
from tilec.ship.signing.sbom import package_url, toolchain_of
from tilec.target.targets import Target


def provenance(bundle: Bundle, release: int, builder: str, files: Mapping[str, str]) -> dict[str, Any]:
    """The predicate; `files` has the sha256 of the project's files by path, empty if the project is not available."""
    sources = {kernel.manifest.kernel: kernel.manifest.digests.get("source", "") for kernel in bundle.kernels}
    materials: list[dict[str, Any]] = [
        {"name": f"sources of {kernel}", "digest": {"sha256": digest}, "mediaType": "application/json"}
        for kernel, digest in sorted(sources.items())
        if digest
    ]
    for name, data in (("step", bundle.declaration.syntax), ("tuning", bundle.tables)):
        digest = hashlib.sha256(canonical(data)).hexdigest()
        materials.append({"name": name, "digest": {"sha256": digest}, "mediaType": "application/json"})
    materials += [{"name": path, "digest": {"sha256": digest}} for path, digest in sorted(files.items())]
    packages = toolchain_of(bundle)
    for name, version, digest in packages:
        one: dict[str, Any] = {"name": name, "uri": package_url(name, version)}
        materials.append(one | ({"annotations": {"sha256OfItsFiles": digest}} if digest else {}))
    tilec = next((version for name, version, _ in packages if name == "tilec"), "unknown")
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": {"arch": bundle.arch, "model": bundle.model, "release": release},
            "internalParameters": {},
            "resolvedDependencies": materials,
        },
        "runDetails": {"builder": {"id": builder, "version": {"tilec": tilec}}},
    }


def project_files(bundle: Bundle, build: BuildFile) -> dict[str, str]:
    """sha256 by path, relative to the project, of the build file, the step (if it has one) and every source of the kernels.
    CompileError E0921 if the bundle was built from other files, or if one is outside the project."""
    from tilec.cache import FileDigests, Store
    from tilec.project.read.plan import kernel_files

    digests = FileDigests()
    found: dict[str, str] = {}
    wrong: list[str] = []
    entries = {entry.name: entry for entry in build.entries}
    with tempfile.TemporaryDirectory(prefix="tilec-attest-") as folder, closing(Store(Path(folder) / "store")) as store:
        for kernel, digest in sorted(
            {one.manifest.kernel: one.manifest.digests.get("source") for one in bundle.kernels}.items()
        ):
            files = kernel_files(build, entries[kernel], store, digests)[0] if kernel in entries else {}
            if digest_of_files(files) != digest:
                wrong.append(f"the sources of `{kernel}` differ")
            found |= files
    family = next((build.families[model.family] for model in build.models if model.name == bundle.model), None)
    if family is None and not bundle.has_step:
        pass  # kernels without a model
    elif family is None:
        wrong.append(f"`{build.path.name}` has no model `{bundle.model}`")
    elif (
        family.declaration.syntax != bundle.declaration.syntax
        or list(family.tables[Target.parse(bundle.arch)]) != bundle.tables
    ):
        wrong.append("its step or tuning differs")
    for path in (build.path, *([family.path] if family is not None else [])):
        file = path.resolve()  # the same form as source paths in `tilec.project.read.plan`
        name = file.relative_to(build.root).as_posix() if file.is_relative_to(build.root) else str(file)
        found[name] = digests.digest(file)
    outside = [Path(name).name for name in sorted(found) if os.path.isabs(name)]
    wrong += [f"`{name}` lies outside of the project, but signed paths are relative to it" for name in outside]
    if wrong:
        hint = "check out the sources it was packed from, all in one folder, or leave `--project` out"
        message = f"`{bundle.path}` was not made from the project at `{build.root}`"
        raise CompileError(Diagnostic("E0921", message, notes=tuple(wrong[:20]), hint=hint))
    return found
