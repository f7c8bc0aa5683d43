"""The CUDA backend on a driver that launches nothing: what it loads, plans, captures and enqueues."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from one_sequence import OneSequence

from engine.backends import cuda
from engine.backends.cuda import CudaBackend
from engine.backends.launches import launch_message
from engine.errors import BundleRefused, DeviceError, ModelError, UsageError
from engine.models.qwen3.config import Qwen3Config
from engine.models.rope import plain_frequencies, rope_table
from engine.sampling import SamplingParams, uniforms
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device, DriverError, LaunchError
from tilec.step.step import CHUNK_TOKENS

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

SMALLEST = Qwen3Config(
    hidden_size=1024, intermediate_size=3072, num_attention_heads=16, num_key_value_heads=8, head_dim=128, num_hidden_layers=2,
    vocab_size=2048, rms_norm_eps=1e-6, rope_theta=1e6, tie_word_embeddings=True, max_position_embeddings=40960,
    torch_dtype="bfloat16",
)  # fmt: skip
"""Qwen3 0.6B with two layers and a small vocabulary."""


@pytest.fixture
def backend(bundle: Bundle) -> Iterator[tuple[OneSequence, FakeDriver]]:
    driver = FakeDriver()
    loaded = OneSequence(CudaBackend(bundle, Device(driver)))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 4096)
    yield loaded, driver
    loaded.close()
    assert not driver.buffers, "something was not freed"


def test_weights_arrive_and_caches_are_zero(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    weights = dummy_weights(SMALLEST, "bf16")
    for name in ("model.norm.weight", "model.layers.1.self_attn.qkv_proj.weight"):
        expected = weights.array(name)
        pointer = loaded.memory.allocations[name][0]
        block = next(block for start, block in driver.buffers.items() if start == pointer)
        start = pointer - block.ctypes.data
        assert (block[start : start + expected.nbytes] == expected.reshape(-1).view(np.uint8)).all()
    assert "k_cache.1" in loaded.own.buffers.allocations


def test_a_decode_step_is_one_graph_of_overlapping_launches(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    before = len(driver.launches)
    assert loaded.decode(5) == 0  # the fake device writes nothing
    step = driver.launches[before:]
    assert len(step) == 1 + 5 * SMALLEST.num_hidden_layers + 4
    assert [launch.overlap for launch in step] == [False] + [True] * (len(step) - 1)  # the first launch waits
    assert loaded.position == 1


def test_one_step_runs_ahead_and_none_past_the_limit(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    before = len(driver.launches)
    tokens = loaded.stream_tokens(3, 10)
    next(tokens)
    per_step = 1 + 5 * SMALLEST.num_hidden_layers + 4
    assert len(driver.launches) - before == 2 * per_step
    tokens.close()
    assert loaded.position == 1  # the prefetched step is discarded
    before = len(driver.launches)
    assert len(list(loaded.stream_tokens(3, 4))) == 4
    assert len(driver.launches) - before == 4 * per_step
    assert loaded.position == 5


def test_a_short_context_has_fewer_launches_and_the_form_changes_within_a_generation(
    backend: tuple[OneSequence, FakeDriver],
) -> None:
    loaded, driver = backend
    short_slots = loaded.step.bound("short")
    assert short_slots == 256
    loaded.prefill([1] * (short_slots - 3))
    before = len(driver.launches)
    assert len(list(loaded.stream_tokens(3, 5))) == 5
    per_layer = [5, 5, 5, 6, 6]  # the last short context fills slot 256
    assert len(driver.launches) - before == sum(1 + launches * SMALLEST.num_hidden_layers + 4 for launches in per_layer)


def test_a_prompt_is_prefilled_in_chunks(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    before = len(driver.launches)
    loaded.prefill([1] * (CHUNK_TOKENS + 1))
    assert loaded.position == CHUNK_TOKENS + 1
    launches_of_filling_chunk = 1 + 8 * (SMALLEST.num_hidden_layers - 1) + 3  # the last layer only fills the cache
    assert len(driver.launches) - before == 2 * launches_of_filling_chunk + 7 + 3  # the final chunk gives one token
    loaded.reset()
    assert loaded.prompt_logits([1, 2]).shape == (SMALLEST.vocab_size,)


def test_a_sampled_generation_is_drawn_in_the_graph(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    loaded.prefill([1, 2, 3], SamplingParams(0.5, 7, 0.25, seed=9))
    block = loaded.own.buffers.allocations
    names = ("top_k", "temperature", "top_p", "uniforms")
    settings = {name: np.ctypeslib.as_array((ctypes.c_float * 64).from_address(block[name][0])) for name in names}
    assert settings["top_k"].view(np.int32)[0] == 7
    assert (settings["temperature"][0], settings["top_p"][0]) == (0.5, 0.25)
    assert (settings["uniforms"][2:64] == uniforms(9, 62)).all()
    before = len(driver.launches)
    assert len(list(loaded.stream_tokens(3, 2))) == 2
    names = [launch.function[1] for launch in driver.launches[before:]]
    assert len(names) == 2 * (1 + 5 * SMALLEST.num_hidden_layers + 5)
    assert [name.split("_")[0] for name in names[-4:]] == ["matvec", "topk", "sample", "advance"]
    loaded.reset()
    loaded.prefill([1])  # greedy again
    before = len(driver.launches)
    next(iter(loaded.stream_tokens(3, 1)))
    assert not any("sample" in launch.function[1] for launch in driver.launches[before:])


def test_a_prompt_of_an_earlier_length_is_not_planned_again(
    backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, driver = backend
    loaded.prefill([1] * 5)
    first = [(launch.parameters, launch.grid) for launch in driver.launches]
    loaded.reset()
    monkeypatch.setattr(loaded.launches, "numbers", None)
    monkeypatch.setattr(loaded.launches, "series", None)
    loaded.prefill([2] * 5)
    assert [(launch.parameters, launch.grid) for launch in driver.launches] == first * 2


@pytest.mark.parametrize("max_seq_len", [1, 70, 1500])
def test_every_prompt_fits_the_arena(bundle: Bundle, max_seq_len: int) -> None:
    loaded = OneSequence(CudaBackend(bundle, Device(FakeDriver())))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), max_seq_len)
    for tokens in (1, 2, 3, 17, 63, 64, 65, 500, 1024, 1025, 1500):
        if tokens <= max_seq_len:
            for prefill in (loaded.prefill, loaded.prompt_logits, lambda ids: loaded.prefill(ids, SamplingParams())):
                loaded.reset()
                prefill([1] * tokens)
    loaded.close()


def test_a_token_outside_the_vocabulary_is_reported(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, _ = backend
    loaded.prefill([1])
    ctypes.c_int32.from_address(loaded.own.buffers.allocations["token"][0]).value = 2147483647
    with pytest.raises(ModelError, match="the logits are not finite"):
        loaded.token()


@pytest.mark.parametrize(("ids", "message"), [([], "the prompt is empty"), ([0] * 4097, "^4097 tokens do not fit")])
def test_prompts_that_do_not_fit(backend: tuple[OneSequence, FakeDriver], ids: list[int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        backend[0].prefill(ids)


def test_the_code_is_at_the_end_of_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command writes `error:` before the code; it once printed `error: error[E0915]`."""
    message = launch_message(LaunchError("E0905", "is too small", kernel="add", argument="x", given="3", required="4"))
    assert message == "kernel `add`, argument `x`: is too small; given 3; required 4 (E0905)"

    def absent() -> Device:
        raise DriverError("cuInit", "CUDA_ERROR_NO_DEVICE")

    monkeypatch.setattr(cuda, "Device", absent)
    with pytest.raises(DeviceError) as refused:
        CudaBackend(cast(Bundle, None))
    assert str(refused.value) == "`cuInit` failed with CUDA_ERROR_NO_DEVICE (E0915)"


