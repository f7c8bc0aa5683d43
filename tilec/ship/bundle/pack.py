"""Packs a bundle for one architecture from built artifacts: that of a model, or that of kernels without a model."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tilec.artifact.bundle_format import SUFFIX, encode, proofs_of
from tilec.cache import Store
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.ir.aligned import ALIGNED_SUFFIX
from tilec.project.build.driver import BuildResult
from tilec.project.read.closed_world import World
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.models import Constant, Family, Model
from tilec.project.read.plan import artifact_name
from tilec.runtime import Bundle, BundleError, open_bundle
from tilec.runtime.trust_location import NO_POLICY
from tilec.step.caches import CACHE_FORMAT
from tilec.step.formats import SIXTEEN_BIT, WEIGHT_FORMAT
from tilec.step.ranks import GPUS
from tilec.step.reader import read_declaration
from tilec.target.targets import Target
from tilec.untrusted.output import Output

NO_STEP: Final = "def decode():\n    pass\n\n\ndef prefill():\n    pass\n"
"""The step of a bundle of kernels. Every bundle has a step; the modes of this one launch nothing (`Bundle.has_step`)."""

_PRINTS: Final = re.compile(rb"^\s*call[.\w]* [^;]*\bvprintf,", re.MULTILINE)
"""A call that prints, in PTX: what machine code does, whatever its manifest says."""


@dataclass(frozen=True, slots=True)
class Packing:
    """What goes into a bundle: its name, the numbers and the step's syntax of its model, the tuning tables of the step, and the
    artifacts, each with the operations of the step that use it."""

    name: str
    config: Mapping[str, Constant]
    step: Any
    tuning: tuple[dict[str, Any], ...]
    artifacts: Mapping[str, Sequence[str]]


def model_packing(
    model: Model, family: Family, target: Target, world: World, weights: str = SIXTEEN_BIT, cache: str = SIXTEEN_BIT,
    gpus: int = 1,
) -> Packing:  # fmt: skip
    """All that the step of a model can request on `target`, for weights and caches in a format each and each of `gpus` GPUs.
    The config says which, unless they have 16 bits, or it is for one GPU: so a bundle is never taken for another's."""
    uses = world.artifacts(model.name, target, weights, cache, gpus)
    artifacts = {name: sorted({use.op for use in some}) for name, some in uses.items()}
    formats = {WEIGHT_FORMAT: weights, CACHE_FORMAT: cache}
    config = {**model.config, **{key: form for key, form in formats.items() if form != SIXTEEN_BIT}}
    config |= {GPUS: gpus} if gpus > 1 else {}
    name = model.bundle_name(weights, cache, gpus)
    return Packing(name, config, family.declaration.syntax, family.tables[target], artifacts)


def kernels_packing(
    name: str, entries: Iterable[KernelEntry], requested: tuple[Target, ...] | None, target: Target
) -> Packing:  # fmt: skip
    """Every specialisation of `entries` that a build for `requested` (None: the targets of the build file) makes for `target`.

    In place of a model's numbers, the bundle has the names of its kernels, so that bundles of other kernels have another model
    digest. No model has such a number, so none is ever taken for this bundle's.
    """
    built = [entry for entry in entries if target in entry.among(requested)]
    config = {"kernels": " ".join(sorted({entry.name for entry in built}))}
    artifacts = {artifact_name(entry.name, values): () for entry in built for values in entry.specialisations()}
    return Packing(name, config, read_declaration(NO_STEP).syntax, (), artifacts)


def bundle_name(name: str, target: Target) -> str:
    """The file name of a bundle: `qwen3-4b-sm_90a.bundle`."""
    return f"{name}-{target}{SUFFIX}"


def bundle_bytes(packing: Packing, target: Target, built: BuildResult, store: Store) -> bytes:
    """The bundle, from the build products in the store, with the aligned versions that the build has of its artifacts;
    CompileError E0709 if one is missing, E0718 if one prints."""
    by_name = {result.planned.name: result for result in built.results if result.planned.target == target}
    kernels: list[dict[str, object]] = []
    blobs: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    proofs: dict[str, bytes] = {}
    aligned = {name + ALIGNED_SUFFIX: () for name in packing.artifacts if name + ALIGNED_SUFFIX in by_name}
    artifacts: dict[str, Sequence[str]] = {**packing.artifacts, **aligned}
    for name in sorted(artifacts):
        result = by_name.get(name)
        entry = result.planned.products(store) if result is not None and result.status != "failed" else None
        if entry is None:
            message = f"`{name}` for {target} is not in the cache"
            raise CompileError(Diagnostic("E0709", message, hint="run the command again; it builds what is missing"))
        _refuse_prints(name, target, entry.outputs["ptx"])
        manifest = json.loads(entry.outputs["json"])
        digest: str = manifest["digests"]["cubin"]
        blobs[digest] = entry.outputs["cubin"]
        texts |= {manifest["digests"][text]: entry.outputs[text] for text in ("tir", "ptx")}
        text = proofs_of(manifest)
        proof = hashlib.sha256(text).hexdigest()
        proofs[proof] = text
        kernels.append(
            {"name": name, "blob": digest, "steps": list(artifacts[name]), "manifest": manifest, "proofs": proof}
        )  # fmt: skip
    description = {"model": packing.name, "arch": target.name, "config": packing.config, "kernels": kernels}
    description |= {"step": packing.step, "tuning": list(packing.tuning)}
    return encode(description, blobs, texts, proofs)


def _refuse_prints(name: str, target: Target, ptx: bytes) -> None:
    """CompileError E0718 if an artifact prints."""
    if _PRINTS.search(ptx):
        message = f"`{name}` for {target} prints, and a bundle is for kernels that ship"
        hint = "remove its `print`, or have it in `if DEBUG:` with a constant `DEBUG` that is False in what you pack"
        raise CompileError(Diagnostic("E0718", message, hint=hint))


def pack(packing: Packing, target: Target, built: BuildResult, store: Store, output: Output) -> Bundle:
    """Write the bundle into `output`, open and verify it as a user would, and return it. CompileError E0702, E0709, E0718."""
    data = bundle_bytes(packing, target, built, store)
    name = bundle_name(packing.name, target)
    output.write(name, data)
    try:
        return open_bundle(output.path(name), arch=target.name, trust=NO_POLICY)  # new, so it has no signature yet
    except BundleError as error:
        raise CompileError(Diagnostic(error.code, error.message)) from None
