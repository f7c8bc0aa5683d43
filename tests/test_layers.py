"""The layer check passes on this tree and catches each kind of violation."""

from __future__ import annotations

import importlib.util
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("check_layers", ROOT / "ci" / "check_layers.py")
assert _spec is not None and _spec.loader is not None
check_layers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_layers)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        (("tilec", "frontend", "syntax"), "tilec.passes.prover.prove"),
        (("tilec", "ir", "core"), "tilec.artifact.records"),
        (("tilec", "runtime", "launcher"), "torch_mlir.ir"),
        (("tilec", "audit", "values"), "tilec.passes.prover.terms"),
        (("tilec", "audit", "values"), "tilec.lowering"),
        (("tilec", "passes", "prover", "prove"), "tilec.passes.schedule.layouts.layout"),
        (("tilec", "passes", "schedule", "layout"), "tilec.passes.prover.terms"),
        (("tilec", "passes", "analysis", "ranges"), "tilec.passes.prover.terms"),
        (("tilec", "passes", "loose"), "tilec.passes.analysis.ranges"),
        (("tilec", "passes", "prover", "prove"), "tilec.audit.prove"),
        (("tilec", "passes", "prover", "prove"), "tilec.pipeline"),
        (("tilec", "unplaced", "x"), "tilec.ir.core"),
        (("tilec", "cli", "main"), "engine.loader"),
        (("engine", "loader"), "tilec.passes"),
        (("engine", "loader"), "islpy"),
        (("engine", "backends", "interpreter"), "tilec.passes"),
        (("engine", "backends", "interpreter"), "torch_mlir.ir"),
        (("tilec", "frontend", "syntax"), "<relative>"),
    ],
)
def test_violation_is_found(importer: tuple[str, ...], imported: str) -> None:
    assert check_layers.complaint(importer, imported)


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        (("tilec", "passes", "prover", "prove"), "tilec.passes.analysis.ranges"),
        (("tilec", "passes", "prover", "prove"), "tilec.passes.prover.terms"),
        (("tilec", "passes", "prover", "prove"), "tilec.ir.ops"),
        (("tilec", "passes", "prover", "prove"), "islpy"),
        (("tilec", "pipeline"), "tilec.passes"),
        (("engine", "loader"), "tilec.runtime.load"),
        (("tilec", "artifact"), "tilec.ir.expr"),
        (("engine", "backends", "interpreter"), "tilec.interpreter.run"),
        (("engine", "backends", "interpreter"), "tilec.frontend"),
    ],
)
def test_allowed_edge(importer: tuple[str, ...], imported: str) -> None:
    assert not check_layers.complaint(importer, imported)


@pytest.mark.parametrize("imported", ["tilec.interpreter.run", "tilec.frontend", "tilec.diagnostics.diagnostic.CompileError"])
def test_no_other_file_of_the_engine_runs_kernels_from_their_sources(imported: str) -> None:
    files = [path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "engine").rglob("*.py")]
    allowed = [parts for parts in files if not check_layers.complaint(parts, imported)]
    assert allowed == [("engine", "backends", "interpreter")]


def tree(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    "back",
    [
        "from tilec.ir.first import A\n",
        "def f():\n    from tilec.ir.first import A\n",
        "def f():\n    import tilec.ir.first\n",
        "from tilec.ir import first\n",
    ],
)
def test_a_circle_is_found_wherever_the_import_stands(tmp_path: Path, capsys: pytest.CaptureFixture[str], back: str) -> None:
    files = {"first.py": "from tilec.ir.second import B\n", "second.py": "import tilec.ir.third\n", "third.py": back}
    assert check_layers.main(tree(tmp_path, {f"tilec/ir/{name}": text for name, text in files.items()})) == 1
    steps = capsys.readouterr().out.strip().removeprefix("imports in a circle: ").split(" -> ")
    assert steps[0] == steps[-1] and set(pairwise(steps)) == {
        ("tilec.ir.first", "tilec.ir.second"), ("tilec.ir.second", "tilec.ir.third"), ("tilec.ir.third", "tilec.ir.first")
    }  # fmt: skip


def test_no_files_know_each_other_s_types(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        "tilec/ir/first.py": "from tilec.ir.second import B\n",
        "tilec/ir/second.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tilec.ir.first import A\n",
    }
    assert check_layers.main(tree(tmp_path, files)) == 1
    assert capsys.readouterr().out == "files that name each other's types: tilec.ir.first, tilec.ir.second\n"


def test_a_circle_of_ci_is_found_and_its_imports_are_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = {"ci/bench/engine/__init__.py": "", "ci/bench/engine.py": "import ci.bench.engine.first\n"}
    files = {"first.py": "import tilec.passes.prover\nimport ci.bench.engine.second\n", "second.py": "import ci.bench.engine\n"}
    root = tree(tmp_path, package | {f"ci/bench/engine/{name}": text for name, text in files.items()})
    assert check_layers.main(root) == 0, "a program is not the package of its name"
    capsys.readouterr()
    (root / "ci/bench/engine/second.py").write_text("def f():\n    from ci.bench.engine.first import g\n")
    assert check_layers.main(root) == 1
    assert capsys.readouterr().out.startswith("imports in a circle: ci.bench.engine.first -> ci.bench.engine.second ->")


@pytest.mark.parametrize("folder", ["tests/room", "kernels_src", "examples/kernels"])
def test_a_circle_of_tests_kernels_or_examples_is_found(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    package = folder.replace("/", ".")
    first = f"try:\n    import {package}.second\nexcept ImportError:\n    pass\n"
    root = tree(tmp_path, {f"{folder}/first.py": first, f"{folder}/second.py": f"from {package}.first import a\n"})
    assert check_layers.main(root) == 1
    assert capsys.readouterr().out == f"imports in a circle: {package}.first -> {package}.second -> {package}.first\n"


def test_every_circle_is_reported() -> None:
    graph = {"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}, "e": {"a"}}
    assert sorted(map(sorted, map(set, check_layers.circles(graph)))) == [["a", "b"], ["c", "d"]]
