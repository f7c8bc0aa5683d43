"""`cdiv`: the quotient rounded up, whatever the operands, and by a sum that is known to fit where the declarations say so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from frontend_kernels import compile_body, ops_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tilec.diagnostics.diagnostic import CompileError
from tilec.interpreter import run
from tilec.ir.core import Function
from tilec.ir.ops import Binary
from tilec.passes.prover.prove import prove

SIGNATURE = "ids: In[i32, N], out: Out[i32, N], a: i32, b: i32, *, D: Const"
BODY = "requires(b >= 1)\ngrid(N)\nn = load(ids, bid(0))\nstore(out, bid(0), cdiv({left}, {right}))"
FORMS = {"constant": ("n", "D"), "parameter": ("n", "b"), "parameters": ("a", "b"), "both loaded": ("a", "maximum(n, 1)")}


def divided(tmp_path: Path, left: str, right: str, constant: int = 7) -> Function:
    return compile_body(tmp_path, BODY.format(left=left, right=right), SIGNATURE, {"D": constant})


@pytest.fixture(scope="module")
def functions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Function]:
    folder = tmp_path_factory.mktemp("kernels")
    return {name: divided(folder, *operands) for name, operands in FORMS.items()}


NUMBERS = st.integers(-(2**31), 2**31 - 1) | st.sampled_from([-(2**31), 2**31 - 1]) | st.integers(-20, 20)


@settings(max_examples=200, deadline=None)
@given(name=st.sampled_from(sorted(FORMS)), a=NUMBERS, n=NUMBERS, b=st.integers(1, 2**31 - 1) | st.integers(1, 9))
def test_every_quotient_is_rounded_up(functions: dict[str, Function], name: str, a: int, n: int, b: int) -> None:
    out = np.zeros(1, np.int32)
    run(functions[name], {"ids": np.array([n], np.int32), "out": out}, {"a": a, "b": b})
    left, right = {"constant": (n, 7), "parameter": (n, b), "parameters": (a, b), "both loaded": (a, max(n, 1))}[name]
    assert out[0] == -(-left // right)


def kinds(function: Function) -> list[str]:
    return [op.kind for op in ops_of(function, Binary) if isinstance(op, Binary)]


SUMS = {
    "dim": ("N", ""),
    "bounded by a dim": ("n", "values(ids, 0, N + 1)\n"),
    "bounded by a number": ("a", "requires(0 <= a, a <= 4096)\n"),
    "a sum that is bounded": ("minimum(a + N, b)", "requires(a + N <= 2**20)\n"),
    "loop variable": ("i", ""),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_fits_is_kept(tmp_path: Path, name: str) -> None:
    left, declared = SUMS[name]
    body = f"{declared}requires(b >= 1)\ngrid(N)\nn = load(ids, bid(0))\nfor i in range(3):\n    j = cdiv({left}, 16)"
    assert kinds(compile_body(tmp_path, body, SIGNATURE, {"D": 1}))[-2:] == ["add", "floordiv"]


WRITTEN = "ids: In[u8, N], kept: InOut[u8, N], out: Out[u8, N]"
LAST = {"written": "values(kept, 0, 100)\ngrid(N)\nstore(kept, bid(0), u8(255))\nn = load(kept, bid(0))",
        "unsafe": "values(ids, 0, 100)\ngrid(N)\nwith unsafe('below it'):\n    n = load(ids, bid(0) + 1)"}  # fmt: skip


@pytest.mark.parametrize("name", LAST)
def test_a_range_before_the_launch_says_nothing_of_what_is_written_later(tmp_path: Path, name: str) -> None:
    function = compile_body(tmp_path, f"{LAST[name]}\nstore(out, bid(0), cdiv(n, u8(8)))", WRITTEN)
    assert kinds(function)[-3:] == ["floordiv", "mod", "add"]


def test_an_element_that_the_kernel_wrote_is_rounded_up(tmp_path: Path) -> None:
    function = compile_body(tmp_path, f"{LAST['written']}\nstore(out, bid(0), cdiv(n, u8(8)))", WRITTEN)
    prove(function)
    out = np.zeros(2, np.uint8)
    run(function, {"ids": out.copy(), "kept": out.copy(), "out": out})
    assert out.tolist() == [32, 32]


@pytest.mark.parametrize("name", FORMS)
def test_a_sum_that_may_wrap_is_not_built(tmp_path: Path, name: str) -> None:
    assert kinds(divided(tmp_path, *FORMS[name]))[-3:] == ["floordiv", "mod", "add"]


@pytest.mark.parametrize("right", ["D", "b"])
def test_no_error_names_a_sum_that_the_author_did_not_write(tmp_path: Path, right: str) -> None:
    body = (
        f"requires(b >= 1)\ngrid(N)\nt = 0\nfor i in range(cdiv(load(ids, bid(0)), {right})):\n    t = i\nstore(out, bid(0), t)"
    )
    try:
        prove(compile_body(tmp_path, body, SIGNATURE, {"D": 16}))
    except CompileError as error:
        raise AssertionError([d.message for d in error.diagnostics]) from None


def test_a_grid_may_use_the_quotient(tmp_path: Path) -> None:
    body = "requires(b >= 1)\nparts = cdiv(a, b)\ngrid(parts)\nfor i in range(bid(0), N, num_blocks(0)):\n    store(out, i, 1)"
    function = compile_body(tmp_path, body, SIGNATURE, {"D": 1})
    assert function.grid[0].evaluate({"a": 2**31 - 1, "b": 2}) == 2**30
