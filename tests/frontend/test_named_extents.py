"""Extents of signatures: constants with and without a `Dim` class, integers of the module, dims that only arithmetic names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from frontend_kernels import compile_body, refusals

from tilec.interpreter import run

OUT = "out: Out[f32, {extent}]"
BODY = "grid(1)\nfor i in range(out.shape[0]):\n    store(out, i, 0.0)"


def extent_of(tmp_path: Path, extent: str, more: str = "", before: str = "", **constants: int) -> str:
    signature = OUT.format(extent=extent) + more
    function = compile_body(tmp_path, BODY, signature, constants, "from typing import Literal\n" + before)
    return str(function.parameters[0].value.tensor.dims[0])


def test_a_constant_needs_no_dim_class(tmp_path: Path) -> None:
    assert extent_of(tmp_path, 'Literal["B + 1"]', ", *, B: Const", B=3) == "4"
    assert extent_of(tmp_path, "B", ", *, B: Const", B=3) == "3"


def test_an_integer_of_the_module_is_an_extent(tmp_path: Path) -> None:
    assert extent_of(tmp_path, 'Literal["HALF * 3"]', before="WIDTH = 8\nHALF = WIDTH // 2\n") == "12"


def test_a_parameter_hides_an_integer_of_the_module(tmp_path: Path) -> None:
    assert extent_of(tmp_path, "B", ", *, B: Const", "B = 8\n", B=3) == "3"


@pytest.mark.parametrize("extent", ["B + 1", "2 * B", "7 - B", "3 * (B + 2)"])
def test_a_dim_may_occur_in_arithmetic_alone(tmp_path: Path, extent: str) -> None:
    function = compile_body(tmp_path, BODY, OUT.format(extent=f'Literal["{extent}"]'), {}, "from typing import Literal\n"
                            'class B(Dim): """rows"""\n')  # fmt: skip
    assert function.dims == ("B",)


REFUSED = {
    "a float": ("B: Const", {"B": 1.5}, "", "E0107", "`B` is no integer"),
    "a bool": ("B: Const", {"B": True}, "", "E0107", "`B` is no integer"),
    "no dim and no constant": ("C: Const", {"C": 1}, "", "E0107", "`B` is neither a dim nor a constant"),
    "a string of the module": ("C: Const", {"C": 1}, "B = 'x'", "E0107", "`B` is no integer"),
    "a name that refers to itself": ("C: Const", {"C": 1}, "B = B + 1", "E0107", "`B` is no integer"),
    "a division by zero": ("C: Const", {"C": 1}, "B = 1 // 0", "E0107", "`B` is no integer"),
    "not positive": ("B: Const", {"B": 0}, "", "E0213", "the extent is 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_of_an_extent(tmp_path: Path, name: str) -> None:
    parameter, constants, before, code, words = REFUSED[name]
    found = refusals(tmp_path, BODY, f"out: Out[f32, B], *, {parameter}", constants, before=before)
    assert [(d.code, words in d.message) for d in found] == [(code, True)]


@pytest.mark.parametrize("extent", ["B // 2", "B % 3", "B * M", "B - B"])
def test_a_dim_that_no_extent_determines_is_refused(tmp_path: Path, extent: str) -> None:
    before = 'from typing import Literal\nclass B(Dim): """rows"""\n'
    found = refusals(tmp_path, BODY, OUT.format(extent=f'Literal["{extent}"]'), before=before)
    assert {d.code for d in found} <= {"E0214", "E0213"}
    assert found


@pytest.mark.parametrize("extent", ["B + 1", "2 * B", "9 - B", "3 * (B + 2)"])
def test_the_interpreter_finds_a_dim_that_only_arithmetic_names(tmp_path: Path, extent: str) -> None:
    before = 'from typing import Literal\nclass B(Dim): """rows"""\n'
    body = "grid(1)\nfor i in range(out.shape[0]):\n    store(out, i, f32(B))"
    function = compile_body(tmp_path, body, OUT.format(extent=f'Literal["{extent}"]'), {}, before)
    out = np.zeros(eval(extent, {"B": 4}), np.float32)
    run(function, {"out": out})
    assert np.all(out == 4)
