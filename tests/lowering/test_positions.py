"""Masks and addresses of one access are computed from one value of one width, whatever the dtype of the offset."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array

from tests.campaign import chosen
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.lowering import Lowered, lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A, SM_120A, Target

IMPORTS = """In, InOut, Out, bf16, f32, full, gather, grid, i8, i16, i32, i64, load, mma, scatter, store, u8, u16, u32, u64,
    unsafe, zeros"""
"""Offsets are used unchecked, in `unsafe` blocks: the test checks how masks treat them."""
KINDS = {
    "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u16": np.uint16, "u32": np.uint32,
    "u64": np.uint64,
}  # fmt: skip
EDGES = [0, 1, 40, 60, 63, 64, 65, 127, 128, 200, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 16, 2**32 - 1, 2**32,
         2**62, 2**63 - 1, 2**63, 2**63 + 16, 2**64 - 40, 2**64 - 16, 2**64 - 1,
         -1, -16, -63, -64, -128, -(2**15), -(2**31), -(2**63)]  # fmt: skip
CASES = [(kind, edge) for kind, dtype in KINDS.items() for edge in EDGES if np.iinfo(dtype).min <= edge <= np.iinfo(dtype).max]


def in_default_run(case: tuple[str, int]) -> bool:
    """The first and last edges of each kind, and every third of the others, alternating between the kinds."""
    kind, edge = case
    info = np.iinfo(KINDS[kind])
    return edge in (info.min, info.max) or (list(KINDS).index(kind) + EDGES.index(edge)) % 3 == 0


@functools.cache
def lowered(signature: str, body: str, target: Target, overrides: Overrides) -> tuple[Function, Lowered]:
    """A kernel and its code, cached since many edges share one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "k.py"
        lines = "\n".join(f"    {line}" for line in body.splitlines())
        header = f'"""One access."""\nimport tilec\nfrom tilec import ({IMPORTS})\n\n\n'
        path.write_text(f"{header}@tilec.kernel\ndef k({signature}):\n    grid(1)\n{lines}\n")
        function, prepared = (load_kernel(path, {}, root=path.parent) for _ in range(2))
    return function, lower(prepare(prepared, target, overrides), target)


def run(signature: str, body: str, arrays: dict[str, Array], scalars: dict[str, float]) -> None:
    launch(*lowered(signature, body, SM_90A, Overrides(warps=1)), arrays, scalars)


def boxed(source: Array, start: int, size: int) -> Array:
    """`source[start : start + size]`, with zeros out of bounds."""
    return np.array([source[i] if 0 <= i < len(source) else 0 for i in range(start, start + size)], source.dtype)


@pytest.mark.parametrize(("kind", "edge"), chosen(CASES, in_default_run))
def test_boxes(kind: str, edge: int) -> None:
    x, out, written = np.arange(1, 65, dtype=np.float32), np.full(32, 7, np.float32), np.zeros(64, np.float32)
    body = (
        'with unsafe("edges"):\n    store(out, load(x, offset=at, shape=32, pad=0), offset=0)\n'
        "    store(y, full((32,), 1.0, f32), offset=at, mask=True)"
    )
    signature = f"x: In[f32, 64], y: InOut[f32, 64], out: Out[f32, 32], at: {kind}"
    run(signature, body, {"x": x, "y": written, "out": out}, {"at": edge})
    assert (out == boxed(x, edge, 32)).all()
    assert (written == [edge <= i < edge + 32 for i in range(64)]).all()


@pytest.mark.parametrize(("kind", "edge"), chosen(CASES, in_default_run))
def test_indices(kind: str, edge: int) -> None:
    x, out, written = np.arange(1, 65, dtype=np.float32), np.full(32, 7, np.float32), np.zeros(64, np.float32)
    info = np.iinfo(KINDS[kind])
    indices = np.array([i if edge <= i <= info.max else edge for i in range(edge, edge + 32)], KINDS[kind])
    body = (
        'place = load(at, 0, shape=32)\nwith unsafe("edges"):\n    store(out, gather(x, place, pad=0), offset=0)\n'
        "    scatter(y, place, full((32,), 1.0, f32), mask=True)"
    )
    signature = f"x: In[f32, 64], y: InOut[f32, 64], at: In[{kind}, 32], out: Out[f32, 32]"
    arrays = {"x": x, "y": written, "at": indices, "out": out}
    if len(set(indices.tolist())) == 32:
        run(signature, body, arrays, {})
        assert (out == [x[i] if 0 <= i < 64 else 0 for i in indices.tolist()]).all()
        assert (written == [i in indices for i in range(64)]).all()


@pytest.mark.parametrize(("kind", "edge"), chosen(CASES, in_default_run))
def test_copies_into_shared_memory(kind: str, edge: int) -> None:
    """Rows of a product's operand, loaded by asynchronous copies."""
    signature = f"x: In[bf16, 64, 64], w: In[bf16, 64, 32], out: Out[f32, 32, 32], at: {kind}"
    body = (
        "acc = zeros((32, 32), f32)\nfor k in range(2):\n"
        '    with unsafe("edges"):\n        left = load(x, offset=(at, k * 32), shape=(32, 32), pad=0)\n'
        "    acc = mma(left, load(w, (k, 0), shape=(32, 32)), acc)\nstore(out, (0, 0), acc)"
    )
    random = np.random.default_rng(3)
    x, w = (random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in ((64, 64), (64, 32)))
    out = np.full((32, 32), 7, np.float32)
    function, code = lowered(signature, body, SM_120A, Overrides())
    assert "cp.async" in code.mlir
    launch(function, code, {"x": x, "w": w, "out": out}, {"at": edge})
    rows = np.stack([x[i].astype(np.float32) if 0 <= i < 64 else np.zeros(64, np.float32) for i in range(edge, edge + 32)])
    assert (out == rows @ w.astype(np.float32)).all()
