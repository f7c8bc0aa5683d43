"""Products with TMA operands: PTX in which the emulator finds no fault, and machine code with the expected instructions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests import campaign
from tests.clean import check_clean
from tests.programs.machines import manifest
from tests.tensor_products import emulated, made
from tilec.artifact.records import TensorMapSpec
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.codegen import to_ptx
from tilec.diagnostics.diagnostic import CompileError
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.ops import For
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.sync_ops import Roles
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides, Schedule
from tilec.target.targets import SM_90A

CASES: list[Any] = [
    (("bf16", 64, 64), {"stages": 2}, (72, 40, 200), (0,)),
    (("bf16", 64, 64), {"stages": 2}, (72, 40, 200), (1,)),
    (("bf16", 64, 64), {"stages": 2}, (1, 8, 8), (0,)),
    (("f16", 128, 64), {"consumers": 2, "stages": 3}, (72, 40, 264), (1,)),
    (("bf16", 128, 256), {}, (8, 264, 72), (0,)),
    (("bf16", 256, 160), {"consumers": 2, "stages": 3}, (264, 168, 136), (0,)),
    (("bf16", 64, 64), {"stages": 2, "persistent": True}, (136, 72, 200), (0,)),
    (("bf16", 64, 64), {"stages": 2, "persistent": True}, (136, 72, 200), (1,)),
    (("f16", 128, 64), {"consumers": 2, "stages": 3, "persistent": True}, (264, 136, 72), (1,)),
    (("bf16", 64, 64), {"stages": 2, "persistent": True, "order": "pingpong"}, (136, 136, 136), (0,)),
    (("f16", 128, 64), {"stages": 3, "persistent": True, "order": "pingpong"}, (136, 200, 72), (1,)),
    *((("bf16", 64, 96), {"stages": 2, "early": 0}, extents, (0,)) for extents in ((17, 16, 136), (33, 48, 72), (49, 80, 200))),
]  # fmt: skip


def kind(case: Any) -> tuple[str, ...]:
    """The schedule's settings other than its stages."""
    return tuple(name for name in case[1] if name != "stages")


@pytest.mark.parametrize(("sizes", "wanted", "extents", "seeds"), campaign.one_of_each(CASES, kind), ids=str)
def test_the_emulator_finds_nothing_and_agrees(sizes: Any, wanted: Any, extents: Any, seeds: tuple[int, ...]) -> None:
    kernel = made(*sizes, **wanted)
    for seed in seeds:
        report, found, expected = emulated(kernel, extents, seed)
        check_clean(report)
        assert (found == expected).all()


def test_iterations_of_pingpong_consumers_end_where_the_next_one_is_not_in_i32() -> None:
    """A block may process 2^31 - 1 tiles; as a signed i32, the iteration after the last would be negative."""
    wanted = {"stages": 2, "persistent": True}
    shared, pingpong = made("bf16", 64, 64, **wanted), made("bf16", 64, 64, **wanted, order="pingpong")
    assert [kernel.lowered.mlir.count("scf.for unsigned") for kernel in (shared, pingpong)] == [0, 2]


MISTAKES = {
    "bytes that do not come are not counted": (r"@%\w+ mbarrier\.complete_tx[^;]*;", ""),
    "where all come": (r"@(%\w+ mbarrier\.complete_tx)", r"@!\1"),
    "at another barrier": (r"(mbarrier\.complete_tx\S+ \[%\w+)\]", r"\1+8]"),
    "another number": (
        r"(@%\w+ mbarrier\.complete_tx\S+ \[%\w+\], )(%\w+);",
        r"{ .reg .b32 other; add.s32 other, \2, 16; \1other; }",
    ),
    "of the other box": (r"(selp\.b64 \t%rd\d+, )(%rd\d+), (%rd\d+)", r"\1\3, \2"),
}
"""Faults of a copy without out-of-bounds fill: one replacement in the PTX each."""


@pytest.mark.parametrize("mistake", campaign.first(2, list(MISTAKES)))
def test_a_mistake_in_a_copy_of_fewer_rows_is_found(mistake: str) -> None:
    """For each operand, in a loop that passes over its ring more than once."""
    kernel = made("bf16", 64, 64, stages=2, early=0)
    pattern, replacement = MISTAKES[mistake]
    matches = list(re.finditer(pattern, kernel.ptx))
    assert len(matches) >= 2
    for match in matches:
        ptx = kernel.ptx[: match.start()] + match.expand(replacement) + kernel.ptx[match.end() :]
        assert any(not emulated(kernel, (rows, 72, 392), 0, ptx)[0].clean for rows in (72, 104, 40, 64)), match[0]


