"""What `tilec/kernels/build.toml` prebuilds, and the references of its kernels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.files import ROOT
from tilec.cli import commands
from tilec.project.read.buildfile import read_build_file
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.read.python_file import execute
from tilec.project.trial.inputs import own_inputs
from tilec.project.trial.trial import TrialRequest, own_reference

FOLDER = ROOT / "tilec/kernels"
SOURCE = FOLDER / "source"
BUILD = read_build_file(FOLDER / "build.toml")


def entries(*kernels: str) -> list[KernelEntry]:
    """The entries of kernels, in the order of the file."""
    found = [entry for entry in BUILD.entries if entry.name in kernels]
    assert {entry.name for entry in found} == set(kernels)
    return found


def specialisations(*kernels: str) -> list[tuple[KernelEntry, dict[str, Any]]]:
    """Every specialisation of kernels with its entry."""
    return [(entry, constants) for entry in entries(*kernels) for constants in entry.specialisations()]


def is_prebuilt(kernel: str, constants: Mapping[str, Any]) -> bool:
    """Whether the build file has a specialisation."""
    return any(constants == values for entry in BUILD.entries if entry.name == kernel for values in entry.specialisations())


def request(kernel: str, constants: Mapping[str, Any], dims: Mapping[str, float], seed: int = 0) -> TrialRequest:
    """One launch of a kernel, to be compared with its reference, of inputs that fit each other."""
    file, inputs = SOURCE / f"{kernel}.py", own_inputs(SOURCE, kernel, ROOT)
    return TrialRequest(file, ROOT, constants, dims, seed, 1, own_reference(SOURCE, kernel), inputs=inputs)


def check_built(kernels: Sequence[str], folder: Path) -> None:
    """Build every specialisation of kernels for sm_90, in a copy of the library below `folder`; none may spill."""
    copy = folder / "kernels"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("artifacts", "__pycache__"))
    names = [word for name in kernels for word in ("--kernel", name)]
    assert commands.run(["build", *names, "--project", str(copy), "--jobs", "1", "--arch", "sm_90"]) == 0
    found = [json.loads(path.read_text()) for path in (copy / "artifacts/build").glob("*/*.json")]
    assert len(found) == len(specialisations(*kernels))
    assert [one["kernel"] for one in found if one["resources"]["spill_bytes"]] == []


def references() -> ModuleType:
    """The references of losses, activations, positions, optimizers and dropout."""
    return execute(SOURCE / "reference_losses.py", "reference")


def slope(function: Any, at: Any, direction: Any, step: float = 1e-5) -> Any:
    """The derivative of a function of float64 along a direction, by a central difference of fourth order."""
    near = function(at + step * direction) - function(at - step * direction)
    far = function(at + 2 * step * direction) - function(at - 2 * step * direction)
    return (8 * near - far) / (12 * step)
