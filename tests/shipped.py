"""The kernels of build.toml at their first specialisation, for tests that look at every shipped kernel."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import tilec
from tilec.build.buildfile import KernelEntry, read_build_file
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.passes import prepare
from tilec.target import TARGETS, Target

ROOT = Path(tilec.__file__).parent.parent


@cache
def entries() -> dict[str, KernelEntry]:
    """The first entry of each kernel, by name."""
    found: dict[str, KernelEntry] = {}
    for entry in read_build_file(ROOT / "build.toml").entries:
        found.setdefault(entry.name, entry)
    return found


def load(name: str) -> Function:
    """A fresh function of the kernel's first specialisation."""
    entry = entries()[name]
    return load_kernel(ROOT / "kernels_src" / f"{name}.py", entry.specialisations()[0], root=ROOT)


def prepared(name: str, target: Target) -> Function:
    """The same, as lowering gets it."""
    return prepare(load(name), target, num_warps=entries()[name].num_warps)


NAMES = tuple(entries())
CASES = [(name, target) for name in NAMES for target in TARGETS]
IDS = [f"{name}-{target}" for name, target in CASES]
