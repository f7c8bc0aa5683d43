"""Loop-carried tiles of floats of 8 and 16 bits are carried as 32-bit words, so that no instruction unpacks a load that has not
arrived."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from block_machine import launch
from mlir_steps import Array

from tests.programs.generate import Program
from tests.programs.machines import examine
from tilec.frontend import load_kernel
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

TEXT = '''import tilec
from tilec import Dim, In, Out, {dtype}, cdiv, grid, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def walk(x: In[{dtype}, N], out: Out[{dtype}, N]):
    grid(1)
    ahead, before = load(x, 0, shape={width}, pad=0), load(x, 0, shape={width}, pad=0)
    for i in range({turns}):
        now, ahead = ahead, load(x, i + 1, shape={width}, pad=0)
        store(out, i, now + before, mask=True)
        before = now
    store(out, cdiv(N, {width}), ahead, mask=True)
'''
CASES = {
    "halves": ("f16", 64, "cdiv(N, 64)", {8}),
    "integers, apart": ("i16", 64, "cdiv(N, 64)", {16}),
    "of several vectors": ("f16", 512, "cdiv(N, 512)", {16}),
    "unrolled": ("f16", 64, "3", {8}),
    "words": ("f32", 64, "cdiv(N, 64)", {16}),
    "one each": ("f16", 1, "N", {2 + 32 + 2, 2 + 32}),
}
"""dtype, width, iterations, and the numbers of registers in which one warp carries two tiles in a loop. Of tiles so small, 32
iterations are loaded ahead: groups of iterations carry two positions more, the iterations that are left do not."""


def kernel(folder: Path, name: str) -> Function:
    dtype, width, iterations, _ = CASES[name]
    path = folder / "k.py"
    path.write_text(TEXT.format(dtype=dtype, width=width, turns=iterations), encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize("name", CASES)
def test_loops_carry_packed_words(name: str, tmp_path: Path) -> None:
    text = lower(prepare(kernel(tmp_path, name), SM_90A, Overrides(warps=1)), SM_90A).mlir
    carried = re.findall(r"scf\.for .*iter_args\((.*?)\)", text)
    assert carried and {arguments.count("=") for arguments in carried} == CASES[name][3]


@pytest.mark.parametrize("name", CASES)
def test_results_agree_with_the_interpreter(name: str, tmp_path: Path) -> None:
    plain, function = (kernel(tmp_path, name) for _ in range(2))
    function = prepare(function, SM_90A, Overrides(warps=2))
    lowered = lower(function, SM_90A)
    dtype = {"f32": np.float32, "i16": np.int16}.get(CASES[name][0], np.float16)
    random = np.random.default_rng(5)
    for length in (1, 40, 130, 1100 if CASES[name][1] > 1 else 7):
        arrays: dict[str, Array] = {key: random.integers(0, 30, length).astype(dtype) for key in ("x", "out")}
        expected = {key: array.copy() for key, array in arrays.items()}
        run(plain, expected, {})
        launch(function, lowered, arrays, {"N": length})
        assert (arrays["out"] == expected["out"]).all(), length


def test_machine_code_agrees() -> None:
    dtype, width, iterations, _ = CASES["halves"]
    program = Program(1, TEXT.format(dtype=dtype, width=width, turns=iterations), True, {"N": 200}, {}, 1)
    outcome = examine(program, (SM_90A,))
    assert outcome.kind == "equal", outcome.detail


CODES = '''import tilec
from tilec import Dim, In, Out, cdiv, f8e4m3, f16, grid, load, store


class N(Dim):
    """elements"""


@tilec.kernel
def codes(x: In[f8e4m3, N], out: Out[f16, N]):
    grid(1)
    ahead, before = load(x, 0, shape=256, pad=0), load(x, 0, shape=256, pad=0)
    for i in range(cdiv(N, 256)):
        now, ahead = ahead, load(x, i + 1, shape=256, pad=0)
        store(out, i, now.astype(f16) + before.astype(f16), mask=True)
        before = now
'''


def test_four_codes_are_carried_in_a_word(tmp_path: Path) -> None:
    path = tmp_path / "k.py"
    path.write_text(CODES, encoding="utf-8")
    text = lower(prepare(load_kernel(path, {}, root=tmp_path), SM_90A, Overrides(warps=1)), SM_90A).mlir
    carried = re.findall(r"scf\.for .*iter_args\((.*?)\)", text)
    # Two tiles of 256, eight elements a thread, and 32 iterations ahead: in groups, with two positions, and those left.
    assert carried and {arguments.count("=") for arguments in carried} == {4 + 32 + 2, 4 + 32}


def test_machine_code_of_codes_agrees() -> None:
    outcome = examine(Program(1, CODES, True, {"N": 700}, {}, 1), (SM_90A,))
    assert outcome.kind == "equal", outcome.detail
