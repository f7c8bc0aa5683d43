"""Products whose operands a producer copies by TMA and warps multiply by `mma.sync`: bit-identical to the interpreter, edges
included; the emulator's reports if an instruction that orders them is missing; and what the schedule decides for them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests import campaign, shipped, tensor_attention
from tests.clean import check_clean
from tests.tensor_products import emulated, made, source
from tilec.assemble import assemble
from tilec.assemble.sass import disassemble, instructions
from tilec.diagnostics.diagnostic import CompileError
from tilec.ir.ops import For, Mma
from tilec.ir.ops.staging_ops import SharedAlloc, SharedLoad
from tilec.ir.ops.store_ops import TensorStore
from tilec.ir.ops.sync_ops import OrderArrive, OrderWait, Release, Ring, Roles, WarpBarrier
from tilec.passes.schedule import choose
from tilec.target.schedule import Overrides, merged
from tilec.target.targets import SM_90A, SM_120A

CASES: list[Any] = [
    (("bf16", 64, 64), {"stages": 2}, (72, 40, 200), (0, 1)),
    (("bf16", 64, 64), {"stages": 2}, (1, 8, 8), (0,)),
    (("f16", 128, 128), {"consumers": 2}, (136, 136, 264), (2,)),
    (("bf16", 64, 96), {"stages": 3, "persistent": True}, (136, 200, 200), (0, 1)),
    (("bf16", 64, 64), {"stages": 2, "persistent": True, "order": "pingpong"}, (136, 136, 136), (0, 1)),
    (("bf16", 64, 160), {"stages": 2, "store": "tma"}, (72, 328, 72), (0,)),  # each warp has 40 columns
    (("f16", 64, 80), {"consumers": 2, "stages": 2, "store": "tma"}, (72, 168, 72), (3,)),
    (("bf16", 128, 128), {"persistent": True, "store": "tma"}, (200, 264, 136), (0,)),
    (("bf16", 128, 128), {"persistent": True, "order": "pingpong", "store": "tma"}, (264, 264, 72), (1,)),
    (("f16", 64, 192), {"stages": 2, "persistent": True, "order": "pingpong", "store": "tma"}, (200, 200, 72), (2,)),
]  # fmt: skip
ATTENTION: list[Any] = [
    (("bf16", 64, 64, 64), {"stages": 2}, (65, 3, 128, 2), (0, 1)),
    (("f16", 128, 64, 128), {"consumers": 2, "stages": 2}, (129, 60, 256, 1), (2,)),
    (("bf16", 64, 32, 256), {"stages": 2}, (5, 60, 96, 1), (3,)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "wanted", "extents", "seeds"),
    campaign.one_of_each(CASES, lambda case: tuple(sorted(case[1].keys() - {"stages", "consumers"}))),
    ids=str,
)
def test_the_emulator_finds_nothing_and_products_agree(sizes: Any, wanted: Any, extents: Any, seeds: tuple[int, ...]) -> None:
    kernel = made(*sizes, target=SM_120A, **wanted)
    assert kernel.schedule.pipelines[0].mma == "mma_sync" and "wgmma" not in kernel.ptx
    for seed in seeds:
        report, found, expected = emulated(kernel, extents, seed)
        check_clean(report)
        assert (found == expected).all()


@pytest.mark.parametrize(("sizes", "wanted", "lengths", "seeds"), campaign.first(1, ATTENTION), ids=str)
def test_the_emulator_finds_nothing_and_attention_agrees(sizes: Any, wanted: Any, lengths: Any, seeds: tuple[int, ...]) -> None:
    """With heads of 64, 128 and 256 elements: rows of one, two and four sub-tiles."""
    kernel = tensor_attention.made(*sizes, target=SM_120A, **wanted)
    for seed in seeds:
        report, found, expected = tensor_attention.emulated(kernel, lengths, seed)
        check_clean(report)
        assert not tensor_attention.differs(found, expected)


MISTAKES = {
    "barrier of the warp": (r"bar\.warp\.sync\s+-1;", "race"),
    "release of a stage": (r"@%\w+ mbarrier\.arrive\.shared::cta\.b64 _, [^;]*;", "deadlock"),
    "wait for a stage": (r"mbarrier\.try_wait\.parity[^;]*;\s*@!\w+ bra \w+;", "async"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_missing_instruction_is_found(name: str) -> None:
    pattern, kind = MISTAKES[name]
    kernel = made("bf16", 64, 64, target=SM_120A, stages=2)
    ptx, count = re.subn(pattern, "", kernel.ptx)
    report, _, _ = emulated(kernel, (64, 64, 328), 0, ptx)
    assert count and kind in {fault.kind for fault in report.faults}


def test_a_stage_is_released_once_its_operands_are_loaded() -> None:
    """The barrier of the warp and the release precede the products of the last two slices."""
    kernel = made("bf16", 64, 64, target=SM_120A, stages=2)
    loops = [
        op for op in kernel.prepared.body.walk() if isinstance(op, For) and any(isinstance(i, Mma) for i in op.regions[0].ops)
    ]
    (body,) = [loop.regions[0] for loop in loops]
    kinds = [type(op) for op in body.ops if isinstance(op, SharedLoad | Mma | WarpBarrier | Release)]
    assert kinds[-4:] == [WarpBarrier, Release, Mma, Mma] and kinds.count(SharedLoad) == 8 and kinds.count(Mma) == 4


def test_consumers_hand_over_after_their_products() -> None:
    wanted = {"stages": 2, "persistent": True, "order": "pingpong"}
    kernel = made("bf16", 64, 64, target=SM_120A, **wanted)
    (roles,) = [op for op in kernel.prepared.body.ops if isinstance(op, Roles)]
    assert roles.names == ("consumer0", "consumer1", "producer") and roles.registers == (232, 232, 40)
    for region in roles.regions[:2]:
        (tiles,) = [op for op in region.ops if isinstance(op, For)]
        order = [type(op) for op in tiles.regions[0].ops if isinstance(op, For | OrderWait | OrderArrive)]
        assert order == [OrderWait, For, OrderArrive]


def test_queries_keys_and_values_have_a_ring_each() -> None:
    kernel = tensor_attention.made("bf16", 128, 64, target=SM_120A, consumers=2, stages=2)
    rings = [op for op in kernel.prepared.body.walk() if isinstance(op, Ring)]
    assert [(op.result.ring.stages, op.readers) for op in rings] == [(1, 8), (2, 8), (2, 8)]
    loaded = {op.buffer for op in kernel.prepared.body.walk() if isinstance(op, SharedLoad)}
    assert len(loaded) == 3 and {buffer.shared.swizzle_atoms for buffer in loaded} == {2}


@pytest.mark.parametrize(
    ("tile", "order", "pieces"),
    [((128, 128), "grid", [16384] * 2), ((128, 128), "pingpong", [8192] * 2), ((64, 160), "pingpong", [8192, 8192, 4096])],
    ids=str,
)
def test_parts_of_a_tile_are_as_wide_as_the_memory_left(tile: tuple[int, int], order: str, pieces: list[int]) -> None:
    """Two stages of 32 KB leave 33 KB of 99 KB, for one or two consumers, and two stages of 28 KB leave 42 KB."""
    kernel = made("bf16", *tile, target=SM_120A, stages=2, persistent=True, order=order, store="tma")
    (roles,) = [op for op in kernel.prepared.body.ops if isinstance(op, Roles)]
    for region in roles.regions[:-1]:
        found = [op.bytes for op in region.walk() if isinstance(op, SharedAlloc)]
        assert found == pieces
        widths = [op.columns for op in region.walk() if isinstance(op, TensorStore)]
        assert sum(widths) == tile[1]
    assert kernel.lowered.dynamic_shared_bytes <= SM_120A.max_shared_bytes


def test_the_text_of_a_schedule_names_consumers_and_producer() -> None:
    entry, constants = shipped.specialisation("matmul", {"BM": 128, "BN": 128}, SM_120A)
    schedule = choose(shipped.load("matmul", constants), SM_120A, merged(entry.overrides(constants), SM_120A))
    assert str(schedule) == (
        "4 warps consumer0 of 232 registers; 4 warps consumer1 of 232 registers; 4 warps producer of 40 registers; "
        "mma_sync by tma, 2 stages; persistent; order pingpong; stored by tma"
    )


def test_two_stages_are_the_fewest() -> None:
    """A ring of one stage would be no pipeline; what does not fit is said with its size."""
    wanted = Overrides(copy="tma", persistent=True, order="pingpong")
    with pytest.raises(CompileError, match="2 stages take 136192 bytes of shared memory; sm_120a has 101376"):
        choose(source("bf16", 128, 128), SM_120A, wanted)


def test_consumers_and_registers_follow_from_the_accumulators() -> None:
    """One consumer for 64 accumulators of a thread, else two; more than 96 need the producer's registers."""
    found = {
        columns: choose(source("bf16", rows, columns), SM_120A, Overrides(copy="tma", stages=2)).roles[0]
        for rows, columns in ((64, 64), (64, 128), (128, 128), (128, 192), (128, 256))
        if (rows, columns) != (64, 128)
    }
    assert [(columns, role.warps, role.registers) for columns, role in found.items()] == [
        (64, 4, None), (128, 8, None), (192, 8, None), (256, 8, 232),
    ]  # fmt: skip
    assert choose(source("bf16", 64, 128), SM_120A, Overrides(copy="tma", stages=2)).roles[0].warps == 4


def test_targets_with_clusters_can_be_fed_so_too() -> None:
    """The same schedule on sm_90, whose copies name a cluster's memory."""
    kernels = [made("bf16", 64, 64, target=target, stages=2, mma="mma_sync") for target in (SM_90A, SM_120A)]
    spaces = [set(re.findall(r"cp\.async\.bulk\.tensor\.2d\.(\S+?)\.global", kernel.ptx)) for kernel in kernels]
    assert spaces == [{"shared::cluster"}, {"shared::cta"}]
    assert kernels[0].schedule == kernels[1].schedule
    used = {opcode.split(".")[0] for opcode in instructions(disassemble(assemble(kernels[0].ptx, SM_90A).cubin))}
    assert {"UTMALDG", "LDSM", "HMMA"} <= used and "HGMMA" not in used
