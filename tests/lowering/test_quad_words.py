"""Bytes of which adjacent threads have one each: which loads become loads of words, and that each thread takes its own byte."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from tests.programs.machines import manifest
from tilec.codegen import to_ptx
from tilec.emulator import emulate
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.layouts.layout import Digit, Layout
from tilec.ir.ops import Load
from tilec.lowering import lower
from tilec.lowering.quad_words import runs
from tilec.passes.schedule import choose, prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

KERNEL = '''"""Products of two numbers of four bits in a byte."""
import tilec as tl


class M(tl.Dim):
    """rows"""


class N(tl.Dim):
    """columns"""


class K(tl.Dim):
    """depth"""


class H(tl.Dim):
    """bytes of a row"""


@tl.kernel
def k(x: tl.In[tl.bf16, M, K], w: tl.In[tl.{dtype}, N, H], out: tl.Out[tl.f32, M, N]):
    tl.requires(K % 8 == 0, {requires})
    tl.grid(tl.cdiv(M, 64), tl.cdiv(N, 64))
    m, n = tl.bid(0), tl.bid(1)
    total = tl.zeros((64, 64), tl.f32)
    for i in range(tl.cdiv(K, 64)):
        a = tl.load(x, (m, i), shape=(64, 64), pad=0)
        p = tl.load(w, (n, i), shape=(64, 32), pad={pad}).astype(tl.i32)
        y = tl.join(p & 15, (p >> 4) & 15).reshape((64, 64))
        total = tl.mma(a, (y - 3).astype(tl.bf16).T, total)
    tl.store(out, (m, n), total, mask=True)
'''
WORDS = {
    "whole rows": ("u8", "H % 16 == 0", "0", "v4"),
    "signed": ("i8", "H % 16 == 0", "0", "v4"),
    "rows of eight bytes": ("u8", "H % 8 == 0", "0", "v2"),
    "rows that end in a word": ("u8", "H % 4 == 0", "0", None),
    "rows of any length": ("u8", "H >= 1", "0", None),
    "padded by another byte": ("u8", "H % 16 == 0", "7", None),
}


def built(folder: Path, name: str) -> Function:
    dtype, requires, pad, _ = WORDS[name]
    path = folder / "k.py"
    path.write_text(KERNEL.format(dtype=dtype, requires=requires, pad=pad))
    return load_kernel(path, {}, root=folder)


def code_of(folder: Path, name: str) -> tuple[str, Function]:
    function = built(folder, name)
    schedule = choose(built(folder, name), SM_90A, Overrides(copy="tma"))
    code = lower(prepare(built(folder, name), SM_90A, schedule), SM_90A)
    return to_ptx(code.mlir, SM_90A), function


@pytest.mark.parametrize("name", WORDS)
def test_which_loads_become_words(name: str, tmp_path: Path) -> None:
    text, _ = code_of(tmp_path, name)
    vectors = set(re.findall(r"ld\.global(?:\.nc)?\.(v[248])\.b32", text))
    bytes_alone = re.findall(r"ld\.global(?:\.nc)?\.[bus]8\s", text)
    wanted = WORDS[name][3]
    assert vectors == ({wanted} if wanted else set())
    assert bool(bytes_alone) == (wanted is None)


@pytest.mark.parametrize("bytes_", [32, 48, 8, 40])
@pytest.mark.parametrize("name", ["whole rows", "signed", "rows of eight bytes"])
def test_every_thread_takes_its_own_byte(name: str, bytes_: int, tmp_path: Path) -> None:
    """Also of a last tile with less to read, and of rows that end inside a tile: what lies beyond is never read."""
    if name != "rows of eight bytes":
        bytes_ = -(-bytes_ // 16) * 16
    text, function = code_of(tmp_path, name)
    code = lower(prepare(built(tmp_path, name), SM_90A, choose(built(tmp_path, name), SM_90A, Overrides(copy="tma"))), SM_90A)
    random = np.random.default_rng(bytes_)
    rows, columns, depth = 3, 70, 2 * bytes_
    dtype = np.int8 if name == "signed" else np.uint8
    arrays = {
        "x": random.integers(-2, 3, (rows, depth)).astype(bfloat16), "out": np.zeros((rows, columns), np.float32),
        "w": random.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, (columns, bytes_)).astype(dtype),
    }  # fmt: skip
    expected = {key: array.copy() for key, array in arrays.items()}
    run(function, expected, {})
    launch = {"M": rows, "N": columns, "K": depth, "H": bytes_}
    report = emulate(text, manifest(function, code, SM_90A), arrays, launch, seed=bytes_)
    assert report.clean, report.faults[0]
    np.testing.assert_array_equal(report.tensors["out"].view(np.float32).reshape(rows, columns), expected["out"])


def load_of(shape: tuple[int, ...], layout: Layout, template: Load) -> Load:
    made = dataclasses.replace(template, results=[])
    made.define(dataclasses.replace(template.result.tile, shape=shape))
    made.result.layout = layout
    return made


def test_layouts_that_share_no_words(tmp_path: Path) -> None:
    """A lane that has two bytes side by side, words apart in other warps, a byte for each of eight lanes."""
    prepared = prepare(
        built(tmp_path, "whole rows"), SM_90A, choose(built(tmp_path, "whole rows"), SM_90A, Overrides(copy="tma"))
    )
    template = next(op for op in prepared.body.walk() if isinstance(op, Load) and op.result.tile.dtype.bytes == 1)
    eight = Digit(8, 0, 1)
    shared = Layout(2, (Digit(8, 1, 4),), (Digit(4, 1, 1), eight), (Digit(4, 0, 8),))
    assert [len(one) for one in runs(load_of((32, 32), shared, template), shared)] == [4, 4]
    others = [
        Layout(2, (Digit(2, 1, 1), Digit(4, 1, 8)), (Digit(4, 1, 2), eight), (Digit(4, 0, 8),)),
        Layout(2, (Digit(2, 1, 4),), (Digit(4, 1, 1), eight), (Digit(4, 1, 8),)),
        Layout(2, (Digit(4, 1, 8),), (Digit(8, 1, 1), Digit(4, 0, 1)), (Digit(4, 0, 4),)),
    ]
    found = [runs(load_of((rows, 32), one, template), one) for one, rows in zip(others, (32, 8, 16), strict=True)]
    assert found[0] == found[2] == [] and [len(one) for one in found[1]] == [2]
