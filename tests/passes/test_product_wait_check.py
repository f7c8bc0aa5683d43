"""`product_wait_check` against a machine that counts unfinished products, over random loops run for every number of
iterations."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.ir.core import Block, Function, Op, Value, VerifyError
from tilec.ir.ops import For, Unary, Yield
from tilec.ir.ops.staging_ops import GroupMma, WaitMma
from tilec.ir.types import SharedType, TileType, bf16, f32, i32
from tilec.passes.schedule.checks import product_wait_check

TILE = TileType(f32, (64, 64))
MOST_ITERATIONS = 7


class Step(NamedTuple):
    """An operation on one of three carried tiles, which it replaces. `kind`: start, wait, use or move; `other`: the tile that
    is moved there, or how many products a wait leaves unfinished."""

    kind: str
    tile: int
    other: int


STEPS = st.builds(Step, st.sampled_from(["start", "start", "wait", "use", "move"]), st.integers(0, 2), st.integers(0, 2))


def machine_finds_a_mistake(body: list[Step], after: list[Step], iterations: int) -> bool:
    """Whether a run of the loop uses a tile that a product has not computed yet, or leaves a product unfinished."""
    unfinished: list[int] = []
    tiles: list[int | None] = [None] * 3
    count = 0
    for kind, tile, other in [*body * iterations, *after]:
        if kind == "start":
            unfinished.append(count)
            tiles[tile], count = count, count + 1
        elif kind == "wait":
            del unfinished[: max(0, len(unfinished) - other)]
        elif kind == "use":
            if tiles[tile] in unfinished:
                return True
            tiles[tile] = None
        else:
            tiles[tile] = tiles[other]
    return bool(unfinished)


def function_of(body: list[Step], after: list[Step]) -> Function:
    buffer, stage = Value(SharedType(bf16, (64, 64), 1), "buffer"), Value(TileType(i32), "stage")
    region = Block()
    region.add_argument(TileType(i32), "i")
    loop = For(operands=[stage] * 3 + [Value(TILE) for _ in range(3)], regions=[region], variable="i")
    loop.define(TILE, TILE, TILE)

    def emit(steps: list[Step], tiles: list[Value]) -> list[Op]:
        ops: list[Op] = []
        for kind, tile, other in steps:
            match kind:
                case "start":
                    op: Op = GroupMma(operands=[buffer, stage, buffer, stage, tiles[tile]], family="wgmma")
                case "wait":
                    op = WaitMma(operands=[tiles[tile]], family="wgmma", pending=other)
                case "use":
                    op = Unary(kind="exp2", operands=[tiles[tile]])
                case _:
                    tiles[tile] = tiles[other]
                    continue
            op.define(TILE)
            tiles[tile] = op.result
            ops.append(op)
        return ops

    tiles: list[Value] = [region.add_argument(TILE, f"tile{index}") for index in range(3)]
    region.ops = emit(body, tiles)
    region.ops.append(Yield(operands=tiles))
    rest = emit(after, list(loop.results))
    return Function("loop", [], body=Block(ops=[loop, *rest]))


@settings(max_examples=400, deadline=None)
@given(st.lists(STEPS, min_size=1, max_size=7), st.lists(STEPS, max_size=4))
def test_a_loop_is_accepted_if_no_run_of_it_uses_an_unfinished_product(body: list[Step], after: list[Step]) -> None:
    if not any(step.kind == "start" for step in (*body, *after)):
        return
    wrong = any(machine_finds_a_mistake(body, after, iterations) for iterations in range(MOST_ITERATIONS))
    try:
        product_wait_check.check(function_of(body, after))
    except VerifyError:
        assert wrong
    else:
        assert not wrong


def test_a_mistake_of_a_later_iteration_is_found() -> None:
    """A product's result moves through all carried tiles, and is used three iterations later."""
    moves, after = [Step("use", 2, 0), Step("move", 2, 1), Step("move", 1, 0), Step("start", 0, 0)], [Step("wait", 0, 0)]
    product_wait_check.check(function_of([*moves, Step("wait", 0, 2)], after))
    assert not machine_finds_a_mistake([*moves, Step("wait", 0, 3)], after, 3)
    with pytest.raises(VerifyError, match="uses what a product has not computed yet"):
        product_wait_check.check(function_of([*moves, Step("wait", 0, 3)], after))
