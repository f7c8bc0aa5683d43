"""`vector = 32`: loads of 32 bytes where rows allow it, from bases that must then be as aligned, and the same results."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import shipped
from tests.programs.machines import manifest
from tilec import cache
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, json_bytes, parameter_specs
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble
from tilec.audit.contract import disagreements
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import Report, emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import Load, Store
from tilec.link import link
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.pipeline import STAGES, Request, Work, run_stage
from tilec.project.build.contract import contract_difference
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_80, SM_90A, SM_100A, SM_120A, TARGETS, Target

KERNEL = """import tilec as tl

class N(tl.Dim):
    "rows"

class K(tl.Dim):
    "columns"

@tl.kernel
def k(x: tl.In[tl.{dtype}, K], w: tl.In[tl.{dtype}, N, K], out: tl.Out[tl.f32, N]):
    tl.grid(N)
    tl.requires(K % {multiple} == 0)
    n = tl.bid(0)
    acc = tl.zeros((1, {block}), tl.f32)
    for k in range(tl.cdiv(K, {block})):
        a = tl.load(x, k, shape={block}, pad=0).astype(tl.f32)
        acc += a[None, :] * tl.load(w, (n, k), shape=(1, {block}), pad=0).astype(tl.f32)
    tl.store(out, n, tl.sum(acc, axis=1))
"""
COPY = """import tilec as tl

class K(tl.Dim):
    "elements"

@tl.kernel
def k(x: tl.In[tl.{dtype}, K], out: tl.Out[tl.{dtype}, K]):
    tl.grid(tl.cdiv(K, 1024))
    tl.requires(K % 32 == 0)
    tl.store(out, tl.bid(0), tl.load(x, tl.bid(0), shape=1024, pad={pad}), mask=True)
