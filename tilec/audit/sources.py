"""The inputs of a verdict other than the artifact: parts of tilec and versions of packages, by kind of verdict.

A changed file invalidates exactly the verdicts that depend on it. Each list contains every file that is imported for a
verdict of its kind; a test compares it with the imports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import tilec

PROOF: Final = "proof"
EMULATION: Final = "emulation"
ARGUMENTS: Final = "arguments"
ASSEMBLY: Final = "cubin"
KINDS: Final = (EMULATION, PROOF, ASSEMBLY, ARGUMENTS)
"""Kinds of verdicts, slowest first."""
_READERS: Final = (
    "artifact/records.py",
    "audit/contract.py",
    "audit/definitions.py",
    "audit/intervals.py",
    "audit/positions.py",
    "audit/program.py",
    "audit/running_sums.py",
    "audit/scene.py",
    "audit/smt.py",
    "audit/tasks.py",
    "audit/values.py",
    "diagnostics/diagnostic.py",
    "ir",
    "target/chips.py",
    "target/dtypes.py",
    "target/families.py",
    "target/schedule.py",
    "target/targets.py",
    "untrusted/limits.py",
    "artifact/manifest_reader.py",
    "diagnostics/visible.py",
)
SOURCES: Final = {
    PROOF: (
        *_READERS,
        "audit/accesses.py",
        "audit/arithmetic.py",
        "audit/coverage.py",
        "audit/findings.py",
        "audit/loop_claims.py",
        "audit/promises.py",
        "audit/prove.py",
        "audit/witness.py",
    ),
    EMULATION: (*_READERS, "audit/emulation.py", "audit/launches.py", "emulator", "interpreter"),
    ARGUMENTS: (
        *_READERS,
        "audit/alike.py",
        "audit/clusters.py",
        "audit/copies.py",
        "audit/descriptors.py",
        "audit/findings.py",
        "audit/flow.py",
        "audit/graph.py",
        "audit/halves.py",
        "audit/maps.py",
        "audit/pairs.py",
        "emulator",
    ),
    ASSEMBLY: (
        "artifact/records.py",
        "assemble",
        "audit/cubins.py",
        "audit/tasks.py",
        "diagnostics/diagnostic.py",
        "ir",
        "target/chips.py",
        "target/dtypes.py",
        "target/families.py",
        "target/schedule.py",
        "target/targets.py",
        "untrusted/limits.py",
        "toolchain.py",
        "diagnostics/visible.py",
    ),
}
"""Files and directories of tilec by kind of verdict."""
PACKAGES: Final = {
    PROOF: ("z3-solver",),
    EMULATION: ("z3-solver", "numpy", "ml-dtypes"),
    ARGUMENTS: ("numpy", "ml-dtypes"),
    ASSEMBLY: (),
}
"""Packages by kind of verdict; an assembler lists its own (`tilec.audit.cubins.Assembler`)."""


@cache
def source_digest(parts: Sequence[str]) -> str:
    """The sha256 over names and contents of the files of these parts of tilec."""
    root = Path(tilec.__file__).parent
    files = [path for part in parts for path in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))]
    found = hashlib.sha256()
    for path in sorted(set(files)):
        found.update(path.relative_to(root).as_posix().encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def rests_on(kind: str) -> dict[str, str]:
    """All dependencies of a verdict of this kind other than the artifact: digests and versions by name."""
    return {"source": source_digest(SOURCES[kind])} | {package: version_of(package) for package in PACKAGES[kind]}


def version_of(package: str) -> str:
    """The version of an installed package."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
