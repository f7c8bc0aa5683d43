"""Is a CUBIN the one that its PTX gives? An assembler's answer and the manifest go in, a verdict comes out.

The assembler is whoever starts the audit's to bring, because it is a package of its own and the audit needs none of the
compiler. Another version of it may give other bytes for the same PTX: a difference counts only where the versions are those
that the manifest states.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.diagnostics import CompileError

SAME: Final = "same"
ANOTHER: Final = "another"
NOT_CHECKED: Final = "not checked"
SKIPPED: Final = "skipped"
MISSING: Final = "E0601"
"""The code of an assembler that is not installed."""
ASSEMBLERS: Final = ("nvidia-nvjitlink", "nvidia-cuda-nvcc")
"""Packages whose version decides about the bytes of a CUBIN."""

Assemble = Callable[[str, str], bytes]
"""PTX and architecture to a CUBIN; CompileError where that cannot be."""


@dataclass(frozen=True, slots=True)
class Assembler:
    """`assemble` can be imported by name, so that processes can share the work; `versions` is what its products depend on, by
    package as a manifest's toolchain states it. `missing` says why there is none."""

    assemble: Assemble | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    missing: str = ""


def made(assemble: Assemble, ptx: str, arch: str) -> dict[str, Any]:
    """What the assembler says: `sha256` of the CUBIN, or `refused` with its words, or `missing`."""
    try:
        return {"sha256": hashlib.sha256(assemble(ptx, arch)).hexdigest()}
    except CompileError as error:
        said = error.diagnostics[0]
        kind = "missing" if said.code == MISSING else "refused"
        return {kind: "; ".join((said.message, *said.notes[:2]))[:300]}


def judged(
    found: Mapping[str, Any], digests: Mapping[str, str], stated: Mapping[str, str], assembler: Assembler
) -> dict[str, str]:
    """`status` and `reason` of a CUBIN: `found` is what `made` said, `digests` and `stated` (its toolchain) the manifest's."""
    if found.get("sha256", "") == digests.get("cubin"):
        return {"status": SAME, "reason": ""}
    reason = found.get("missing") or found.get("unanswered")
    if reason:
        return {"status": NOT_CHECKED, "reason": str(reason)}
    for name in ASSEMBLERS:
        here, there = assembler.versions.get(name, ""), stated.get(name, "")
        if here != there:
            made_with = f"{name} {there.split()[0]}" if there else f"an unknown version of {name}"
            reason = f"it was made with {made_with}, and here is {here.split()[0] if here else 'none'}"
            return {"status": NOT_CHECKED, "reason": f"the PTX gives another CUBIN, but {reason}"}
    refused = found.get("refused")
    return {
        "status": ANOTHER,
        "reason": f"the assembler refuses the PTX: {refused}" if refused else "the PTX gives another CUBIN",
    }
