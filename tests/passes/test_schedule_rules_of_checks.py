"""Checkers of scheduled functions: what each of them accepts, and what it refuses with the error of a broken rule."""

from __future__ import annotations

import pytest

from tests.passes.builder import Access, Kernel
from tests.tensor_products import source
from tilec.ir import ops
from tilec.ir.core import VerifyError
from tilec.ir.ops.staging_ops import GroupMma
from tilec.ir.ops.sync_ops import Roles
from tilec.ir.text.parser import parse_function
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import barrier_check, ring_check, verify, width_check
from tilec.passes.schedule.specialization.equal_scalars import ScalarNumbering
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

# Barriers


@pytest.mark.parametrize("reads", [False, True])
def test_an_element_that_all_threads_have_is_read_only_after_a_barrier(reads: bool) -> None:
    """The first thread makes every store of such an element, so two stores are in order; a load is made by all threads."""
    k = Kernel(1)
    x, offset = k.tensor("x", Access.INOUT, 8), k.c(3)
    for _ in range(1 if reads else 2):
        k.emit(ops.Store(operands=[x, k.zeros((1,)), offset]))
    if reads:
        k.load(x, offset, shape=(1,))
        with pytest.raises(VerifyError, match="no barrier of the block's threads between store"):
            barrier_check.check(k.function)
    else:
        barrier_check.check(k.function)


# Integer widths


def test_an_index_that_may_wrap_is_refused() -> None:
    k = Kernel("N")
    x, n = k.tensor("x", Access.IN, "N"), k.dim("N")
    k.load(x, k.mul(n, n), shape=(1,))
    with pytest.raises(VerifyError, match=r"`mul` at k\.py:.* may leave i32"):
        width_check.check(k.function)


# Products of warpgroups


def test_only_full_warpgroups_compute_a_group_product() -> None:
    function = prepare(source("bf16", 64, 64), SM_90A, Overrides(mma="wgmma", warps=4, stages=3))
    walk = verify._Walk(function, SM_90A)  # pyright: ignore[reportPrivateUsage]
    products = [op for op in function.body.walk() if isinstance(op, GroupMma)]
    for op in products:
        walk.check_product(op, 4)
        for warps in (5, 6, 7):
            with pytest.raises(VerifyError, match=f"no products of groups of {warps} warps"):
                walk.check_product(op, warps)
    assert products


# Rings


KERNEL = """kernel @k(%a: in tensor<bf16, [M, K], align 16>, %n: i32) {{
  constants {{}}
  dims [M, K]
  strides []
  grid [1]
  warps 8
  requires K % 8 == 0
  %0 = constant {{value = 0}} : i32
  %1 = constant {{value = 1}} : i32
  %2 = constant {{value = 2}} : i32
  %3 = constant {{value = 3}} : i32
  wait_prior
  %4 = ring {{sync = "mbarriers", offset = 65536, readers = 4}} : ring<3>
  %5 = shared_alloc %4 {{offset = 0, alignment = 1024}} : shared<bf16, [64, 64], stages 3>
  proxy_fence
  barrier {{scope = "block"}}
  roles {{names = ["consumer", "producer"], warps = [4, 4], registers = [232, 40], alone = [false, true]}} {{
    %10, %11 = for %0, %n, %1, %0, %0 {{variable = "turn"}} : i32, i32 {{
    ^(%12: i32, %13: i32, %14: i32)
      %15 = binary %12, %n {{kind = "add"}} : i32
      %16 = binary %13, {bound[0]} {{kind = "mul"}} : i32
      %17 = binary %16, %3 {{kind = "floordiv"}} : i32
      %18 = binary %16, %3 {{kind = "mod"}} : i32
      %19 = binary %17, %2 {{kind = "mod"}} : i32
      %20, %21 = for %0, {bound[0]}, %1, {begin} {{variable = "k"}} : i32, i32 {{
      ^(%22: i32, %23: i32, %24: i32)
        wait %4, %23, %24 {{pending = 0}}
        release %4, %23 {{unreleased = 0}}
        %25 = compare %23, %2 {{kind = "eq"}} : bool
        %26 = binary %23, %1 {{kind = "add"}} : i32
        %27 = select %25, %0, %26 : i32
        %28 = binary %1, %24 {{kind = "sub"}} : i32
        %29 = select %25, %28, %24 : i32
        yield %27, %29
      }}
      yield {end}
    }}
  }} {{
    %30, %31 = for %0, %n, %1, %0, %0 {{variable = "turn"}} : i32, i32 {{
    ^(%32: i32, %33: i32, %34: i32)
      %35 = binary %32, %n {{kind = "add"}} : i32
      %40, %41 = for %0, {bound[1]}, %1, %33, %34 {{variable = "k"}} : i32, i32 {{
      ^(%42: i32, %43: i32, %44: i32)
        acquire %4, %43, %44 {{expected = 8192}}
        tensor_copy %a, %5, %43, %0, %42 {{row_axis = -2, sub_tiles = 1, unsafe = none}}
        commit %4
        %45 = compare %43, %2 {{kind = "eq"}} : bool
        %46 = binary %43, %1 {{kind = "add"}} : i32
        %47 = select %45, %0, %46 : i32
        %48 = binary %1, %44 {{kind = "sub"}} : i32
        %49 = select %45, %48, %44 : i32
        yield %47, %49
      }}
      yield %40, %41
    }}
  }}
  shared_free %5, %4
}}
"""
"""Both roles go through `n` tiles of some iterations each. The consumer begins a tile where it ended the last one, or, in its
second tile, as many stages from the start as *this* tile has iterations."""
CARRIED = {"begin": "%13, %14", "end": "%20, %21"}
COMPUTED = {"begin": "%18, %19", "end": "%1, %0"}
OF_TILE = {"bound": ("%15", "%35")}  # `n` and the tile's number
OF_LAUNCH = {"bound": ("%n", "%n")}


@pytest.mark.parametrize("bound", [OF_TILE, OF_LAUNCH])
def test_a_role_that_continues_at_its_last_ring_position_is_in_order(bound: dict[str, tuple[str, str]]) -> None:
    ring_check.check(parse_function(KERNEL.format(**bound, **CARRIED)))


def test_tiles_with_different_iteration_counts_are_simulated() -> None:
    """A position that is right only if all tiles have equally many iterations is refused where they may have others."""
    ring_check.check(parse_function(KERNEL.format(**OF_LAUNCH, **COMPUTED)))
    with pytest.raises(VerifyError):
        ring_check.check(parse_function(KERNEL.format(**OF_TILE, **COMPUTED)))


def test_roles_agree_on_the_number_of_their_tile_and_on_no_other_loop_variable() -> None:
    function = parse_function(KERNEL.format(**OF_TILE, **CARRIED))
    (roles,) = (op for op in function.body.ops if isinstance(op, Roles))
    same = ScalarNumbering(roles)
    tiles, iterations = zip(*([op for op in region.walk() if isinstance(op, ops.For)] for region in roles.regions), strict=True)
    assert len({same.of(loop.regions[0].arguments[0]) for loop in tiles}) == 1
    for loop in iterations:
        variable = loop.regions[0].arguments[0]
        assert same.of(variable) is variable
