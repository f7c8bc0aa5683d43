"""Limits of stages: a stage that hangs or exhausts memory is killed, reported with its current work, and fails only its
kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project import project
from tests.project.test_build import append, worker_pids
from tilec.diagnostics.diagnostic import CompileError
from tilec.progress import DEFAULT_LIMITS, STILL, Limits
from tilec.project.read.buildfile import read_build_file


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TILEC_CACHE_DIR", raising=False)
    return project.make(tmp_path / "p")


def limit(root: Path, text: str) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text().replace("[build]\n", f"[build]\n{text}\n", 1))


def test_stage_that_never_ends_is_killed_and_named(root: Path) -> None:
    limit(root, "stage_seconds = 0.5")
    append(root, "copy_a", "#! spin\n")
    result = project.build(root)
    assert project.statuses(result) == ["failed"] * 4 + ["built"] * 4
    (only,) = result.diagnostics
    assert only.code == "E0811"
    assert only.message == "stage `tir` of kernel `copy_a` takes more than 0.5 seconds of CPU time"
    assert only.notes[0] == "it was at: bounds of `x`, n // 3"
    assert only.notes[-1] == "specialised as copy_a-BLOCK=128 for sm_90a and 3 more"
    assert only.primary is not None and only.primary.span.file.endswith("build.toml")


def test_stage_that_uses_no_time_at_all_is_killed_too(root: Path) -> None:
    limit(root, "stage_seconds = 0.1")
    append(root, "copy_a", "#! hang\n")
    result = project.build(root, kernels=("copy_a",))
    (only,) = result.diagnostics
    assert (only.code, only.notes[0]) == ("E0811", "it was at: nothing at all")
    assert only.message == f"stage `tir` of kernel `copy_a` stands still for more than {STILL * 0.1:g} seconds"


def test_stage_that_eats_memory_is_killed_and_named(root: Path) -> None:
    limit(root, "stage_memory_mb = 64")
    append(root, "copy_a", "#! eat\n")
    result = project.build(root)
    assert project.statuses(result) == ["failed"] * 4 + ["built"] * 4
    (only,) = result.diagnostics
    assert (only.code, only.message) == ("E0812", "stage `tir` of kernel `copy_a` needs more than 64 MiB of memory")
    assert only.notes[0] == "it was at: sets without end"


def test_a_failed_allocation_is_reported_as_memory_and_not_as_an_internal_error(root: Path) -> None:
    limit(root, "stage_memory_mb = 64")
    append(root, "copy_a", "#! much\n")
    result = project.build(root, kernels=("copy_a",))
    assert {(item.code, item.message) for item in result.diagnostics} == {
        ("E0812", "stage `tir` of kernel `copy_a` ran out of memory")
    }


def test_a_kernel_may_have_its_own_budget(root: Path) -> None:
    limit(root, "stage_seconds = 7")
    path = root / "build.toml"
    path.write_text(path.read_text() + "stage_memory_mb = 100\n")
    first, second = read_build_file(path).entries
    assert (first.limits, second.limits) == (Limits(7.0, DEFAULT_LIMITS.memory_mb), Limits(7.0, 100))


@pytest.mark.parametrize(
    "line",
    [
        "stage_seconds = 0", 'stage_seconds = "long"', "stage_seconds = nan", "stage_seconds = inf", "stage_seconds = true",
        "stage_memory_mb = -1", "stage_memory_mb = 1.5", "stage_memory_mb = 99999999999",
    ],
)  # fmt: skip
def test_an_invalid_budget_is_an_error_at_its_line(root: Path, line: str) -> None:
    limit(root, line)
    with pytest.raises(CompileError) as caught:
        read_build_file(root / "build.toml")
    (only,) = caught.value.diagnostics
    assert only.code == "E0802" and only.primary is not None and only.primary.span.line == 2


def test_limits_change_no_key(root: Path) -> None:
    project.build(root)
    limit(root, "stage_seconds = 500")
    assert project.statuses(project.build(root)) == ["hit"] * 8


def test_a_worker_that_was_killed_is_reported_as_killed(root: Path) -> None:
    append(root, "copy_a", "#! killed\n")
    result = project.build(root, kernels=("copy_a",), jobs=1)
    assert {item.code for item in result.diagnostics} == {"E0813"}
    assert "SIGKILL" in result.diagnostics[0].message
    assert "at stage `ptx` of kernel `copy_a`" in result.diagnostics[0].notes
    assert not worker_pids(root)
