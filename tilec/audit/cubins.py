"""Whether a CUBIN is the assembler's output for its PTX: that output and the manifest go in, a verdict comes out.

The caller of the audit provides the assembler, because it is a package of its own and the audit does not use the compiler.
Another assembler version may produce other bytes for the same PTX, so a difference counts only if the versions are those of
the manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.diagnostics.diagnostic import CompileError

SAME: Final = "same"
ANOTHER: Final = "another"
NOT_CHECKED: Final = "not checked"
SKIPPED: Final = "skipped"
MISSING: Final = "E0601"
"""The diagnostic code for an assembler that is not installed."""
ASSEMBLERS: Final = ("nvidia-nvjitlink", "nvidia-cuda-nvcc")
"""Packages whose version determines the bytes of a CUBIN."""

Assemble = Callable[[str, str], bytes]
"""Maps PTX and architecture to a CUBIN; CompileError if that fails."""


@dataclass(frozen=True, slots=True)
class Assembler:
    """`assemble` must be importable by name, so that worker processes can run it; `versions` are the versions that its output
    depends on, by package as in a manifest's toolchain. `missing` is the reason for having no assembler."""

    assemble: Assemble | None = None
    versions: dict[str, str] = field(default_factory=dict[str, str])
    missing: str = ""


def made(assemble: Assemble, ptx: str, arch: str) -> dict[str, Any]:
    """The assembler's result: `sha256` of the CUBIN, or `refused` or `missing` with its message."""
    try:
        return {"sha256": hashlib.sha256(assemble(ptx, arch)).hexdigest()}
    except CompileError as error:
        diagnostic = error.diagnostics[0]
        kind = "missing" if diagnostic.code == MISSING else "refused"
        return {kind: "; ".join((diagnostic.message, *diagnostic.notes[:2]))[:300]}


def checked(
    found: Mapping[str, Any], digests: Mapping[str, str], stated: Mapping[str, str], assembler: Assembler
) -> dict[str, str]:
    """`status` and `reason` of a CUBIN. `found` is the result of `made`; `digests` and `stated` (its toolchain) come from the
    manifest."""
    if found.get("sha256", "") == digests.get("cubin"):
        return {"status": SAME, "reason": ""}
    reason = found.get("missing") or found.get("unanswered")
    if reason:
        return {"status": NOT_CHECKED, "reason": str(reason)}
    for name in ASSEMBLERS:
        installed, recorded = assembler.versions.get(name, ""), stated.get(name, "")
        if installed != recorded:
            made_with = f"{name} {recorded.split()[0]}" if recorded else f"an unknown version of {name}"
            reason = f"it was made with {made_with}; installed is {installed.split()[0] if installed else 'none'}"
            return {"status": NOT_CHECKED, "reason": f"the PTX assembles to another CUBIN, but {reason}"}
    refused = found.get("refused")
    return {
        "status": ANOTHER,
        "reason": f"the assembler refuses the PTX: {refused}" if refused else "the PTX assembles to another CUBIN",
    }
