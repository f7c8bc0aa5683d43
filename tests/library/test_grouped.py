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
TILE = {"BM": 32, "BN": 32, "BK": 64}
SMALL = {
    "grouped_matmul": TILE, "grouped_matmul_few": {**TILE, "BM": 16}, "grouped_swiglu": TILE, "grouped_matmul_backward_x": TILE,
    "grouped_matmul_backward_weights": {**TILE, "BK": 16},
}  # fmt: skip
"""Tiles of which some tens of rows fill several."""
SIZES = ((37, 3), (96, 1), (100, 9))
"""Rows and groups."""


def _dims(kernel: str, rows: int, groups: int) -> dict[str, float]:
    other = {"TA": -(-rows // 8) * 8} if kernel.endswith("weights") else {}
    return {"T": rows, "X": groups, "N": 40, "K": 72, **other}


@pytest.mark.parametrize("kernel", SMALL)
@pytest.mark.parametrize("seed", first(2, range(3)))
def test_results_are_those_of_the_reference(kernel: str, seed: int) -> None:
    constants = {"E": ("bf16", "f16")[seed % 2], **SMALL[kernel]}
    (trial,) = trials(request(kernel, constants, _dims(kernel, *SIZES[seed]), seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("seed", range(3))
def test_tiles_of_groups_are_those_of_the_reference(seed: int) -> None:
    (trial,) = trials(request("group_tiles", {"BLOCK": 4}, dict(zip("TX", SIZES[seed], strict=True)), seed=seed))
    assert trial.right, trial


def _example(rows: int, *parts: int) -> tuple[Any, Any, Any]:
    """Four groups, one of them empty; the last rows are of none."""
    random = np.random.default_rng(rows)
    x = tensor(random.normal(size=(rows, 16)), np.float16)
    weights = tensor(random.normal(size=(4, *parts, 24, 16)) / 4, np.float16)
    return x, weights, tensor([0, rows // 3, rows // 3, rows // 2, rows - 2], np.int32)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("rows", [21, 300])
def test_products_and_their_gradients(rows: int) -> None:
    """Of small groups, and of large ones."""
    x, weights, offsets = _example(rows)
    dout = tensor(np.random.default_rng(1).normal(size=(rows, 24)), np.float16)
    kernel = "grouped_matmul_few" if rows < 128 else "grouped_matmul"
    with interpreted() as library:
        out = library.module.grouped_matmul(x, weights, offsets)
        assert library.calls[-1].kernel == kernel
        inputs = (x, weights, library.ops["group_tiles"](offsets, rows), offsets)
        found = library.gradient(kernel, inputs, library.ops[kernel](*inputs), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(out.astype(np.float64), reference.grouped_matmul(x, weights, inputs[2], offsets), atol=1e-2)
    of_x = reference.grouped_matmul_backward_x(dout, weights, inputs[2], offsets)
    of_weights = reference.grouped_matmul_backward_weights(dout.T, x, offsets)
    assert found[2:] == (None, None) and not found[1][1].any(), "no row, no gradient"
    for one, truth in zip(found, (of_x, of_weights), strict=False):
        np.testing.assert_allclose(one.astype(np.float64), truth, atol=2e-3 * np.abs(truth).max())


def test_swiglu_and_its_gradients() -> None:
    x, weights, offsets = _example(300, 2)
    dout = tensor(np.random.default_rng(1).normal(size=(300, 24)), np.float16)
    with interpreted() as library:
        out = library.module.grouped_swiglu(x, weights, offsets)
        inputs = (x, weights, library.ops["group_tiles"](offsets, 300), offsets)
        of_x, of_weights, *rest = library.gradient("grouped_swiglu", inputs, library.ops["grouped_swiglu"](*inputs), dout)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    tiles, wide = inputs[2], dout.astype(np.float64)
    gate, up = (reference.grouped_matmul(x, weights[:, side], tiles, offsets) for side in (0, 1))
    s = _sigmoid(gate)
    np.testing.assert_allclose(out.astype(np.float64), gate * s * up, atol=1e-2)
    slopes = wide * up * (s + gate * s * (1 - s)), wide * gate * s
    expected_x = sum(
        reference.grouped_matmul_backward_x(slope, weights[:, side], tiles, offsets) for side, slope in enumerate(slopes)
    )
    assert rest == [None, None] and of_weights.shape == weights.shape
    np.testing.assert_allclose(of_x.astype(np.float64), expected_x, atol=5e-3 * np.abs(expected_x).max())
    for side, slope in enumerate(slopes):
        truth = reference.grouped_matmul_backward_weights(slope.T, x, offsets)
        np.testing.assert_allclose(of_weights[:, side].astype(np.float64), truth, atol=5e-3 * np.abs(truth).max())


def test_the_references_of_gradients_are_slopes() -> None:
    random = np.random.default_rng(4)
    x, weights, dout = random.normal(size=(9, 8)), random.normal(size=(3, 5, 8)), random.normal(size=(9, 5))
    offsets, tiles = np.array([0, 4, 4, 7]), np.zeros((1, 2))

    def value(x: Any, weights: Any) -> float:
        return float((reference.grouped_matmul(x, weights, tiles, offsets) * dout).sum())

    gradients: list[tuple[int, Any]] = [
        (0, reference.grouped_matmul_backward_x(dout, weights, tiles, offsets)),
        (1, reference.grouped_matmul_backward_weights(dout.T, x, offsets)),
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
        inputs = (x, weights, library.ops["group_tiles"](tensor(numbers, np.int32), rows), tensor(numbers, np.int32))
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
    dims = ",".join(f"{name}={value}" for name, value in _dims(kernel, 150, 3).items())
    options = ["--project", str(FOLDER), "--arch", "sm_90", "-c", "E=bf16", "--dims", dims, "--schedule-seed", "1"]
    assert commands.run(["emulate", kernel, *options]) == 0, capsys.readouterr()


def test_every_entry_forbids_spills() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries("group_tiles", *SMALL))
