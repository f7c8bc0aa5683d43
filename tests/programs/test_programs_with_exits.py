"""Loops that end early do so in machine code too, and all machines compute what the interpreter does."""

from __future__ import annotations

import pytest

from tests.programs.generate import Program
from tests.programs.machines import examine, load, lowered
from tilec.ir.facts.loop_exits import exit_condition
from tilec.ir.ops import For
from tilec.target.targets import MAIN_TARGETS, SM_90A

IMPORTS = """import tilec
from tilec import Dim, In, InOut, Out, bf16, bid, cdiv, decreases, f32, grid, i32, invariant, load, max, minimum, mma, store
from tilec import sum, where, zeros
class N(Dim): "rows"
class K(Dim): "depth"
@tilec.kernel
def kernel("""

KERNELS = {
    "first tile above a limit": """
    x: In[f32, N, 512], out: Out[i32, N], a: i32):
    grid(N)
    found = i32(-1)
    for j in range(8):
        if max(load(x, (bid(0), j), shape=(1, 64))) > f32(a):
            found = j
            break
    store(out, bid(0), found)
""",
    "sum across warps until it is negative": """
    x: In[f32, N, 4096], out: Out[f32, N, 1024], a: i32):
    grid(N)
    total = zeros((1, 1024), f32)
    for j in range(4):
        v = load(x, (bid(0), j), shape=(1, 1024))
        if sum(v) < 0.0:
            if j > a:
                continue
            total = total + 1.0
            break
        total = total + v
    store(out, (bid(0), 0), total)
""",
    "products until a row is large": """
    x: In[bf16, 64, K], y: In[bf16, K, 64], out: Out[f32, 64, 64], a: i32):
    grid(1)
    acc = zeros((64, 64), f32)
    for k in range(cdiv(K, 64)):
        acc = mma(load(x, (0, k), shape=(64, 64), pad=0), load(y, (k, 0), shape=(64, 64), pad=0), acc)
        if max(acc) > f32(a):
            break
    store(out, (0, 0), acc)
""",
    "store in a loop that ends, and a loop in it": """
    x: In[i32, N, 64], out: InOut[i32, N, 64], a: i32):
    grid(N)
    for j in range(16):
        v = load(x, (bid(0), j), shape=(1, 4))
        count = i32(0)
        for i in range(64):
            if load(x, (bid(0), i)) > a:
                continue
            count = minimum(count, 63) + 1
            if count == j:
                break
        if count < j:
            break
        store(out, (bid(0), j), v + count)
""",
    "a search by halves": """
    x: In[i32, N, 64], out: Out[i32, N], a: i32):
    grid(N)
    low, high = i32(0), i32(64)
    while low < high:
        invariant(0 <= low, low <= high, high <= 64)
        middle = (low + high) // 2
        if load(x, (bid(0), middle)) < a:
            low = middle + 1
        else:
            high = middle
    store(out, bid(0), low)
""",
    "tiles until their sum is large, in a while": """
    x: In[f32, N, 512], out: Out[f32, N, 64], a: i32):
    grid(N)
    j, total = i32(0), zeros((1, 64), f32)
    while j < 8 and sum(total) < f32(a):
        invariant(0 <= j, j <= 8)
        v = load(x, (bid(0), j), shape=(1, 64))
        j = j + 1
        if sum(v) < 0.0:
            continue
        total = total + where(v > 0.0, v, 0.0)
        if max(v) > 2.5:
            break
    store(out, (bid(0), 0), total)
""",
    "a while with a loop in it": """
    x: In[i32, N, 64], out: Out[i32, N], a: i32):
    grid(N)
    s, pairs = i32(0), i32(0)
    while s < 16:
        invariant(0 <= s, s <= 16, 0 <= pairs, pairs <= 16 * s)
        decreases(16 - s)
        t = i32(0)
        while t < s:
            invariant(0 <= t, t <= s)
            if load(x, (bid(0), t)) > a and load(x, (bid(0), t)) < load(x, (bid(0), s)):
                break
            t = t + 1
        if t < s:
            pairs = pairs + 1
        s = s + 1
    store(out, bid(0), pairs)
""",
    "a tile function that leaves, and an early return": """
    x: In[i32, N, 64], out: InOut[i32, N], a: i32):
    grid(N)
    if load(x, (bid(0), 0)) < a:
        return
    total = i32(0)
    for i in range(64):
        v = load(x, (bid(0), i))
        if v == a:
            break
        total = total + v
    store(out, bid(0), total)
""",
}
SMALL = {"products until a row is large": ("x", "y")}


def program(name: str, a: int) -> Program:
    dims = {"K": 320} if "In[bf16" in KERNELS[name] else {"N": 5}
    return Program(0, IMPORTS + KERNELS[name].lstrip(), False, dims, {"a": a}, None, small=SMALL.get(name, ()))


@pytest.mark.parametrize("a", [-2, 0, 1, 100])
@pytest.mark.parametrize("name", KERNELS)
def test_every_machine_leaves_at_the_same_iteration(name: str, a: int) -> None:
    outcome = examine(program(name, a), MAIN_TARGETS, seeds=(0, 1), proven=True, block_machine="mma" not in KERNELS[name])
    assert outcome.kind == "equal", outcome


@pytest.mark.parametrize("name", KERNELS)
def test_the_loop_is_left_by_a_branch(name: str) -> None:
    text = lowered(program(name, 0), SM_90A).mlir
    assert text.count("scf.while") == 1 + ("a loop in it" in name)


def loops(name: str, old: str = "", new: str = "") -> list[int | None]:
    changed = program(name, 0)
    assert old in changed.text
    changed.text = changed.text.replace(old, new)
    return [exit_condition(op) for op in load(changed).body.walk() if isinstance(op, For)]


def test_the_condition_is_found_among_the_carried_values() -> None:
    assert loops("first tile above a limit") == [1]
    assert loops("sum across warps until it is negative") == [1]


BRANCH = """        if max(load(x, (bid(0), j), shape=(1, 64))) > f32(a):
            found = j
            break
"""
CHANGED = {
    "no exit": "found = j",
    "a branch that changes a value either way": """
        if found < 0:
            found = j
        else:
            found = 1""",
    "something after a guard": """
        going = found < 0
        if going:
            found = j
        found = found + 1""",
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_loop_whose_iterations_change_something_runs_to_its_end(name: str) -> None:
    assert loops("first tile above a limit", BRANCH, f"        {CHANGED[name].lstrip()}\n") == [None]


GUARDED = """
    x: In[f32, N, 512], out: InOut[i32, N], a: i32):
    grid(N)
    found, last, going = i32(-1), i32(0), a > 0
    for j in range(8):
        if going:
            found = j
            going = j < a{more}
    store(out, bid(0), found + last)
"""
MORE = {"": 1, "\n        last = j": None, "\n        store(out, bid(0), j)": None}


@pytest.mark.parametrize("more", MORE)
def test_a_guard_is_an_exit_only_if_nothing_else_changes(more: str) -> None:
    one = program("first tile above a limit", 0)
    one.text = IMPORTS + GUARDED.replace("{more}", more).lstrip()
    (found,) = (exit_condition(op) for op in load(one).body.walk() if isinstance(op, For))
    assert found == MORE[more]
