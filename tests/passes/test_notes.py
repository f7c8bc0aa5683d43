"""Performance notes name the location, the reason and the fix, and are silent on kernels that cannot be faster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import shipped
from tests.tensor_products import made
from tilec import pipeline
from tilec.frontend import load_kernel
from tilec.ir.layouts.thread_elements import tile_warps
from tilec.ir.text.lines import number_lines
from tilec.link import NOTE_CODES, link
from tilec.passes.schedule import prepare
from tilec.passes.schedule.notes import Note, notes
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

HEAD = '''import tilec
from tilec import Dim, In, Out, bf16, bid, cdiv, f32, grid, i32, load, mma, requires, store, sum, zeros


class N(Dim):
    """elements"""


@tilec.kernel
'''

KERNELS = {
    "unaligned": """def unaligned(x: In[bf16, 4, N], out: Out[bf16, 4]):
    grid(4)
    v = load(x, (bid(0), 0), shape=(1, 1024), pad=0)
    store(out, bid(0), sum(v, axis=1))
""",
    "aligned": """def aligned(x: In[bf16, 4, N], out: Out[bf16, 4]):
    grid(4)
    requires(N % 8 == 0)
    v = load(x, (bid(0), 0), shape=(1, 1024), pad=0)
    store(out, bid(0), sum(v, axis=1))
""",
    "odd": """def odd(x: In[bf16, N, 1023], out: Out[bf16, N]):
    grid(N)
    store(out, bid(0), sum(load(x, (bid(0), 0), shape=(1, 1023)), axis=1))
""",
    "by_hand": """def by_hand(a: In[f32, 16, 32], b: In[f32, 32, 16], out: Out[f32, 16, 16]):
    grid(1)
    left, right = load(a, (0, 0), shape=(16, 32)), load(b, (0, 0), shape=(32, 16))
    store(out, (0, 0), sum(left[:, :, None] * right[None, :, :], axis=1))
""",
    "integers": """def integers(a: In[i32, 16, 32], b: In[i32, 32, 16], out: Out[i32, 16, 16]):
    grid(1)
    left, right = load(a, (0, 0), shape=(16, 32)), load(b, (0, 0), shape=(32, 16))
    store(out, (0, 0), sum(left[:, :, None] * right[None, :, :], axis=1))
""",
    "scaled": """def scaled(a: In[f32, 16, 32], b: In[f32, 32], out: Out[f32, 16]):
    grid(1)
    store(out, 0, sum(load(a, (0, 0), shape=(16, 32)) * load(b, 0, shape=(32,))[None, :], axis=1))
""",
    "few_rows": """def few_rows(a: In[bf16, 96, 256], b: In[bf16, 256, 64], out: Out[f32, 96, 64]):
    grid(1)
    acc = zeros((96, 64), f32)
    for k in range(4):
        acc = mma(load(a, (0, k), shape=(96, 64)), load(b, (k, 0), shape=(64, 64)), acc)
    store(out, (0, 0), acc)
""",
    "once": """def once(a: In[bf16, 96, 64], b: In[bf16, 64, 64], out: Out[f32, 96, 64]):
    grid(1)
    acc = mma(load(a, (0, 0), shape=(96, 64)), load(b, (0, 0), shape=(64, 64)), zeros((96, 64), f32))
    store(out, (0, 0), acc)
""",
    "four_by_hand": """def four_by_hand(a: In[f32, 4, 32], b: In[f32, 32, 4], out: Out[f32, 4, 4]):
    grid(1)
    left, right = load(a, (0, 0), shape=(4, 32)), load(b, (0, 0), shape=(32, 4))
    store(out, (0, 0), sum(left[:, :, None] * right[None, :, :], axis=1))
