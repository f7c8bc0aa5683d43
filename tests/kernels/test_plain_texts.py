"""Kernels as users wrote them first stay accepted: their proofs hold, and notes change no verdict."""

from __future__ import annotations

import tomllib
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.campaign import chosen
from tests.files import ROOT
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

FOLDER = ROOT / "ci/bench/kernels/plain"


def specialisations() -> list[tuple[str, dict[str, Any]]]:
    """Kernels and constants of the build file."""
    found: list[tuple[str, dict[str, Any]]] = []
    for entry in tomllib.loads((FOLDER / "build.toml").read_text())["kernel"]:
        constants = entry.get("constants", {})
        lists = [value if isinstance(value, list) else [value] for value in constants.values()]
        found += [(entry["name"], dict(zip(constants, values, strict=True))) for values in product(*lists)]
    return found


def test_every_text_is_in_the_build_file() -> None:
    assert {name for name, _ in specialisations()} == {path.stem for path in FOLDER.glob("*.py")}


@pytest.mark.parametrize(
    ("name", "constants"), chosen(specialisations(), lambda one: one[0] in ("segment_max", "top_p", "gqa_decode", "csr_dense"))
)
def test_it_is_accepted(name: str, constants: dict[str, Any]) -> None:
    path: Path = FOLDER / f"{name}.py"
    prove(load_kernel(path, constants, root=FOLDER))