def test_a_generation_ends_at_the_end_of_the_cache(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, _ = backend
    loaded.position = 4095
    tokens = loaded.stream_tokens(1, 5)
    assert next(tokens) == 0
    with pytest.raises(UsageError, match="do not fit max-seq-len 4096"):
        next(tokens)
    with pytest.raises(UsageError, match="token 2048 is not in the vocabulary"):
        loaded.position = 0
        loaded.decode(2048)


def test_too_little_memory_is_one_clear_error(bundle: Bundle) -> None:
    driver = FakeDriver()
    driver.limit = 1 << 28
    loaded = CudaBackend(bundle, Device(driver))
    with pytest.raises(DeviceError, match=r"needs 0\.\d GB of device memory and 0\.3 of 0\.3 GB are free"):
        loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 4096)
    loaded.close()
    assert not driver.buffers


def test_a_generation_ends_when_another_begins(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, _ = backend
    loaded.prefill([1, 2, 3])
    old = loaded.stream_tokens(3, 40)
    for _ in range(20):
        next(old)
    loaded.reset()
    loaded.prefill([4, 5])
    with pytest.raises(UsageError, match="this generation ended: another began"):
        next(old)
    assert loaded.position == 2  # an ended generation does not move it
    forgotten = loaded.stream_tokens(3, 9)
    next(forgotten)
    loaded.forget_steps()
    with pytest.raises(UsageError, match="this generation ended"):
        next(forgotten)


def test_nothing_runs_after_close(bundle: Bundle) -> None:
    loaded = OneSequence(CudaBackend(bundle, Device(FakeDriver())))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 64)
    loaded.prefill([1])
    tokens = loaded.stream_tokens(3, 9)
    next(tokens)
    loaded.close()
    for use in (lambda: next(tokens), lambda: loaded.prefill([1]), lambda: loaded.prefill([1], SamplingParams()),
                lambda: loaded.decode(1), lambda: loaded.decode_logits(1), lambda: loaded.prompt_logits([1])):  # fmt: skip
        with pytest.raises(UsageError, match="closed"):
            use()
    loaded.close()


