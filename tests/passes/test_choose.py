"""The schedule is a function of the tile IR alone, contains every decision that the passes read from it, and is refused if it
is impossible."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests import files, shipped
from tests.campaign import chosen
from tests.tensor_products import source
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Span
from tilec.frontend import load_kernel
from tilec.ir.core import Effect, VerifyError
from tilec.ir.ops import For
from tilec.ir.ops.staging_ops import GroupMma
from tilec.ir.ops.sync_ops import Ring, Roles
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import choose, prepare
from tilec.target.families import TCGEN05, WGMMA
from tilec.target.schedule import NOTHING_FIXED, Overrides, Pipeline, Role, Schedule, block_roles, problems
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_100A, SM_120A, Target

LOCATION = Span("build.toml", 7, 3, 7, 9)


def refused(name: str, target: Target, wanted: Overrides) -> Diagnostic:
    """The error of a shipped kernel that cannot have the requested schedule; all its parts have one source location."""
    locations = tuple((part, LOCATION) for part in wanted.given())
    with pytest.raises(CompileError) as caught:
        choose(shipped.load(name), target, replace(wanted, locations=locations))
    (found,) = caught.value.diagnostics
    assert found.code == "E0809" and found.primary is not None and found.primary.span == LOCATION and found.hint
    return found


@pytest.mark.parametrize(("name", "target"), chosen(shipped.CASES, shipped.of_its_form), ids=shipped.IDS)
def test_a_schedule_states_what_the_passes_emit(name: str, target: Target) -> None:
    function = shipped.load(name)
    text = print_function(function)
    schedule = choose(function, target)
    assert print_function(function) == text, "choosing changes nothing"
    assert Schedule.from_json(schedule.to_json()) == schedule
    assert problems(schedule, target) == []
    prepared = prepare(shipped.load(name), target, schedule)
    assert prepared.num_warps == schedule.warps
    rings = [op.result.ring.stages for op in prepared.body.walk() if isinstance(op, Ring)]
    assert set(rings) == {loop.stages for loop in schedule.pipelines if loop.stages > 1}
    grouped = any(isinstance(op, GroupMma) for op in prepared.body.walk())
    assert grouped == any(loop.mma == "wgmma" for loop in schedule.pipelines)


def test_targets_have_schedules_of_their_own() -> None:
    found = {target: choose(shipped.load("matmul"), target).pipelines for target in MAIN_TARGETS}
    assert [loop.mma for loops in found.values() for loop in loops] == ["wgmma", "mma_sync", "mma_sync"]
    assert found[SM_100A][0].stages >= found[SM_120A][0].stages


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_the_number_of_stages_is_as_requested(stages: int) -> None:
    schedule = choose(shipped.load("matmul"), SM_90A, Overrides(stages=stages, mma="mma_sync", warps=4))
    assert schedule.pipelines == (Pipeline(stages, "cp_async", "mma_sync"),)
    prepared = prepare(shipped.load("matmul"), SM_90A, schedule)
    assert {op.result.ring.stages for op in prepared.body.walk() if isinstance(op, Ring)} == {stages}


def test_one_stage_is_no_pipeline() -> None:
    prepared = prepare(shipped.load("matmul"), SM_90A, Overrides(stages=1))
    assert not any(isinstance(op, Ring) for op in prepared.body.walk())
    assert any(isinstance(op, For) for op in prepared.body.walk())


def test_an_override_that_a_kernel_cannot_have_is_refused_at_its_location() -> None:
    assert "16 stages take" in refused("matmul", SM_120A, Overrides(stages=16)).message
    assert "sm_120a has no `wgmma`" in refused("matmul", SM_120A, Overrides(mma="wgmma", stages=4)).message
    assert "none that `wgmma` makes in 2 stages" in refused("matmul", SM_90A, Overrides(mma="wgmma", stages=2)).message
    assert "none that `wgmma` makes" in refused("decode_attention", SM_90A, Overrides(mma="wgmma")).message
    assert "no loop of it feeds a product" in refused("add", SM_90A, Overrides(stages=3)).message
    assert "no loop of it feeds a product" in refused("add", SM_90A, Overrides(mma="mma_sync")).message


def test_copies_by_tma_are_only_for_products_that_they_can_feed() -> None:
    assert "sm_120a lacks" in refused("matmul", SM_120A, Overrides(copy="tma", mma="wgmma")).message
    assert "sm_100a lacks" in refused("matmul", SM_100A, Overrides(copy="tma", mma="wgmma")).message
    assert (
        "does not make its product of two copied operands on 8 warps"
        in refused("matmul", SM_90A, Overrides(copy="tma", consumers=2)).message
    )
    assert "does not make its product" in refused("decode_attention", SM_90A, Overrides(copy="tma")).message
    assert "no loop of it feeds a product" in refused("add", SM_90A, Overrides(copy="tma")).message
    assert "`consumers` are of copies by `tma`" in refused("matmul", SM_90A, Overrides(consumers=1)).message
    by_load = refused("matmul", SM_90A, Overrides(copy="load"))
    assert by_load.hint == "write `stages = 1` too" and "4 stages" not in by_load.message
    assert "4 warps where consumers and producer have 8" in refused("matmul", SM_90A, Overrides(copy="tma", warps=4)).message
    assert "leave 40 registers a thread" in refused("matmul", SM_90A, Overrides(copy="tma", blocks=6)).message
    assert "stages take" in refused("matmul", SM_90A, Overrides(copy="tma", stages=15)).message
    assert "take one tile each" in refused("matmul", SM_90A, Overrides(copy="tma", order="pingpong")).message


def test_a_producer_gives_up_registers_if_accumulators_need_them() -> None:
    """160 accumulator registers a thread do not fit next to the rest of an equal share, 128 do; more than 192 fit nowhere."""
    for columns, registers in ((128, (None, None)), (160, (232, 40)), (192, (232, 40))):
        schedule = choose(source("bf16", 256, columns), SM_90A, Overrides(copy="tma", consumers=2, stages=2))
        assert tuple(role.registers for role in schedule.roles) == registers
    with pytest.raises(CompileError, match="does not make its product"):
        choose(source("bf16", 256, 224), SM_90A, Overrides(copy="tma", consumers=2, stages=2))


GOOD = Schedule((Role("all", 4),), (Pipeline(3, "cp_async", "mma_sync"),), 2)
LOOP = GOOD.pipelines[0]
BY_TMA = Pipeline(3, "tma", "wgmma")
PINGPONG = Schedule(block_roles(WGMMA, 2, order="pingpong"), (BY_TMA,), persistent=True, order="pingpong")


def test_a_tensor_that_may_be_written_has_no_map(tmp_path: Path) -> None:
    files.copy_kernels(tmp_path, "matmul")
    path = tmp_path / "matmul.py"
    path.write_text(path.read_text().replace("a: tl.In[", "a: tl.InOut["))
    function = load_kernel(path, {"E": "bf16", "BM": 64, "BN": 64, "BK": 64, "GROUP": 8})
    choose(function, SM_90A, Overrides(copy="cp_async"))
    with pytest.raises(CompileError, match="only a tensor that is declared `In` has a map"):
        choose(function, SM_90A, Overrides(copy="tma"))


@pytest.mark.parametrize(
    ("old", "new", "rows", "why"),
    [
        ("", "", 128, "`wgmma` does not make its product"),
        ("range(tl.cdiv(K, BK))", "range(m + 1)", 64, "the iterations of its loop depend on the tile"),
        ("range(tl.cdiv(K, BK))", "range(1, tl.cdiv(K, BK))", 64, "does not begin at 0"),
        ("out: tl.Out[", "out: tl.InOut[", 64, "`out` is not written once alone"),
    ],
)
def test_pingpong_needs_tiles_with_equal_iteration_counts(tmp_path: Path, old: str, new: str, rows: int, why: str) -> None:
    files.copy_kernels(tmp_path, "matmul")
    path = tmp_path / "matmul.py"
    path.write_text(path.read_text().replace(old, new) if old else path.read_text())
    function = load_kernel(path, {"E": "bf16", "BM": rows, "BN": 256, "BK": 64, "GROUP": 8})
    wanted = Overrides(copy="tma", consumers=2, persistent=True)
    choose(function, SM_90A, wanted if rows == 128 else replace(wanted, consumers=1))
    with pytest.raises(CompileError, match=why):
        choose(function, SM_90A, replace(wanted, order="pingpong"))


def test_copies_by_tma_name_what_the_target_lacks_once() -> None:
    schedule = Schedule(block_roles(WGMMA, 1), (Pipeline(2, "tma", "wgmma"),))
    (found,) = problems(schedule, SM_100A)
    assert (found.part, found.text) == ("mma", "sm_100a has no `wgmma`")
    assert '"mma_sync"' in found.hint and "`arch`" in found.hint
    (found,) = problems(schedule, replace(SM_90A, capability=(8, 9)))
    assert (found.part, found.text) == ("copy", "sm_90a has no tensor maps, which `tma` needs")
    assert '"tma"' not in found.hint


def test_products_in_tensor_memory_take_copies_by_tma_and_one_order() -> None:
    assert "`tcgen05` of operands copied by `cp_async`" in refused("matmul", SM_100A, Overrides(mma="tcgen05")).message
    assert "sm_90a has no `tcgen05`" in refused("matmul", SM_90A, Overrides(mma="tcgen05")).message
    wanted = Overrides(copy="tma", order="pingpong", persistent=True)
    assert "`pingpong` of products by `tcgen05`" in refused("matmul", SM_100A, wanted).message
    schedule = choose(source("bf16", 128, 256), SM_100A, Overrides(copy="tma"))
    assert [(role.name, role.warps) for role in schedule.roles] == [("consumer", 8), ("producer", 1), ("multiplier", 1)]
    assert schedule.pipelines[0].mma == TCGEN05.name


def test_tiles_that_no_product_in_tensor_memory_computes_are_refused() -> None:
    for rows, columns in ((192, 64), (32, 64), (128, 24), (256, 256)):
        with pytest.raises(CompileError, match="`tcgen05` does not make its product"):
            choose(source("bf16", rows, columns), SM_100A, Overrides(copy="tma"))


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_a_role_keeps_nothing_that_only_a_helper_uses(target: Target) -> None:
    """No operation without effects in a role of a persistent block makes values that nothing uses."""
    function = source("bf16", 128, 128)
    prepared = prepare(function, target, Overrides(copy="tma", consumers=1, persistent=True))
    (roles,) = [op for op in prepared.body.ops if isinstance(op, Roles)]
    used = {value for op in prepared.body.walk() for value in op.operands}
    made = [op for region in roles.regions for op in region.walk() if op.results and not op.regions]
    assert len(made) > 20
    unused = [op for op in made if op.effect is Effect.NONE and used.isdisjoint(op.results)]
    assert unused == []


@pytest.mark.parametrize(
    ("schedule", "part"),
    [
        (replace(GOOD, roles=block_roles(WGMMA, 2)), "consumers"),
        (replace(GOOD, roles=block_roles(WGMMA, 4), pipelines=(BY_TMA,)), "consumers"),
        (replace(GOOD, roles=block_roles(WGMMA, 2)[::-1], pipelines=(BY_TMA,)), "consumers"),
        (replace(GOOD, roles=block_roles(WGMMA, 2), pipelines=(BY_TMA, BY_TMA)), "copy"),
        (replace(GOOD, roles=block_roles(WGMMA, 2), pipelines=(replace(BY_TMA, mma="dot"),)), "copy"),
        (replace(GOOD, roles=block_roles(WGMMA, 2), pipelines=(replace(BY_TMA, stages=1),)), "stages"),
        (replace(GOOD, roles=(Role("all", 33),), blocks=None), "warps"),
        (replace(GOOD, roles=(Role("all", 0),)), "warps"),
        (replace(GOOD, blocks=17), "blocks"),
        (replace(GOOD, blocks=0), "blocks"),
        (replace(GOOD, persistent=True), "persistent"),
        (replace(GOOD, cluster=2), "cluster"),
        (replace(GOOD, cluster=4), "cluster"),
        (replace(GOOD, roles=block_roles(WGMMA, 2), pipelines=(BY_TMA,), cluster=2), "cluster"),
        (replace(GOOD, order="snake"), "order"),
        (replace(GOOD, order="up"), "order"),
        (replace(GOOD, roles=block_roles(WGMMA, 2, order="pingpong"), pipelines=(BY_TMA,), order="pingpong"), "order"),
        (replace(PINGPONG, roles=block_roles(WGMMA, 1, order="pingpong")), "order"),
        (replace(PINGPONG, roles=block_roles(WGMMA, 4, order="pingpong")), "consumers"),
        (replace(PINGPONG, roles=block_roles(WGMMA, 2)), "consumers"),
        (replace(GOOD, pipelines=(BY_TMA,)), "consumers"),
        (replace(GOOD, pipelines=(replace(LOOP, copy="load"),)), "stages"),
        (replace(GOOD, pipelines=(replace(LOOP, stages=1),)), "stages"),
        (replace(GOOD, pipelines=(replace(LOOP, stages=17),)), "stages"),
        (replace(GOOD, pipelines=(replace(LOOP, stages=0),)), "stages"),
        (replace(GOOD, pipelines=(replace(LOOP, mma="tcgen05"),)), "mma"),
        (replace(GOOD, pipelines=(replace(LOOP, mma="dot"),)), "mma"),
    ],
)
def test_a_schedule_without_lowering_is_refused_and_not_ignored(schedule: Schedule, part: str) -> None:
    assert problems(GOOD, SM_90A) == problems(PINGPONG, SM_90A) == []
    assert part in {problem.part for problem in problems(schedule, SM_90A)}


def test_a_target_decides() -> None:
    grouped = replace(GOOD, pipelines=(replace(LOOP, mma="wgmma"),))
    assert [bool(problems(grouped, target)) for target in MAIN_TARGETS] == [False, True, True]
    many = replace(GOOD, blocks=16)
    assert [bool(problems(many, target)) for target in MAIN_TARGETS] == [False, False, True]


@pytest.mark.parametrize("count", [0, 2])
def test_a_schedule_of_another_kernel_is_an_internal_error(count: int) -> None:
    schedule = choose(shipped.load("matmul"), SM_90A, NOTHING_FIXED)
    with pytest.raises(VerifyError, match="the schedule has"):
        prepare(shipped.load("matmul"), SM_90A, replace(schedule, pipelines=schedule.pipelines[:1] * count))
