"""Padded gathers: words come by loads under a predicate; `where(asked, i, N)` asks for what is asked for, and N is not made."""

from __future__ import annotations

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
from tilec.ir.ops import Gather
from tilec.lowering import lower
from tilec.lowering.memory import _asked  # pyright: ignore[reportPrivateUsage]
from tilec.passes.schedule import prepare
from tilec.schedule import Overrides
from tilec.target import SM_90A

HEAD = '''import tilec
from tilec import Dim, In, InOut, Out, arange, f16, f32, gather, grid, i32, load, maximum, store, where


class N(Dim):
    """elements"""


class M(Dim):
    """others"""


@tilec.kernel
'''
PICK = """def pick(x: {access}[{dtype}, {dims}], {other}take: In[i32, 64], out: Out[{dtype}, 64]):
    grid(1)
    i = load(take, 0, shape=64)
    store(out, 0, gather(x, {place}, pad=7))
"""


def text(place: str, dtype: str = "f32", access: str = "In", dims: str = "N", other: str = "") -> str:
    return HEAD + PICK.format(place=place, dtype=dtype, access=access, dims=dims, other=other)


ASKED = {
    "as said": text("where(i > 2, i, N)"),
    "integers": text("where(i > 2, i, N)", "i32"),
    "places that may lie outside": text("where(i % 2 == 0, i - 5, N)"),
    "halves": text("where(i > 2, i, N)", "f16"),
    "of what is written": text("where(i > 2, i, N)", access="InOut"),
}
NOT_ASKED = {
    "all": text("i - 5"),
    "a place inside": text("where(i > 2, i, N - 1)"),
    "the other way round": text("where(i > 2, N, i)"),
    "the first": text("where(i > 2, i, 0)"),
    "another extent": text("where(i > 2, i, M)", other="y: In[f32, M], "),
    "several axes": text("(where(i > 2, i % 3, N), where(i > 2, i, N))", dims="N, 16"),
}
CASES = ASKED | NOT_ASKED


def kernel(folder: Path, source: str) -> Function:
    path = folder / "k.py"
    path.write_text(source, encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize("name", CASES)
def test_what_is_asked_for_is_told_from_places(name: str, tmp_path: Path) -> None:
    function = prepare(kernel(tmp_path, CASES[name]), SM_90A, Overrides(warps=1))
    (gather,) = [op for op in function.body.walk() if isinstance(op, Gather)]
    asked, places = _asked(gather)
    assert (asked is not None) == (name in ASKED)
    assert len(places) == len(gather.indices) and (places == gather.indices) == (name not in ASKED)


@pytest.mark.parametrize("name", CASES)
def test_words_that_stay_as_they_are_come_under_a_predicate(name: str, tmp_path: Path) -> None:
    text = lower(prepare(kernel(tmp_path, CASES[name]), SM_90A, Overrides(warps=1)), SM_90A).mlir
    assert ("@$2 ld.global" in text) == (name not in ("halves", "of what is written"))


@pytest.mark.parametrize("name", CASES)
def test_each_element_is_the_interpreters(name: str, tmp_path: Path) -> None:
    plain, function = (kernel(tmp_path, CASES[name]) for _ in range(2))
    function = prepare(function, SM_90A, Overrides(warps=2))
    made = lower(function, SM_90A)
    random = np.random.default_rng(3)
    for length in (1, 5, 40):
        extents = {"N": length, "M": 4}
        arrays: dict[str, Array] = {}
        for parameter in plain.parameters:
            type_ = parameter.value.tensor
            shape = tuple(extents.get(str(dim), dim.constant or 0) for dim in type_.dims)
            arrays[parameter.name] = random.integers(0, 30, shape).astype(
                {"f16": np.float16, "i32": np.int32}.get(str(type_.dtype), np.float32)
            )
        wanted = {key: array.copy() for key, array in arrays.items()}
        run(plain, wanted, {})
        launch(function, made, arrays, dict(extents))
        assert (arrays["out"] == wanted["out"]).all(), (length, arrays)


@pytest.mark.parametrize("name", ["places that may lie outside", "another extent", "several axes"])
def test_machine_code_agrees(name: str) -> None:
    program = Program(2, CASES[name], True, {"N": 20, "M": 4} if name == "another extent" else {"N": 20}, {}, 2)
    outcome = examine(program, (SM_90A,))
    assert outcome.kind == "equal", outcome.detail
