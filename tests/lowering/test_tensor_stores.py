"""Products whose tiles are stored by TMA: bit-identical to the interpreter, edges included; and the emulator's reports if a
wait, a fence or a barrier is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import campaign
from tests.clean import check_clean
from tests.tensor_products import Made, emulated, made, source
from tilec.artifact.records import TensorMapSpec
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.ir.ops.staging_ops import SharedAlloc
from tilec.ir.ops.store_ops import ELEMENT_BYTES, ScratchStoreRows, TensorStore, WaitStores
from tilec.ir.ops.sync_ops import Roles
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.layouts.tensor_stores import parts_of
from tilec.target.schedule import Overrides, Schedule
from tilec.target.targets import SM_90A, SM_100A

CASES: list[Any] = [
    (("bf16", 64, 64), {"stages": 2}, (72, 40, 200), (0,)),
    (("bf16", 64, 64), {"stages": 2}, (72, 40, 200), (1,)),
    (("bf16", 64, 64), {"stages": 2}, (1, 8, 8), (0,)),
    (("f16", 128, 80), {"consumers": 2, "stages": 3}, (72, 88, 72), (1,)),
    (("bf16", 256, 160), {"consumers": 2, "stages": 3}, (264, 168, 72), (0,)),
    (("bf16", 64, 80), {"stages": 2, "persistent": True}, (136, 168, 72), (0,)),
    (("bf16", 64, 80), {"stages": 2, "persistent": True}, (136, 168, 72), (1,)),
    (("bf16", 128, 256), {"consumers": 2, "stages": 4, "persistent": True}, (136, 520, 72), (0,)),
    (("bf16", 64, 80), {"stages": 2, "persistent": True, "order": "pingpong"}, (136, 168, 136), (0,)),
    (("bf16", 64, 80), {"stages": 2, "persistent": True, "order": "pingpong"}, (136, 168, 136), (1,)),
    (("f16", 128, 160), {"stages": 4, "persistent": True, "order": "pingpong"}, (136, 328, 72), (1,)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "wanted", "extents", "seeds"),
    campaign.one_of_each(CASES, lambda case: tuple(sorted(case[1].keys() - {"stages"}))),
)
def test_the_emulator_finds_nothing_and_agrees(sizes: Any, wanted: Any, extents: Any, seeds: tuple[int, ...]) -> None:
    kernel = made(*sizes, **wanted, store="tma")
    for seed in seeds:
        report, found, expected = emulated(kernel, extents, seed)
        check_clean(report)
        assert (found == expected).all()


MISTAKES = {
    "wait before the next tile": r"cp\.async\.bulk\.wait_group\.read \d+;",
    "wait at the end": r"cp\.async\.bulk\.wait_group 0;",
    "fence": r"fence\.proxy\.async\.shared::cta;",
    "barrier": r"bar\.sync\s+1, \d+;",
}


@pytest.mark.parametrize(("mistake", "tile"), campaign.in_turn(MISTAKES, [(64, 80), (64, 256)], 2))
def test_missing_synchronization_of_copies_and_threads_is_found(mistake: str, tile: tuple[int, int]) -> None:
    """Removes each of them, one at a time."""
    kernel, extents = _persistent(tile), (136, 2 * tile[1] + 8, 72)
    _, tail = kernel.ptx.split("wgmma.wait_group.sync.aligned 0;", 1)  # after the product
    matches = list(re.finditer(MISTAKES[mistake], tail))
    assert matches
    for match in matches:
        ptx = kernel.ptx.removesuffix(tail) + tail[: match.start()] + tail[match.end() :]
        report, _, _ = emulated(kernel, extents, 0, ptx)
        assert not report.clean, match[0]


def _persistent(tile: tuple[int, int]) -> Made:
    return made("bf16", *tile, stages=2 if tile[1] < 256 else 4, persistent=True, store="tma")


def test_the_code_uses_stmatrix_and_tensor_copies() -> None:
    kernel = made("bf16", 128, 128, stages=3, persistent=True, store="tma")
    assembled = assemble(kernel.ptx, SM_90A)
    assert not assembled.one_by_one
    code = "\n".join(str(one) for one in instructions(disassemble(assembled.cubin)))
    assert "STSM" in code and "UTMASTG" in code and not re.search(r"\bSTG\b", code)


def test_maps_of_the_result_are_reported() -> None:
    """One for each width of a sub-tile."""
    maps = made("bf16", 128, 160, stages=3, store="tma").lowered.tensor_maps
    expected = [TensorMapSpec("out", (128, 64), 128), TensorMapSpec("out", (128, 32), 64)]
    assert [one for one in maps if one.tensor == "out"] == expected


def test_the_schedule_is_reported() -> None:
    schedule = made("bf16", 128, 128, stages=3, store="tma").schedule
    assert str(schedule) == "8 warps consumer; 4 warps producer; wgmma by tma, 3 stages; stored by tma"
    assert Schedule.from_json(schedule.to_json()) == schedule


@pytest.mark.parametrize("columns", range(16, 257, 16))
def test_parts_are_all_columns_in_order(columns: int) -> None:
    covered = [column for first, width in parts_of(columns) for column in range(first, first + width)]
    assert covered == list(range(columns))
    assert {ELEMENT_BYTES * width for _, width in parts_of(columns)} <= {32, 64, 128}
    assert not parts_of(columns + 8)


@pytest.mark.parametrize(
    ("tile", "stages", "pieces"),
    [((128, 256), 3, [16384] * 4), ((128, 256), 4, [16384] * 2), ((128, 160), 4, [16384, 16384, 8192])],
    ids=str,
)
def test_scratch_uses_the_available_bytes(tile: tuple[int, int], stages: int, pieces: list[int]) -> None:
    kernel = made("bf16", *tile, stages=stages, persistent=True, store="tma")
    (roles,) = [op for op in kernel.prepared.body.ops if isinstance(op, Roles)]
    assert [op.bytes for op in roles.regions[0].walk() if isinstance(op, SharedAlloc)] == pieces
    assert kernel.lowered.dynamic_shared_bytes <= SM_90A.max_shared_bytes


def test_stages_are_chosen_so_that_scratch_fits() -> None:
    """Scratch has the size of one sub-tile instead of the tile, so one more stage fits."""
    shared, stored = (
        choose(source("bf16", 128, 256), SM_90A, Overrides(copy="tma", persistent=True, store=store))
        for store in ("threads", "tma")
    )
    assert [one.pipelines[0].stages for one in (shared, stored)] == [3, 4]


def test_a_store_of_one_tile_reuses_bytes_of_the_ring() -> None:
    kernel = made("bf16", 128, 128, stages=3, store="tma")
    assert kernel.lowered.dynamic_shared_bytes == made("bf16", 128, 128, stages=3).lowered.dynamic_shared_bytes
    ops = [type(op) for op in kernel.prepared.body.walk()]
    assert (ops.count(ScratchStoreRows), ops.count(TensorStore), ops.count(WaitStores)) == (2, 2, 1)


TEXT = '''"""A product."""
import tilec
from tilec import Dim, In, InOut, Out, astype, bf16, bid, cdiv, f32, grid, load, mma, requires, store, zeros

class M(Dim):
    pass

class K(Dim):
    pass

@tilec.kernel
def k(a: In[bf16, M, K], b: In[bf16, 64, K], out: Out[bf16, M, 64]):
    requires(K % 8 == 0)
    grid(cdiv(M, 64))
    i = bid(0)
    acc = zeros((64, 64), f32)
    for j in range(cdiv(K, 64)):
        acc = mma(load(a, (i, j), shape=(64, 64), pad=0), load(b, (0, j), shape=(64, 64), pad=0).T, acc)
    store(out, (i, 0), astype(acc, bf16), mask=True)
'''
NARROW = (
    ("bf16, 64, K]", "bf16, 40, K]"), ("M, 64]", "M, 40]"), ("zeros((64, 64)", "zeros((64, 40)"),
    ("(0, j), shape=(64, 64)", "(0, j), shape=(40, 64)"),
)  # fmt: skip
REFUSED: list[Any] = [
    ((), {"copy": "cp_async"}, "in a kernel whose operands do not come by `tma`"),
    ((), {"store": "hope"}, '`store = "hope"` is not known'),
    ((("Out[bf16", "Out[f32"), ("astype(acc, bf16)", "acc")), {}, "`stmatrix` lays down matrices of bf16 or f16"),
    ((("Out[bf16", "InOut[bf16"),), {}, "`out` is not declared `Out`"),
    ((("out: Out[bf16, M, 64]", "out: Out[bf16, M, 63]"),), {}, "are known to be multiples of 2 bytes, not 16"),
    (NARROW, {}, "a multiple of 16 columns"),
    ((("astype(acc, bf16)", "astype(acc.T, bf16)"),), {}, "as a product of `wgmma` or `tcgen05` or `mma_sync` leaves it"),
    ((("    store(", "    if i > 0:\n        store("),), {}, "its store stands in a loop, or in a branch"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "wanted", "message"), REFUSED, ids=[message[:30] for _, _, message in REFUSED])
def test_unsupported_stores_are_refused(tmp_path: Path, edits: Any, wanted: dict[str, Any], message: str) -> None:
    text = TEXT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "k.py").write_text(text)
    function = load_kernel(tmp_path / "k.py", {}, root=tmp_path)
    with pytest.raises(CompileError) as caught:
        choose(function, SM_90A, replace(Overrides(copy="tma", store="tma"), **wanted))
    assert "E0809" in str(caught.value) and message in str(caught.value)


def test_the_unchanged_kernel_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "k.py").write_text(TEXT)
    function = load_kernel(tmp_path / "k.py", {}, root=tmp_path)
    assert any(isinstance(op, TensorStore) for op in prepare(function, SM_90A, Overrides(copy="tma", store="tma")).body.walk())


def test_targets_without_tensor_maps_refuse_it() -> None:
    older = replace(SM_100A, capability=(8, 9))
    with pytest.raises(CompileError, match="sm_100a has no tensor maps, which `tma` needs"):
        choose(source("bf16", 64, 64), older, Overrides(store="tma"))
