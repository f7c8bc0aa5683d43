"""A mixture of experts with dense layers between, on the CUDA backend with a driver that launches nothing: a bundle with the
kernels of both, prompts of any length, rows over pages, and which models a bundle is for."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_sequence import OneSequence
from test_mixture_on_cuda import CONFIG as WITHOUT_DENSE
from test_mixture_on_cuda import Counting, loaded_from, names, require_one_copy, unread
from test_prompts import check_launches

from engine.backends.device_pages import lasting_bytes, steps_bytes
from engine.backends.load import _check_model, _find_bundle, load_on_gpu
from engine.backends.paged_steps import chunk_graphs, serve_graphs
from engine.backends.prompts import union
from engine.batch import Batch
from engine.errors import BundleRefused
from engine.graph.plan import plan_memory
from engine.models.qwen3_moe.config import Qwen3MoeConfig
from engine.models.steps import model_step
from engine.paged_batch import PagedBatch
from tilec.qualify.model import model_shapes
from tilec.runtime import Device, open_bundle
from tilec.ship.finder import own_bundles_folder
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.step import OUTPUT_MODES

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver

CONFIG = replace(WITHOUT_DENSE, num_hidden_layers=6, dense_layers="0,3,4")
DENSE, SPARSE = 3, 3
"""Layers of each kind; the last one has experts."""


@pytest.fixture(scope="module")
def backend(mixed_bundle: Path) -> Iterator[tuple[OneSequence, Counting]]:
    with loaded_from(mixed_bundle, CONFIG) as found:
        yield found


def test_a_load_has_no_second_copy_of_anything(backend: tuple[OneSequence, Counting]) -> None:
    require_one_copy(CONFIG, *backend)


def test_a_decode_step(backend: tuple[OneSequence, Counting]) -> None:
    loaded, driver = backend
    loaded.reset()
    before = len(driver.launches)
    loaded.decode(5)
    attention = ["scaled_matvec", "rotary_decode_attention_kv", "matvec_add_scaled"]
    dense = [*attention, "scaled_matvec_silu_mul"]
    sparse = [*attention, "scaled_matvec", "route_experts", "experts_silu_mul"]
    added = {"dense": "matvec_add_scaled", "sparse": "experts_add_scaled"}
    expected = ["embedding_scaled"]
    for layer in range(6):
        expected += dense if layer in (0, 3, 4) else sparse
        expected += [added["dense" if layer in (0, 3, 4) else "sparse"]] if layer < 5 else []
    assert names(loaded, driver, before) == [
        *expected, "experts_add", "rms_norm", "matvec_argmax", "argmax_reduce", "advance",
    ]  # fmt: skip


@pytest.mark.parametrize("tokens", [1, 17, 64, 65, 500, 1025, 3000])
def test_prompts_of_any_length(backend: tuple[OneSequence, Counting], tokens: int) -> None:
    """Each length is prepared for all output modes, and binds the kernels of both kinds of layers."""
    loaded, driver = backend
    for output_mode in OUTPUT_MODES:
        next(one for one in loaded._prefills if tokens <= one.largest).prepared(tokens, 0, output_mode)
    loaded.reset()
    before = len(driver.launches)
    loaded.prefill([1] * tokens)
    launched = names(loaded, driver, before)
    few, many = ("_few", "") if tokens <= 64 else ("", "_few")
    assert launched.count(f"matmul_silu_mul{few}") == DENSE and launched.count(f"matmul_silu_mul{many}") == 0
    assert launched.count(f"experts_matmul_silu_mul{few}") == SPARSE - 1  # of the last layer one row is asked for
    assert launched.count("experts_silu_mul") == 1


@pytest.mark.parametrize("output_mode", OUTPUT_MODES)
def test_launches_equal_those_planned_one_by_one(backend: tuple[OneSequence, Counting], output_mode: Any) -> None:
    """A kind of operation is checked once for its layers; here are all of them, each planned alone."""
    for tokens, past in ((1, 0), (64, 100), (65, 7), (1000, 64), (1500, 3)):
        check_launches(*backend, tokens, past, output_mode)


def test_rows_over_pages(backend: tuple[OneSequence, Counting]) -> None:
    loaded, driver = backend
    with PagedBatch(loaded.backend, 200, pages=300) as batch:
        batch.extend([9, 8], 0, [1] * 70)
        before = len(driver.launches)
        batch.join(199, [9, 8], 70, [1] * 5, None)
        chunk = names(loaded, driver, before)
        before = len(driver.launches)
        batch.step(ahead=False)
        step = names(loaded, driver, before)
    kernels = ("matmul_silu_mul", "experts_matmul", "experts_add_scaled", "paged_gather")
    assert [chunk.count(kernel) for kernel in kernels] == [DENSE, SPARSE - 1, 1, DENSE + SPARSE]
    kernels = ("matmul_silu_mul_few", "experts_matmul_few", "experts_combine", "paged_decode_attention", "add_rms_norm_splits")
    assert [step.count(kernel) for kernel in kernels] == [DENSE, SPARSE, SPARSE, DENSE + SPARSE, 2 * DENSE + SPARSE]


def test_a_pool_of_what_is_left_fits(mixed_bundle: Path) -> None:
    """Bytes are planned for all layers: each kind has its own, and an arena does not grow by as much with each layer."""
    with open_bundle(mixed_bundle) as bundle:
        step = model_step(CONFIG, 8448, declaration=bundle.declaration, measured=bundle.tuning.numbers).with_pages(1)
    for bucket, tokens in ((16, 2048), (256, 8192)):
        graphs = list(serve_graphs(step, bucket).values())
        chunk = union(chunk_graphs(step, tokens).values())
        arena = max(plan_memory(graph).size for graph in (*graphs, chunk))
        assert steps_bytes(step, bucket, tokens) == arena + lasting_bytes(graphs) + lasting_bytes([chunk])


def test_qualification_launches_every_kernel(mixed_bundle: Path) -> None:
    problems: list[str] = []
    with open_bundle(mixed_bundle) as bundle:
        found = model_shapes(bundle, problems)
        assert {kernel.name for kernel in bundle.kernels} == {*found}
    assert not problems


def test_batches(backend: tuple[OneSequence, Counting]) -> None:
    loaded, driver = backend
    for rows in (2, 8):
        with Batch(loaded.backend, rows) as batch:
            batch.add([1, 2, 3])
            before = len(driver.launches)
            batch.step()
            launched = names(loaded, driver, before)  # one step is ahead
            assert launched.count("experts_silu_mul") == launched.count("experts_add_scaled") == 2 * SPARSE
            assert launched.count("scaled_matvec_silu_mul_rows") == 2 * DENSE


@pytest.mark.parametrize("changes", [{"dense_layers": "0,3"}, {"dense_layers": "1,3,4"}, {"intermediate_size": 4096}])
def test_a_bundle_states_which_layers_are_dense(mixed_bundle: Path, changes: dict[str, Any]) -> None:
    """The bundle runs any of these models as far as it has their kernels; one that is signed is for what it states."""
    config = replace(CONFIG, **changes)
    with open_bundle(mixed_bundle) as bundle:
        assert {name: bundle.config[name] for name in ("dense_layers", "intermediate_size")} == {
            "dense_layers": "0,3,4", "intermediate_size": 6144,
        }  # fmt: skip
        signed: Any = Signed(bundle)
        _check_model(signed, CONFIG)
        with pytest.raises(BundleRefused, match=f"is signed for a model whose `{next(iter(changes))}` is"):
            _check_model(signed, config)


def test_each_model_finds_its_own_bundle(mixed_bundle: Path, shipped_mixture_bundle: Path) -> None:
    """Bundles for models with experts in all layers state nothing about dense layers, and are still found for these alone."""
    folder = own_bundles_folder()
    for path in (mixed_bundle, shipped_mixture_bundle):
        shutil.copy(path, folder)
    published = replace(WITHOUT_DENSE, num_hidden_layers=48, vocab_size=151936)
    for config, name in ((CONFIG, "mixed"), (published, "qwen3-30b-a3b")):
        with _find_bundle(config, SIXTEEN_BIT, "sm_90a", None, None) as bundle:
            assert bundle.model == name
    others: list[Any] = [{"dense_layers": ""}, {"dense_layers": "0,3"}, {"intermediate_size": 4096}]
    for config in (*(replace(CONFIG, **changes) for changes in others), replace(published, dense_layers="0")):
        with pytest.raises(BundleRefused, match="no bundle for this model"):
            _find_bundle(config, SIXTEEN_BIT, "sm_90a", None, None)


class Signed:
    """A bundle as if its signature were valid."""

    def __init__(self, bundle: Any) -> None:
        self.config, self.path, self.has_step, self.signed = bundle.config, bundle.path, bundle.has_step, "key"


def test_a_bundle_is_not_for_models_with_experts_in_all_layers(mixed_bundle: Path, shipped_mixture_bundle: Path) -> None:
    """Nor is one of these for models with dense layers: it has no kernels of dense layers."""
    uniform: Qwen3MoeConfig = replace(CONFIG, dense_layers="")
    with open_bundle(mixed_bundle) as bundle, pytest.raises(BundleRefused, match="whose `dense_layers` is 0,3,4"):
        signed: Any = Signed(bundle)
        _check_model(signed, uniform)
    with pytest.raises(BundleRefused):
        load_on_gpu(shipped_mixture_bundle, CONFIG, unread(CONFIG), 4096, "bf16", device=Device(FakeDriver()))
