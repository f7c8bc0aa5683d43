"""Lists differences between two bundles, or a build and its golden files: kernels, resources, proofs whose rung changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilec.artifact.records import Manifest
from tilec.project.build.report import RUNGS
from tilec.runtime import Bundle
from tilec.ship.bundle.describe import shared_bytes

Proofs = Mapping[str, Sequence[str]]
"""Rungs, strongest first, by `property of subject`."""


@dataclass(frozen=True, slots=True)
class Change:
    """One difference. `kind` is added, removed, resources, proofs, contract, steps or code; `worse` if safety or speed got
    worse: a weaker rung, more launch checks, spills, registers or shared memory."""

    name: str
    kind: str
    text: str
    worse: bool


def strength(rung: str) -> int:
    """Index on the ladder of rungs, 0 the strongest; an unknown rung counts as the weakest."""
    return RUNGS.index(rung) if rung in RUNGS else len(RUNGS)


def proofs_of(manifest: Manifest) -> dict[str, list[str]]:
    """The proofs without source locations, which change with comments."""
    found: dict[str, list[str]] = {}
    for one in manifest.obligations:
        found.setdefault(f"{one.property} of {one.subject}", []).append(one.rung)
    return {key: sorted(found[key], key=strength) for key in sorted(found)}


def resources_of(manifest: Manifest) -> dict[str, int]:
    """The resources for which more is worse."""
    used = manifest.resources
    return {
        "registers": used.registers,
        "spill bytes": used.spill_bytes,
        "stack bytes": used.stack_bytes,
        "shared bytes": shared_bytes(manifest),
    }


def proof_changes(name: str, old: Proofs, new: Proofs) -> Iterable[Change]:
    """Obligations that were added or removed, and those whose rung changed."""
    for key in sorted({*old, *new}):
        before, after = list(old.get(key, ())), list(new.get(key, ()))
        if before == after:
            continue
        if not before:
            # A new obligation is worse only if it depends on a launch check or on trust.
            yield Change(name, "proofs", f"{key}: now proven by {_count(after)}", strength(after[-1]) >= strength("launch"))
        elif not after:
            yield Change(name, "proofs", f"{key}: no longer to be proven, was {_count(before)}", False)
        else:
            yield Change(name, "proofs", f"{key}: {_count(before)} -> {_count(after)}", _weaker(before, after))


def _weaker(before: list[str], after: list[str]) -> bool:
    if len(before) == len(after):
        return any(strength(new) > strength(old) for old, new in zip(before, after, strict=True))
    return max(map(strength, after)) > max(map(strength, before))


def _count(rungs: list[str]) -> str:
    counts = {rung: rungs.count(rung) for rung in dict.fromkeys(rungs)}
    return " + ".join(rung if count == 1 else f"{count} {rung}" for rung, count in counts.items())


def resource_changes(name: str, old: Mapping[str, int], new: Mapping[str, int]) -> Iterable[Change]:
    """The resources that changed."""
    for key in old:
        if old[key] != new[key]:
            yield Change(name, "resources", f"{key} {old[key]} -> {new[key]}", new[key] > old[key])


def text_changes(name: str, clause_name: str, old: Iterable[str], new: Iterable[str], *, worse: bool) -> Iterable[Change]:
    """Lines that only one side has; `worse` is whether a new line counts as worse."""
    before, after = list(old), list(new)
    yield from (Change(name, "contract", f"{clause_name} gone: {text}", False) for text in before if text not in after)
    yield from (Change(name, "contract", f"new {clause_name}: {text}", worse) for text in after if text not in before)


def manifest_changes(name: str, old: Manifest, new: Manifest) -> Iterable[Change]:
    """Everything that differs between two builds of one artifact."""
    yield from proof_changes(name, proofs_of(old), proofs_of(new))
    yield from resource_changes(name, resources_of(old), resources_of(new))
    for clause_name, worse, clauses_of in _CONTRACT:
        yield from text_changes(name, clause_name, clauses_of(old), clauses_of(new), worse=worse)
    kept = set(map(str, new.promises))
    yield from (Change(name, "contract", f"promise gone: {one}", True) for one in old.promises if str(one) not in kept)
    yield from (Change(name, "contract", f"new promise: {one}", False) for one in new.promises if one not in old.promises)
    if old.digests.get("cubin") != new.digests.get("cubin"):
        left, right = (manifest.digests.get("cubin", "none")[:12] for manifest in (old, new))
        yield Change(name, "code", f"code {left} -> {right}", False)
    for package in sorted({*old.toolchain, *new.toolchain}):
        before, after = old.toolchain.get(package, "none"), new.toolchain.get(package, "none")
        if before != after:
            yield Change(name, "code", f"toolchain {package} {before.split()[0]} -> {after.split()[0]}", False)


def contract_of(manifest: Manifest) -> list[str]:
    """The conditions of a launch, and what is trusted, one line each."""
    return [*_checks(manifest), *_values(manifest), *_no_alias_texts(manifest), *(f"trust: {text}" for text in manifest.unsafe)]


def _checks(manifest: Manifest) -> list[str]:
    return [check.text for check in manifest.launch_checks]


def _values(manifest: Manifest) -> list[str]:
    return [f"{check.low} <= values of {check.tensor} < {check.high}{check.words}" for check in manifest.value_checks]


def _interface(manifest: Manifest) -> list[str]:
    lines = [f"{spec.access} {spec.name}: {spec.dtype} [{', '.join(map(str, spec.dims))}]" for spec in manifest.tensors]
    lines += [f"scalar {spec.name}: {spec.dtype}" for spec in manifest.scalars]
    return [*lines, f"grid ({', '.join(map(str, manifest.grid))}), {manifest.block} threads per block"]


def _no_alias_texts(manifest: Manifest) -> list[str]:
    return [f"{left} apart from {right}" for left, right in manifest.no_alias]


def _unsafe(manifest: Manifest) -> list[str]:
    return list(manifest.unsafe)


_CONTRACT = (
    ("parameter or grid", False, _interface),
    ("launch check", True, _checks),
    ("value obligation", True, _values),
    ("aliasing rule", True, _no_alias_texts),
    ("unsafe block", True, _unsafe),
)


def bundle_changes(old: Bundle, new: Bundle) -> list[Change]:
    """All differences of two bundles, by kernel."""
    before = {kernel.name: kernel for kernel in old.kernels}
    after = {kernel.name: kernel for kernel in new.kernels}
    found: list[Change] = []
    for name in sorted({*before, *after}):
        left, right = before.get(name), after.get(name)
        if left is None or right is None:
            found.append(Change(name, "added" if left is None else "removed", "", False))
            continue
        found.extend(manifest_changes(name, left.manifest, right.manifest))
        if left.steps != right.steps:
            found.append(Change(name, "steps", f"used by {', '.join(left.steps)} -> {', '.join(right.steps)}", False))
        sizes = old.blobs[left.blob].size, new.blobs[right.blob].size
        if sizes[0] != sizes[1]:
            found.append(Change(name, "code", f"code bytes {sizes[0]} -> {sizes[1]}", False))
    return found


def as_json(old: Bundle, new: Bundle, changes: list[Change]) -> dict[str, Any]:
    """The comparison as plain data."""
    sides = [{"model": one.model, "arch": one.arch, "sha256": one.digest, "bytes": one.size} for one in (old, new)]
    listed = [{"name": one.name, "kind": one.kind, "text": one.text, "worse": one.worse} for one in changes]
    return {"same": old.digest == new.digest, "old": sides[0], "new": sides[1], "changes": listed}
