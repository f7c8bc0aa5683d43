"""Kernels that were once accepted and miscompiled, all fixed since: the launch contract, the interpreter and the lowered code
agree with NumPy or plain Python, and the code compiles to PTX."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_machine import launch
from numpy.typing import NDArray

from tests.files import ROOT
from tilec import interpreter
from tilec.codegen import to_ptx
from tilec.frontend import load_kernel
from tilec.ir.core import Function
from tilec.lowering import lower
from tilec.passes.prover import prove
from tilec.passes.schedule import prepare
from tilec.target.schedule import Overrides
from tilec.target.targets import SM_90A

Array = NDArray[Any]
OWN = Path(__file__).parent / "corpus"
FOLDER = ROOT / "tests" / "soundness" / "corpus"
FILES = {
    "divided_tail": FOLDER / "s5_intdiv.py",
    "division_by_zero": FOLDER / "s2_divzero.py",
    "exact_contract": FOLDER / "c1_numpy.py",
    "floored_extent": FOLDER / "m4_div.py",
    "guard_of_division": FOLDER / "s3_guard.py",
    "internal_names": FOLDER / "h2_names.py",
    "nan_argmax": FOLDER / "h9_nan2.py",
    "remainder_of_data": FOLDER / "s9_mod1.py",
    "scalar_extent": FOLDER / "h1_i32dim.py",
    "shift_out": FOLDER / "s1_shift.py",
    "stride_value": FOLDER / "h4_stride_value.py",
    "unsigned_abs": FOLDER / "m3_abs.py",
    "unsigned_extent": FOLDER / "m6_u32dim.py",
    "wide_extent": FOLDER / "l11_wide.py",
    "shifted_store": OWN / "shifted_store.py",
    "signed_extent": OWN / "signed_extent.py",
}
RANDOM = np.random.default_rng(3)


def load(name: str) -> Function:
    return load_kernel(FILES[name], {}, root=FILES[name].parent)


def run(name: str, arrays: dict[str, Array], scalars: dict[str, int], values: dict[str, int]) -> dict[str, Array]:
    """The arrays after a run on the block machine, which must equal the interpreter's. `values` are the dims."""
    prove(load(name))
    interpreted, executed = ({key: array.copy() for key, array in arrays.items()} for _ in range(2))
    interpreter.run(load(name), interpreted, scalars)
    function = prepare(load(name), SM_90A, Overrides(warps=4))
    launch(function, lower(function, SM_90A), executed, {**values, **scalars})
    for key, array in interpreted.items():
        np.testing.assert_array_equal(array, executed[key], err_msg=key)
    return executed


@pytest.mark.parametrize("name", FILES)
def test_every_accepted_kernel_builds(name: str) -> None:
    prove(load(name))
    assert ".entry" in to_ptx(lower(prepare(load(name), SM_90A), SM_90A).mlir, SM_90A)


def test_a_shift_by_more_than_the_width_reads_the_first_element() -> None:
    out = run("shift_out", {"x": np.float32([7]), "out": np.zeros(5, np.float32)}, {}, {"N": 5})["out"]
    assert out.tolist() == [7] * 5


def test_a_shift_by_more_than_the_width_stores() -> None:
    out = run("shifted_store", {"x": np.float32([3, 4]), "out": np.zeros(1, np.float32)}, {}, {"N": 2})["out"]
    assert out.tolist() == [3]


def test_a_select_next_to_a_division_by_zero_is_kept() -> None:
    x = RANDOM.integers(-9, 9, (2, 128)).astype(np.int32)
    y = RANDOM.integers(-2, 3, (2, 128)).astype(np.int32)
    x[0, :2], y[0, :2] = -(2**31), -1
    out = run("division_by_zero", {"x": x, "y": y, "out": np.zeros_like(x)}, {}, {"N": 2})["out"]
    exact = x.astype(np.int64) // np.where(y == 0, 1, y)
    np.testing.assert_array_equal(out, np.where(y == 0, 7, exact).astype(np.int32))
    assert out[0, 0] == -(2**31)


