"""The sequence of scheduling passes: what is verified between them, and what the choice of a schedule
knows of their results."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.tensor_attention import source as attention
from tests.tensor_products import source
from tests.weight_products import source as weights
from tilec.ir.core import Function, VerifyError
from tilec.ir.layouts.shared_plan import shared_bytes
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.choose import (
    _exceeds_shared_memory,  # pyright: ignore[reportPrivateUsage]
    _shared_memory_bytes,  # pyright: ignore[reportPrivateUsage]
)
from tilec.passes.schedule.launch_overlap import dependency_wait, prologue_stages
from tilec.passes.schedule.passes import PASSES, Pass, Settings, run
from tilec.passes.schedule.pipelining import staging
from tilec.passes.schedule.prepare import check_after
from tilec.passes.schedule.simplify.canonicalize import canonicalize
from tilec.target.schedule import NOT_AHEAD, STREAMED, Overrides, Pipeline, Role, Schedule
from tilec.target.targets import SM_90A, SM_100A, Target

# Verification between passes

EVERY_PASS = Overrides(copy="tma", persistent=True, order="pingpong", store="tma", stages=2)


@cache
def with_every_pass() -> Schedule:
    return choose(source("bf16", 64, 64), SM_90A, EVERY_PASS)


def subject(broken: Pass) -> tuple[Function, Schedule, Target]:
    """A kernel that a pass changes, or runs for: on sm_90a, or where that has no use for it, on sm_100a."""
    schedule = with_every_pass()
    without_roles = choose(source("bf16", 64, 64), SM_90A, Overrides(copy="cp_async"))
    for one in (schedule, replace(schedule, store=STREAMED), without_roles):
        if broken.when(one, SM_90A):
            return source("bf16", 64, 64), one, SM_90A
    function, wanted = attention("bf16", 256, 128), Overrides(copy="tma", consumers=2)
    if broken.name == "pairs":
        function, wanted = source("bf16", 256, 128), Overrides(copy="tma", cluster=2)
    return function, choose(function, SM_100A, wanted), SM_100A


@pytest.mark.parametrize("broken", PASSES, ids=[one.name for one in PASSES])
def test_a_pass_that_breaks_an_invariant_is_named(broken: Pass) -> None:
    kernel, schedule, target = subject(broken)
    assert broken.when(schedule, target)

    def spoil(function: Function, settings: Settings) -> None:
        broken.run(function, settings)
        function.body.ops.reverse()  # values are used before they are defined

    passes = [replace(one, run=spoil) if one is broken else one for one in PASSES]
    with pytest.raises(VerifyError, match=f"^after {broken.name}: "):
        run(kernel, Settings(schedule, target), passes, check_after)


# Early copies


def staged(waits: bool) -> tuple[Function, Schedule]:
    """A staged product whose producer copies resident weights, with or without a grid dependency wait."""
    function = weights("matmul_few", "bf16", 16, 64)
    schedule = choose(function, SM_90A, Overrides(copy="tma", consumers=1, stages=3))
    canonicalize(function)
    if waits:
        dependency_wait.insert(function, schedule)
    function.num_warps = schedule.tile_warps
    return staging.stage(function, schedule), schedule


def test_copies_precede_the_wait_only_in_a_kernel_with_a_dependency_wait() -> None:
    for waits in (True, False):
        function, schedule = staged(waits)
        before = print_function(function)
        prologue_stages.hoist(function, schedule)
        assert (print_function(function) != before) == waits


# Shared memory


def test_the_choice_counts_the_scratch_of_each_pingpong_consumer() -> None:
    function = source("bf16", 64, 256)
    for store in ("threads", "tma"):
        overrides = Overrides(copy="tma", persistent=True, order="pingpong", store=store, stages=2)
        schedule = choose(function, SM_90A, overrides)
        prepared = prepare(source("bf16", 64, 256), SM_90A, schedule)
        draft = source("bf16", 64, 256)
        canonicalize(draft)
        assert schedule.consumer_roles == 2 and _shared_memory_bytes(draft, schedule, SM_90A) == shared_bytes(prepared)


def test_stages_leave_bytes_for_the_scratch_of_each_pingpong_consumer() -> None:
    overrides = Overrides(copy="tma", persistent=True, order="pingpong")
    prepared = prepare(source("bf16", 64, 256), SM_90A, overrides)
    assert shared_bytes(prepared) <= SM_90A.max_shared_bytes


def test_fewer_stages_are_tried_only_for_a_schedule_that_is_otherwise_possible() -> None:
    """Not where nothing is pipelined, where the target refuses the schedule, or where the store is refused whatever the
    stages."""
    draft = source("bf16", 64, 64)
    canonicalize(draft)
    small = replace(SM_90A, max_shared_bytes=1024)
    plain = Schedule((Role("all", 4),), (Pipeline(3, "cp_async", "mma_sync"),))
    assert _exceeds_shared_memory(draft, plain, small)
    assert not _exceeds_shared_memory(draft, plain, SM_90A)
    assert not _exceeds_shared_memory(draft, replace(plain, pipelines=(NOT_AHEAD,)), small)
    assert not _exceeds_shared_memory(draft, replace(plain, blocks=17), small)
    assert not _exceeds_shared_memory(draft, replace(plain, store="tma"), small)
