"""Prologue copies of weights are issued before the grid dependency wait, copies of activations after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import campaign
from tests.passes.schedule_mutants import mutants
from tests.weight_products import made
from tilec.ir.core import Block, Function, Op, VerifyError
from tilec.ir.ops import For, If
from tilec.ir.ops.launch_ops import DependencyWait
from tilec.ir.ops.staging_ops import TensorCopy
from tilec.ir.ops.sync_ops import Acquire, Commit, Roles
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.schedule.checks.verify import verify
from tilec.passes.schedule.launch_overlap.prologue_stages import PROLOGUE_STAGES
from tilec.target.targets import SM_90A

KERNELS = ("matmul_few", "matmul_split", "matmul_silu_mul_few")
STAGES = 3


def prepared(name: str = "matmul_few", **wanted: int | str) -> Function:
    """A fresh copy of the prepared function."""
    return parse_function(
        print_function(made(name, "bf16", 64 if name == "matmul_silu_mul_few" else 16, 64, stages=STAGES, **wanted).prepared)
    )


def around_wait(function: Function) -> tuple[list[Op], list[Op]]:
    """The producer's operations before its grid dependency wait, and those after it."""
    ops = producer(function).ops
    wait = next(index for index, op in enumerate(ops) if isinstance(op, DependencyWait))
    return list(Block(ops=ops[:wait]).walk()), list(Block(ops=ops[wait + 1 :]).walk())


def producer(function: Function) -> Block:
    return parts(function)[-1]


def parts(function: Function) -> list[Block]:
    (roles,) = (op for op in function.body.ops if isinstance(op, Roles))
    return roles.regions


def copied(function: Function, ops: list[Op]) -> list[str]:
    return [function.parameter_of(op.source).name for op in ops if isinstance(op, TensorCopy)]


@pytest.mark.parametrize("name", KERNELS)
def test_weights_of_the_first_stages_are_copied_before_the_wait(name: str) -> None:
    function = prepared(name)
    before, after = around_wait(function)
    assert copied(function, before) == ["b"] * STAGES and sum(isinstance(op, Acquire) for op in before) == STAGES
    assert not any(isinstance(op, Commit) for op in before)
    operands = "ab" if name == "matmul_silu_mul_few" else "ba"  # which one is on the left
    assert copied(function, after) == [*"a" * STAGES, *operands]
    waits = [op for op in function.body.walk() if isinstance(op, DependencyWait)]
    assert len(waits) == 2 and not any(op in function.body.ops for op in waits)


@pytest.mark.parametrize("turns", [1, 2, STAGES, 9])
def test_a_schedule_states_how_many_stages_are_filled_before_the_wait(turns: int) -> None:
    before, after = around_wait(prepared(early=turns))
    count = min(turns, STAGES)
    assert sum(isinstance(op, TensorCopy) for op in before) == count
    assert sum(isinstance(op, If) for op in after) == count and sum(isinstance(op, For) for op in after) == 1


def test_no_stage_is_filled_before_the_wait_if_the_schedule_says_so_or_no_tensor_is_resident() -> None:
    function = prepared(early=0)
    assert any(isinstance(op, DependencyWait) for op in function.body.ops)
    assert not any(isinstance(op, DependencyWait | If) for op in producer(function).walk())


def test_a_few_stages_are_filled_before_the_wait_by_default() -> None:
    function = parse_function(print_function(made("matmul_few", "bf16", 16, 64, stages=6).prepared))
    assert copied(function, around_wait(function)[0]) == ["b"] * PROLOGUE_STAGES


def no_residents(function: Function) -> None:
    function.residents = ()


def activations_before_wait(function: Function) -> None:
    """Moves the first stage's copy of activations before the wait, next to that of the weights."""
    branches = [op for op in producer(function).ops if isinstance(op, If)]
    first, then = (op for op in branches if op.operands == branches[0].operands)
    (copy,) = (op for op in then.regions[0].ops if isinstance(op, TensorCopy))
    begins = next(op for op in first.regions[0].ops if isinstance(op, TensorCopy))
    copy.operands[-1] = begins.operands[-1]
    then.regions[0].ops.remove(copy)
    first.regions[0].ops.insert(-1, copy)


def without_a_wait(function: Function, role: int) -> None:
    part = parts(function)[role]
    part.ops = [op for op in part.ops if not isinstance(op, DependencyWait)]


def wait_in_a_branch(function: Function) -> None:
    ops = producer(function).ops
    wait = next(op for op in ops if isinstance(op, DependencyWait))
    branch = next(op for op in ops if isinstance(op, If))
    ops.remove(wait)
    branch.regions[0].ops.insert(0, wait)


def wait_at_the_end(function: Function) -> None:
    ops = producer(function).ops
    wait = next(op for op in ops if isinstance(op, DependencyWait))
    ops.remove(wait)
    ops.append(wait)


def another_condition(function: Function) -> None:
    """A stage is acquired under one iteration's condition, and its copies after the wait are issued under the next
    iteration's."""
    conditions = [op for op in producer(function).ops if isinstance(op, If)]
    conditions[STAGES].operands = list(conditions[STAGES + 1].operands)


def acquired_twice(function: Function) -> None:
    """The loop begins at a stage that the prologue has already acquired."""
    loop = next(op for op in producer(function).ops if isinstance(op, For))
    loop.operands[0] = next(op for op in function.body.walk() if isinstance(op, For) and op is not loop).lower


TOUCHES = "accesses memory before the grid dependency wait"
ONCE = "a kernel waits once"
BROKEN: dict[str, tuple[Callable[[Function], None], str]] = {
    "nothing is resident": (no_residents, TOUCHES),
    "activations before the wait": (activations_before_wait, TOUCHES),
    "the consumer does not wait": (lambda function: without_a_wait(function, 0), ONCE),
    "the producer does not wait": (lambda function: without_a_wait(function, 1), ONCE),
    "the producer waits where there is a turn": (wait_in_a_branch, ONCE),
    "the producer waits in the end": (wait_at_the_end, TOUCHES),
    "two waits under two conditions": (another_condition, "leaves copies or products under way"),
    "the loop repeats the first iterations": (acquired_twice, "names stage and parity"),
}


@pytest.mark.parametrize(("change", "rule"), BROKEN.values(), ids=list(BROKEN))
def test_the_verifier_refuses(change: Callable[[Function], None], rule: str) -> None:
    function = prepared()
    verify(function, SM_90A)
    change(function)
    with pytest.raises(VerifyError, match=rule):
        verify(function, SM_90A)


REFUSED = (
    "acquire dropped", "acquire doubled", "commit dropped", "commit doubled", "wait dropped", "tensor_copy dropped",
    "tensor_copy doubled", "wrong stage", "wrong parity", "wrong bytes", "loop begins elsewhere", "loop of other turns",
    "under another condition",
)  # fmt: skip


@pytest.mark.parametrize("every", campaign.first(1, (7, 1)))
def test_mutants_that_change_an_order_are_refused(every: int) -> None:
    found = list(mutants(print_function(prepared()), every, REFUSED))
    assert {mutant.kind for mutant in found} == set(REFUSED) and len(found) > 20
    for mutant in found:
        with pytest.raises(VerifyError):
            verify(parse_function(mutant.text), SM_90A)
            pytest.fail(f"accepted: {mutant.kind}, {mutant.what}")