""",
}
KERNELS["half"] = KERNELS["few_rows"].replace("96", "64").replace("few_rows", "half")


def found(folder: Path, name: str, target: Target = SM_90A, warps: int | None = None) -> list[Note]:
    """All notes except the one on the largest tile."""
    path = folder / f"{name}.py"
    path.write_text(HEAD + KERNELS[name], encoding="utf-8")
    function = load_kernel(path, {}, root=folder)
    number_lines(function)
    return [note for note in notes(prepare(function, target, Overrides(warps=warps)), target) if note.kind != "spill"]


def test_rows_that_may_begin_anywhere(tmp_path: Path) -> None:
    (note,) = found(tmp_path, "unaligned")
    assert note.kind == "narrow_access" and note.line > 0
    assert note.text == "`x` is read 2 bytes at a time: its rows or offsets are known to be multiples of no more"
    assert note.hint == "state `requires(N % 8 == 0)` where it is so"


def test_an_extent_that_no_vector_divides(tmp_path: Path) -> None:
    (note,) = found(tmp_path, "odd")
    assert note.kind == "narrow_access"
    assert "`x` is read 2 bytes at a time" in note.text


def test_a_product_of_matrices_by_hand(tmp_path: Path) -> None:
    (note,) = found(tmp_path, "by_hand")
    assert note.kind == "tensor_core" and "mma" in note.hint


@pytest.mark.parametrize("name", ["aligned", "scaled", "integers", "once", "four_by_hand"])
def test_a_kernel_without_performance_problems_has_no_notes(tmp_path: Path, name: str) -> None:
    assert found(tmp_path, name) == []


def test_a_product_without_wgmma_has_a_note_with_the_reason(tmp_path: Path) -> None:
    (note,) = found(tmp_path, "few_rows", warps=2)
    assert note == Note("tensor_core", note.line, "a product of 96 x 64 does without `wgmma`: 2 warps are no groups of four",
                        "set `warps` of its schedule to a multiple of 4")  # fmt: skip
    assert found(tmp_path, "few_rows", SM_120A, warps=2) == []


def test_warps_of_a_note_are_those_that_have_tiles() -> None:
    kernel = made("bf16", 64, 64, consumers=1, stages=2)
    assert (kernel.prepared.num_warps, tile_warps(kernel.prepared)) == (8, 4)
    assert "warps = " not in next(note.hint for note in notes(kernel.prepared, SM_90A) if note.kind == "spill")


@pytest.mark.parametrize("name", ["rms_norm", "matmul"])
def test_shipped_kernels_get_their_largest_tile_alone(name: str) -> None:
    function = shipped.load(name)
    number_lines(function)
    (note,) = notes(shipped.prepare_as(name, function, SM_90A), SM_90A)
    assert note.kind == "spill" and " elements for each of " in note.text and note.line > 0


def test_the_build_locates_notes_in_the_source_and_reports_spills_if_there_are_some(tmp_path: Path) -> None:
    path = tmp_path / "kernels_src" / "unaligned.py"
    path.parent.mkdir()
    path.write_text(HEAD + KERNELS["unaligned"], encoding="utf-8")
    request = pipeline.Request("unaligned", "kernels_src/unaligned.py", str(tmp_path), {}, {}, {}, {})
    work = pipeline.Work(request, SM_90A)
    for stage in ("tir", "proofs", "schedule", "mlir"):
        work.products.update(pipeline.stage_named(stage).run(work))
    work.products["proofs"] = json.dumps(
        {"obligations": [], "unsafe": [], "launch_checks": [], "value_checks": [], "no_alias": []}
    ).encode()
    work.digests = {stage.name: "0" for stage in pipeline.STAGES}
    for spilled, kinds in (
        (0, ["narrow_access"]),
        (128, ["narrow_access", "tensor_core", "spill"]),
        (64, ["narrow_access", "spill"]),
    ):
        resources = {
            "registers": 255,
            "spill_bytes": spilled,
            "stack_bytes": 0,
            "static_shared_bytes": 0,
            "one_by_one": spilled > 64,
        }
        work.products["resources"] = json.dumps(resources).encode()
        link(work)
        found = work.data("summary")["notes"]
        assert sorted(note["code"] for note in found) == [NOTE_CODES[kind] for kind in kinds]
        placed = [note["span"]["file"] for note in found if note["span"] is not None]
        assert placed == ["kernels_src/unaligned.py"] * len(placed) and all(note["hint"] for note in found)
        assert len(placed) == len(found) - ("tensor_core" in kinds)
    (message,) = (note["message"] for note in found if note["code"] == "N0103")
    assert message.startswith(
        "64 bytes of registers are kept in memory; the threads' largest share is of a tile of 1 x 1024 bf16: "
    )


def test_fewer_warps_are_named_where_these_rows_fit_them(tmp_path: Path) -> None:
    (note,) = [one for one in found(tmp_path, "few_rows", warps=8) if one.kind == "tensor_core"]
    assert note.text.endswith("96 rows are no multiple of 128") and note.hint == "use a multiple of 128 rows"
    (note,) = [one for one in found(tmp_path, "half", warps=8) if one.kind == "tensor_core"]
    assert note.hint == "set `warps = 4` of its schedule, or use a multiple of 128 rows"
    assert found(tmp_path, "half", warps=4) == []
