"""Packs the bundle of a model for one architecture from built artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tilec.artifact.bundle_format import SUFFIX, encode
from tilec.cache import Store
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.build.driver import BuildResult
from tilec.project.read.closed_world import Use, World
from tilec.project.read.models import Family, Model
from tilec.runtime import Bundle, BundleError, open_bundle
from tilec.runtime.trust_place import NO_POLICY
from tilec.target.targets import Target
from tilec.untrusted.output import Output


def bundle_name(model: str, target: Target) -> str:
    """The file name of a bundle: `qwen3-4b-sm_90a.bundle`."""
    return f"{model}-{target}{SUFFIX}"


def bundle_bytes(
    model: Model, family: Family, target: Target, uses: Mapping[str, list[Use]], built: BuildResult, store: Store
) -> bytes:  # fmt: skip
    """The bundle of a model, from the build products in the store; CompileError E0709 if one is missing."""
    by_name = {result.planned.name: result for result in built.results if result.planned.target == target}
    kernels: list[dict[str, object]] = []
    blobs: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    for name in sorted(uses):
        result = by_name.get(name)
        entry = result.planned.products(store) if result is not None and result.status != "failed" else None
        if entry is None:
            message = f"`{name}` for {target} is not in the cache"
            raise CompileError(Diagnostic("E0709", message, hint="run the command again; it builds what is missing"))
        manifest = json.loads(entry.outputs["json"])
        digest: str = manifest["digests"]["cubin"]
        blobs[digest] = entry.outputs["cubin"]
        texts |= {manifest["digests"][text]: entry.outputs[text] for text in ("tir", "ptx")}
        kernels.append(
            {"name": name, "blob": digest, "steps": sorted({use.op for use in uses[name]}), "manifest": manifest}
        )  # fmt: skip
    description: dict[str, object] = {"model": model.name, "arch": target.name, "config": model.config, "kernels": kernels}
    description |= {"step": family.declaration.syntax, "tuning": list(family.tables[target])}
    return encode(description, blobs, texts)


def pack(
    model: Model, family: Family, target: Target, world: World, built: BuildResult, store: Store, output: Output
) -> Bundle:  # fmt: skip
    """Write the bundle into `output`, open and verify it as a user would, and return it. CompileError E0702, E0709."""
    data = bundle_bytes(model, family, target, world.artifacts(model.name, target), built, store)
    name = bundle_name(model.name, target)
    output.write(name, data)
    try:
        return open_bundle(output.path(name), arch=target.name, trust=NO_POLICY)  # new, so it has no signature yet
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message)) from None
