"""Cross entropy of a linear layer: kernels and products at odd sizes, the function and its gradients, machine code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.campaign import first
from tests.library.emulated import check_emulated
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import FOLDER, SOURCE, entries, is_prebuilt, request, specialisations
from tilec.cli import commands
from tilec.project.read.python_file import execute
from tilec.project.trial.trial import trials
from tilec.target.targets import MAIN_TARGETS

reference: Any = execute(SOURCE / "reference_linear.py", "reference")
KERNELS = (
    "linear_sums", "linear_exponentials", "linear_cross_entropy", "linear_cross_entropy_kept",
    "linear_cross_entropy_backward", "linear_cross_entropy_slopes", "product", "product_into",
)  # fmt: skip
TILE = {"BM": 32, "BN": 32, "BK": 64}
SIZES = ((37, 70), (40, 64), (5, 97))
"""Tokens and classes."""


def _trial(kernel: str, seed: int) -> Any:
    (tokens, classes), element, labels = SIZES[seed], ("bf16", "f16")[seed % 2], ("i32", "i64")[seed % 2]
    layer = {"T": tokens, "V": classes, "H": 72}
    product = {"M": classes, "K": tokens, "KA": 40, "N": 72}
    constants: dict[str, Any] = {"E": element}
    match kernel:
        case "linear_sums" | "linear_exponentials":
            constants, dims = constants | TILE, layer
        case "linear_cross_entropy" | "linear_cross_entropy_kept":
            constants |= {"L": labels, "ROWS": 8, "BLOCK": 64}
            constants |= {"WIDTH": 64} if kernel == "linear_cross_entropy_kept" else {}
            dims = layer | {"TILES": 2, "ignore_index": -100}
        case "linear_cross_entropy_backward":
            constants |= {"L": labels, **TILE}
            dims = layer | {"first": (0, 7, 20)[seed], "ignore_index": 3}
        case "linear_cross_entropy_slopes":
            constants |= {"L": labels, "WIDTH": 64, "BM": 32, "BN": 32}
            dims = {"T": tokens, "TILES": 2, "first": (0, 64, 128)[seed], "count": classes, "ignore_index": 3}
        case _:
            constants, dims = constants | TILE | {"GROUP": 2}, product
    (trial,) = trials(request(kernel, constants, dims, seed=seed))
    return trial


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("seed", first(2, range(3)))
def test_results_are_those_of_the_reference(kernel: str, seed: int) -> None:
    trial = _trial(kernel, seed)
    assert trial.right, trial


def _example(seed: int = 0, tokens: int = 11, classes: int = 300) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    x, weight = tensor(random.normal(size=(tokens, 24)), np.float16), tensor(random.normal(size=(classes, 24)) / 5, np.float16)
    labels = random.integers(0, classes, tokens)
    labels[3] = -100
    return x, weight, tensor(labels, np.int64)


def _exact(x: Any, weight: Any, labels: Any, dloss: Any) -> tuple[Any, Any, Any]:
    """Losses and gradients in float64."""
    wide, rows = x.astype(np.float64), weight.astype(np.float64)
    logits = wide @ rows.T
    lse = np.log(np.exp(logits).sum(axis=1))
    used = labels != -100
    loss = np.where(used, lse - logits[np.arange(len(x)), np.where(used, labels, 0)], 0)
    shares = np.exp(logits - lse[:, None])
    shares[np.arange(len(x))[used], labels[used]] -= 1
    dlogits = shares * np.where(used, dloss, 0)[:, None]
    return loss, dlogits @ rows, dlogits.T @ wide


def _always(answer: bool) -> Any:
    def differentiated(*_: Any) -> bool:
        return answer

    return differentiated


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("part", [1 << 26, 1])
def test_the_function_and_its_gradients(part: int, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a vocabulary in one part, and in two; from exponentials that were kept, and from logits that are computed again."""
    x, weight, labels = _example()
    dloss = tensor(np.linspace(-1, 2, 11), np.float32)
    loss, dx, dweight = _exact(x, weight, labels, dloss)
    name = "linear_cross_entropy_kept" if kept else "linear_cross_entropy"
    with interpreted() as library:
        monkeypatch.setattr("tilec.kernels.linear.PART", part)
        monkeypatch.setattr("tilec.kernels.linear.differentiated", _always(kept))
        function = library.module.linear_cross_entropy
        np.testing.assert_allclose(function(x, weight, labels, "none"), loss, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(function(x, weight, labels), loss.sum() / 10, rtol=1e-3)
        assert [call.kernel for call in library.calls] == ["linear_exponentials" if kept else "linear_sums", name] * 2
        sums = library.ops["linear_exponentials" if kept else "linear_sums"](x, weight)
        inputs = (x, weight, labels, *sums, -100)
        output = library.ops[name](*inputs)
        found = library.gradient(name, inputs, output, dloss, None)
        assert sum(call.kernel == "product" for call in library.calls) == (1 if part > 1 else 2)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    assert set(found[2:]) == {None} and found[0].dtype == found[1].dtype == np.float16
    for one, truth in zip(found, (dx, dweight), strict=False):
        np.testing.assert_allclose(one.astype(np.float64), truth, atol=2e-3 * np.abs(truth).max())


def test_exponentials_are_kept_for_gradients_of_few_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """2^31 logits at most, where a vocabulary is whole multiples of 256; none without a gradient."""
    x, weight, labels = _example()
    with interpreted() as library:
        assert library.module.linear.KEPT == 1 << 31
        for asked, most, expected in ((True, 11 * 512, True), (True, 11 * 512 - 1, False), (False, 1 << 31, False)):
            monkeypatch.setattr("tilec.kernels.linear.KEPT", most)
            monkeypatch.setattr("tilec.kernels.linear.differentiated", _always(asked))
            del library.calls[:]
            library.module.linear_cross_entropy(x, weight, labels)
            assert any(call.kernel == "linear_exponentials" for call in library.calls) == expected


def test_a_gradient_of_no_tokens_is_0() -> None:
    x, weight, labels = _example()
    with interpreted() as library:
        for forward, name in (("linear_sums", "linear_cross_entropy"), ("linear_exponentials", "linear_cross_entropy_kept")):
            inputs = (x[:0], weight, labels[:0], *library.ops[forward](x[:0], weight), -100)
            output = library.ops[name](*inputs)
            found = library.gradient(name, inputs, output, tensor(np.zeros(0), np.float32), None)
            assert found[0].shape == (0, 24) and found[1].shape == (300, 24) and not found[1].any()


@pytest.mark.parametrize(("dtype", "unit"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_kept_exponentials_add_one_rounding_to_a_slope(dtype: str, unit: float) -> None:
    """Relative to the slope itself, also where the share of a label is close to 1 and the slope is their small difference. f32
    adds errors of a few units of its own, relative to the share."""
    random = np.random.default_rng(5)
    x = tensor(random.normal(size=(64, 24)), ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16)
    weight = tensor(random.normal(size=(300, 24)) * 1.5, x.dtype)
    logits = x.astype(np.float64) @ weight.astype(np.float64).T
    best, other = logits.argmax(axis=1), random.integers(0, 300, 64)
    labels = tensor(np.where(np.arange(64) % 4, best, other), np.int64)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    assert (shares.max(axis=1) > 0.9).sum() > 10, "labels whose slopes cancel"
    exact = shares.copy()
    exact[np.arange(64), labels] -= 1
    with interpreted() as library:
        maxima, sums, kept = library.ops["linear_exponentials"](x, weight)
        lse = library.ops["linear_cross_entropy_kept"](x, weight, labels, maxima, sums, kept, -100)[1]
        ones = tensor(np.ones(64), np.float32)
        slopes, transposed = library.ops["linear_cross_entropy_slopes"](kept, maxima, labels, lse, ones, 0, 300, -100)
    np.testing.assert_array_equal(slopes, transposed.T)
    off = np.abs(slopes.astype(np.float64) - np.pad(exact, ((0, 0), (0, 212))))
    allowed = 2 * unit * np.abs(exact) + 2.0**-18 * shares
    if dtype == "float16":  # subnormal numbers: a rounding of the exponential, whose scale is at most 1, and one of the slope
        allowed = allowed + 2.0**-24
    assert (off[:, :300] <= allowed).all() and not off[:, 300:].any()


def test_the_reference_of_the_gradient_is_the_slope_of_the_loss() -> None:
    random = np.random.default_rng(1)
    x, weight, direction = random.normal(size=(5, 8)), random.normal(size=(9, 8)), random.normal(size=(9, 8))
    labels, dloss = np.array([0, 8, -100, 3, 3]), random.normal(size=5)

    def loss(at: Any) -> float:
        maxima, sums = reference.linear_sums(x, at, 4)
        return float((reference.linear_cross_entropy(x, at, labels, maxima, sums, -100)[0] * dloss).sum())

    _, lse = reference.linear_cross_entropy(x, weight, labels, *reference.linear_sums(x, weight, 4), -100)
    _, transposed = reference.linear_cross_entropy_backward(x, weight, labels, lse, dloss, 0, -100)
    slope = (loss(weight + 1e-5 * direction) - loss(weight - 1e-5 * direction)) / 2e-5
    np.testing.assert_allclose((reference.product(transposed, x) * direction).sum(), slope, rtol=1e-7)


def test_labels_outside_and_wrong_arguments() -> None:
    x, weight, labels = _example()
    labels[:2] = 300, -1
    with interpreted() as library:
        function = library.module.linear_cross_entropy
        loss = function(x, weight, labels, "none")
        assert np.isinf(loss[:2]).all() and np.isfinite(loss[2:]).all() and loss[3] == 0
        assert function(x[:0], weight, labels[:0], "sum") == 0
        with pytest.raises(ValueError, match=r"`x` and `weight` are \[11, 20\] and \[300, 20\]"):
            function(x[:, :20], weight[:, :20], labels)
        with pytest.raises(ValueError, match="`x` is float32; linear_cross_entropy takes bfloat16 or float16"):
            function(x.astype(np.float32), weight, labels)
        with pytest.raises(ValueError, match=r"`labels` has the shape \[4\]; one label for each token is \[11\]"):
            function(x, weight, labels[:4])
        with pytest.raises(ValueError, match="`reduction` is 'max'"):
            function(x, weight, labels, "max")


@pytest.mark.parametrize(
    "kernel", first(2, ["linear_exponentials", "product_into", "linear_cross_entropy_backward", "linear_sums", "product"])
)
def test_products_are_fed_by_tensor_copies(kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    shutil.copytree(SOURCE, tmp_path / "source", ignore=shutil.ignore_patterns("__pycache__"))
    text = (FOLDER / "build.toml").read_text(encoding="utf-8").replace('E = ["bf16", "f16"]', 'E = "bf16"')
    (tmp_path / "build.toml").write_text(text.replace('L = ["i32", "i64"]', 'L = "i64"'), encoding="utf-8")
    assert commands.run(["build", kernel, "--project", str(tmp_path), "--jobs", "1", "--arch", "sm_90"]) == 0
    (path,) = (path for path in (tmp_path / "artifacts/build/sm_90a").glob(f"{kernel}-E=*.json"))
    ptx = path.with_suffix(".ptx").read_text()
    assert json.loads(path.read_text())["resources"]["spill_bytes"] == 0
    assert "wgmma.mma_async" in ptx and "cp.async.bulk.tensor" in ptx and "mma.sync" not in ptx


@pytest.mark.parametrize(
    ("kernel", "dims"),
    [
        ("linear_exponentials", {"T": 130, "V": 261, "H": 72}),
        ("linear_cross_entropy_slopes", {"T": 67, "TILES": 2, "first": 256, "count": 300, "ignore_index": 3}),
        ("linear_cross_entropy_kept", {"T": 11, "V": 70, "H": 72, "TILES": 2, "ignore_index": -100}),
    ],
)
def test_emulated_launches_are_clean_and_right(kernel: str, dims: dict[str, int]) -> None:
    entry, constants = specialisations(kernel)[0]
    assert MAIN_TARGETS[0] in entry.targets
    check_emulated(entry, constants, dims)


def test_every_entry_forbids_spills() -> None:
    assert all(entry.budget == {"spill_bytes": 0} for entry in entries(*KERNELS))
