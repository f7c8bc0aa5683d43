"""What can change a verdict is in the key of the verdict: packages, Python, the pipeline itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilec import pipeline
from tilec.build import plan
from tilec.cache import FileDigests
from tilec.pipeline import Request, Stage, Work, stage_fields

TOOLS = {"python": "CPython 3.11.7", "islpy": "1", "networkx": "1", "numpy": "1", "ml-dtypes": "1"}


def fields(stage: Stage, toolchain: dict[str, str], compiler: dict[str, str]) -> dict[str, int | str | None]:
    request = Request("k", "k.py", "/", {}, {"k.py": "a"}, toolchain, compiler)
    work = Work(request, None)
    work.digests = dict.fromkeys(stage.inputs, "d")
    return stage_fields(stage, work)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_proof_is_keyed_by_every_package_it_rests_on(tool: str) -> None:
    stage, compiler = pipeline.stage_named("proofs"), {"proofs": "c"}
    assert fields(stage, TOOLS, compiler) != fields(stage, TOOLS | {tool: "2"}, compiler)


def test_check_and_build_share_the_key_of_a_proof() -> None:
    stage, compiler = pipeline.stage_named("proofs"), {"proofs": "c"}
    assert fields(stage, TOOLS, compiler) == fields(stage, TOOLS | {"llvmlite": "0.50"}, compiler)


@pytest.mark.parametrize("file", ["pipeline.py", "passes/ladder.py", "passes/contract.py", "ir/expr.py"])
def test_tilec_s_own_source_is_in_the_key_of_a_proof(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tilec"
    shutil.copytree(plan.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(plan, "PACKAGE", package)
    before = plan.compiler_digests(FileDigests())
    with (package / file).open("a") as text:
        text.write("# another\n")
    after = plan.compiler_digests(FileDigests())
    assert before["proofs"] != after["proofs"]
    if file == "pipeline.py":
        assert all(before[stage.name] != after[stage.name] for stage in pipeline.STAGES)
