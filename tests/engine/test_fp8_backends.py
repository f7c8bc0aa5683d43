"""Weights of eight and four bits on both backends: a batch on the interpreter, and the launches of a bundle on a driver that
launches nothing."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from one_sequence import OneSequence
from test_batch import PROMPTS, alone
from test_cuda_backend import SMALLEST

from engine.backends.cuda import CudaBackend
from engine.backends.interpreter import InterpreterBackend
from engine.backends.load import _find_bundle
from engine.batch import Batch
from engine.checkpoint.weights import WeightPlan, Weights
from engine.cli import run
from engine.errors import BundleRefused
from engine.graph.integers import GraphError
from engine.graph.verify import may_overlap
from engine.models.families import FAMILIES
from engine.options import WEIGHT_FORMATS
from engine.paged_batch import PagedBatch
from engine.tools.dummy_weights import dummy_weights
from engine.tools.quantize.command import command as quantize
from engine.tools.tiny import write_tiny_model
from tests.shipped import ROOT
from tilec.cli import commands
from tilec.runtime import Bundle, Device, open_bundle
from tilec.ship.finder import own_bundles_folder

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver


@pytest.fixture(scope="module", params=["fp8", "int4"])
def interpreter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[InterpreterBackend]:
    folder = tmp_path_factory.mktemp("tiny")
    config = write_tiny_model(folder / "source", hidden_size=128)
    ended = CliRunner().invoke(quantize, [str(folder / "source"), str(folder / "kept"), "--format", request.param])
    assert ended.exit_code == 0, ended.output
    loaded = InterpreterBackend()
    weights = WeightPlan.for_model(config, folder / "kept", "bf16")
    assert weights.weight_format == request.param
    loaded.load(config, weights, 40)
    yield loaded
    loaded.close()


@pytest.mark.parametrize("size", [2, 8])
def test_a_batch_generates_what_each_sequence_does_alone(interpreter: InterpreterBackend, size: int) -> None:
    expected = [alone(interpreter, ids, 4) for ids in PROMPTS[:2]]
    with Batch(interpreter, size) as batch:
        slots, generated = [], []
        for ids in PROMPTS[:2]:
            slot, token = batch.add(ids)
            slots.append(slot)
            generated.append([token])
        for _ in range(3):
            tokens = batch.step()
            for slot, tokens_of_slot in zip(slots, generated, strict=True):
                tokens_of_slot.append(tokens[slot])
    assert generated == expected


@pytest.fixture(scope="module")
def fp8_bundle(shipped_fp8_bundle: Path) -> Bundle:
    return open_bundle(shipped_fp8_bundle)


@pytest.fixture(params=["fp8", "int4"])
def backend(request: pytest.FixtureRequest) -> Iterator[tuple[OneSequence, FakeDriver]]:
    driver, bundle = FakeDriver(), open_bundle(request.getfixturevalue(f"shipped_{request.param}_bundle"))
    loaded = OneSequence(CudaBackend(bundle, Device(driver)))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16", weight_format=request.param), 4096)
    yield loaded, driver
    loaded.close()
    assert not driver.buffers, "something was not freed"


def test_a_bundle_says_its_format(fp8_bundle: Bundle, bundle: Bundle) -> None:
    assert (fp8_bundle.model, fp8_bundle.weight_format) == ("qwen3-0.6b-fp8", "fp8")
    assert (bundle.model, bundle.weight_format) == ("qwen3-0.6b", "16bit")
    assert "weight_format" not in bundle.config
    assert fp8_bundle.model_digest != bundle.model_digest
    names = {kernel.manifest.kernel for kernel in fp8_bundle.kernels}
    assert {"scaled_matvec_fp8", "scaled_matvec_rows_fp8", "dequantise_fp8", "matmul", "matvec_argmax"} <= names
    assert "scaled_matvec" not in names and "matvec_add" not in names


def test_a_bundle_for_int4_has_its_kernels(shipped_int4_bundle: Path) -> None:
    with open_bundle(shipped_int4_bundle) as bundle:
        assert (bundle.model, bundle.weight_format) == ("qwen3-0.6b-int4", "int4")
        names = {kernel.manifest.kernel for kernel in bundle.kernels}
    assert {"scaled_matvec_int4", "scaled_matvec_rows_int4", "dequantise_int4", "matmul", "matvec_argmax"} <= names
    assert "scaled_matvec" not in names and "matvec_add" not in names


def test_codes_and_scales_arrive(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    weights = dummy_weights(SMALLEST, "bf16", weight_format=loaded.step.weight_format)
    merged = "model.layers.1.self_attn.qkv_proj.weight"
    for name in (*(one.name for one in weights.destinations if one.name.startswith(merged)), "model.norm.weight"):
        expected = weights.array(name)
        pointer = loaded.memory.allocations[name][0]
        block = next(block for start, block in driver.buffers.items() if start == pointer)
        start = pointer - block.ctypes.data
        assert (block[start : start + expected.nbytes] == expected.reshape(-1).view(np.uint8)).all()


def launched(loaded: OneSequence, driver: FakeDriver, before: int) -> list[tuple[str, bool]]:
    """The kernel of each launch, and whether it may overlap the previous one."""
    kernels = {kernel.function: kernel.manifest.kernel for kernel in loaded.launches._kernels.values()}
    return [(kernels[launch.function], launch.overlap) for launch in driver.launches[before:]]


def test_a_decode_step_has_as_many_launches_as_with_16_bits(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    before = len(driver.launches)
    assert loaded.decode(5) == 0  # the fake device writes nothing
    step = launched(loaded, driver, before)
    assert len(step) == 1 + 5 * SMALLEST.num_hidden_layers + 4
    assert [overlap for _, overlap in step] == [False] + [True] * (len(step) - 1)
    assert [kernel for kernel, _ in step].count(f"scaled_matvec_{loaded.step.weight_format}") == SMALLEST.num_hidden_layers


def test_rows_over_pages_multiply_codes_and_chunks_of_any_length_dequantise(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, driver = backend
    form, layers = loaded.step.weight_format, SMALLEST.num_hidden_layers
    with PagedBatch(loaded.backend, 40, pages=20) as batch:
        before = len(driver.launches)
        batch.extend([1, 2], 0, [5])
        assert [kernel for kernel, _ in launched(loaded, driver, before)].count(f"dequantise_{form}") == 4 * (layers - 1) + 1
        batch.join(33, [1, 2], 1, [5] * 70, None)
        before = len(driver.launches)
        batch.step(ahead=False)
        kernels = [kernel for kernel, _ in launched(loaded, driver, before)]
    assert kernels.count(f"matmul_few_{form}") == kernels.count(f"matmul_silu_mul_few_{form}") == layers
    assert kernels.count(f"matmul_split_{form}") == 2 * layers
    assert not [kernel for kernel in kernels if kernel.startswith(("dequantise", "matmul_fp8", "scaled"))]


def test_a_bundle_whose_sums_follow_the_rows_does_not_serve(
    backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, _ = backend
    find, kernel = loaded.launches.bundled_kernel, f"matmul_split_{loaded.step.weight_format}"

    def of_rows(op: Any) -> Any:
        """As if the bundle had other products of more than 16 rows."""
        found = find(op)
        if op.kernel != kernel or op.constants["BM"] <= 16:
            return found
        return replace(found, manifest=replace(found.manifest, constants={**found.manifest.constants, "SPLIT": 8}))

    monkeypatch.setattr(type(loaded.launches), "bundled_kernel", lambda _, op: of_rows(op))
    with pytest.raises(GraphError, match=f"has `SPLIT` = 4, or 8, and `{kernel}` may add in another order"):
        PagedBatch(loaded.backend, 40, pages=20)


@pytest.mark.parametrize("tokens", [9, 300])
def test_only_products_of_long_prompts_dequantise_weights(backend: tuple[OneSequence, FakeDriver], tokens: int) -> None:
    """And they overlap the launch that does."""
    loaded, driver = backend
    before = len(driver.launches)
    loaded.prefill([1] * tokens)
    form = loaded.step.weight_format
    step = launched(loaded, driver, before)
    of_codes = {f"{name}_{form}" for name in ("matmul_few", "matmul_split", "matmul_silu_mul_few")}
    of_16_bits = {"matmul", "matmul_silu_mul"}
    assert {kernel for kernel, _ in step if kernel.startswith("matmul")} == (of_codes if tokens == 9 else of_16_bits)
    for number, (kernel, overlap) in enumerate(step):
        assert overlap == (number > 0)
        if tokens == 300:
            assert kernel.startswith("matmul") == (number > 0 and step[number - 1][0] == f"dequantise_{form}")
    products = 4 * (SMALLEST.num_hidden_layers - 1) + 1
    assert [kernel for kernel, _ in step].count(f"dequantise_{form}") == (0 if tokens == 9 else products)


def test_a_prompt_of_another_length_launches_what_a_plan_of_it_does(backend: tuple[OneSequence, FakeDriver]) -> None:
    loaded, _ = backend
    for tokens in (65, 17, 700):
        prefill = next(candidate for candidate in loaded._prefills if tokens <= candidate.largest)
        prepared = prefill.prepared(tokens, 0, "argmax")
        graph = loaded.step.graph("prefill", "argmax", tokens=tokens)
        expected = [may_overlap(graph, op, loaded.contract(op)) for op in graph.ops]
        assert [overlaps for _, _, overlaps in prepared.launches] == expected
        assert all(expected)
        assert [series.kernel.manifest.kernel for series, _, _ in prepared.launches] == [op.kernel for op in graph.ops]


def refusal(bundle: Bundle, weight_format: str) -> str:
    loaded, weights = CudaBackend(bundle, Device(FakeDriver())), dummy_weights(SMALLEST, "bf16", weight_format=weight_format)
    with pytest.raises(BundleRefused) as caught:
        loaded.load(SMALLEST, weights, 64)
    loaded.close()
    return str(caught.value)


def test_a_bundle_of_another_format_is_refused_with_the_command_that_packs_one(bundle: Bundle, fp8_bundle: Bundle) -> None:
    found = refusal(bundle, "fp8")
    assert "has kernels for weights in `16bit`, and those of the model are in `fp8`" in found
    assert "pack one with `tilec bundle pack --model NAME --weights fp8`" in found and "`--weights 16bit`" in found
    found = refusal(fp8_bundle, "16bit")
    assert "has kernels for weights in `fp8`, and those of the model are in `16bit`" in found
    assert "`tilec bundle pack --model NAME --weights 16bit`" in found and "dequantise" not in found


@pytest.mark.parametrize("weight_format", [name for name in WEIGHT_FORMATS if name != "16bit"])
def test_the_command_for_each_format_that_a_bundle_lacks_packs_it(
    bundle: Bundle, weight_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command is one that the shipped build file has a bundle for."""
    found = refusal(bundle, weight_format)
    assert f"has kernels for weights in `16bit`, and those of the model are in `{weight_format}`" in found
    (command,) = re.findall(r"pack one with `tilec bundle pack --model NAME (--weights \w+)`", found)
    plan = ["build", "--plan", "--json", "--project", str(ROOT), "--arch", "sm_90", "--model", "qwen3-0.6b"]
    assert commands.run([*plan, *command.split()]) == 0
    assert {use["weights"] for use in json.loads(capsys.readouterr().out)["uses"]} == {weight_format}


