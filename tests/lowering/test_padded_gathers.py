"""Padded gathers load words under a predicate; the index of `where(asked, i, N)` becomes that predicate, and N is not
materialized."""

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
from tilec.ir.ops import Binary, Gather
from tilec.lowering import lower
from tilec.lowering.memory import _condition_and_indices, _largest_element  # pyright: ignore[reportPrivateUsage]
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

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
    store(out, 0, gather(x, {chosen}, pad=7))
"""


def text(chosen: str, dtype: str = "f32", access: str = "In", dims: str = "N", other: str = "") -> str:
    return HEAD + PICK.format(chosen=chosen, dtype=dtype, access=access, dims=dims, other=other)


CONDITIONAL = {
    "as said": text("where(i > 2, i, N)"),
    "integers": text("where(i > 2, i, N)", "i32"),
    "places that may lie outside": text("where(i % 2 == 0, i - 5, N)"),
    "halves": text("where(i > 2, i, N)", "f16"),
    "of what is written": text("where(i > 2, i, N)", access="InOut"),
    "steps": text("where(i > 2, i + (arange(64) * 3 + 1), N)"),
    "steps first": text("where(i > 2, arange(64) + i, N)"),
}
UNCONDITIONAL = {
    "all": text("i - 5"),
    "a place inside": text("where(i > 2, i, N - 1)"),
    "the other way round": text("where(i > 2, N, i)"),
    "the first": text("where(i > 2, i, 0)"),
    "another extent": text("where(i > 2, i, M)", other="y: In[f32, M], "),
    "steps from all": text("i + arange(64)"),
    "steps back": text("i - arange(64)"),
    "steps on several axes": text("(i % 3 + arange(64), arange(64) + i)", dims="N, 16"),
    "several axes": text("(where(i > 2, i % 3, N), where(i > 2, i, N))", dims="N, 16"),
}
CASES = CONDITIONAL | UNCONDITIONAL


def kernel(folder: Path, source: str) -> Function:
    path = folder / "k.py"
    path.write_text(source, encoding="utf-8")
    return load_kernel(path, {}, root=folder)


@pytest.mark.parametrize("name", CASES)
def test_the_condition_of_a_gather_is_separated_from_its_indices(name: str, tmp_path: Path) -> None:
    function = prepare(kernel(tmp_path, CASES[name]), SM_90A, Overrides(warps=1))
    (gather,) = [op for op in function.body.walk() if isinstance(op, Gather)]
    condition, indices = _condition_and_indices(gather)
    assert (condition is not None) == (name in CONDITIONAL)
    assert len(indices) == len(gather.indices) and (indices == gather.indices) == (name not in CONDITIONAL)


@pytest.mark.parametrize("name", CASES)
def test_words_of_unwritten_tensors_are_loaded_under_a_predicate(name: str, tmp_path: Path) -> None:
    text = lower(prepare(kernel(tmp_path, CASES[name]), SM_90A, Overrides(warps=1)), SM_90A).mlir
    assert ("@$2 ld.global" in text) == (name not in ("halves", "of what is written"))


@pytest.mark.parametrize("name", CASES)
def test_each_element_agrees_with_the_interpreter(name: str, tmp_path: Path) -> None:
    plain, function = (kernel(tmp_path, CASES[name]) for _ in range(2))
    function = prepare(function, SM_90A, Overrides(warps=2))
    lowered = lower(function, SM_90A)
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
        expected = {key: array.copy() for key, array in arrays.items()}
        run(plain, expected, {})
        launch(function, lowered, arrays, dict(extents))
        assert (arrays["out"] == expected["out"]).all(), (length, arrays)


STEPS = {
    "arange(64)": 63,
    "arange(64) * 3 + 1": 190,
    "arange(64) - 1": -1,
    "arange(64) + i": -1,
    "arange(64) * 1073741824": 63 << 30,
    "arange(64) * -1": -1,
}


@pytest.mark.parametrize("steps", STEPS)
def test_the_largest_step_is_known_for_steps_that_the_kernel_computes(steps: str, tmp_path: Path) -> None:
    function = prepare(kernel(tmp_path, text(f"where(i > 2, i + ({steps}), N)")), SM_90A, Overrides(warps=1))
    (gather,) = [op for op in function.body.walk() if isinstance(op, Gather)]
    (index,) = _condition_and_indices(gather)[1]
    assert isinstance(index.owner, Binary)
    assert _largest_element(index.owner.operands[1]) == STEPS[steps]


@pytest.mark.parametrize("start", [2147483647, 2147483600, -40, -1, 5])
@pytest.mark.parametrize("chosen", ["i + arange(64)", "arange(64) * 3 + i", "i + arange(64) * 67108864"])
def test_a_step_past_the_largest_i32_is_out_of_bounds(start: int, chosen: str, tmp_path: Path) -> None:
    """The bounds check uses the position as i32, although the address is a 64-bit sum."""
    function = prepare(kernel(tmp_path, text(chosen)), SM_90A, Overrides(warps=1))
    x, out = np.arange(40, dtype=np.float32), np.zeros(64, np.float32)
    take = np.full(64, start, np.int32)
    launch(function, lower(function, SM_90A), {"x": x, "take": take, "out": out}, {"N": 40})
    i, lanes = take.astype(np.int64), np.arange(64)
    position = {"i + arange(64)": i + lanes, "arange(64) * 3 + i": lanes * 3 + i}.get(chosen, i + lanes * 67108864)
    position = (position + 2**31) % 2**32 - 2**31
    assert (out == np.where((position >= 0) & (position < 40), x[np.clip(position, 0, 39)], 7)).all()


@pytest.mark.parametrize("name", ["places that may lie outside", "another extent", "several axes"])
def test_machine_code_agrees(name: str) -> None:
    program = Program(2, CASES[name], True, {"N": 20, "M": 4} if name == "another extent" else {"N": 20}, {}, 2)
    outcome = examine(program, (SM_90A,))
    assert outcome.kind == "equal", outcome.detail
