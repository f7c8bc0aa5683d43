"""A kernel may have any valid Python name, including names that LLVM, MLIR or PTX reserve."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.codegen import to_ptx
from tilec.frontend import load_kernel
from tilec.lowering import lower
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import NOTHING_FIXED
from tilec.target.targets import SM_90A
from tilec.workers.call import call

pytestmark = pytest.mark.usefixtures("kept_workers")

KERNEL = """import tilec
from tilec import Dim, In, Out, bid, cdiv, f32, grid, load, requires, store

class N(Dim): ...

@tilec.kernel
def {name}(x: In[f32, N], out: Out[f32, N]):
    grid(cdiv(N, 128))
    requires(N <= 1000000)
    store(out, bid(0), load(x, bid(0), shape=128, pad=0), mask=True)
"""


def ptx_of(name: str, folder: Path) -> tuple[str, str]:
    """Symbol and PTX of a kernel of this name, compiled in a worker, because a name that LLVM rejects may abort the process."""
    path = folder / "kernel.py"
    path.write_text(KERNEL.format(name=name), encoding="utf-8")
    function = load_kernel(path, {}, root=folder)
    schedule = choose(function, SM_90A, NOTHING_FIXED)
    lowered = lower(prepare(function, SM_90A, schedule, positive=frozenset()), SM_90A)
    return lowered.entry, call(to_ptx, lowered.mlir, SM_90A, what="the PTX of a kernel")


@pytest.mark.parametrize(
    ("name", "symbol"),
    [
        ("plain", "plain"), ("memcpy", "memcpy"), ("main", "main"), ("printf", "printf"), ("__nvvm_reflect", "__nvvm_reflect"),
        ("WARP_SZ", "WARP_SZ$"), ("_", "_$"), ("é", "_$$ue9"), ("_é", "_$ue9"), ("k", "k"), ("param", "param"),
    ],
)  # fmt: skip
def test_a_kernel_is_built_under_its_own_name(tmp_path: Path, name: str, symbol: str) -> None:
    entry, ptx = ptx_of(name, tmp_path)
    assert entry == symbol
    assert f".visible .entry {symbol}(" in ptx
    assert f"[{symbol}_param_0]" in ptx


def test_the_ptx_equals_that_of_another_name(tmp_path: Path) -> None:
    """Except for the name."""
    _, reserved = ptx_of("__nvvm_reflect", tmp_path)
    _, plain = ptx_of("abcdefghijklmn", tmp_path)
    assert reserved == plain.replace("abcdefghijklmn", "__nvvm_reflect")
