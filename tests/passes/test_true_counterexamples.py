"""A kernel that is refused for lack of a proof is not shown a false counterexample: neither an element that is in fact written,
nor a value that a loop variable does not have there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.passes.texts import verdict_of
from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError
from tilec.frontend import load_kernel
from tilec.passes.prover import prove

KERNELS = {
    "permuted by bits": """
def k(out: Out[i32, 64]):
    grid(1)
    i = arange(64)
    scatter(out, i ^ ((i // 2) % 32), i)
""",
    "a grid divided by a number of any sign": """
def k(n: i32, x: In[i32, N], out: Out[i32, N]):
    grid(N // n)
    requires(N % n == 0)
    for j in range(n):
        store(out, load(x, bid(0) * n + j), offset=(bid(0) * n + j,))
""",
}


COUNTED = {
    "what a loop counts with a remainder": """
def k(x: In[f32, N], out: Out[f32, N]):
    grid(1)
    requires(N <= 1000000)
    at = 0
    for j in range(N):
        store(out, at, load(x, j), mask=True)
        at = (at + 1) % 1000001
""",
    "what a loop of two arms counts": """
def k(x: In[f32, N], out: Out[f32, N]):
    grid(1)
    requires(N <= 1000)
    at = 0
    for j in range(N):
        store(out, at, load(x, j), mask=True)
        if at < 1000:
            at = at + 1
        else:
            at = 0
""",
    "what a loop in a loop counts": """
def k(x: In[f32, N], out: Out[f32, N]):
    grid(1)
    requires(N <= 1000)
    at = 0
    for i in range(2):
        for j in range((N - i + 1) // 2):
            store(out, at, load(x, at, pad=0), mask=True)
            at = (at + 1) % 1001
""",
    "a tile of positions that a loop carries": """
def k(x: In[f32, N], out: Out[f32, N]):
    grid(1)
    requires(N <= 1000)
    at = arange(1)
    for j in range(N):
        scatter(out, at, load(x, j, shape=(1,)), mask=True)
        at = (at + 1) % 1001
""",
}


@pytest.mark.parametrize("name", COUNTED)
def test_no_value_is_assumed_that_running_the_kernel_contradicts(name: str, tmp_path: Path) -> None:
    """Each kernel is correct, but the prover cannot show it: it reports that it could not decide, and prints no launch."""
    path = tmp_path / "k.py"
    names = "Dim, In, Out, arange, f32, grid, load, requires, scatter, store"
    path.write_text(
        f'import tilec\nfrom tilec import {names}\n\n\nclass N(Dim):\n    """elements"""\n\n\n@tilec.kernel{COUNTED[name]}'
    )
    function = load_kernel(path, {}, root=tmp_path)
    with pytest.raises(CompileError) as refused:
        prove(function)
    for diagnostic in refused.value.diagnostics:
        assert diagnostic.counterexample is None and diagnostic.code == "E0306", diagnostic


def test_a_counted_value_that_violates_a_bound_is_shown(tmp_path: Path) -> None:
    """The same loop, starting at 3: of the numbers that the remainder might be, the counterexample shows the actual one."""
    path = tmp_path / "k.py"
    text = (
        COUNTED["what a loop counts with a remainder"]
        .replace("at = 0", "at = 3")
        .replace("Out[", "InOut[")
        .replace(", mask=True", "")
    )
    path.write_text(
        "import tilec\nfrom tilec import Dim, In, InOut, f32, grid, load, requires, store\n\n\n"
        f'class N(Dim):\n    """elements"""\n\n\n@tilec.kernel{text}'
    )
    function = load_kernel(path, {}, root=tmp_path)
    with pytest.raises(CompileError) as refused:
        prove(function)
    (one,) = refused.value.diagnostics
    assert one.code == "E0302" and one.counterexample is not None, one
    verdict = examine_function(function)
    assert verdict.kind == "refused_confirmed" and not verdict.wrong_examples


@pytest.mark.parametrize("name", KERNELS)
def test_no_written_element_is_reported_as_unwritten(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    names = "Dim, In, Out, arange, bid, grid, i32, load, requires, scatter, store"
    path.write_text(
        f'import tilec\nfrom tilec import {names}\n\n\nclass N(Dim):\n    """elements"""\n\n\n@tilec.kernel{KERNELS[name]}'
    )
    with pytest.raises(CompileError) as refused:
        prove(load_kernel(path, {}, root=tmp_path))
    assert "E0403" not in {diagnostic.code for diagnostic in refused.value.diagnostics}


HALVED = """import tilec
from tilec import Dim, In, Out, grid, i32, invariant, load, requires, store


class N(Dim):
    \"\"\"elements\"\"\"


@tilec.kernel
def k(x: In[i32, N], out: Out[i32, 1], a: i32):
    requires(N <= 100000)
    grid(1)
    lo, hi = i32(0), N
    while lo <= hi:
        invariant(0 <= lo, lo <= hi, hi <= N)
        middle = (lo + hi) // 2
        if load(x, middle) < a:
            lo = middle + 1
        else:
            hi = middle
    store(out, 0, lo)
"""


def test_numbers_that_a_run_corrects_are_run_once_more(tmp_path: Path) -> None:
    """A run moves `middle` to another element, whose contents are then those of another launch."""
    verdict = verdict_of(tmp_path, HALVED)
    assert "E0310" in verdict.codes and not verdict.wrong_examples, verdict.diagnostics


WRAPS = """import tilec
from tilec import Dim, In, Out, grid, i32, load, maximum, minimum, requires, store


class N(Dim):
    \"\"\"elements\"\"\"


@tilec.kernel
def k(x: In[i32, N], out: Out[i32, 1], a: i32):
    requires(N <= 100000)
    grid(1)
    longest = i32(0)
    for i in range(N):
        for j in range(i):
            if load(x, i) > load(x, j):
                longest = maximum(longest, i - j)
    if N > 0:
        store(out, 0, load(x, minimum(longest, a - 1)))
"""


def test_a_size_that_a_violation_leaves_open_is_small(tmp_path: Path) -> None:
    """The launch that is shown can be run."""
    verdict = verdict_of(tmp_path, WRAPS)
    (wrap,) = (one for one in verdict.diagnostics if one.code == "E0304")
    assert wrap.counterexample is not None and wrap.counterexample.dims == {"N": 1, "a": -(1 << 31)}, wrap
    assert not verdict.wrong_examples


FAR_BLOCK = """import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store


class N(Dim):
    \"\"\"elements\"\"\"


class T(Dim):
    \"\"\"rows\"\"\"


@tilec.kernel
def k(x: In[f32, N], out: Out[f32, T, 64]):
    grid(T)
    row = bid(0)
    store(out, (row, 0), load(x, offset=row * 4096, shape=64, pad=0).reshape((1, 64)))
"""


def test_a_size_is_no_smaller_than_the_block_that_is_shown_needs(tmp_path: Path) -> None:
    """The violation mentions the block alone, and the block is in the grid of the size."""
    verdict = verdict_of(tmp_path, FAR_BLOCK)
    (wrap,) = verdict.diagnostics
    assert wrap.code == "E0304" and wrap.counterexample is not None
    ((block,),) = wrap.counterexample.blocks
    assert block * 4096 >= 1 << 31 and wrap.counterexample.dims["T"] > block