@pytest.mark.parametrize("rows", [17, 33, 49])
def test_a_box_of_one_row_too_few_is_found(rows: int) -> None:
    """The box of the in-bounds rows extends to the last such row, and not past it."""
    kernel = made("bf16", 64, 64, stages=2)
    ptx, count = re.subn(rf"(setp\.lt\.s32 \t%p\d+, %r\d+, ){rows}(;\s+selp\.b64)", rf"\g<1>{rows + 1}\2", kernel.ptx)
    assert count == 2
    for rows_in_bounds in (rows - 1, rows):
        check_clean(emulated(kernel, (rows_in_bounds, 64, 200), 0)[0])
    check_clean(emulated(kernel, (rows - 1, 64, 200), 0, ptx)[0])
    report = emulated(kernel, (rows, 64, 200), 0, ptx)[0]
    assert {fault.kind for fault in report.faults} == {"uninitialised"}


SCALED = '''"""A product onto a tile, scaled by sums of weights."""
import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f32, grid, load, mma, requires, store, sum

class M(Dim):
    pass

class K(Dim):
    pass

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, 64, K], c: In[f32, M, 64], w: In[f32, 64, 64], out: Out[f32, M, 64]):
    requires(K % 8 == 0)
    grid(cdiv(M, 64))
    i = bid(0)
    s = sum(load(w, (0, 0), shape=(64, 64)), axis=0)
    acc = load(c, (i, 0), shape=(64, 64), pad=0)
    for j in range(cdiv(K, 64)):
        acc = mma(load(a, (i, j), shape=(64, 64), pad=0), load(b, (0, j), shape=(64, 64), pad=0).T, acc)
    store(out, (i, 0), acc * s[None, :], mask=True)
'''


def test_layout_conversions_before_the_loop_do_not_reuse_the_ring(tmp_path: Path) -> None:
    """The ring is being filled meanwhile. After the loop, scratch may reuse its bytes."""
    path = tmp_path / "k.py"
    path.write_text(SCALED)
    prepared = prepare(load_kernel(path, {}, root=tmp_path), SM_90A, Overrides(copy="tma", stages=2))
    (roles,) = [op for op in prepared.body.ops if isinstance(op, Roles)]
    stages = [op for op in prepared.body.ops if isinstance(op, SharedAlloc)]
    scratch = [op.offset for op in roles.regions[0].walk() if isinstance(op, SharedAlloc)]
    end = max(op.offset + op.bytes for op in stages)
    assert [offset >= end for offset in scratch] == [True, True, True, False, False]


@pytest.mark.campaign
def test_replicated_stores_are_no_race_after_a_barrier_of_the_role(tmp_path: Path) -> None:
    """Without the barrier it is a race."""
    path = tmp_path / "k.py"
    path.write_text(SCALED)
    function = load_kernel(path, {}, root=tmp_path)
    lowered = lower(prepare(function, SM_90A, Overrides(copy="tma", stages=2)), SM_90A)
    kernel_manifest, ptx = manifest(load_kernel(path, {}, root=tmp_path), lowered, SM_90A), to_ptx(lowered.mlir, SM_90A)
    random = np.random.default_rng(0)
    m, k = 65, 136
    shapes = {"a": (m, k), "b": (64, k), "c": (m, 64), "w": (64, 64), "out": (m, 64)}
    arrays = {
        name: random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16 if name in "ab" else np.float32)
        for name, shape in shapes.items()
    }
    flat = {
        name: array.reshape(-1).view(np.uint16) if name in "ab" else array.reshape(-1).copy() for name, array in arrays.items()
    }
    report = emulate(ptx, kernel_manifest, flat, {"M": m, "K": k}, seed=1)
    check_clean(report)
    run(load_kernel(path, {}, root=tmp_path), arrays, {})
    assert (report.tensors["out"].reshape(m, 64) == arrays["out"]).all()
    without_barrier, count = re.subn(r"^\s*bar(rier)?\.sync(\.aligned)?\s+1, 128;", "", ptx, flags=re.MULTILINE)
    assert count
    assert not emulate(without_barrier, kernel_manifest, flat, {"M": m, "K": k}, seed=1).clean


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        (("bf16", 64, 64), {}), (("bf16", 64, 64), {"persistent": True}), (("f16", 128, 160), {}),
        (("f16", 128, 160), {"persistent": True}),
    ],
    ids=str,
)  # fmt: skip
def test_products_are_not_serialized(sizes: Any, wanted: Any) -> None:
    """A missing wait is detected: here, an accumulator is read before its product is complete."""
    ptx = made(*sizes, **wanted).ptx
    assert not assemble(ptx, SM_90A).one_by_one
    assert assemble(ptx.replace("wgmma.wait_group.sync.aligned 0;", ""), SM_90A).one_by_one


