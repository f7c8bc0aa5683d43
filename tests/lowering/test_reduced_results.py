"""Reductions across warps: results of every dtype and kind agree with the interpreter, and threads that pass many of them to
each other use every bank of shared memory."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import TYPES

from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.lowering.reduce_slots import ACCESS_BYTES, Slots, apart, together
from tilec.mlir.builder import Builder
from tilec.mlir.types import Type, f32, i1, i8, i16, i32, i64
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

THREADS = 128
BANKS_BYTES = 128
TEXT = '''"""Reductions of columns."""

import tilec as tl


class M(tl.Dim):
    """rows"""


@tl.kernel
def columns(x: tl.In[tl.{dtype}, M, {width}], out: tl.Out[tl.{out}, {width}]):
    tl.grid(1)
    total = tl.zeros(({width},), tl.{out})
    for i in range(tl.cdiv(M, 16)):
        v = tl.load(x, (i, 0), shape=(16, {width}), pad=0)
        total = total + tl.{kind}(v, axis=0)
    tl.store(out, 0, total)
'''


class Addresses(Builder):
    """Addresses as plain numbers of bytes, each with the bytes that an access has there."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, int]] = []

    def offset(self, pointer: Any, by: Any) -> Any:
        return pointer + by

    def load(self, pointer: Any, type: Type, *, alignment: int = 0, invariant: bool = False) -> Any:
        size = -(-type.bits // 8)
        assert pointer % max(size, alignment) == 0
        self.taken.append((pointer, size))
        return self.zero(type)


def accesses(slots: Slots, thread: int) -> list[tuple[int, int]]:
    """The address and the size of each access of a thread."""
    recorded = Addresses()
    for group in slots.groups():
        slots.load(recorded, cast("Any", thread * slots.step), group, 0)
    return recorded.taken


@pytest.mark.parametrize("results", [5, 8, 16, 33])
@pytest.mark.parametrize("parts", [(f32,), (i64,), (i8,), (i1,), (f32, i32), (i64, i32), (i16, i32)])
@pytest.mark.parametrize("form", [apart, together])
def test_no_two_values_share_a_byte(form: Any, parts: tuple[Type, ...], results: int) -> None:
    slots = form(parts, results, THREADS)
    taken = [
        byte for thread in range(THREADS) for first, size in accesses(slots, thread) for byte in range(first, first + size)
    ]
    assert len(set(taken)) == len(taken) and max(taken) < slots.bytes


@pytest.mark.parametrize("results", [5, 8, 16, 33])
@pytest.mark.parametrize("parts", [(f32,), (i32,), (i64,), (f32, i32)])
def test_a_warp_takes_no_bank_twice(parts: tuple[Type, ...], results: int) -> None:
    """What one cycle moves: as many lanes as have 128 bytes together use different banks."""
    of_lanes = [accesses(apart(parts, results, THREADS), lane) for lane in range(32)]
    for number, (_, size) in enumerate(of_lanes[0]):
        together_lanes = BANKS_BYTES // max(size, 4)
        for first in range(0, 32, together_lanes):
            banks = [one[number][0] // 4 % 32 for one in of_lanes[first : first + together_lanes]]
            assert len(set(banks)) == len(banks)


def test_values_of_a_thread_side_by_side_meet_in_one_bank() -> None:
    """The form of few results, which 16 of them would make 32 times slower."""
    first = [accesses(together((f32,), 16, THREADS), lane)[0][0] for lane in range(32)]
    assert len({address // 4 % 32 for address in first}) == 1


def columns(folder: Path, dtype: str, kind: str, width: int) -> Function:
    path = folder / "columns.py"
    out = "i32" if kind.startswith("arg") else dtype
    path.write_text(TEXT.format(dtype=dtype, kind=kind, width=width, out=out), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize("width", [64, 512, 520])
@pytest.mark.parametrize("kind", ["sum", "max", "argmin"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "i64", "i32", "i8"])
def test_results_agree_with_the_interpreter(dtype: str, kind: str, width: int, tmp_path: Path) -> None:
    prove(columns(tmp_path, dtype, kind, width))
    function = prepare(columns(tmp_path, dtype, kind, width), SM_90A, Overrides(warps=4))
    x = np.random.default_rng(width).integers(0, 3, (37, width)).astype(TYPES[dtype])
    out = np.zeros(width, np.int32 if kind == "argmin" else x.dtype)
    emulated, executed = {"x": x, "out": out.copy()}, {"x": x, "out": out.copy()}
    run(columns(tmp_path, dtype, kind, width), emulated, {})
    launch(function, lower(function, SM_90A), executed, {"M": len(x)})
    np.testing.assert_array_equal(emulated["out"], executed["out"])


def test_many_results_are_passed_as_vectors(tmp_path: Path) -> None:
    function = prepare(columns(tmp_path, "f32", "sum", 512), SM_90A, Overrides(warps=4))
    text = lower(function, SM_90A).mlir
    moved = re.findall(r"llvm\.store \S+, \S+ .*: (\S+), !llvm\.ptr<3>", text)
    assert moved.count(f"vector<{ACCESS_BYTES // 4}xf32>") == 4  # 16 results of a thread
