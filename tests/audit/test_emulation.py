"""PTX on the edge launches of its kernel: clean if it is right, faulty if it is wrong, unknown if it is not emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tests.audit import samples
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, to_json
from tilec.audit import emulation, launches
from tilec.audit.emulation import emulated
from tilec.codegen import to_ptx
from tilec.frontend.build import load_kernel
from tilec.ir.text.parser import parse_function
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.targets import TARGETS

pytest.importorskip("tilec.emulator")
SM_90 = next(target for target in TARGETS if target.name == "sm_90a")


def compiled(name: str) -> tuple[Manifest, str]:
    """A manifest that fits the launch of the kernel, and its PTX."""
    lowered = lower(shipped.prepared(name, SM_90), SM_90)
    data: dict[str, Any] = to_json(samples.manifest(name))
    data |= {"abi": to_json(lowered.abi), "block": lowered.num_threads, "entry": lowered.entry}
    data["resources"]["dynamic_shared_bytes"] = lowered.dynamic_shared_bytes
    (role,) = data["schedule"]["roles"]
    role["warps"] = lowered.num_threads // 32
    return manifest_from_json(data), to_ptx(lowered.mlir, SM_90)


def emulation_of(manifest: Manifest, ptx: str, **options: int) -> dict[str, Any]:
    function = parse_function(samples.text(manifest.kernel))
    return emulated(manifest, function, ptx, **{"launches": 3, "seeds": 2, **options})


@pytest.mark.parametrize("name", ["add", "kv_update"])
def test_right_code_is_clean_and_agrees_with_the_interpreter(name: str) -> None:
    manifest, ptx = compiled(name)
    found = emulation_of(manifest, ptx)
    assert found["status"] == "clean"
    assert [row["case"] for row in found["launches"][:2]] == ["smallest"] * 2
    assert not any(row.get("differs") for row in found["launches"])
    assert found["coverage"] > 0.8
    assert found["instructions"] > 1000
    assert found == emulation_of(manifest, ptx)


@pytest.mark.parametrize("factor", ["2.0", "3.0"])
def test_tensors_with_gaps_are_compared_element_by_element(factor: str, tmp_path: Path) -> None:
    source = samples.KERNELS / "strided_scale.py"
    launched = tmp_path / source.name
    launched.write_text(source.read_text(encoding="utf-8").replace("2.0 *", f"{factor} *"), encoding="utf-8")
    function = load_kernel(source, {"BLOCK": 64}, root=samples.KERNELS)
    lowered = lower(prepare(load_kernel(launched, {"BLOCK": 64}, root=tmp_path), SM_90), SM_90)
    data = samples.manifest_data(function, b"", b"")
    data |= {"abi": to_json(lowered.abi), "block": lowered.num_threads, "entry": lowered.entry}
    found = emulated(manifest_from_json(data), function, to_ptx(lowered.mlir, SM_90), launches=4, seeds=1)
    assert found["status"] == "clean"
    assert any(row["values"]["OC"] > 1 for row in found["launches"])
    assert [row["differs"] for row in found["launches"]] == [["out"] if factor == "3.0" else []] * len(found["launches"])


def test_a_wrong_value_is_seen_by_the_comparison() -> None:
    manifest, ptx = compiled("add")
    wrong = ptx.replace("add.rn.f32", "sub.rn.f32").replace("add.bf16x2", "sub.bf16x2").replace("add.f32", "sub.f32")
    assert wrong != ptx
    assert any(row.get("differs") == ["out"] for row in emulation_of(manifest, wrong)["launches"])


def test_code_that_leaves_its_tensor_is_faulty() -> None:
    """The block id is one too large, so the last elements are past the end of the tensor."""
    manifest, ptx = compiled("kv_update")
    at = ptx.index("%ctaid.x;")
    register = ptx[:at].split()[-1].rstrip(",")
    wrong = ptx.replace("%ctaid.x;", f"%ctaid.x;\n\tadd.s32 {register}, {register}, 1;", 1)
    found = emulation_of(manifest, wrong)
    assert found["status"] == "faulty"
    assert any(fault for row in found["launches"] for fault in row["faults"])


def test_code_that_is_not_understood_is_unknown() -> None:
    manifest, ptx = compiled("add")
    found = emulation_of(manifest, ptx.replace("\tret;", "\tfrobnicate.b32 %r1, %r1;\n\tret;"))
    assert found["status"] == "unknown"
    assert "frobnicate" in found["reason"]


def test_a_launch_over_its_steps_is_unknown_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step limit is neither a fault of the kernel nor a verdict on it."""
    monkeypatch.setattr(emulation, "INSTRUCTIONS", 20)
    found = emulation_of(*compiled("add"))
    assert found["status"] == "unknown"
    assert found["reason"] == "smallest: it takes more than 20 steps of the emulator"
    assert not any(row["faults"] for row in found["launches"])


def test_launches_that_are_too_large_say_so_with_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launches, "ELEMENTS", 2)
    found = emulation_of(*compiled("add"))
    assert found["status"] == "unknown"
    assert "smallest: its 1 blocks and 3 elements exceed the emulated limits of 64 and 2" in found["reason"]


def test_sizes_that_the_solver_does_not_find_differ_from_a_contract_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launches, "SIZE_STEPS", 1)
    reason = emulation_of(*compiled("add"))["reason"]
    assert "smallest: sizes for it were not found: z3 found neither a proof nor a counterexample within 3 steps" in reason


def test_no_order_of_threads_is_tried_twice() -> None:
    """Neither is a number of persistent blocks: the thread orders continue from launch to launch."""
    manifest, ptx = compiled("kv_update")
    seeds = [row["seed"] for row in emulation_of(manifest, ptx)["launches"]]
    assert len(seeds) == len(set(seeds)) > 2
