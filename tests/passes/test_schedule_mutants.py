"""Schedules of roles that share a ring, with one change each: the independent verifier refuses each change of the order."""

from __future__ import annotations

import pytest

from tests import campaign
from tests.passes.schedule_mutants import mutants
from tests.tensor_attention import made
from tests.tensor_products import source
from tilec.ir.core import Function, Op, VerifyError
from tilec.ir.ops import Binary, Constant, For
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks.verify import verify
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

REFUSED = (
    "acquire dropped", "commit dropped", "wait dropped", "release dropped", "tensor_copy dropped", "proxy_fence dropped",
    "wait doubled", "release doubled", "tensor_copy doubled", "wrong stage", "wrong parity", "wrong bytes", "wrong readers",
    "swapped roles", "roles of other warps", "released too early or late", "loop begins elsewhere", "loop of other turns",
    "counts other stages", "barrier of other threads",
)  # fmt: skip
PINGPONG = (
    *(kind for kind in REFUSED if kind != "counts other stages"),
    "order_wait dropped", "order_wait doubled", "order_arrive dropped", "order_arrive doubled", "another's turn",
)  # fmt: skip
"""Excludes "counts other stages", because some of these change nothing: a consumer begins its tiles only at every other slot.
"""
BY_WARPS = (*REFUSED, "warp_barrier dropped")
"""Where threads read the stages, and one of a warp releases them."""
SOME, MORE = 18, 3
"""One mutant in this many of a kind is checked: in the default run, and in the campaign."""
SCHEDULES = {
    "one tile": (SM_90A, Overrides(copy="tma", stages=2), REFUSED),
    "persistent": (SM_90A, Overrides(copy="tma", stages=2, persistent=True), REFUSED),
    "pingpong": (SM_90A, Overrides(copy="tma", stages=3, persistent=True, order="pingpong"), PINGPONG),
    "one tile, by warps": (SM_120A, Overrides(copy="tma", stages=2), BY_WARPS),
    "persistent, by warps": (SM_120A, Overrides(copy="tma", stages=2, persistent=True), BY_WARPS),
    "pingpong, by warps": (
        SM_120A, Overrides(copy="tma", stages=3, persistent=True, order="pingpong"), (*PINGPONG, "warp_barrier dropped")
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "every"),
    campaign.chosen([(name, every) for name in SCHEDULES for every in (SOME, MORE)], lambda case: case[1] == SOME),
)
def test_what_changes_an_order_is_refused(name: str, every: int) -> None:
    target, wanted, kinds = SCHEDULES[name]
    text = print_function(prepare(source("bf16", 64, 64), target, wanted))
    verify(parse_function(text), target)
    found = list(mutants(text, every, kinds))
    assert len({mutant.kind for mutant in found}) == len(kinds) and (every == SOME or len(found) > 25)
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), target)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")


@pytest.mark.parametrize(("target", "every"), campaign.chosen(
    [(target, every) for every in (SOME, 4) for target in (SM_90A, SM_120A)], lambda case: case[1] == SOME))  # fmt: skip
def test_mutants_that_change_the_order_of_back_to_back_products_are_refused(target: Target, every: int) -> None:
    """The excluded kinds contain changes without effect: in rings of one stage, and in iterations known to be the first."""
    kinds = {kind for kind in BY_WARPS if kind not in ("release dropped", "wrong stage", "wrong parity", "counts other stages")}
    text = print_function(made("bf16", 64, 64, 64, target=target, stages=2).prepared)
    found = list(mutants(text, every, kinds))
    assert len({mutant.kind for mutant in found}) > 6 and (every == SOME or len(found) > 20)
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), target)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")


OTHER = {"add": "sub", "sub": "add", "mul": "add", "floordiv": "mod"}


@pytest.mark.parametrize("order", campaign.first(1, ("grid", "pingpong")))
def test_every_tile_belongs_to_one_block(order: str) -> None:
    """Changes one operation or operand of the arithmetic that assigns tiles to a block."""
    wanted = Overrides(copy="tma", stages=2, persistent=True, order=order)
    text = print_function(prepare(source("bf16", 64, 64), SM_90A, wanted))

    def arithmetic(function: Function) -> list[Op]:
        """The loops over tiles, and the operations that compute their bounds and the tile of each role."""
        loops = [op for op in function.body.walk() if isinstance(op, For) and op.variable == "turn"]
        makers = {value: op for op in function.body.walk() for value in op.results}
        pending = [value for loop in loops for value in loop.operands[:3]]
        found = [*loops, *(op for loop in loops for op in loop.regions[0].ops[:2])]
        while pending:
            op = makers[pending.pop()]
            if op not in found:
                found.append(op)
                pending += op.operands
        return found

    changed = 0
    for number, op in enumerate(arithmetic(parse_function(text))):
        for index in range(min(3, len(op.operands))) if isinstance(op, For | Binary) else (-1,):
            function = parse_function(text)
            chosen = arithmetic(function)[number]
            if isinstance(chosen, Constant):
                chosen.value = int(chosen.value) + 1
            elif index == 0 and isinstance(chosen, Binary):
                chosen.kind = OTHER[chosen.kind]
            elif index >= 0:
                chosen.operands[index] = next(value for value in function.body.ops[0].results)
            else:
                continue
            changed += 1
            with pytest.raises(VerifyError):
                verify(parse_function(print_function(function)), SM_90A)
                pytest.fail(f"accepted: {chosen.opcode}, {index}")
    assert changed > 20
