"""A note on a product that single warps make, though a schedule gives it the instruction that reads shared memory: the schedule
that it names works, and no note is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tilec import pipeline
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

TEXT = '''"""Products."""
import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f16, f8e4m3, f32, grid, load, mma, requires, store, zeros


class K(Dim):
    """depth"""


@tilec.kernel
def product(a: In[{dtype}, 128, K], b: In[{dtype}, 128, K], out: Out[f32, 128, 128]):
    requires(K % {multiple} == 0)
    grid(1)
    acc = zeros((128, 128), f32)
    for k in range(cdiv(K, {depth})):
        x, y = load(a, (0, k), shape=(128, {depth}), pad=0), load(b, (0, k), shape=(128, {depth}), pad=0)
        acc = {sums}
    store(out, (0, 0), acc)
'''
ADDED, CHAINED = "acc + mma(x, y.T, zeros((128, 128), f32))", "mma(x, y.T, acc)"


def products(folder: Path, target: Target, *rules: Overrides, **values: Any) -> list[dict[str, Any]]:
    """The notes on products of the kernel with these values, built as far as its code."""
    (folder / "product.py").write_text(TEXT.format(**values), encoding="utf-8")
    work = pipeline.Work(pipeline.Request("product", "product.py", str(folder), {}, {}, {}, {}, rules), target)
    for stage in pipeline.CHECK_STAGES:
        work.products.update(pipeline.stage_named(stage.name).run(work))
    return [note for note in work.data("launch")["notes"] if note["kind"] == "tensor_core"]


def test_the_schedule_of_the_note_works_and_silences_it(tmp_path: Path) -> None:
    values = {"dtype": "f8e4m3", "multiple": 16, "depth": 128, "sums": ADDED}
    (note,) = products(tmp_path, SM_90A, Overrides(copy="cp_async"), **values)
    assert note["line"] > 0
    assert note["text"] == "a product of 128 x 128 does without `wgmma`: no producer copies its operands"
    assert note["hint"] == 'set `schedule = { copy = "tma", consumers = 2 }` for this kernel'
    assert products(tmp_path, SM_90A, Overrides(copy="tma", consumers=2), **values) == []


@pytest.mark.parametrize(("dtype", "depth", "wide"), [("f8e4m3", 32, 128), ("bf16", 32, 64), ("f16", 16, 64)])
def test_the_depth_of_the_note_works_and_silences_it(tmp_path: Path, dtype: str, depth: int, wide: int) -> None:
    values = {"dtype": dtype, "multiple": 16, "sums": CHAINED}
    (note,) = products(tmp_path, SM_90A, depth=depth, **values)
    assert note["text"].endswith(
        f"it reads rows of 128 bytes along the depth, and those of these operands have {depth * 128 // wide}"
    )
    assert note["hint"] == f"use tiles of {wide} elements along the depth, or a multiple"
    assert not any("depth" in note["text"] for note in products(tmp_path, SM_90A, depth=wide, **values))


@pytest.mark.parametrize(("target", "values"), [
    (SM_90A, {"dtype": "bf16", "multiple": 16, "depth": 64, "sums": CHAINED}),  # copied by threads, and `wgmma` all the same
    (SM_90A, {"dtype": "f8e4m3", "multiple": 8, "depth": 128, "sums": ADDED}),  # TMA copies no such rows
    (SM_120A, {"dtype": "f8e4m3", "multiple": 16, "depth": 128, "sums": ADDED}),  # the chip has no such instruction
])  # fmt: skip
def test_there_is_no_note_where_the_schedule_would_not_help(
    tmp_path: Path, target: Target, values: dict[str, Any]
) -> None:  # fmt: skip
    assert products(tmp_path, target, **values) == []


def test_more_warps_than_have_all_registers_are_no_cure_of_a_spill(tmp_path: Path) -> None:
    (tmp_path / "product.py").write_text(TEXT.format(dtype="bf16", multiple=8, depth=64, sums=CHAINED), encoding="utf-8")
    for warps, expected in ((4, True), (8, False)):
        rules = (Overrides(warps=warps),)
        work = pipeline.Work(pipeline.Request("product", "product.py", str(tmp_path), {}, {}, {}, {}, rules), SM_90A)
        for stage in pipeline.CHECK_STAGES:
            work.products.update(pipeline.stage_named(stage.name).run(work))
        (spill,) = (note for note in work.data("launch")["notes"] if note["kind"] == "spill")
        assert ("set `schedule" in spill["hint"]) is expected
