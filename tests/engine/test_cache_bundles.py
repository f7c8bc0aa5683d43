"""A cache of FP8 codes in a bundle, on a driver that launches nothing: its launches and memory, and what is refused."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_sequence import OneSequence
from test_cuda_backend import SMALLEST

from engine.backends.cuda import CudaBackend
from engine.backends.load import _find_bundle
from engine.batch import Batch
from engine.errors import BundleRefused
from engine.paged_batch import PagedBatch
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, BundleError, Device, open_bundle
from tilec.ship.finder import own_bundles_folder

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

SLOTS = 4096


@pytest.fixture(scope="module")
def coded_bundle(shipped_cache_bundle: Path) -> Bundle:
    return open_bundle(shipped_cache_bundle)


def load(bundle: Bundle, cache_format: str | None = None) -> tuple[OneSequence, FakeDriver]:
    driver = FakeDriver()
    loaded = OneSequence(CudaBackend(bundle, Device(driver)))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), SLOTS, "bf16", None, cache_format)
    return loaded, driver


@pytest.fixture
def backend(coded_bundle: Bundle) -> Iterator[tuple[OneSequence, FakeDriver]]:
    loaded, driver = load(coded_bundle)
    yield loaded, driver
    loaded.close()
    assert not driver.buffers, "something was not freed"


def test_a_bundle_says_its_format(coded_bundle: Bundle, bundle: Bundle) -> None:
    assert (coded_bundle.model, coded_bundle.cache_format) == ("qwen3-0.6b-cache-fp8", "fp8")
    assert (bundle.model, bundle.cache_format) == ("qwen3-0.6b", "16bit")
    assert "cache_format" not in bundle.config and coded_bundle.model_digest != bundle.model_digest
    names = {kernel.manifest.kernel for kernel in coded_bundle.kernels}
    assert {"rotary_decode_attention_c8", "decode_merge_kv_c8", "qk_norm_rope_kv_c8", "dequantise_c8", "matvec_add"} <= names
    assert {"flash_attention", "decode_attention"} <= names  # which take what `dequantise_c8` wrote
    assert not {"rotary_decode_attention", "decode_merge_kv", "qk_norm_rope_kv"} & names


def test_a_long_context_has_attention_by_more_warps(backend: tuple[OneSequence, FakeDriver], bundle: Bundle) -> None:
    """Only of one sequence to codes: its parts and all else stay as they are, and 16 bits have no such form."""
    step = backend[0].backend.step
    bound = step.bound("near")
    assert bound == 10240 and step.bounds("filled") == (256, bound)
    forms = [step.decode_variants(filled) for filled in (1, 256, 257, bound, bound + 1)]
    assert list(map(sorted, forms)) == [["near", "short"], ["near", "short"], ["near"], ["near"], []]
    for mode, tokens, tiles in (("decode", 1, (64, 128)), ("batch", 4, (64, 64))):
        near, far = (step.graph(mode, "argmax", tokens=tokens, variants=variants).ops for variants in forms[-2:])
        found: set[tuple[int, int]] = set()
        for one, other in zip(near, far, strict=True):
            assert one.kernel == other.kernel and one.tensors == other.tensors
            if one.constants != other.constants or one.kernel == "rotary_decode_attention_c8":
                assert one.kernel == "rotary_decode_attention_c8"
                found.add((one.constants["BN"], other.constants["BN"]))
        assert found == {tiles}
    plain, _ = load(bundle)
    assert plain.backend.step.bounds("filled") == (256,)
    plain.close()


def launched(loaded: OneSequence, driver: FakeDriver, before: int) -> list[str]:
    kernels = {kernel.function: kernel.manifest.kernel for kernel in loaded.launches._kernels.values()}
    return [kernels[launch.function] for launch in driver.launches[before:]]


def test_decode_has_as_many_launches_as_with_16_bits_and_prompts_two_a_layer_more(
    backend: tuple[OneSequence, FakeDriver], bundle: Bundle
) -> None:  # fmt: skip
    plain, plain_driver = load(bundle)
    steps: list[list[str]] = []
    for (loaded, driver), more in ((backend, 2 * SMALLEST.num_hidden_layers), ((plain, plain_driver), 0)):
        before = len(driver.launches)
        loaded.prefill([1] * 300)
        prompt = launched(loaded, driver, before)
        assert prompt.count("dequantise_c8") == more
        for number, kernel in enumerate(prompt):
            if more and kernel in ("flash_attention", "decode_attention"):
                assert prompt[number - 2 : number] == ["dequantise_c8"] * 2
        before = len(driver.launches)
        assert loaded.decode(5) == 0  # the fake device writes nothing
        steps.append([kernel.removesuffix("_c8") for kernel in launched(loaded, driver, before)])
    assert steps[0] == steps[1] and "rotary_decode_attention" in steps[0]
    plain.close()


def test_a_cache_takes_a_byte_an_element_and_four_a_row(backend: tuple[OneSequence, FakeDriver], bundle: Bundle) -> None:
    loaded, _ = backend
    plain, _ = load(bundle)
    heads, width = SMALLEST.num_key_value_heads, SMALLEST.head_dim
    sizes, of_16_bits = (
        {name: size for name, (_, size) in one.prompt_allocations.items() if "_cache" in name} for one in (loaded, plain)
    )
    for layer in range(SMALLEST.num_hidden_layers):
        for name in ("k_cache", "v_cache"):
            assert sizes.pop(f"{name}.{layer}") == SLOTS * heads * width == of_16_bits[f"{name}.{layer}"] // 2
            assert sizes.pop(f"{name}_scales.{layer}") == SLOTS * heads * 4
    # of one layer, for prompts
    assert sizes == {"k_cache.16bit": 2 * SLOTS * heads * width, "v_cache.16bit": 2 * SLOTS * heads * width}
    plain.close()


def test_a_batch_takes_over_codes_and_scales(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    with Batch(loaded.backend, 2) as batch:
        before = len(driver.launches)
        batch.add([1] * 9)
        batch.step()
        assert "rotary_decode_attention_kv_c8" in launched(loaded, driver, before)
        allocations = batch._steps.buffers.allocations
        assert allocations["batch.k_cache_scales.0"][1] == 2 * SLOTS * SMALLEST.num_key_value_heads * 4


def test_a_server_has_pages_of_codes(backend: tuple[OneSequence, FakeDriver]) -> None:
    """A prompt's chunk dequantises what it gathers, and a step stores codes before it attends to them."""
    loaded, driver = backend
    with PagedBatch(loaded.backend, 20, pages=30) as batch:
        before = len(driver.launches)
        batch.join(0, [3, 2, 1], 0, [1] * 130, None)
        prompt = launched(loaded, driver, before)
        assert prompt.count("paged_gather_c8") == prompt.count("qk_norm_rope_kv_c8") == SMALLEST.num_hidden_layers
        assert not {"paged_gather", "dequantise_c8", "qk_norm_rope_kv"} & {*prompt} and "packed_flash_attention" in prompt
        before = len(driver.launches)
        assert batch.step(ahead=False) == {0: 0}  # the fake device writes nothing
        step = launched(loaded, driver, before)
        assert step.count("paged_decode_attention_c8") == step.count("paged_merge") == SMALLEST.num_hidden_layers
        assert step.index("qk_norm_rope_kv_c8") < step.index("paged_decode_attention_c8")


