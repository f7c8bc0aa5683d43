"""A mixture of experts on the CUDA backend with a driver that launches nothing: its bundle, and prompts of any length."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from one_sequence import OneSequence

from engine.backends.cuda import CudaBackend
from engine.backends.decode_steps import graphs_of
from engine.backends.device_buffers import cache_bytes
from engine.backends.load import load_on_gpu
from engine.backends.upload import STAGING_BYTES, THREADS
from engine.batch import Batch
from engine.errors import BundleRefused
from engine.models.qwen3.config import Qwen3Config
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from engine.paged_batch import PagedBatch
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Device, open_bundle
from tilec.step.step import OUTPUT_MODES

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

CONFIG = Qwen3MoeConfig(
    hidden_size=2048, intermediate_size=6144, num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_hidden_layers=3,
    vocab_size=2048, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=False, max_position_embeddings=40960,
    torch_dtype="bfloat16", num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, norm_topk_prob=True,
)  # fmt: skip
"""Qwen3 30B-A3B with three layers and a small vocabulary."""
LAYERS = CONFIG.num_hidden_layers


def unread(config: Qwen3MoeConfig) -> Any:
    """Weights whose bytes are never read, so that 3.6 GB are never touched."""
    weights: Any = dummy_weights(config, "bf16")
    weights.chunks = lambda name, limit: ()
    return weights


class Counting(FakeDriver):
    """A driver that knows the most bytes, of the device and page-locked, that were there at once."""

    most = 0

    def allocate(self, size: int, stream: int) -> int:
        pointer = super().allocate(size, stream)
        self.most = max(self.most, sum(buffer.size for buffer in [*self.buffers.values()]))
        return pointer


@contextlib.contextmanager
def loaded_from(bundle: Path, config: Qwen3MoeConfig) -> Iterator[tuple[OneSequence, Counting]]:
    """A model of this form on a device that computes nothing."""
    driver = Counting()
    loaded = OneSequence(CudaBackend(open_bundle(bundle), Device(driver)))
    loaded.load(config, unread(config), 4096)
    yield loaded, driver
    loaded.close()
    assert not driver.buffers, "something was not freed"


def require_one_copy(config: Qwen3MoeConfig, loaded: OneSequence, driver: Counting) -> None:
    """Of weights, caches and activations; threads copy through page-locked memory of a size that no model changes."""
    cuda: Any = loaded.backend
    needed = unread(config).bytes + cache_bytes(list(graphs_of(cuda.step, 1).values())) + cuda._arena[1]
    inputs = 32 << 20  # of prompts, the table of positions, and what alignment takes
    assert needed < driver.most < needed + THREADS * STAGING_BYTES + inputs < 1.2 * needed


@pytest.fixture(scope="module")
def backend(shipped_mixture_bundle: Path) -> Iterator[tuple[OneSequence, Counting]]:
    with loaded_from(shipped_mixture_bundle, CONFIG) as found:
        yield found


def test_a_load_has_no_second_copy_of_anything(backend: tuple[OneSequence, Counting]) -> None:
    require_one_copy(CONFIG, *backend)


def names(loaded: Any, driver: FakeDriver, before: int) -> list[str]:
    """The kernels of launches since `before`."""
    kernels = {kernel.function: kernel.manifest.kernel for kernel in loaded.launches._kernels.values()}
    return [kernels[launch.function] for launch in driver.launches[before:]]


def test_rows_over_pages_have_tiles_of_experts_and_read_no_cache(backend: tuple[OneSequence, Counting]) -> None:
    loaded, driver = backend
    with PagedBatch(loaded.backend, 200, pages=300) as batch:
        batch.extend([9, 8], 0, [1] * 70)
        before = len(driver.launches)
        batch.join(199, [9, 8], 70, [1] * 5, None)
        chunk = names(loaded, driver, before)
        before = len(driver.launches)
        batch.step(ahead=False)
        step = names(loaded, driver, before)
    counts = [chunk.count(kernel) for kernel in ("experts_matmul", "experts_add_scaled", "paged_gather")]
    assert counts == [LAYERS - 1, 1, LAYERS]
    of_layer = ("paged_decode_attention", "paged_merge", "experts_sort", "experts_matmul_few", "experts_combine")
    assert {step.count(kernel) for kernel in of_layer} == {LAYERS}


def test_a_decode_step(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    loaded.reset()
    before = len(driver.launches)
    loaded.decode(5)
    layer = [
        "scaled_matvec", "rotary_decode_attention_kv", "matvec_add_scaled",
        "scaled_matvec", "route_experts", "experts_silu_mul",
    ]  # fmt: skip
    end = ["experts_add", "rms_norm", "matvec_argmax", "argmax_reduce", "advance"]
    inner = [*layer, "experts_add_scaled"] * (LAYERS - 1)
    assert names(loaded, driver, before) == ["embedding_scaled", *inner, *layer, *end]


LENGTHS = [1, 2, 17, 64, 65, 500, 640, 641, 1023, 4000]


@pytest.mark.parametrize(("tokens", "chunk"), [*((tokens, 4096) for tokens in LENGTHS), (2049, 2048), (3000, 1000)])
def test_prompts_of_any_length(
    backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch, tokens: int, chunk: int
) -> None:
    """Tiles of all three heights: each length binds the kernels of its own."""
    loaded, driver = backend
    monkeypatch.setattr(loaded.backend, "chunk_tokens", chunk)
    chunks = [min(chunk, tokens - start) for start in range(0, tokens, chunk)]
    for output_mode in OUTPUT_MODES:
        for length in chunks:
            next(candidate for candidate in loaded._prefills if length <= candidate.largest).prepared(length, 0, output_mode)
    loaded.reset()
    before = len(driver.launches)
    loaded.prefill([1] * tokens)
    launched = names(loaded, driver, before)
    few = (LAYERS - 1) * sum(length <= 64 for length in chunks)
    many = (LAYERS - 1) * sum(length > 64 for length in chunks)
    for kernel in ("experts_matmul", "experts_matmul_silu_mul"):
        assert (launched.count(f"{kernel}_few"), launched.count(kernel)) == (few, many)
    for kernel in ("experts_sort", "experts_tiles", "experts_gather"):
        assert launched.count(kernel) == few + many


def test_batches(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    for rows in (2, 4, 8):
        with Batch(loaded.backend, rows) as batch:
            batch.add([1, 2, 3])
            before = len(driver.launches)
            batch.step()
            launched = names(loaded, driver, before)
            assert launched.count("experts_silu_mul") == launched.count("experts_add_scaled") == 2 * LAYERS  # one step is ahead


@pytest.mark.parametrize(
    "changes", [{"num_experts": 64}, {"num_experts_per_tok": 4}, {"norm_topk_prob": False}, {"moe_intermediate_size": 1536}]
)
def test_a_bundle_fits_one_mixture(shipped_mixture_bundle: Path, changes: dict[str, Any]) -> None:
    config = replace(CONFIG, **changes)
    with pytest.raises(BundleRefused):
        load_on_gpu(shipped_mixture_bundle, config, unread(config), 4096, "bf16", device=Device(FakeDriver()))


def test_a_dense_model_does_not_fit(shipped_mixture_bundle: Path) -> None:
    sizes: dict[str, Any] = {field.name: getattr(CONFIG, field.name) for field in fields(Qwen3Config)}
    config = Qwen3Config(**sizes)
    with pytest.raises(BundleRefused):
        load_on_gpu(
            shipped_mixture_bundle, config, dummy_weights(config, "bf16"), 4096, "bf16", device=Device(FakeDriver())
        )  # fmt: skip