"""
WIDE = re.compile(r"ld\.global(?:\.nc)?(?:\.L1::no_allocate\.L2::128B)?\.v8\.b32")
WITH_WIDE_LOADS = [target for target in TARGETS if target.capability >= (10, 0)]


def source(folder: Path, dtype: str = "f16", block: int = 512, multiple: int = 16) -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL.format(dtype=dtype, block=block, multiple=multiple), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


def scheduled(folder: Path, target: Target = SM_100A, vector: int = 32, **kernel: Any) -> Function:
    return prepare(source(folder, **kernel), target, Overrides(warps=1, vector=vector))


def alignments(function: Function) -> dict[str, int]:
    return {one.name: one.value.tensor.align for one in function.parameters if one.access is not None}


def widths(function: Function) -> set[int]:
    return {op.vector for op in function.body.walk() if isinstance(op, Load)}


@pytest.mark.parametrize(("dtype", "multiple"), [("f16", 16), ("bf16", 32), ("f32", 8)])
def test_loads_and_bases_are_of_32_bytes(dtype: str, multiple: int, tmp_path: Path) -> None:
    function = scheduled(tmp_path, dtype=dtype, multiple=multiple)
    assert widths(function) == {32}
    assert alignments(function) == {"x": 32, "w": 32, "out": 16}
    assert all(op.vector <= 16 for op in function.body.walk() if isinstance(op, Store))
    assert WIDE.search(lower(function, SM_100A).mlir)


def test_rows_that_are_no_multiple_keep_their_loads(tmp_path: Path) -> None:
    function = scheduled(tmp_path, multiple=8)
    assert alignments(function) == {"x": 32, "w": 16, "out": 16}  # only x has one row
    assert widths(function) == {16, 32}


def test_tiles_of_no_whole_vector_keep_their_loads(tmp_path: Path) -> None:
    function = scheduled(tmp_path, block=8)
    assert alignments(function) == {"x": 16, "w": 16, "out": 16}
    assert not WIDE.search(lower(function, SM_100A).mlir)


@pytest.mark.parametrize("dtype", ["i8", "u8", "f8e4m3", "boolean"])
def test_tensors_of_8_bits_keep_their_alignment(dtype: str, tmp_path: Path) -> None:
    """A thread has 16 elements of a row side by side, which are 16 bytes: a stricter base would serve no load."""
    path = tmp_path / "k.py"
    path.write_text(COPY.format(dtype=dtype, pad="False" if dtype == "boolean" else "0"), encoding="utf-8")
    function = prepare(load_kernel(path, {}, root=tmp_path), SM_100A, Overrides(warps=1, vector=32))
    assert alignments(function) == {"x": 16, "out": 16}
    assert widths(function) == {16}


def test_a_signature_that_takes_any_base_keeps_it(tmp_path: Path) -> None:
    """`Align[2]` says that callers have bases of no 16 bytes: a schedule does not take that back."""
    path = tmp_path / "k.py"
    text = KERNEL.format(dtype="f16", block=512, multiple=16).replace("tl.f16, N, K]", "tl.f16, N, K, tl.Align[2]]")
    path.write_text(text, encoding="utf-8")
    function = prepare(load_kernel(path, {}, root=tmp_path), SM_100A, Overrides(warps=1, vector=32))
    assert alignments(function) == {"x": 32, "w": 2, "out": 16}


def test_other_schedules_load_16_bytes(tmp_path: Path) -> None:
    function = scheduled(tmp_path, vector=16)
    assert widths(function) == {16}
    assert set(alignments(function).values()) == {16}
    assert not WIDE.search(lower(function, SM_100A).mlir)


@pytest.mark.parametrize("target", WITH_WIDE_LOADS, ids=str)
def test_machine_code_loads_256_bits(target: Target, tmp_path: Path) -> None:
    cubin = assemble(to_ptx(lower(scheduled(tmp_path, target), target).mlir, target), target).cubin
    assert "LDG.E.ENL2.256" in disassemble(cubin)


def made(folder: Path) -> tuple[str, Manifest]:
    function = scheduled(folder)
    lowered = lower(function, SM_100A)
    (tensors, _) = parameter_specs(function)
    return to_ptx(lowered.mlir, SM_100A), replace(manifest(source(folder), lowered, SM_100A), tensors=tensors)


def launched(ptx: str, launch: Manifest, rows: int, columns: int) -> tuple[Report, dict[str, Any]]:
    random = np.random.default_rng(rows + columns)
    x, w = (random.integers(-3, 4, shape).astype(np.float16) for shape in (columns, (rows, columns)))
    arrays: dict[str, Any] = {"x": x, "w": w, "out": np.zeros(rows, np.float32)}
    flat = {name: array.reshape(-1).view(np.uint16 if array.itemsize == 2 else np.uint32) for name, array in arrays.items()}
    return emulate(ptx, launch, flat, {"N": rows, "K": columns}), arrays


@pytest.mark.parametrize(("rows", "columns"), [(1, 16), (3, 512), (2, 528), (5, 1040)])
def test_results_are_the_interpreters(rows: int, columns: int, tmp_path: Path) -> None:
    report, arrays = launched(*made(tmp_path), rows, columns)
    assert report.clean, str(report.faults[0])
    run(source(tmp_path), arrays, {})
    assert (report.tensors["out"].view(np.float32) == arrays["out"]).all()


def test_a_base_of_16_bytes_is_a_fault(tmp_path: Path) -> None:
    ptx, launch = made(tmp_path)
    loose = replace(launch, tensors=tuple(replace(spec, align=16) for spec in launch.tensors))
    report, _ = launched(ptx, loose, 2, 528)
    assert "alignment" in {fault.kind for fault in report.faults}


def linked_products(folder: Path) -> Work:
    """What the pipeline makes of the kernel with `vector = 32`."""
    source(folder)
    sources = {"k.py": cache.FileDigests().digest(folder / "k.py")}
    fingerprints = {stage.name: "" for stage in STAGES}
    work = Work(Request("k", "k.py", str(folder), {}, sources, {}, fingerprints, (Overrides(vector=32),)), SM_100A)
    with contextlib.closing(cache.Store(folder / "store")) as store:
        for stage in STAGES:
            run_stage(stage, work, store)
    link(work)
    return work


def test_the_launcher_checks_the_base(tmp_path: Path) -> None:
    work = linked_products(tmp_path)
    linked = manifest_from_json(work.data("json"))
    assert {spec.name: spec.align for spec in linked.tensors} == {"x": 32, "w": 32, "out": 16}
    assert not list(disagreements(linked, work.function()))


def test_an_artifact_of_another_machine_is_accepted_with_its_alignments_only(tmp_path: Path) -> None:
    """What a build farm or a shared cache gives is compared with its tile IR, which has the alignments of the signature."""
    products = linked_products(tmp_path).products
    assert contract_difference(products) == ""
    for changes, message in (
        ({"x": 16, "w": 16}, "its PTX loads 32 bytes at once from bases that its manifest does not align"),
        ({"x": 64}, "the tensors of its manifest and of its tile IR differ"),
        ({"w": 8}, "the tensors of its manifest and of its tile IR differ"),
        ({"out": 32}, "the tensors of its manifest and of its tile IR differ"),
    ):
        manifest = json.loads(products["json"])
        for tensor in manifest["tensors"]:
            tensor["align"] = changes.get(tensor["name"], tensor["align"])
        assert contract_difference({**products, "json": json.dumps(manifest).encode()}) == message


def test_only_loads_of_32_bytes_need_such_bases(tmp_path: Path) -> None:
    """A schedule without them keeps the alignments of the signature."""
    products = linked_products(tmp_path).products
    manifest = json.loads(products["json"])
    manifest["schedule"]["vector"] = 16
    manifest["digests"]["schedule"] = hashlib.sha256(json_bytes(manifest["schedule"])).hexdigest()
    changed = {**products, "json": json.dumps(manifest).encode()}
    assert contract_difference(changed) == "the tensors of its manifest and of its tile IR differ"


@pytest.mark.parametrize("target", [SM_80, SM_90A], ids=str)
def test_older_chips_load_them_in_two(target: Target, tmp_path: Path) -> None:
    function = scheduled(tmp_path, target)
    assert widths(function) == {16}
    assert set(alignments(function).values()) == {16}
    assert not WIDE.search(lower(function, target).mlir)


@pytest.mark.parametrize("vector", [8, 24, 64])
def test_other_widths_are_refused(vector: int, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=f"loads of {vector} bytes"):
        scheduled(tmp_path, vector=vector)


def test_products_have_their_own_copies() -> None:
    constants = {"E": "bf16", "BM": 64, "BN": 64, "BK": 64, "GROUP": 8}
    function = load_kernel(shipped.ROOT / "kernels_src" / "matmul.py", constants, root=shipped.ROOT)
    with pytest.raises(CompileError, match="in a kernel that feeds products"):
        prepare(function, SM_120A, Overrides(vector=32))
