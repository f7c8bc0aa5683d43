"""An internal error of tilec is one diagnostic at the kernel, with the stage and the operation; no traceback reaches a user."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from tests.project import project
from tilec import pipeline
from tilec.cache import Store
from tilec.cli.commands import run
from tilec.codegen import ptx
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, render_all
from tilec.ir.core import Op, VerifyError
from tilec.pipeline import Request, Stage, Work, run_stage
from tilec.target.targets import TARGETS


def failing(error: Exception) -> Stage:
    """The stage `mlir`, failing at the kernel's first load."""

    def fail(work: Work) -> dict[str, bytes]:
        for op in work.function().body.walk():
            if op.opcode == "load":
                fail_at_load(op)
        raise AssertionError("no load")

    def fail_at_load(op: Op) -> None:
        raise error

    return dataclasses.replace(pipeline.stage_named("mlir"), run=fail)


def diagnosed(tmp_path: Path, stage: Stage) -> Diagnostic:
    root = project.make(tmp_path, ("copy_a",))
    compiler = {one.name: "x" for one in pipeline.STAGES}
    request = Request("copy_a", "kernels_src/copy_a.py", str(root), {"BLOCK": 128}, {}, {}, compiler)
    work = Work(request, TARGETS[0])
    with contextlib.closing(Store(tmp_path / "store")) as store:
        run_stage(pipeline.stage_named("tir"), work, store)
        run_stage(pipeline.stage_named("schedule"), work, store)
        work.products["positive_divisions"], work.digests["positive_divisions"] = b"[]", "none"
        with pytest.raises(CompileError) as caught:
            run_stage(stage, work, store)
    (found,) = caught.value.diagnostics
    return found


@pytest.mark.parametrize(
    "error",
    [VerifyError("load: offsets are integer scalars"), AssertionError(), KeyError("b0")],
    ids=lambda error: type(error).__name__,
)
def test_an_internal_failure_is_a_diagnostic_at_the_kernel(error: Exception, tmp_path: Path) -> None:
    found = diagnosed(tmp_path, failing(error))
    assert found.code == "E0508" and "`mlir`" in found.message and "`copy_a`" in found.message
    assert found.primary is not None and found.primary.span.file.endswith("copy_a.py")
    assert [label.text for label in found.secondary] == ["the operation `load`"]
    assert found.notes[0].startswith(type(error).__name__) and "bug in tilec" in found.hint
    text = render_all([found])
    assert "Traceback" not in text and "copy_a.py:11" in text


def test_what_mlir_refuses_is_shown_at_the_kernel(tmp_path: Path) -> None:
    def refused(work: Work) -> dict[str, bytes]:
        return {"ptx": ptx.to_llvm_ir("module { nonsense }").encode()}

    found = diagnosed(tmp_path, dataclasses.replace(pipeline.stage_named("mlir"), run=refused))
    assert found.code == "E0501"
    assert found.primary is not None and found.primary.span.file.endswith("copy_a.py")


def test_a_command_that_fails_inside_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any, **__: Any) -> int:
        raise KeyError("arch")

    monkeypatch.setattr("tilec.cli.commands.tilec.main", fails)
    assert run(["check"]) == 1
    message = capsys.readouterr().err
    assert "error[E0508]" in message and "KeyError" in message and "Traceback" not in message
