"""Grouped products: kernels at odd sizes, functions with gradients, wrong offsets, machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.campaign import first
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import FOLDER, SOURCE, entries, is_prebuilt, request
from tilec.cli import commands
from tilec.project.read.python_file import execute
from tilec.project.trial.trial import trials

reference: Any = execute(SOURCE / "reference_grouped.py", "reference")
PRODUCT = {"BN": 64, "BK": 64}
SMALL = {
    "grouped_matmul": PRODUCT, "grouped_matmul_few": {**PRODUCT, "BM": 16}, "grouped_swiglu": {**PRODUCT, "BN": 32},
    "grouped_matmul_backward_x": PRODUCT, "grouped_matmul_backward_weights": {"BM": 64, **PRODUCT},
    "grouped_columns": {"BN": 64},
}  # fmt: skip
"""Constants of which small products fill several tiles."""
SIZES = ((37, 3), (300, 4), (150, 9), (140, 1))
"""Rows and groups."""
TILE = reference.TILE


def _dims(kernel: str, rows: int, groups: int) -> dict[str, float]:
    dims = {"T": rows, "X": groups, "N": 40, "K": 72}
    if kernel != "grouped_matmul_few":
        dims["S"] = rows // TILE + groups + 2
    unused = {"grouped_columns": "XK"}.get(kernel, "")
    return {name: value for name, value in dims.items() if name not in unused}


@pytest.mark.parametrize("kernel", SMALL)
@pytest.mark.parametrize("seed", first(2, range(4)))
def test_results_are_those_of_the_reference(kernel: str, seed: int) -> None:
    constants = {"E": ("bf16", "f16")[seed % 2], **SMALL[kernel]}
    (trial,) = trials(request(kernel, constants, _dims(kernel, *SIZES[seed]), seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("kernel", ["group_tiles", "group_starts", "group_blocks"])
@pytest.mark.parametrize("seed", range(4))
def test_tiles_of_groups_are_those_of_the_reference(kernel: str, seed: int) -> None:
    (trial,) = trials(request(kernel, {"BLOCK": 4}, dict(zip("TX", SIZES[seed], strict=True)), seed=seed))
    assert trial.right, trial


def test_slopes_are_those_of_the_reference() -> None:
    (trial,) = trials(request("grouped_swiglu_slopes", {"E": "bf16", "ROWS": 4, "BLOCK": 32}, {"T": 7, "N": 40}))
    assert trial.right, trial


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 900), min_size=2, max_size=9), st.integers(1, 700))
def test_tables_keep_their_promise_whatever_the_offsets_are(numbers: list[int], rows: int) -> None:
    """`values` of the kernels that take them, and that all tiles find room: of the references, which the kernels equal."""
    offsets = np.array(numbers, np.int64)
    begins, before = reference.group_starts(offsets, rows)
    groups, starts = reference.group_blocks(begins, before, rows)
    assert (np.diff(starts) >= 0).all() and (starts[0], starts[-1]) == (0, rows)
    assert (np.diff(starts) <= TILE).all() and before[-1] < len(starts) == rows // TILE + len(numbers) + 1
    assert len(groups) == len(starts)
    for tile in range(before[-1]):
        assert begins[groups[tile]] <= starts[tile] and starts[tile + 1] <= begins[groups[tile] + 1]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 900), min_size=2, max_size=9), st.integers(1, 700))
def test_tables_of_wrong_offsets_are_those_of_the_reference(numbers: list[int], rows: int) -> None:
    with interpreted() as library:
        found = library.ops["group_starts"](tensor(numbers, np.int32), rows)
        blocks = library.ops["group_blocks"](*found, rows)
    expected = reference.group_starts(np.array(numbers, np.int64), rows)
    for one, truth in zip((*found, *blocks), (*expected, *reference.group_blocks(*expected, rows)), strict=True):
        np.testing.assert_array_equal(one, truth)


def _example(rows: int, *parts: int) -> tuple[Any, Any, Any]:
    """Four groups, one of them empty; the last rows are of none."""
    random = np.random.default_rng(rows)
    x = tensor(random.normal(size=(rows, 16)), np.float16)
    weights = tensor(random.normal(size=(4, *parts, 24, 16)) / 4, np.float16)
    return x, weights, tensor([0, rows // 3, rows // 3, rows // 2, rows - 2], np.int32)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _tables(offsets: Any, rows: int) -> tuple[Any, Any, Any]:
    begins, before = reference.group_starts(np.asarray(offsets), rows)
    return (*reference.group_blocks(begins, before, rows), before)


def _weights_gradient(dout: Any, x: Any, offsets: Any) -> Any:
    _, starts, before = _tables(offsets, len(x))
    return reference.grouped_matmul_backward_weights(reference.grouped_columns(dout, starts), x, starts, before)


@pytest.mark.parametrize("rows", [21, 300])
def test_products_and_their_gradients(rows: int) -> None:
    """Of small groups, and of large ones."""
    x, weights, offsets = _example(rows)
    dout = tensor(np.random.default_rng(1).normal(size=(rows, 24)), np.float16)
    kernel = "grouped_matmul_few" if rows < 128 else "grouped_matmul"
    tables = _tables(offsets, rows)
    with interpreted() as library:
        out = library.module.grouped_matmul(x, weights, offsets)
        assert library.calls[-1].kernel == kernel
        given = (
            (library.ops["group_tiles"](offsets, rows), offsets) if rows < 128 else [tensor(one, np.int32) for one in tables]
        )
        inputs = (x, weights, *given)
        found = library.gradient(kernel, inputs, library.ops[kernel](*inputs), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(out.astype(np.float64), reference.grouped_matmul(x, weights, *tables), atol=1e-2)
    of_x = reference.grouped_matmul_backward_x(dout, weights, *tables)
    of_weights = _weights_gradient(dout, x, offsets)
    assert found[2:] == (None,) * len(given) and not found[1][1].any(), "no row, no gradient"
    for one, truth in zip(found, (of_x, of_weights), strict=False):
        np.testing.assert_allclose(one.astype(np.float64), truth, atol=2e-3 * np.abs(truth).max())


def test_swiglu_and_its_gradients() -> None:
    x, weights, offsets = _example(300, 2)
    dout = tensor(np.random.default_rng(1).normal(size=(300, 24)), np.float16)
    tables = _tables(offsets, 300)
    with interpreted() as library:
        out = library.module.grouped_swiglu(x, weights, offsets)
        inputs = (x, weights, *(tensor(one, np.int32) for one in tables))
        of_x, of_weights, *rest = library.gradient("grouped_swiglu", inputs, library.ops["grouped_swiglu"](*inputs), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    wide = dout.astype(np.float64)
    gate, up = (reference.grouped_matmul(x, weights[:, side], *tables) for side in (0, 1))
    s = _sigmoid(gate)
    np.testing.assert_allclose(out.astype(np.float64), gate * s * up, atol=1e-2)
    slopes = wide * up * (s + gate * s * (1 - s)), wide * gate * s
    expected_x = sum(reference.grouped_matmul_backward_x(slope, weights[:, side], *tables) for side, slope in enumerate(slopes))
    assert rest == [None] * 3 and of_weights.shape == weights.shape
    np.testing.assert_allclose(of_x.astype(np.float64), expected_x, atol=5e-3 * np.abs(expected_x).max())
    for side, slope in enumerate(slopes):
        truth = _weights_gradient(slope, x, offsets)
        np.testing.assert_allclose(of_weights[:, side].astype(np.float64), truth, atol=5e-3 * np.abs(truth).max())


@pytest.mark.parametrize("offsets", [[0, 0, 0, 0, 300], [0, 300, 300, 300, 300], [0, 0, 0, 0, 0], [0, 128, 256, 300, 300]])
def test_one_group_has_all_rows_or_none_has_any(offsets: list[int]) -> None:
    """Rows of none have no products, whatever they hold."""
    x, weights, _ = _example(300)
    x[offsets[-1] :] = np.nan
    with interpreted() as library:
        out = library.module.grouped_matmul(x, weights, tensor(offsets, np.int32))
    expected = np.zeros((300, 24))
    for group, matrix in enumerate(weights.astype(np.float64)):
        rows = slice(offsets[group], offsets[group + 1])
        expected[rows] = x.astype(np.float64)[rows] @ matrix.T
    np.testing.assert_allclose(out.astype(np.float64), expected, atol=1e-2)


def test_the_references_of_gradients_are_slopes() -> None:
    random = np.random.default_rng(4)
    x, weights, dout = random.normal(size=(9, 8)), random.normal(size=(3, 5, 8)), random.normal(size=(9, 5))
    offsets = np.array([0, 4, 4, 7])
    tables = _tables(offsets, 9)

    def value(x: Any, weights: Any) -> float:
        return float((reference.grouped_matmul(x, weights, *tables) * dout).sum())

    gradients: list[tuple[int, Any]] = [
        (0, reference.grouped_matmul_backward_x(dout, weights, *tables)),
        (1, _weights_gradient(dout, x, offsets)),
    ]
    for at, gradient in gradients:
        shape: tuple[int, ...] = gradient.shape
        direction = random.standard_normal(shape)
        ends = [
            value(*(one + side * 1e-5 * direction if i == at else one for i, one in enumerate((x, weights))))
            for side in (-1, 1)
        ]
        np.testing.assert_allclose(np.sum(gradient * direction), (ends[1] - ends[0]) / 2e-5, rtol=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=5, max_size=5), st.sampled_from([21, 150]))
def test_wrong_offsets_reach_no_other_memory(numbers: list[int], rows: int) -> None:
    """The interpreter refuses an access outside of a tensor; each row met one matrix, or none."""
    x, weights, _ = _example(rows)
    weights[...] = np.arange(1, 5)[:, None, None]
    x[...] = 1 / 16
    with interpreted() as library:
        out = library.module.grouped_matmul(x, weights, tensor(numbers, np.int32))
        begins, before = library.ops["group_starts"](tensor(numbers, np.int32), rows)
        inputs = (x, weights, *library.ops["group_blocks"](begins, before, rows), before)
        library.gradient("grouped_matmul", inputs, out, out)
    assert np.isin(out, range(5)).all()


def test_nothing_and_wrong_arguments() -> None:
    x, weights, offsets = _example(21)
    with interpreted() as library:
        function, swiglu = library.module.grouped_matmul, library.module.grouped_swiglu
        assert function(x[:0], weights, offsets).shape == (0, 24)
        with pytest.raises(
            ValueError, match=r"`x` and `weights` are \[21, 12\] and \[4, 24, 12\]; they are \[T, K\] and \[X, N, K\]"
        ):
            function(x[:, :12], weights[:, :, :12], offsets)
        with pytest.raises(ValueError, match=r"they are \[T, K\] and \[X, 2, N, K\]"):
            swiglu(x, weights, offsets)
        with pytest.raises(ValueError, match=r"`offsets` has the shape \[4\]; for 4 groups it is"):
            function(x, weights, offsets[:4])
        with pytest.raises(ValueError, match="`x` is float32"):
            function(x.astype(np.float32), weights, offsets)


@pytest.mark.parametrize("kernel", first(2, ["grouped_matmul_backward_weights", "grouped_matmul", *SMALL]))
def test_emulated_launches_are_those_of_the_interpreter(kernel: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On sm_90, where `wgmma` multiplies what a producer copies, of experts that it reads from memory."""
    dims = ",".join(f"{name}={value}" for name, value in _dims(kernel, 300, 3).items())
    options = ["--project", str(FOLDER), "--arch", "sm_90", "-c", "E=bf16", "--dims", dims, "--schedule-seed", "1"]
    assert commands.run(["emulate", kernel, *options]) == 0, capsys.readouterr()


def test_every_entry_forbids_spills() -> None:
    tables = ("group_tiles", "group_starts", "group_blocks", "grouped_swiglu_slopes")
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries(*tables, *SMALL))