def test_the_schedule_is_reported() -> None:
    schedule = made("bf16", 128, 256).schedule
    assert str(schedule) == "8 warps consumer; 4 warps producer; wgmma by tma, 4 stages"
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_the_stages_of_persistent_blocks_are_kept_across_tiles() -> None:
    """Scratch for layout conversions takes no bytes of the ring, which is filled for the next tile meanwhile; no other block
    runs on the same SM."""
    kernel = made("bf16", 128, 256, persistent=True)
    assert str(kernel.schedule) == "8 warps consumer; 4 warps producer; wgmma by tma, 3 stages; persistent"
    (roles,) = [op for op in kernel.prepared.body.ops if isinstance(op, Roles)]
    stages = [op for op in kernel.prepared.body.ops if isinstance(op, SharedAlloc)]
    scratch = [op for op in roles.regions[0].walk() if isinstance(op, SharedAlloc)]
    assert scratch and min(op.offset for op in scratch) >= max(op.offset + op.bytes for op in stages)
    assert [len([op for op in region.ops if isinstance(op, For)]) for region in roles.regions] == [1, 1]


PAIRS = '''"""A product for each of several pairs of matrices."""
import tilec
from tilec import Dim, In, Out, astype, bf16, bid, cdiv, f32, grid, load, mma, num_blocks, requires, reshape, store, zeros

class B(Dim):
    pass

class K(Dim):
    pass

@tilec.kernel
def k(a: In[bf16, 64, K], b: In[bf16, 64, K], out: Out[bf16, B, 64, 64]):
    requires(K % 8 == 0)
    GRID
    acc = zeros((64, 64), f32)
    for j in range(cdiv(K, 64)):
        acc = mma(load(a, (0, j), shape=(64, 64), pad=0), load(b, (0, j), shape=(64, 64), pad=0).T, acc)
    for i in range(3):
        acc = acc + NUMBER
    store(out, (bid(0), 0, 0), reshape(astype(acc, bf16), (1, 64, 64)))
'''


def test_blocks_of_two_axes_process_one_tile_each(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(PAIRS.replace("GRID", "grid(B, 1)").replace("NUMBER", "1.0"))
    with pytest.raises(CompileError, match="a grid of 2 axes") as refused:
        choose(load_kernel(path, {}, root=tmp_path), SM_90A, Overrides(copy="tma", persistent=True))
    (only,) = refused.value.diagnostics
    assert only.code == "E0809" and "write the kernel with a grid of one axis, or leave `persistent` out" in only.hint


@pytest.mark.parametrize("number", ["num_blocks(0)", "bid(0)"])
def test_blocks_of_the_source_are_tiles(tmp_path: Path, number: str) -> None:
    """Also in loops."""
    path = tmp_path / "k.py"
    path.write_text(PAIRS.replace("GRID", "grid(B)").replace("NUMBER", f"astype({number}, f32)"))
    prepared = prepare(load_kernel(path, {}, root=tmp_path), SM_90A, Overrides(copy="tma", stages=2, persistent=True))
    opcodes = [op.opcode for op in prepared.body.walk()]
    assert "num_blocks" not in opcodes and opcodes.count("block_id") == 1
    assert opcodes.count("grid_extent") == 1 + number.startswith("num")


def test_maps_are_of_whole_tensors_in_the_order_of_the_arguments() -> None:
    """A full box has all rows of a stage; further maps have fewer rows, for the last tile of a tensor."""
    kernel = made("bf16", 128, 256)
    maps = [("a", rows) for rows in (128, 96, 64, 32)] + [("b", rows) for rows in (256, 192, 128, 64)]
    assert kernel.lowered.tensor_maps == tuple(TensorMapSpec(name, (rows, 64), 128) for name, rows in maps)
    assert [(slot.kind, slot.name) for slot in kernel.lowered.abi[-8:]] == [("tensor_map", name) for name, _ in maps]
    assert kernel.ptx.count(".param .align 64 .b8 ") == 8 and "[128]" in kernel.ptx


def test_machine_code_copies_boxes_and_multiplies_from_shared_memory() -> None:
    assembled = assemble(made("bf16", 128, 256).ptx, SM_90A)
    used = instructions(disassemble(assembled.cubin))
    assert not assembled.one_by_one
    assert assembled.resources.spill_bytes == assembled.resources.stack_bytes == 0
    assert sum(count for name, count in used.items() if name.startswith("UTMALDG.2D")) >= 2
    assert any(name.startswith("HGMMA") for name in used) and any(name.startswith("SYNCS") for name in used)
    assert not any(name.startswith("LDGSTS") for name in used)


def test_copies_before_the_grid_dependency_wait_are_found() -> None:
    """For copies of both operands, and for stores of the result."""
    kernel = made("bf16", 64, 64, stages=2)
    report = emulated(kernel, (8, 8, 8), 0, kernel.ptx.replace("griddepcontrol.wait;", ""))[0]
    assert {fault.kind for fault in report.faults} == {"dependency"}
    assert {fault.tensor for fault in report.faults} == {"a", "b", "out"}
