"""The kernels of `examples/kernels`: accepted without a note for three architectures, right at odd and even sizes, no spills.

The kernels that take longest to assemble are assembled for one architecture only, outside the default run, which assembles the
others for one; the budgets in the build file check the rest when they are built.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.campaign import first
from tests.files import ROOT
from tilec.cli import commands
from tilec.project.read.buildfile import read_build_file
from tilec.project.trial.trial import TrialRequest, own_reference, trials

FOLDER = ROOT / "examples/kernels"
BUILD = read_build_file(FOLDER / "build.toml")
ODD_AND_EVEN = {
    "softmax": [{"T": 3}, {"T": 4}],
    "online_softmax": [{"T": 3, "N": 40}, {"T": 2, "N": 8200}],
    "layer_norm": [{"T": 3, "eps": 1e-5}, {"T": 4, "eps": 0.5}],
    "cross_entropy": [{"T": 5, "V": 40}, {"T": 2, "V": 8200}],
    "transpose": [{"M": 8, "N": 136}, {"M": 128, "N": 128}],
    "causal_conv1d": [{"B": 1, "T": 17, "D": 136}, {"B": 2, "T": 130, "D": 512}],
    "int8_product": [{"M": 33, "N": 40, "K": 208}, {"M": 128, "N": 128, "K": 64}],
    "f8_product": [
        {"M": 33, "N": 40, "K": 208, "NB": 1, "KB": 2},
        {"M": 128, "N": 136, "K": 128, "NB": 2, "KB": 3},
    ],
    "batched_product": [{"B": 3, "M": 99, "N": 136, "K": 72}, {"B": 2, "M": 128, "N": 128, "K": 64}],
    "top_k": [{"T": 9}, {"T": 8}],
    "csr_row_sum": [{"R": 17, "N": 1777}, {"R": 32, "N": 1}],
    "moe_gather": [{"T": 3}, {"T": 4}],
    "silu_mul": [{"N": 5}, {"N": 4096}],
    "kv_update": [{"T": 3, "S": 8}, {"T": 4, "S": 4}],
    "merge_splits": [{"M": 3, "N": 520}, {"M": 2, "N": 1024}],
}
HEAVY = ("int8_product", "f8_product", "batched_product", "causal_conv1d", "top_k")
"""The kernels that take longest to assemble."""


def test_every_kernel_of_the_folder_is_built_tested_and_has_a_reference() -> None:
    names = {path.stem for path in FOLDER.glob("*.py")} - {"reference", "baseline"}
    assert {entry.name for entry in BUILD.entries} == set(ODD_AND_EVEN) == names and len(names) >= 10
    assert all(own_reference(FOLDER, name, files) for name in names for files in ("reference*.py", "baseline*.py"))
    problems = (ROOT / "ci/bench/kernels/examples_problems.py").read_text(encoding="utf-8")
    assert set(re.findall(r'^    Problem\("(\w+)"', problems, re.MULTILINE)) == names, "one is not measured on a GPU"
    assert all(entry.budget == {"spill_bytes": 0} for entry in BUILD.entries)


@pytest.mark.parametrize("kernel", ODD_AND_EVEN)
def test_results_are_those_of_the_reference(kernel: str) -> None:
    reference = own_reference(FOLDER, kernel)
    for values in (values for entry in BUILD.entries if entry.name == kernel for values in entry.specialisations()):
        for seed, dims in enumerate(ODD_AND_EVEN[kernel]):
            (trial,) = trials(TrialRequest(FOLDER / f"{kernel}.py", FOLDER, values, dims, seed, 1, reference))
            assert trial.right, trial
            assert all(one.error is not None for one in trial.written)


@pytest.mark.parametrize("archs", first(1, [{"light": "sm_120"}, {"heavy": "sm_90", "light": "sm_90,sm_100"}]), ids=str)
def test_they_are_accepted_without_notes_and_nothing_spills(
    archs: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = tmp_path / "kernels"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("artifacts", "__pycache__"))
    project = ["--project", str(folder), "--jobs", "1"]
    assert commands.run(["check", *project, "--deny", "notes"]) == 0
    weights = {name: "heavy" if name in HEAVY else "light" for name in ODD_AND_EVEN}
    for weight, wanted in archs.items():
        some = [word for name in ODD_AND_EVEN if weights[name] == weight for word in ("--kernel", name)]
        assert commands.run(["build", *some, *project, "--arch", wanted]) == 0
    found = [json.loads(path.read_text()) for path in (folder / "artifacts/build").glob("*/*.json")]
    wanted = [
        entry.name
        for entry in BUILD.entries
        for target in entry.targets
        if target.name.removesuffix("a") in archs.get(weights[entry.name], "").split(",")
        for _ in entry.specialisations()
    ]
    assert sorted(one["kernel"] for one in found) == sorted(wanted)
    assert [one["kernel"] for one in found if one["resources"]["spill_bytes"]] == []
    assert "refused" not in capsys.readouterr().out
