"""`store = "streamed"`: whole words are stored with an evict-first hint, and the result is the same."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array

from tilec.codegen import ptx
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import Store
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import MAIN_TARGETS, SM_90A, Target

KERNEL = """import tilec
from tilec import Dim, In, Out, arange, bid, cdiv, grid, load, requires, store, {dtype}

class N(Dim):
    "elements"

@tilec.kernel
def k(x: In[{dtype}, N], out: Out[{dtype}, N]):
    {promise}
    grid(cdiv(N, {block}))
    store(out, bid(0), load(x, bid(0), shape={block}, pad=0) + 1, mask=True)
"""
STREAMED = re.compile(r"st\.global\.cs((?:\.v\d)?)\.b32")
PLAIN = re.compile(r"llvm\.store ")


def kernel(
    folder: Path, dtype: str, block: int, promise: str = "pass", store: str = "streamed", target: Target = SM_90A
) -> Function:
    path = folder / "k.py"
    path.write_text(KERNEL.format(dtype=dtype, block=block, promise=promise), encoding="utf-8")
    return prepare(load_kernel(path, {}, root=folder), target, Overrides(warps=1, store=store))


WIDTHS = [
    ("f16", 256, ".v4"),
    ("f16", 4, ".v2"),
    ("f16", 2, ""),
    ("f32", 64, ".v4"),
    ("f32", 2, ".v2"),
    ("f32", 1, ""),
    ("i64", 1, ".v2"),
]


@pytest.mark.parametrize(("dtype", "block", "vector"), WIDTHS)
def test_whole_words_are_streamed(dtype: str, block: int, vector: str, tmp_path: Path) -> None:
    function = kernel(tmp_path, dtype, block, "requires(N % 8 == 0)")
    assert all(op.streamed for op in function.body.walk() if isinstance(op, Store))
    text = lower(function, SM_90A).mlir
    assert set(STREAMED.findall(text)) == {vector}
    assert not PLAIN.search(text)


def test_partial_words_are_not_streamed(tmp_path: Path) -> None:
    text = lower(kernel(tmp_path, "f16", 256), SM_90A).mlir  # at the edge, each element is stored separately
    assert STREAMED.search(text) and PLAIN.search(text)


def test_other_schedules_stream_nothing(tmp_path: Path) -> None:
    function = kernel(tmp_path, "f16", 256, store="threads")
    assert not any(op.streamed for op in function.body.walk() if isinstance(op, Store))
    assert not STREAMED.search(lower(function, SM_90A).mlir)


@pytest.mark.parametrize("length", [1, 8, 255, 256, 300])
@pytest.mark.parametrize("dtype", ["f16", "f32", "i64", "i8"])
def test_all_elements_are_stored(dtype: str, length: int, tmp_path: Path) -> None:
    kinds = {"f16": np.float16, "f32": np.float32, "i64": np.int64, "i8": np.int8}
    function = kernel(tmp_path, dtype, 128)
    arrays: dict[str, Array] = {"x": np.arange(length).astype(kinds[dtype]), "out": np.zeros(length, kinds[dtype])}
    expected = {name: array.copy() for name, array in arrays.items()}
    run(load_kernel(tmp_path / "k.py", {}, root=tmp_path), expected, {})
    launch(function, lower(function, SM_90A), arrays, {"N": length})
    assert (arrays["out"] == expected["out"]).all()


@pytest.mark.parametrize("target", MAIN_TARGETS, ids=str)
def test_the_instruction_has_the_hint(target: Target, tmp_path: Path) -> None:
    text = ptx.to_ptx(lower(kernel(tmp_path, "f16", 256, "requires(N % 8 == 0)", target=target), target).mlir, target)
    assert "st.global.cs.v4.b32" in text and "st.global.v4" not in text
