"""A counterexample is a launch that goes wrong: what a loop carries is what the loop computes, from memory as shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soundness.verdict import examine_function
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.ir.core import Block
from tilec.passes.prover import block_run, prove, replay

HEAD = '''import tilec
from tilec import Dim, In, InOut, Out, Scratch, bid, cdiv, f32, grid, i32, load, maximum, minimum, requires, store, sum, values
from tilec import where


class M(Dim):
    """rows"""


class N(Dim):
    """columns"""


@tilec.kernel
'''
CORRECT = {
    "counted up to the last column": """def k(x: In[f32, N], flags: In[i32, M], out: Out[f32, M]):
    grid(1)
    c = i32(0)
    for j in range(M):
        store(out, j, load(x, c))
        c = where(load(flags, j) > 0, minimum(c + 1, N - 1), c)
""",
    "halved between two bounds": """def k(x: In[i32, N], out: Out[i32, M]):
    grid(M)
    low, high = i32(0), i32(N)
    for j in range(31):
        middle = (low + high) // 2
        if low < high:
            if load(x, minimum(middle, N - 1)) < bid(0):
                low = middle + 1
            else:
                high = middle
    store(out, bid(0), load(x, minimum(low, N - 1)))
""",
    "counted by floats": """def k(x: In[f32, N], out: Out[f32, M]):
    grid(1)
    c = i32(0)
    for j in range(M):
        store(out, j, load(x, c))
        c = where(load(x, minimum(j, N - 1)) > 0.0, minimum(c + 1, N - 1), c)
""",
    "written at a carried place and read": """def k(s: Scratch[f32, N], flags: In[i32, M], out: Out[f32, N]):
    grid(1)
    c = i32(0)
    for j in range(N):
        store(s, c, 1.0)
        store(out, j, load(s, j))
        c = where(load(flags, minimum(j, M - 1)) > -1, minimum(c + 1, N - 1), minimum(c + 1, N - 1))
""",
}
WRONG = {
    "counted past the last column": (CORRECT["counted up to the last column"].replace("N - 1), c", "N), c"), "flags"),
    "counted from the second column": (
        CORRECT["counted up to the last column"].replace("c = i32(0)", "c = i32(1)").replace("N - 1), c", "N), c"), "",
    ),
}  # fmt: skip


def refused(tmp_path: Path, text: str) -> list[Diagnostic]:
    path = tmp_path / "k.py"
    path.write_text(HEAD + text, encoding="utf-8")
    try:
        prove(load_kernel(path, {}))
    except CompileError as error:
        return list(error.diagnostics)
    return []


@pytest.mark.parametrize("name", CORRECT)
def test_no_launch_is_shown_of_a_kernel_that_is_correct(tmp_path: Path, name: str) -> None:
    found = refused(tmp_path, CORRECT[name])
    assert all(d.counterexample is None and d.code == "E0306" for d in found), found


@pytest.mark.parametrize("name", WRONG)
def test_a_carried_value_that_goes_wrong_is_shown_with_the_memory_it_needs(tmp_path: Path, name: str) -> None:
    text, tensor = WRONG[name]
    found = [d for d in refused(tmp_path, text) if d.counterexample is not None]
    assert [d.code for d in found] == ["E0301"]
    assert found[0].counterexample is not None and tensor in found[0].counterexample.note
    verdict = examine_function(load_kernel(tmp_path / "k.py", {}))
    assert verdict.kind == "refused_confirmed"


ENDLESS = {
    "unknown": ("sum(where(load(y, j, shape=1024, pad=0) > 0, 1, 0))", "run >= 0.5"),
    "known": ("load(x, j) & 1", "kept > 100"),
}
"""What a loop of millions of iterations adds, and when it ends: by a number that no run knows, and by one that it knows, after
which iterations do nothing. A run that goes on takes minutes."""


@pytest.mark.parametrize("name", ENDLESS)
def test_iterations_that_compute_nothing_count(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    added, ends = ENDLESS[name]
    text = f"""def k(x: In[i32, N], y: In[f32, N], out: Out[i32, M]):
    grid(M)
    run, kept = 0.0, 0
    for j in range(cdiv(N, 1024)):
        kept += {added}
        run += load(y, j)
        if {ends}:
            break
    store(out, bid(0), load(x, maximum(minimum(kept, N) - 1, 0)))
"""
    bodies, inside = list[Block](), block_run.BlockRun.inside  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(block_run.BlockRun, "inside", lambda run, block: bodies.append(block) or inside(run, block))  # pyright: ignore
    assert {found.code for found in refused(tmp_path, text)} == {"E0306"}
    assert 0 < len(bodies) <= 10 * len(replay.FILLS) * block_run.STEPS // block_run.ITERATION
