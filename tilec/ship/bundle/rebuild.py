"""Compares a bundle with a second build of it: one line for each product that differs.

Equality is bitwise. Tile IR, PTX and CUBIN are compared by the digests computed when the two bundles were opened or by
`Bundle.texts`, manifests field by field. So a difference is reported at its origin: another toolchain, an edited source, or a
CUBIN that no source builds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilec.artifact.records import to_json
from tilec.runtime import Bundle, BundledKernel

PRODUCTS = {"tir": "tile IR", "proofs": "record of proofs", "mlir": "MLIR", "ptx": "PTX", "cubin": "CUBIN", "source": "source"}
"""Readable names of a manifest's digests."""


def differences(bundle: Bundle, rebuilt: Bundle) -> list[str]:
    """Every difference between `bundle` and `rebuilt`, a new build of the same; empty if their bytes are equal."""
    if bundle.digest == rebuilt.digest:
        return []
    found = [
        f"{what} is {original}, built again it is {other}"
        for what, original, other in (
            ("the model", bundle.model, rebuilt.model),
            ("the architecture", bundle.arch, rebuilt.arch),
            ("the format of the file", bundle.format, rebuilt.format),
        )
        if original != other
    ]
    what = "the model's number `{}` differs" if bundle.has_step else "`{}` of its configuration differs"
    found += [what.format(name) for name in _unequal(dict(bundle.config), dict(rebuilt.config))]
    if bundle.declaration.syntax != rebuilt.declaration.syntax:
        found.append("the step differs")
    if bundle.tables != rebuilt.tables:
        found.append("the tuning differs")
    original, others = ({kernel.name: kernel for kernel in one.kernels} for one in (bundle, rebuilt))
    for name in sorted({*original, *others}):
        if name not in others:
            found.append(f"{name}: no source builds it" + (" for this model" if bundle.has_step else ""))
        elif name not in original:
            found.append(f"{name}: the sources build it, and it is not there")
        else:
            found.extend(f"{name}: {line}" for line in _kernel_differences(original[name], others[name]))
    if set(bundle.texts()) != set(rebuilt.texts()):
        found.append("the tile IR and PTX that it carries differ")
    return found or ["the files differ, although all of their fields are equal"]


def _kernel_differences(original: BundledKernel, other: BundledKernel) -> Iterator[str]:
    for name in _unequal(original.manifest.digests, other.manifest.digests):
        yield f"its {PRODUCTS.get(name, name)} differs"
    for name in _unequal(original.manifest.toolchain, other.manifest.toolchain):
        left, right = original.manifest.toolchain.get(name, "none"), other.manifest.toolchain.get(name, "none")
        yield f"it was made by {name} {left:.40}, but {right:.40} is installed"
    fields: dict[str, Any] = to_json(original.manifest)
    others: dict[str, Any] = to_json(other.manifest)
    for name in _unequal(fields, others):
        if name not in ("digests", "toolchain"):
            yield f"`{name}` of its manifest differs"
    if original.steps != other.steps:
        yield "the operations that use it differ"


def _unequal(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names whose values differ in value or type, or that only one side has."""
    names = {*left, *right}
    return sorted(name for name in names if name not in left or name not in right or repr(left[name]) != repr(right[name]))