def test_the_bundle_of_the_format_is_found(
    shipped_bundle: Path, shipped_fp8_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = own_bundles_folder()
    config = replace(SMALLEST, num_hidden_layers=28, vocab_size=151936)
    device = Device(FakeDriver())

    def found(weight_format: str) -> str:
        with _find_bundle(config, weight_format, device.architecture, None, "none") as bundle:
            return bundle.model

    shutil.copy(shipped_bundle, folder)
    assert found("16bit") == "qwen3-0.6b"
    with pytest.raises(BundleRefused, match=r"no bundle for this model and sm_90a.*weights are in `fp8`.*`--weights 16bit`"):
        found("fp8")
    shutil.copy(shipped_fp8_bundle, folder)
    assert (found("16bit"), found("fp8")) == ("qwen3-0.6b", "qwen3-0.6b-fp8")
    (folder / shipped_bundle.name).unlink()
    with pytest.raises(BundleRefused, match="no bundle for this model and sm_90a"):
        found("16bit")


@pytest.mark.parametrize("options", [(), ("--weights", "16bit"), ("--dummy-weights", "--weights", "fp8")])
def test_the_command_takes_a_format(
    options: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_model(tmp_path / "source", hidden_size=128)
    CliRunner().invoke(quantize, [str(tmp_path / "source"), str(tmp_path / "fp8"), "--format", "fp8"])
    formats: list[str] = []
    load = InterpreterBackend.load

    def recorded(backend: InterpreterBackend, config: object, weights: Weights, *more: object) -> None:
        formats.append(weights.weight_format)
        load(backend, config, weights, *more)

    monkeypatch.setattr(InterpreterBackend, "load", recorded)
    command = ["--backend", "interpreter", "--model", str(tmp_path / "fp8"), "--prompt", "the sky", "--max-new-tokens", "2"]
    assert run([*command, "--max-seq-len", "64", *options]) == 0
    assert capsys.readouterr().out.strip()
    assert formats == [options[-1] if options else "fp8"]


def test_fp8_is_refused_for_a_folder_that_has_other_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path / "plain", hidden_size=128)
    command = ["--backend", "interpreter", "--model", str(tmp_path / "plain"), "--prompt", "the sky", "--weights", "fp8"]
    assert run(command) == 3
    assert "weights in `fp8` are asked for, and the files do not have every linear layer's so" in capsys.readouterr().err


def test_the_options_name_every_format_that_a_step_has() -> None:
    declared = [family.declaration().formats for family in FAMILIES.values()]
    assert ("16bit", *dict.fromkeys(name for formats in declared for name in formats)) == WEIGHT_FORMATS


def test_a_step_of_fp8_weights_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny_model(tmp_path / "blocks", hidden_size=128)
    write_tiny_model(tmp_path / "cut")
    assert run(["graph", "--model", str(tmp_path / "blocks"), "--weights", "fp8", "--tokens", "70"]) == 0
    drawn = capsys.readouterr().out
    assert "dequantise_fp8" in drawn and "model.layers.0.mlp.down_proj.weight_scales" in drawn
    assert run(["graph", "--model", str(tmp_path / "cut"), "--weights", "fp8"]) == 2
    assert "is [256, 64], and weights in `fp8` have a scale for each 128 x 128" in capsys.readouterr().err
