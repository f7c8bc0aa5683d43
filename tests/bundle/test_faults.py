"""Short runs of the faults that `ci/bench/judges.py faults` runs at length."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.bundle import faults
from tests.files import copy_kernels
from tests.project import project

BUILD = "import sys; from pathlib import Path; from tests.project import project; project.build(Path(sys.argv[1]))"
BUILD_JSON = """
import json, sys
from pathlib import Path
from tests.project import project
from tilec.project.build.report import as_json
print(json.dumps(as_json(project.build(Path(sys.argv[1])), 0)))
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = project.make(tmp_path / "p")
    for name in ("copy_a", "copy_b"):
        with (folder / "kernels_src" / f"{name}.py").open("a") as file:
            file.write("#! sleep 0.03\n")
    return folder


@pytest.mark.campaign
def test_kills_at_random_moments(root: Path) -> None:
    count = faults.killed_builds(root, [sys.executable, "-c", BUILD, str(root)], 8, seed=3)
    assert count.tried == 8
    assert count.wrong == count.unexplained == []


def test_damaged_entries_and_index(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    project.build(root)
    for found in (faults.damaged_entries(tmp_path / "store", 40, 1), faults.damaged_index(tmp_path / "store", 20, 1)):
        assert found.wrong == found.unexplained == []
        assert found.misses and found.served


def test_four_builders_make_each_artifact_once(root: Path, tmp_path: Path) -> None:
    count = faults.concurrent_builders(root, tmp_path / "store", [sys.executable, "-c", BUILD_JSON, str(root)], 4)
    assert count.tried == 4
    assert count.wrong == count.unexplained == []
    assert count.served == 2 * 2 * 2 + 4 * 2 * 4  # tile IR and proofs per specialisation, and four stages per architecture


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of one small artifact and one model."""
    root = tmp_path_factory.mktemp("real") / "p"
    copy_kernels(root / "kernels_src", "argmax_reduce")
    (root / "build.toml").write_text(
        '[build]\narch = ["sm_90"]\n[[kernel]]\nname = "argmax_reduce"\nconstants = { PARTS = 128 }\n'
        '[[model]]\nname = "m"\nfamily = "f"\nconfig = { vocab_size = 9 }\n'
    )
    (root / "kernels_src" / "f.step").write_text("def decode():\n    argmax = argmax_reduce()\n\n\ndef prefill():\n    pass\n")
    return root


@pytest.mark.campaign
def test_full_and_read_only_disks_are_one_clear_error(real: Path, tmp_path: Path) -> None:
    store, output = tmp_path / "store", tmp_path / "out"
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o555)
    pack = faults.tilec("bundle", "pack", "-o", str(output))
    build = faults.tilec("build")
    assert faults.one_clear_error(build, real, store, faults.small_files(2000)).startswith("error[E0701]")
    assert faults.one_clear_error(build, real, locked, faults.obey_permissions).startswith("error[E0701]")
    done = faults.one_clear_error(pack, real, store)
    assert done.startswith("WRONG: status 0"), done
    bundle = output / "m-sm_90a.bundle"
    data = bundle.read_bytes()
    bundle.write_bytes(b"former")
    assert faults.one_clear_error(pack, real, store, faults.small_files(4000)).startswith("error[E07")
    assert bundle.read_bytes() == b"former"
    output.chmod(0o555)
    assert faults.one_clear_error(pack, real, store, faults.obey_permissions).startswith("error[E0702]")
    output.chmod(0o755)
    assert os.listdir(output) == ["m-sm_90a.bundle"]
    assert faults.one_clear_error(pack, real, store).startswith("WRONG: status 0")
    assert bundle.read_bytes() == data
