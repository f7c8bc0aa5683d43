"""Scales of blocks, which broadcasts repeat: their loads take the layout of what they multiply, so that no barrier is in the
loop, and the code agrees with the interpreter on all machines, with weights of 8 bits too, which are widened in pairs."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.programs.small_programs import agreed
from tilec.frontend import load_kernel
from tilec.ir.core import Block, Function
from tilec.ir.ops import For
from tilec.ir.ops.sync_ops import Barrier
from tilec.ir.types import DTYPES
from tilec.passes.schedule import prepare
from tilec.target.dtypes import numpy_dtype
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

TEXT = '''"""Sums of products with a scale for each group."""
import tilec
from tilec import In, Out, bf16, bid, f16, f32, f8e4m3, f8e5m2, grid, load, store, sum, zeros


@tilec.kernel
def k(w: In[{dtype}, {n}, {k}], scales: In[{scale}, {n}, {groups}], out: Out[f32, {n}]{more}):
    grid({n} // {rows})
    n = bid(0)
    acc = zeros(({rows}, {per}, {parts}), f32)
    for b in range({groups} // {per}):
        v = load(w, (n, b), shape=({rows}, {block})).astype(f32).reshape(({rows}, {per}, {parts}, {step}))
        s = load(scales, (n, b), shape=({rows}, {per}))
        acc += sum(v, axis=3) * s.astype(f32)[:, :, None]
        {extra}
    store(out, n, sum(acc, axis=(1, 2)))
'''


@dataclass(frozen=True)
class Scaled:
    """`rows` sums a block; an iteration reads `per` groups of `group` elements, of which a sum is of `step`."""

    dtype: str = "f8e4m3"
    scale: str = "f32"
    rows: int = 4
    per: int = 2
    group: int = 128
    step: int = 8
    iterations: int = 3
    warps: int = 4
    extra: str = ""
    more: str = ""

    @property
    def text(self) -> str:
        groups = self.per * self.iterations
        sizes = {"n": 2 * self.rows, "k": groups * self.group, "block": self.per * self.group, "parts": self.group // self.step}
        names = ("dtype", "scale", "rows", "per", "step", "more")
        given = {name: getattr(self, name) for name in names}
        return TEXT.format(groups=groups, extra=self.extra or "pass", **sizes, **given)

    @property
    def dims(self) -> dict[str, int]:
        return {}

    def function(self, folder: Path) -> Function:
        path = folder / "k.py"
        path.write_text(self.text)
        return load_kernel(path, {}, root=folder)

    def arrays(self, seed: int) -> dict[str, Any]:
        """Small integers and powers of two, whose sums are exact in every order."""
        random = np.random.default_rng(seed)
        groups = self.per * self.iterations
        weights = random.integers(-4, 5, (2 * self.rows, groups * self.group)).astype(numpy_dtype(DTYPES[self.dtype]))
        scales = 2.0 ** random.integers(-3, 4, (2 * self.rows, groups))
        tensors = {
            "w": weights,
            "scales": scales.astype(numpy_dtype(DTYPES[self.scale])),
            "out": np.zeros(2 * self.rows, np.float32),
        }
        return tensors | ({"seen": np.zeros((2 * self.rows, groups), np.float32)} if self.more else {})


def barriers_in_loops(program: Scaled, folder: Path) -> int:
    function = prepare(program.function(folder), SM_90A, Overrides(warps=program.warps))
    loops = [op for op in function.body.walk() if isinstance(op, For)]
    return len({op for loop in loops for op in Block(ops=[loop]).walk() if isinstance(op, Barrier)})


@pytest.mark.parametrize("dtype", ["f8e4m3", "bf16", "f32"])
@pytest.mark.parametrize("scale", ["f32", "bf16"])
def test_scales_meet_at_no_barrier(dtype: str, scale: str, tmp_path: Path) -> None:
    assert barriers_in_loops(Scaled(dtype, scale), tmp_path) == 0


def test_a_tile_with_another_use_keeps_its_layout(tmp_path: Path) -> None:
    """It is stored as well, as it lies in memory."""
    program = Scaled(extra="store(seen, (n, b), s)", more=", seen: Out[f32, 8, 6]")
    assert barriers_in_loops(program, tmp_path) > 0
    found, _ = agreed(program, tmp_path, "seen")
    assert found.any()


@settings(max_examples=12, deadline=None)
@given(
    st.builds(
        Scaled,
        dtype=st.sampled_from(("f8e4m3", "f8e5m2", "bf16", "f16", "f32")),
        scale=st.sampled_from(("f32", "bf16", "f16")),
        rows=st.sampled_from((1, 2, 4, 8)),
        per=st.sampled_from((1, 2, 4)),
        group=st.sampled_from((16, 32, 64, 128)),
        step=st.sampled_from((1, 2, 4, 8, 16)),
        iterations=st.integers(1, 3),
        warps=st.sampled_from((1, 2, 4)),
    )
)
def test_random_groups_agree(program: Scaled) -> None:
    with tempfile.TemporaryDirectory() as folder:
        found, before = agreed(program, Path(folder), "out")
    weights, scales = (before[name].astype(np.float64) for name in ("w", "scales"))
    np.testing.assert_array_equal(found, (weights * np.repeat(scales, program.group, axis=1)).sum(axis=1))
