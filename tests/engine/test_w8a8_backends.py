"""FP8 activations on a driver that launches nothing: which bundle and which weights go together, and what a prompt launches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from one_sequence import OneSequence
from test_cuda_backend import SMALLEST
from test_fp8_backends import launched, refusal

import engine.backends.load as load
from engine.backends.cuda import CudaBackend
from engine.backends.load import load_on_gpu
from engine.errors import BundleRefused
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device, open_bundle

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

LAYERS = SMALLEST.num_hidden_layers


@pytest.fixture(scope="module")
def w8a8_bundle(shipped_w8a8_bundle: Path) -> Bundle:
    return open_bundle(shipped_w8a8_bundle)


@pytest.fixture(params=["fp8", "w8a8"])
def backend(request: pytest.FixtureRequest, w8a8_bundle: Bundle) -> Iterator[tuple[OneSequence, FakeDriver]]:
    """The bundle with weights that are asked for in either format: they are the same."""
    driver = FakeDriver()
    loaded = OneSequence(CudaBackend(w8a8_bundle, Device(driver)))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16", weight_format=request.param), 4096)
    yield loaded, driver
    loaded.close()
    assert not driver.buffers, "something was not freed"


def test_a_bundle_says_its_format_and_has_the_kernels(w8a8_bundle: Bundle) -> None:
    assert (w8a8_bundle.model, w8a8_bundle.weight_format) == ("qwen3-0.6b-w8a8", "w8a8")
    names = {kernel.manifest.kernel for kernel in w8a8_bundle.kernels}
    assert {"quantise_rows", "matmul_fp8", "matmul_silu_mul_fp8", "matmul_few_fp8", "scaled_matvec_fp8"} <= names
    # The head, which has 16 bits, is `matmul_few` where rows over pages share it.
    assert not {"matmul", "matmul_silu_mul", "matmul_silu_mul_few", "scaled_matvec", "dequantise_fp8"} & names


@pytest.mark.parametrize("tokens", [65, 300, 2048])
def test_a_long_prompt_quantises_before_each_product_and_every_launch_overlaps(
    backend: tuple[OneSequence, FakeDriver], tokens: int
) -> None:
    loaded, driver = backend
    before = len(driver.launches)
    loaded.prefill([1] * tokens)
    step = launched(loaded, driver, before)
    assert [overlap for _, overlap in step] == [False] + [True] * (len(step) - 1)
    kernels = [kernel for kernel, _ in step]
    for number, kernel in enumerate(kernels):
        assert kernel.startswith("matmul") == (number > 0 and kernels[number - 1] == "quantise_rows")
    assert kernels.count("quantise_rows") == 4 * (LAYERS - 1) + 1 and "dequantise_fp8" not in kernels
    assert kernels.count("matmul_silu_mul_fp8") == LAYERS - 1


def test_a_short_prompt_and_a_decode_step_launch_what_fp8_weights_do(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    before = len(driver.launches)
    loaded.prefill([1] * 64)
    kernels = [kernel for kernel, _ in launched(loaded, driver, before)]
    assert "quantise_rows" not in kernels and "dequantise_fp8" not in kernels
    assert kernels.count("matmul_few_fp8") == LAYERS and kernels.count("matmul_split_fp8") == 2 * (LAYERS - 1)
    before = len(driver.launches)
    loaded.decode(5)
    assert [kernel for kernel, _ in launched(loaded, driver, before)].count("scaled_matvec_fp8") == LAYERS


def test_a_prompt_of_another_length_launches_what_a_plan_of_it_does(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, _ = backend
    for tokens in (66, 193, 700, 17):
        prefill = next(candidate for candidate in loaded._prefills if tokens <= candidate.largest)
        prepared = prefill.prepared(tokens, 0, "argmax")
        graph = loaded.step.graph("prefill", "argmax", tokens=tokens)
        assert [series.kernel.manifest.kernel for series, _, _ in prepared.launches] == [op.kernel for op in graph.ops]


def test_other_weights_are_refused(bundle: Bundle, w8a8_bundle: Bundle) -> None:
    found = refusal(bundle, "w8a8")
    assert "has kernels for weights in `16bit`, and those of the model are in `w8a8`" in found
    assert "pack one with `tilec bundle pack --model NAME --weights w8a8`" in found
    assert "in `w8a8`, and those of the model are in `16bit`" in refusal(w8a8_bundle, "16bit")


def test_activations_are_not_quantised_where_they_were_not_asked_for(
    shipped_w8a8_bundle: Path, shipped_fp8_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A format that is asked for is the bundle's; without one, the bundle decides."""
    monkeypatch.setattr(load, "CudaBackend", lambda opened, _: CudaBackend(opened, Device(FakeDriver())))

    def loaded(path: Path, of_weights: str, asked: str | None) -> str:
        weights: Any = dummy_weights(SMALLEST, "bf16", weight_format=of_weights)
        backend = load_on_gpu(path, SMALLEST, weights, 64, "bf16", weight_format=asked)
        found = backend.step.weight_format
        backend.close()
        backend.bundle.close()
        return found

    assert loaded(shipped_w8a8_bundle, "fp8", None) == loaded(shipped_w8a8_bundle, "w8a8", "w8a8") == "w8a8"
    assert loaded(shipped_fp8_bundle, "fp8", None) == loaded(shipped_fp8_bundle, "fp8", "fp8") == "fp8"
    for path, of_weights, asked in ((shipped_w8a8_bundle, "fp8", "fp8"), (shipped_fp8_bundle, "w8a8", "w8a8")):
        with pytest.raises(BundleRefused, match=f"pack one with `tilec bundle pack --model NAME --weights {asked}`"):
            loaded(path, of_weights, asked)
    with pytest.raises(BundleRefused, match="in `fp8`, and those of the model are in `w8a8`"):
        loaded(shipped_fp8_bundle, "w8a8", None)