@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_guard_next_to_a_division_is_kept(n: int) -> None:
    x, out = np.int32([5, -5, 9]), np.full(3, 4, np.int32)
    results = run("guard_of_division", {"x": x, "y": np.zeros(3, np.int32), "out": out}, {"n": n}, {"N": 3})
    assert results["y"].tolist() == ((x // n).tolist() if n else [0, 0, 0])
    expected = [4, 4, 4]
    if n:
        expected[n - 1] = 1
    assert results["out"].tolist() == expected


def test_a_division_of_data_keeps_the_mask() -> None:
    x, y = RANDOM.integers(-50, 50, 70).astype(np.int32), RANDOM.integers(-3, 4, 70).astype(np.int32)
    out = run("divided_tail", {"x": x, "y": y, "out": np.zeros(70, np.int32)}, {}, {"N": 70})["out"]
    np.testing.assert_array_equal(out, np.where(y == 0, 0, x // np.where(y == 0, 1, y)))


@pytest.mark.parametrize("length", [3, 9, 12])
def test_a_remainder_of_data_keeps_the_mask(length: int) -> None:
    x, y = RANDOM.integers(-50, 50, 9).astype(np.int32), RANDOM.integers(-3, 4, length).astype(np.int32)
    out = run("remainder_of_data", {"x": x, "y": y, "out": np.zeros(9, np.int32)}, {}, {"N": 9, "M": length})["out"]
    padded = np.concatenate([y, np.zeros(9, np.int32)])[:9]
    np.testing.assert_array_equal(out, np.where(padded == 0, 0, x % np.where(padded == 0, 1, padded)))


def test_abs_of_an_unsigned_value_is_the_value() -> None:
    out = run("unsigned_abs", {"out": np.zeros(4, np.float32)}, {"u": 2**31 + 2}, {"N": 4})["out"]
    assert out.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize(("n", "m"), [(1, 70), (2, 70), (4, 66), (9, 10)])
def test_an_extent_is_divided_downward(n: int, m: int) -> None:
    extent = m + (n - 5) // 2
    y = RANDOM.random(m, np.float32)
    results = run("floored_extent", {"x": np.zeros(n, np.float32), "y": y, "out": np.full(extent, 9, np.float32)}, {},
               {"N": n, "M": m})  # fmt: skip
    np.testing.assert_array_equal(results["out"], np.concatenate([y, np.zeros(extent, np.float32)])[:extent])


def test_an_extent_of_an_unsigned_scalar_has_no_sign() -> None:
    y = RANDOM.random(100, np.float32)
    results = run("unsigned_extent", {"y": y, "out": np.full(40, 9, np.float32)}, {"N": 2**31 + 40}, {"M": 100})
    np.testing.assert_array_equal(results["out"], y[:40])


def test_an_extent_of_a_signed_scalar() -> None:
    y = RANDOM.random(100, np.float32)
    results = run("scalar_extent", {"y": y, "out": np.full(40, 9, np.float32)}, {"N": 40}, {"M": 100})
    np.testing.assert_array_equal(results["out"], y[:40])


def test_an_extent_with_a_negative_scalar() -> None:
    y = RANDOM.random(100, np.float32)
    results = run("signed_extent", {"y": y, "out": np.full(63, 9, np.float32)}, {"N": -37}, {"M": 100})
    np.testing.assert_array_equal(results["out"], y[:63])


def test_an_extent_whose_evaluation_needs_more_than_64_bits_is_checked_at_launch() -> None:
    checks = prove(load("wide_extent")).launch_checks

    def violated(**dims: int) -> list[str]:
        return [check.text for check in checks if not check.condition.evaluate(dims)]

    assert violated(A=1000, B=2, C=3) == []
    assert violated(A=2**21, B=2**21, C=2**21) == ["`A * B * C` of out fits 64 bits", "`A * B * C + 1` of out fits 64 bits"]
    arrays = {name: np.arange(size, dtype=np.float32) for name, size in {"a": 30, "b": 2, "c": 3}.items()}
    results = run("wide_extent", arrays | {"out": np.full(30, 9, np.float32)}, {}, {"A": 30, "B": 2, "C": 3})
    np.testing.assert_array_equal(results["out"], arrays["a"])


@pytest.mark.parametrize("positions", [(), (0,), (99, 100), (5, 600), range(1024), range(100)])
def test_a_branch_on_argmax_is_uniform(positions: tuple[int, ...]) -> None:
    x = RANDOM.random((3, 1024)).astype(np.float32)
    x[1, list(positions)] = np.nan
    out = run("nan_argmax", {"x": x, "out": np.zeros(3, np.float32)}, {}, {"N": 3})["out"]
    for row, found in zip(x, out, strict=True):
        argmax = 0 if np.isnan(row).all() else int(np.nanargmax(row))
        expected = np.fmax.reduce(row) if argmax < 100 else np.float32(0)
        np.testing.assert_array_equal(found, expected)


def test_a_parameter_may_have_any_name() -> None:
    x = RANDOM.random(6, np.float32)
    results = run("internal_names", {"v3": x, "v4": np.zeros(6, np.float32)}, {}, {"N": 6})
    np.testing.assert_array_equal(results["v4"], x)


@pytest.mark.parametrize("name", ["dynamic_shared", "größe", "v1"])
def test_a_kernel_may_have_any_name(name: str, tmp_path: Path) -> None:
    text = FILES["internal_names"].read_text().replace("h2_names", name).replace("v3", name).replace("v4", "élan")
    (tmp_path / "k.py").write_text(text)
    lowered = lower(prepare(load_kernel(tmp_path / "k.py", {}, root=tmp_path), SM_90A), SM_90A)
    assert f".entry {lowered.entry}(" in to_ptx(lowered.mlir, SM_90A)


@pytest.mark.parametrize(("pitch", "expected"), [(4, 2.0), (9, 1.0)])
def test_a_stride_may_be_a_number(pitch: int, expected: float) -> None:
    memory = np.zeros((3, pitch), np.float32)
    prove(load("stride_value"))
    out, executed = np.zeros(3, np.float32), np.zeros(3, np.float32)
    interpreter.run(load("stride_value"), {"x": memory[:, :4], "out": out})
    function = prepare(load("stride_value"), SM_90A)
    launch(function, lower(function, SM_90A), {"x": memory, "out": executed}, {"N": 3, "S": pitch})
    assert out.tolist() == executed.tolist() == [expected] * 3


def test_exact_products_index_as_the_contract_says() -> None:
    x, y = RANDOM.random(3, np.float32), RANDOM.random(4, np.float32)
    results = run("exact_contract", {"x": x, "y": y, "s": np.zeros(13, np.float32)}, {}, {"A": 3, "B": 4, "S": 13})
    np.testing.assert_array_equal(results["s"][:12].reshape(3, 4), x[:, None] + y[None, :])
