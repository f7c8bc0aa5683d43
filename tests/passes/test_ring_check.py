"""The independent checker of pipelines accepts the output of the staging pass, and refuses it if any ordering operation is
removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import shipped
from tests.campaign import in_turn
from tilec.frontend import load_kernel
from tilec.ir.core import Block, Function, Op, VerifyError
from tilec.ir.ops import Constant, For
from tilec.ir.ops.staging_ops import AsyncCopy, GroupMma, SharedLoad, WaitMma
from tilec.ir.ops.sync_ops import Acquire, Barrier, Commit, Drain, ProxyFence, Release, Wait
from tilec.passes.schedule import prepare
from tilec.passes.schedule.checks import ring_check
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, SM_120A, Target

PIPELINED = ("matmul", "flash_attention", "decode_attention")
NESTED = '''"""Products in a loop around a loop."""
import tilec
from tilec import In, Out, bf16, f32, grid, load, mma, store, zeros

@tilec.kernel
def k(a: In[bf16, 4, 64, 256], w: In[bf16, 256, 64], out: Out[f32, 4, 64, 64]):
    grid(1)
    for i in range(4):
        acc = zeros((64, 64), f32)
        for j in range(4):
            acc = mma(load(a, (i, 0, j), shape=(1, 64, 64)).reshape((64, 64)), load(w, (j, 0), shape=(64, 64)), acc)
        store(out, (i, 0, 0), acc.reshape((1, 64, 64)))
'''


def blocks(block: Block) -> list[Block]:
    return [block, *(inner for op in block.ops for region in op.regions for inner in blocks(region))]


def pipelined_loop(function: Function) -> For:
    return next(op for op in function.body.walk() if isinstance(op, For) and ring_check.is_pipelined(op))


def inside(function: Function, kind: type[Op]) -> list[Op]:
    return [op for op in pipelined_loop(function).regions[0].walk() if isinstance(op, kind)]


def drop(function: Function, op: Op) -> None:
    next(block for block in blocks(function.body) if op in block.ops).ops.remove(op)


@pytest.mark.parametrize(("name", "target"), in_turn(PIPELINED, MAIN_TARGETS, 2))
def test_shipped_pipelines_are_in_order(name: str, target: Target) -> None:
    for function in (shipped.prepared(name, target), shipped.as_chosen(name, target)):
        assert inside(function, Wait)
        ring_check.check(function)


SHARED_BOUNDS = {
    "the end is the step": ["range(1)"],
    "the end is the beginning": ["range(2, 2)"],
    "the step of one ends the other": ["range(3)", "range(0, 9, 3)"],
    "one end, two beginnings": ["range(2, 9)", "range(9)"],
    "one goes on where the other ended": ["range(2, 4)", "range(2)"],
    "the same extent": ["range(N)", "range(4, N)", "range(0, N, 4)"],
}


@pytest.mark.parametrize(("name", "target"), in_turn(SHARED_BOUNDS, MAIN_TARGETS))
def test_loops_that_share_a_bound_are_in_order(name: str, target: Target, tmp_path: Path) -> None:
    ranges = SHARED_BOUNDS[name]
    product = "acc = mma(load(a, (0, j), shape=(64, 64)), load(w, (j, 0), shape=(64, 64)), acc)"
    loops = "".join(f"    for j in {text}:\n        {product}\n" for text in ranges)
    path = tmp_path / "k.py"
    path.write_text(
        "import tilec\nfrom tilec import Dim, In, Out, bf16, f32, grid, load, mma, store, zeros\n\n"
        "class N(Dim):\n    pass\n\n@tilec.kernel\n"
        "def k(a: In[bf16, 64, 64 * N], w: In[bf16, 64 * N, 64], n: In[f32, N], out: Out[f32, 64, 64]):\n    grid(1)\n"
        f"    acc = zeros((64, 64), f32)\n{loops}    store(out, (0, 0), acc)\n"
    )
    function = prepare(load_kernel(path, {}, root=tmp_path), target)
    rings = [op for op in function.body.walk() if isinstance(op, For) and ring_check.is_pipelined(op)]
    assert len(rings) == len(ranges)
    commits = [op for op in function.body.walk() if isinstance(op, Commit)]
    missed = [commit for commit in commits if is_missed(function, commit)]
    # In a loop without iterations, the order of its iterations does not matter.
    assert len(missed) == {"range(2, 2)": len(commits) - 1}.get(ranges[0], len(commits))


def is_missed(function: Function, op: Op) -> bool:
    """Whether the checker refuses the function without `op`."""
    block = next(block for block in blocks(function.body) if op in block.ops)
    index = block.ops.index(op)
    block.ops.remove(op)
    try:
        ring_check.check(function)
    except VerifyError:
        return True
    finally:
        block.ops.insert(index, op)
    return False


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_a_pipeline_in_a_loop_is_in_order(target: Target, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(NESTED)
    function = prepare(load_kernel(path, {}, root=tmp_path), target)
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    assert [ring_check.is_pipelined(op) for op in loops] == [False, True]
    ring_check.check(function)


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_a_pipeline_with_the_bounds_of_a_loop_around_another_is_in_order(target: Target, tmp_path: Path) -> None:
    """Both loops over `range(N)` are in one role, and only the first one is around a pipeline."""
    path = tmp_path / "k.py"
    path.write_text(
        "import tilec\nfrom tilec import Dim, In, Out, bf16, f32, grid, load, mma, store, zeros\n\n"
        "class N(Dim):\n    pass\n\n@tilec.kernel\n"
        "def k(a: In[bf16, 64, 64 * N], w: In[bf16, 64 * N, 64], n: In[f32, N], out: Out[f32, 64, 64]):\n    grid(1)\n"
        "    acc = zeros((64, 64), f32)\n    for i in range(N):\n        for j in range(2):\n"
        "            acc = mma(load(a, (0, i), shape=(64, 64)), load(w, (i, 0), shape=(64, 64)), acc)\n"
        "    for j in range(N):\n        acc = mma(load(a, (0, j), shape=(64, 64)), load(w, (j, 0), shape=(64, 64)), acc)\n"
        "    store(out, (0, 0), acc)\n"
    )
    function = prepare(load_kernel(path, {}, root=tmp_path), target)
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    assert [op in ring_check.pipelined_loops(function) for op in loops] == [False, True, True]
    commits = [op for op in function.body.walk() if isinstance(op, Commit)]
    assert commits and all(is_missed(function, commit) for commit in commits)


def wait_for_less(function: Function) -> None:
    for op in inside(function, Wait):
        op.pending += 1  # pyright: ignore[reportAttributeAccessIssue]


def never_wait(function: Function) -> None:
    drop(function, inside(function, Wait)[0])


def forget_the_fence(function: Function) -> None:
    for op in inside(function, ProxyFence):
        drop(function, op)


def fence_after_the_barrier(function: Function) -> None:
    fence, barrier = inside(function, ProxyFence)[0], inside(function, Barrier)[0]
    drop(function, fence)
    home = next(block for block in blocks(function.body) if barrier in block.ops)
    home.ops.insert(home.ops.index(barrier) + 1, fence)


def never_synchronize(function: Function) -> None:
    drop(function, inside(function, Barrier)[0])


def never_acquire(function: Function) -> None:
    drop(function, inside(function, Acquire)[0])


def never_release(function: Function) -> None:
    drop(function, inside(function, Release)[0])


def never_drain(function: Function) -> None:
    drop(function, next(op for op in function.body.walk() if isinstance(op, Drain)))


def release_before_the_reads(function: Function) -> None:
    release, barrier = inside(function, Release)[0], inside(function, Barrier)[0]
    release.unreleased = 0  # pyright: ignore[reportAttributeAccessIssue]
    drop(function, release)
    home = next(block for block in blocks(function.body) if barrier in block.ops)
    home.ops.insert(home.ops.index(barrier) + 1, release)


def release_what_a_product_reads(function: Function) -> None:
    inside(function, Release)[0].unreleased = 0  # pyright: ignore[reportAttributeAccessIssue]


def hold_one_more(function: Function) -> None:
    inside(function, Release)[0].unreleased += 1  # pyright: ignore[reportAttributeAccessIssue]


def copy_before_the_barrier(function: Function) -> None:
    """Issues the copies of an iteration while some threads may still read the stage."""
    barrier, commit = inside(function, Barrier)[0], inside(function, Commit)[0]
    home = next(block for block in blocks(function.body) if commit in block.ops)
    home.ops.remove(barrier)
    home.ops.insert(home.ops.index(commit) + 1, barrier)


def let_products_run(function: Function) -> None:
    for op in inside(function, WaitMma):
        op.pending += 1  # pyright: ignore[reportAttributeAccessIssue]


def join_groups(function: Function) -> None:
    drop(function, inside(function, Commit)[0])


def copy_into_one_stage(function: Function) -> None:
    copy = inside(function, AsyncCopy)[0]
    zero = Constant(value=0)
    zero.define(copy.operands[2].type)
    home = next(block for block in blocks(function.body) if copy in block.ops)
    home.ops.insert(home.ops.index(copy), zero)
    copy.operands[2] = zero.result


def read_the_next_stage(function: Function) -> None:
    copy = inside(function, AsyncCopy)[0]
    for op in [*inside(function, SharedLoad), *inside(function, GroupMma)]:
        op.operands[1] = copy.operands[2]


def never_synchronize_after(function: Function) -> None:
    """Removes the barriers after the loop."""
    piped = inside(function, Barrier)
    for op in [op for op in function.body.walk() if isinstance(op, Barrier) and op not in piped]:
        drop(function, op)


BOTH = (
    *(wait_for_less, never_wait, join_groups, copy_into_one_stage, read_the_next_stage, never_synchronize, never_acquire),
    *(never_release, never_drain, release_before_the_reads, hold_one_more, copy_before_the_barrier),
)
CASES = [(target, fault) for target in (SM_90A, SM_120A) for fault in BOTH]
CASES += [(SM_90A, forget_the_fence), (SM_90A, let_products_run), (SM_90A, fence_after_the_barrier)]
CASES += [(SM_90A, release_what_a_product_reads)]


@pytest.mark.parametrize(("target", "fault"), CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_pipeline_out_of_order_is_refused(target: Target, fault: Callable[[Function], None]) -> None:
    function = shipped.as_chosen("matmul", target)
    fault(function)
    with pytest.raises(VerifyError):
        ring_check.check(function)


def test_a_ring_that_is_still_read_is_refused(tmp_path: Path) -> None:
    """In the second iteration of the outer loop, the first copies overwrite stages that threads may still read."""
    path = tmp_path / "k.py"
    path.write_text(NESTED)
    function = prepare(load_kernel(path, {}, root=tmp_path), SM_120A)
    never_synchronize_after(function)
    with pytest.raises(VerifyError, match="overwrites a stage that is in use"):
        ring_check.check(function)


def test_a_far_end_takes_no_longer(tmp_path: Path) -> None:
    """The checker follows a few iterations, whatever the trip count: following hundreds of millions would never end."""
    path = tmp_path / "k.py"
    path.write_text(
        "import tilec\nfrom tilec import Dim, In, Out, bf16, f32, grid, i32, load, mma, store, zeros\n\n"
        "class N(Dim):\n    pass\n\n@tilec.kernel\n"
        "def k(a: In[bf16, N, 64, 64], w: In[bf16, N, 64, 64], out: Out[f32, 64, 64], first: i32):\n    grid(1)\n"
        "    acc = zeros((64, 64), f32)\n    for j in range(first, 2147483638, 3):\n"
        "        x = load(a, (j, 0, 0), shape=(1, 64, 64), pad=0).reshape((64, 64))\n"
        "        y = load(w, (j, 0, 0), shape=(1, 64, 64), pad=0).reshape((64, 64))\n"
        "        acc = mma(x, y.T, acc)\n    store(out, (0, 0), acc)\n"
    )
    assert inside(prepare(load_kernel(path, {}, root=tmp_path), SM_90A, Overrides(copy="tma")), Wait)
