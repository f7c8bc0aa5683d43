"""What is refused for want of a proof must not come with an element that is written after all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilec.diagnostics import CompileError
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


@pytest.mark.parametrize("name", KERNELS)
def test_no_element_is_called_unwritten_that_is_written(name: str, tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    words = "Dim, In, Out, arange, bid, grid, i32, load, requires, scatter, store"
    path.write_text(
        f'import tilec\nfrom tilec import {words}\n\n\nclass N(Dim):\n    """elements"""\n\n\n@tilec.kernel{KERNELS[name]}'
    )
    with pytest.raises(CompileError) as refused:
        prove(load_kernel(path, {}, root=tmp_path))
    assert "E0403" not in {diagnostic.code for diagnostic in refused.value.diagnostics}