@pytest.mark.parametrize("call", ["cuStreamSynchronize", "cuStreamDestroy"])
def test_close_frees_what_it_can_of_a_broken_device(bundle: Bundle, call: str) -> None:
    driver = FakeDriver()
    loaded = CudaBackend(bundle, Device(driver))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 64)
    driver.fail[call] = "CUDA_ERROR_LAUNCH_FAILED"
    with pytest.raises(DriverError, match="CUDA_ERROR_LAUNCH_FAILED"):
        loaded.close()
    assert not driver.buffers
    loaded.close()


class FailingWeights:
    """Weights whose files fail while they are read."""

    def __init__(self, after: int) -> None:
        self._weights, self._remaining = dummy_weights(SMALLEST, "bf16"), after
        self.destinations, self.bytes = self._weights.destinations, self._weights.bytes
        self.weight_format = self._weights.weight_format

    def chunks(self, name: str, limit_bytes: int) -> Iterator[tuple[int, memoryview]]:
        for chunk in self._weights.chunks(name, limit_bytes):
            self._remaining -= 1
            if self._remaining < 0:
                raise ModelError("tensor is damaged", where=name)
            yield chunk


@pytest.mark.parametrize("chunks_before_failure", [0, 1, 9])
def test_weights_that_break_on_the_way_end_the_load(bundle: Bundle, chunks_before_failure: int) -> None:
    before = set(threading.enumerate())  # servers of other tests
    driver = FakeDriver()
    loaded = CudaBackend(bundle, Device(driver))
    with pytest.raises(ModelError, match="tensor is damaged"):
        loaded.load(SMALLEST, FailingWeights(chunks_before_failure), 4096)
    loaded.close()
    assert not driver.buffers
    assert set(threading.enumerate()) <= before


def test_progress_counts_every_byte(bundle: Bundle) -> None:
    seen: list[tuple[int, int]] = []
    loaded = CudaBackend(bundle, Device(FakeDriver()))
    weights = dummy_weights(SMALLEST, "bf16")
    loaded.load(SMALLEST, weights, 4096, progress=lambda done, total: seen.append((done, total)))
    loaded.close()
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert {total for _, total in seen} == {weights.bytes} and seen[-1][0] == weights.bytes


def test_another_architecture_is_refused(bundle: Bundle) -> None:
    with pytest.raises(BundleRefused, match="is for sm_90a, and fake device is sm_100a"):
        CudaBackend(bundle, Device(FakeDriver(capability=(10, 0))))


def test_a_model_that_the_bundle_lacks_kernels_for(bundle: Bundle) -> None:
    driver = FakeDriver()
    loaded = CudaBackend(bundle, Device(driver))
    wider: Any = replace(SMALLEST, hidden_size=2048)
    with pytest.raises(BundleRefused, match=r"operation `layers.0.embed_tokens`: .* has no kernel for `embedding_scaled`"):
        loaded.load(wider, dummy_weights(wider, "bf16"), 4096)
    loaded.close()
    assert not driver.buffers


def test_the_rope_table_is_that_of_the_paper() -> None:
    table = rope_table(50, plain_frequencies(8, 1e4))
    position, pair = np.meshgrid(np.arange(50), np.arange(4), indexing="ij")
    angle = position / 1e4 ** (2 * pair / 8)
    np.testing.assert_allclose(table, np.concatenate([np.cos(angle), np.sin(angle)], 1), atol=1e-5)