def test_nearly_twice_the_tokens_fit_in_pages_of_codes(coded_bundle: Bundle, bundle: Bundle) -> None:
    """A row of a head has 132 bytes, where 16 bits are 256."""
    found: list[int] = []
    for one in (coded_bundle, bundle):
        loaded, driver = load(one)
        driver.limit = sum(buffer.size for buffer in driver.buffers.values()) + (1 << 30)
        with PagedBatch(loaded.backend, 2) as batch:
            found.append(batch.pages)
        loaded.close()
    row = SMALLEST.num_hidden_layers * 2 * 64 * SMALLEST.num_key_value_heads
    assert abs(found[0] * 132 - found[1] * 256) * row <= 4 << 20 and found[0] > 1.9 * found[1] > 1000


def test_a_bundle_without_the_kernels_of_pages_is_refused(coded_bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _ = load(coded_bundle)
    found = loaded.backend.launches._bundled_kernels
    found.clear()
    find = Bundle.find

    def without(self: Bundle, kernel: str, **constants: Any) -> Any:
        if kernel.startswith("paged_gather"):
            raise BundleError("E0804", f"there is no `{kernel}` in it")
        return find(self, kernel, **constants)

    monkeypatch.setattr(Bundle, "find", without)
    with pytest.raises(BundleRefused, match=r"gather`: there is no `paged_gather_c8` in it; pack the bundle of this model"):
        PagedBatch(loaded.backend, 2, pages=20)
    loaded.close()


def refusal(bundle: Bundle, cache_format: str) -> str:
    with pytest.raises(BundleRefused) as caught:
        load(bundle, cache_format)
    return str(caught.value)


def test_a_bundle_of_another_format_is_refused_with_the_command_that_packs_one(bundle: Bundle, coded_bundle: Bundle) -> None:
    found = refusal(bundle, "fp8")
    assert "has kernels for a cache in `16bit`, and `fp8` is asked for" in found
    assert "pack one with `tilec bundle pack --model NAME --cache fp8`" in found and "`--cache 16bit`" in found
    found = refusal(coded_bundle, "16bit")
    assert "has kernels for a cache in `fp8`, and `16bit` is asked for" in found and "--cache 16bit`" in found


def test_the_bundle_of_the_format_is_found(
    shipped_bundle: Path, shipped_cache_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = own_bundles_folder()
    config = replace(SMALLEST, num_hidden_layers=28, vocab_size=151936)
    device = Device(FakeDriver())

    def found(cache_format: str) -> str:
        with _find_bundle(config, "16bit", device.architecture, None, "none", cache_format) as one:
            return one.model

    shutil.copy(shipped_bundle, folder)
    assert found("16bit") == "qwen3-0.6b"
    with pytest.raises(BundleRefused, match=r"its cache is to be in `fp8`.*`--cache 16bit`"):
        found("fp8")
    shutil.copy(shipped_cache_bundle, folder)
    assert (found("16bit"), found("fp8")) == ("qwen3-0.6b", "qwen3-0.6b-cache-fp8")
    (folder / shipped_bundle.name).unlink()
    with pytest.raises(BundleRefused, match="no bundle for this model and sm_90a"):
        found("16bit")
