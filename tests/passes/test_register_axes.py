"""Numbers of a thread change places with those of other threads in one conversion, without conflicts of banks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tests.files import ROOT
from tests.words.kernels import One
from tilec.ir.layouts.conversion_scratch import conversion_steps
from tilec.ir.layouts.layout import Layout
from tilec.ir.ops.staging_ops import ScratchLoad
from tilec.ir.types import TileType, f32
from tilec.passes.schedule import choose, prepare
from tilec.passes.schedule.layouts.register_axes import apart
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

WIDTH = 256


@dataclass(frozen=True)
class Exchanged(One):
    """Row `k` of `count` rows of 256 elements, in `count` parts: row `n` gets part `n` of each row."""

    count: int

    @property
    def text(self) -> str:
        """Each row is a tile, joined with the others along axes of two elements; each result is split off."""
        return f'''"""One exchange."""

import tilec as tl


{_functions()}
@tl.kernel
def k(a_: tl.In[tl.{self.inputs[0][0]}, {self.count}, {WIDTH}], out: tl.Out[tl.{self.dtype}, {self.count}, {WIDTH}]):
    tl.grid(1)
    xs = ()
    for k in tl.static_range({self.count}):
        xs = (*xs, tl.load(a_, (k, 0), shape=(1, {WIDTH})).reshape(({WIDTH},)))
    joined = together(xs).reshape(({self.count}, {WIDTH // self.count}, {self.count}))
    ys = apart(tl.permute(joined, (2, 1, 0)), {self.count})
    for k in tl.static_range({self.count}):
        tl.store(out, (k, 0), ys[k].reshape((1, {WIDTH})))
'''


def _functions() -> str:
    """`together` and `apart` of the library's transforms."""
    text = (ROOT / "tilec/kernels/source/fft.py").read_text(encoding="utf-8").replace("tuple[Any, ...]", "tuple")
    parts = text.split("@tl.function\n")
    return "".join(f"@tl.function\n{part}" for part in parts if part.startswith(("def together", "def apart")))


def _exchanged(dtype: str, count: int) -> Exchanged:
    return Exchanged("", dtype, (count, WIDTH), ((dtype, (count, WIDTH)),), count)


@pytest.mark.parametrize("count", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", ["f32", "i32", "f16"])
def test_numbers_of_threads_are_exchanged(dtype: str, count: int) -> None:
    one = _exchanged(dtype, count)
    x = np.arange(count * WIDTH).reshape(count, WIDTH) % 1999
    expected = x.reshape(count, count, WIDTH // count).transpose(1, 0, 2).reshape(count, WIDTH)
    name = {"f32": np.float32, "i32": np.int32, "f16": np.float16}[dtype]
    np.testing.assert_array_equal(one.interpreted(x.astype(name)), expected.astype(name))
    np.testing.assert_array_equal(one.emulated(SM_90A, x.astype(name), warps=4), expected.astype(name))


@pytest.mark.parametrize("count", [4, 8, 16])
def test_one_conversion_exchanges_all(count: int) -> None:
    function = _exchanged("f32", count).function()
    prepared = prepare(function, SM_90A, choose(function, SM_90A, Overrides(warps=4)))
    sizes = [op.result.tile.size for op in prepared.body.walk() if isinstance(op, ScratchLoad)]
    assert [size for size in sizes if size > WIDTH] == [WIDTH * count]


def test_runs_of_threads_begin_in_different_banks() -> None:
    shape = (1, 16, 16, 2, 2, 2, 2)
    layout = apart(shape, 4, 8)
    assert layout is not None
    steps = conversion_steps(TileType(f32, shape), layout)
    banks = [_address(layout, steps, lane) // 4 % 8 for lane in range(8)]  # 16 bytes each, as eight threads read at once
    assert sorted(banks) == list(range(8))


def _address(layout: Layout, steps: tuple[int, ...], lane: int) -> int:
    return sum(a * b for a, b in zip(layout.coordinates(0, lane, 0), steps, strict=True))
