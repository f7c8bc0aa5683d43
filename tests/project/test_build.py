"""Builds: what is rebuilt and why, and what happens if a kernel, a worker, the store or the user aborts."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.project import project
from tilec.diagnostics.diagnostic import CompileError

pytestmark = pytest.mark.usefixtures("kept_workers")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    return project.make(tmp_path / "p")


def append(root: Path, name: str, text: str) -> None:
    path = root / "kernels_src" / f"{name}.py"
    path.write_text(path.read_text() + text)


def made(result: object) -> set[str]:
    return {item.planned.name for item in result.results if item.status == "built"}  # type: ignore[attr-defined]


def test_second_build_hits_everything(root: Path) -> None:
    first = project.build(root)
    assert project.statuses(first) == ["built"] * 8
    assert all(item.reasons == ["not built before"] for item in first.results)
    assert project.statuses(project.build(root)) == ["hit"] * 8
    names = sorted(path.name for path in (root / "artifacts/build/sm_90a").iterdir())
    assert len(names) == 12
    assert "copy_a-BLOCK=128.cubin" in names


def test_edit_rebuilds_that_kernel_only(root: Path) -> None:
    project.build(root)
    append(root, "copy_a", "X = 1\n")
    again = project.build(root)
    assert made(again) == {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}
    assert {item.reasons[0] for item in again.results if item.reasons} == {"source of kernels_src/copy_a.py changed"}


def test_edit_of_shared_dims_rebuilds_the_kernels_that_import_them(root: Path) -> None:
    path = root / "kernels_src/copy_a.py"
    declared = 'class N(Dim):\n    """Elements."""\n'
    assert declared in path.read_text()
    path.write_text(path.read_text().replace(declared, "from .dims import N\n"))
    (root / "kernels_src/dims.py").write_text(f"from tilec import Dim\n\n\n{declared}")
    project.build(root)
    append(root, "dims", "X = 1\n")
    again = project.build(root)
    assert made(again) == {"copy_a-BLOCK=128", "copy_a-BLOCK=256"}
    assert {item.reasons[0] for item in again.results if item.reasons} == {"source of kernels_src/dims.py changed"}


def test_comment_makes_no_ptx_again_but_moves_locations(root: Path) -> None:
    project.build(root, kernels=("copy_a",))
    manifest = root / "artifacts/build/sm_90a/copy_a-BLOCK=128.json"
    before, cubin = manifest.read_text(), manifest.with_suffix(".cubin").read_bytes()
    append(root, "copy_a", "# a comment\n")
    again = project.build(root, kernels=("copy_a",))
    for item in again.results:
        assert item.hits["mlir"] and item.hits["ptx"] and item.hits["cubin"]
    assert manifest.with_suffix(".cubin").read_bytes() == cubin
    assert manifest.read_text() != before


def test_reasons_name_toolchain_and_missing_entries(root: Path) -> None:
    project.build(root)
    newer = project.TOOLCHAIN | {"llvmlite": "3 sha256:bb"}
    again = project.build(root, toolchain=newer)
    assert again.results[0].reasons == ["toolchain changed: llvmlite 2 -> 3"]
    key_files = list((root.parent / "store/v2/blobs").iterdir())
    for path in key_files:
        path.unlink()
    rebuilt = project.build(root, toolchain=newer)
    assert project.statuses(rebuilt) == ["built"] * 8
    assert rebuilt.results[0].reasons == ["entry missing"]


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: bytes([data[0] ^ 1]) + data[1:]])
def test_a_damaged_entry_is_a_reported_miss(root: Path, damage: object) -> None:
    project.build(root, kernels=("copy_a",))
    cubin = (root / "artifacts/build/sm_90a/copy_a-BLOCK=128.cubin").read_bytes()
    for path in (root.parent / "store/v2/blobs").iterdir():
        if path.read_bytes() == cubin:
            path.write_bytes(damage(cubin))  # type: ignore[operator]
    again = project.build(root, kernels=("copy_a",))
    rebuilt = [item for item in again.results if item.status == "built"]
    assert [item.reasons for item in rebuilt] == [["entry corrupt"]]
    assert any("is corrupt" in line for line in again.problems)
    assert project.statuses(project.build(root, kernels=("copy_a",))) == ["hit"] * 4


def test_removed_or_changed_output_is_restored(root: Path) -> None:
    project.build(root)
    path = root / "artifacts/build/sm_100a/copy_b-BLOCK=256.cubin"
    data = path.read_bytes()
    path.write_bytes(b"other")
    path.with_suffix(".json").unlink()
    assert project.statuses(project.build(root)) == ["hit"] * 8
    assert path.read_bytes() == data
    assert path.with_suffix(".json").exists()


def test_artifacts_that_are_no_longer_requested_are_removed(root: Path) -> None:
    project.build(root)
    folder = root / "artifacts/build/sm_90a"
    (folder / "notes.json").write_text("mine")
    path = root / "build.toml"
    path.write_text(path.read_text().replace("[128, 256]", "[256, 512]"))
    append(root, "copy_b", "def broken(:\n")
    again = project.build(root)
    assert again.results[2].reasons == ["constant BLOCK changed: 128 -> 512"]
    names = {item.stem for item in folder.iterdir()}
    assert names == {"copy_a-BLOCK=256", "copy_a-BLOCK=512", "copy_b-BLOCK=128", "copy_b-BLOCK=256", "notes"}


def test_partial_files_of_a_killed_build_are_removed(root: Path) -> None:
    project.build(root)
    ended = subprocess.Popen(["true"])
    ended.wait()
    temporary = next((root / "artifacts").rglob("*.cubin")).parent / f".tmp-{ended.pid}-{'0' * 16}"
    temporary.write_bytes(b"half")
    project.build(root)
    assert not temporary.exists()


def test_refused_kernel_leaves_the_others(root: Path) -> None:
    append(root, "copy_a", "#! refuse\n")
    result = project.build(root)
    assert project.statuses(result) == ["failed"] * 4 + ["built"] * 4
    (only,) = result.diagnostics
    assert only.code == "E0301"
    assert "3 more" in only.notes[-1]


def test_aborting_worker_costs_its_artifact_only(root: Path) -> None:
    append(root, "copy_a", "#! abort sm_90a\n")
    result = project.build(root)
    assert project.statuses(result) == ["failed", "built"] * 2 + ["built"] * 4
    assert {item.code for item in result.diagnostics} == {"E0504"}
    assert "SIGABRT" in " ".join(result.diagnostics[0].notes)


def test_an_internal_error_of_a_stage_is_reported_as_one(root: Path) -> None:
    append(root, "copy_b", "#! raise\n")
    result = project.build(root, jobs=1)
    assert project.statuses(result) == ["built"] * 4 + ["failed"] * 4
    assert "internal error" in result.diagnostics[0].message


def test_budget(root: Path) -> None:
    path = root / "build.toml"
    path.write_text(path.read_text() + "budget = { max_registers = 39 }\n")
    for _ in range(2):  # a hit is over budget too
        result = project.build(root)
        assert project.statuses(result) == ["built" if _ == 0 else "hit"] * 4 + ["failed"] * 4
        assert {item.code for item in result.diagnostics} == {"E0805"}
    assert "40 registers on sm_90a, the budget is 39" in result.diagnostics[0].message


def test_workers_do_not_change_products(root: Path, tmp_path: Path) -> None:
    other = project.make(tmp_path / "elsewhere" / "q")
    project.build(root, jobs=1)
    project.build(other, jobs=3)
    for path in sorted((root / "artifacts/build").rglob("*.*")):
        assert path.read_bytes() == (other / path.relative_to(root)).read_bytes(), path


@pytest.mark.parametrize("link", ["artifacts", "artifacts/build", "artifacts/build/sm_90a"])
def test_a_link_that_leads_outputs_out_of_the_project_is_refused(root: Path, tmp_path: Path, link: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / link).parent.mkdir(parents=True, exist_ok=True)
    (root / link).symlink_to(outside)
    with pytest.raises(CompileError) as caught:
        project.build(root)
    assert [item.code for item in caught.value.diagnostics] == ["E0702"]
    assert list(outside.iterdir()) == []


def test_store_that_is_a_file_is_one_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "file").write_text("")
    monkeypatch.setenv("TILEC_CACHE_DIR", str(root / "file"))
    with pytest.raises(CompileError) as caught:
        project.build(root)
    assert [item.code for item in caught.value.diagnostics] == ["E0701"]


def test_store_that_fills_up_ends_the_build_with_one_error(root: Path) -> None:
    append(root, "copy_a", "#! full\n")
    with pytest.raises(CompileError) as caught:
        project.build(root)
    assert [item.code for item in caught.value.diagnostics] == ["E0701"]


_SLOW = "import sys; from pathlib import Path; from tests.project import project; project.build(Path(sys.argv[1]))"


def start_slow(root: Path) -> subprocess.Popen[bytes]:
    """A build whose two workers both sleep in a stage, and write nothing."""
    append(root, "copy_a", "#! sleep 900\n")
    process = subprocess.Popen([sys.executable, "-c", _SLOW, str(root)], stderr=subprocess.PIPE, cwd=Path(__file__).parents[2])
    deadline = time.monotonic() + 600
    while len(list(root.glob("sleeping-*"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    return process


def worker_pids(root: Path) -> list[int]:
    return [int(path.name.split("-")[1]) for path in root.glob("sleeping-*")]


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until_dead(pids: list[int]) -> None:
    deadline = time.monotonic() + 600
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_interrupt_kills_workers_and_leaves_nothing_half_written(root: Path) -> None:
    process = start_slow(root)
    process.send_signal(signal.SIGINT)
    assert process.wait(600) != 0  # less than the worker would sleep
    assert not any(alive(pid) for pid in worker_pids(root))
    assert not list(root.rglob(".tmp-*"))
    path = root / "kernels_src/copy_a.py"
    path.write_text(path.read_text().replace("#! sleep 900\n", ""))
    assert "failed" not in project.statuses(project.build(root))


def test_killed_builder_does_not_block_the_next(root: Path) -> None:
    process = start_slow(root)
    process.kill()
    process.wait(600)
    wait_until_dead(worker_pids(root))
    path = root / "kernels_src/copy_a.py"
    path.write_text(path.read_text().replace("sleep 900", "sleep 0"))
    assert "failed" not in project.statuses(project.build(root))  # returns only if no lock is left
