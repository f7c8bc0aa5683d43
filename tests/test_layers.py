"""The layer check passes on this tree and catches each kind of violation."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_spec = importlib.util.spec_from_file_location("check_layers", ROOT / "ci" / "check_layers.py")
assert _spec is not None and _spec.loader is not None
check_layers = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_layers)


def test_tree_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_layers.main(ROOT) == 0, capsys.readouterr().out


@pytest.mark.parametrize(
    ("importer", "imported"),
    [
        (("tilec", "frontend", "syntax"), "tilec.passes.prove"),
        (("tilec", "ir", "core"), "tilec.artifact"),
        (("tilec", "runtime", "launcher"), "torch_mlir.ir"),
        (("tilec", "audit", "values"), "tilec.passes.terms"),
        (("tilec", "audit", "values"), "tilec.lowering"),
        (("tilec", "passes", "prove"), "tilec.audit.prove"),
        (("tilec", "passes", "prove"), "tilec.pipeline"),
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
        (("tilec", "passes", "prove"), "tilec.ir.ops"),
        (("tilec", "passes", "prove"), "islpy"),
        (("tilec", "pipeline"), "tilec.passes"),
        (("engine", "loader"), "tilec.runtime.load"),
        (("tilec", "artifact"), "tilec.ir.expr"),
        (("engine", "backends", "interpreter"), "tilec.interpreter.run"),
        (("engine", "backends", "interpreter"), "tilec.frontend"),
    ],
)
def test_allowed_edge(importer: tuple[str, ...], imported: str) -> None:
    assert not check_layers.complaint(importer, imported)


@pytest.mark.parametrize("imported", ["tilec.interpreter.run", "tilec.frontend", "tilec.diagnostics.CompileError"])
def test_no_other_file_of_the_engine_runs_kernels_from_their_sources(imported: str) -> None:
    files = [path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "engine").rglob("*.py")]
    allowed = [parts for parts in files if not check_layers.complaint(parts, imported)]
    assert allowed == [("engine", "backends", "interpreter")]
