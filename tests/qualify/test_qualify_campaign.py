"""`python ci/bench/kernels.py qualify`: what it plants and what it counts, on a fake device."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from ci.bench.kernels import qualify_faults, qualify_mutants
from tests.bundle import samples as stubs
from tests.qualify import bundles
from tilec.qualify.side_file import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A right bundle, and one whose PTX has a wrong factor."""
    found = tmp_path_factory.mktemp("campaign")
    right = bundles.with_ptx(found, "rms_norm")
    bundles.prepared(right, edges=1)
    (found / "other").mkdir()
    wrong = bundles.with_ptx(found / "other", "rms_norm", {"0f3A800000": "0f3A900000"})
    (found / "fault.bundle").write_bytes(wrong.read_bytes())
    return found


def planted(folder: Path, bundle: str) -> None:
    row = {
        "bundle": bundle, "side": "rms_norm.qualify", "kind": "float constant", "artifact": "rms_norm", "before": "a",
        "after": "b",
    }  # fmt: skip
    (folder / qualify_faults.FAULTS).write_text(json.dumps([row]))


def command(path: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "tests.qualify.fake_device", str(path), "emulator", "none", ""]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qualify_faults, "REPEATS", 1)


def test_a_right_bundle_and_a_found_fault_are_status_0(folder: Path) -> None:
    planted(folder, "fault.bundle")
    found = qualify_faults.examined(folder, command)
    assert found.status == 0
    assert found.data["summary"] == {"bundles": 1, "right": 1, "faults": 1, "found": 1, "kinds": 1}
    assert found.data["gpu"] == "fake device"
    assert "Planted faults of 1 kinds, found: 1 of 1." in " ".join(found.pages["qualify.md"].split())


def test_a_fault_that_is_not_found_is_status_1(folder: Path) -> None:
    (folder / "right.bundle").write_bytes((folder / "rms_norm.bundle").read_bytes())
    try:
        planted(folder, "right.bundle")
        (folder / "fault.qualify").write_bytes((folder / "rms_norm.qualify").read_bytes())
        found = qualify_faults.examined(folder, command)
    finally:
        (folder / "right.bundle").unlink()
    assert found.status == 1
    assert found.data["summary"] == {"bundles": 2, "right": 1, "faults": 1, "found": 0, "kinds": 1}


@pytest.mark.parametrize("kind", qualify_mutants.KINDS, ids=lambda kind: kind.name)
def test_each_kind_changes_one_group(kind: qualify_mutants.Kind) -> None:
    texts = {"float": "0f3F800000", "negate": "%p3", "+1": "7", "*2": "8", "/2": "8"}
    old = texts.get(kind.change, "add.f32")
    assert kind.after(old) != old
    assert re.compile(kind.pattern).groups == 1


def test_a_float_constant_becomes_larger_by_an_eighth() -> None:
    kind = qualify_mutants.KINDS[0]
    assert kind.after("0f3F800000") == f"0f{int(np.float32(1.125).view(np.uint32)):08X}"
    assert qualify_mutants.KINDS[-1].after("!%p1") == "%p1"


def test_a_change_that_does_not_matter_is_not_taken(folder: Path) -> None:
    bundle = bundles.bundle_of(folder / "rms_norm.bundle")
    (kernel,) = bundle.kernels
    ptx = bundle.texts()[kernel.manifest.digests["ptx"]].decode()
    launch = read(folder / "rms_norm.qualify").entries["rms_norm"].launches[0]
    right = qualify_mutants._emulated(kernel.manifest, ptx, launch)
    same = ptx.replace("%r16, 248;", "%r16, 120;")  # all lanes of a warp have the sum
    assert same != ptx
    assert qualify_mutants._matters(kernel.manifest, same, launch, right) == ""
    wrong = ptx.replace("0f3A800000", "0f3A900000")
    assert qualify_mutants._matters(kernel.manifest, wrong, launch, right) == "`out` differs at smallest"


def test_a_bundle_of_one_artifact_opens_and_has_the_other_code(folder: Path, tmp_path: Path) -> None:
    bundle = bundles.bundle_of(folder / "rms_norm.bundle")
    (kernel,) = bundle.kernels
    code = stubs.cubin(kernel.manifest.entry, salt=3)
    path = tmp_path / "one.bundle"
    path.write_bytes(qualify_mutants.one_artifact(bundle, kernel, code, bundle.texts(), b"// other\n"))
    found = bundles.bundle_of(path)
    assert found.cubin("rms_norm") == code != bundle.cubin(kernel)
    assert found.kernel("rms_norm").manifest.digests["tir"] == kernel.manifest.digests["tir"]
