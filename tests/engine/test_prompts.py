"""Prompts of any length: launches whose extents were checked for all layers at once equal those checked one by one."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from one_sequence import OneSequence
from test_cuda_backend import SMALLEST, backend

import engine.backends.prompts as prompts_module
from engine.backends.cuda import CudaBackend
from engine.backends.launches import Launches
from engine.backends.prompts import _kind, padded_length, padded_lengths
from engine.errors import DeviceError
from engine.graph.verify import GraphError
from engine.models.steps import model_step
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device
from tilec.step.form import Form
from tilec.step.graph import StepGraph
from tilec.step.step import ALL_PAIRS, OUTPUT_MODES

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver, Recorded, argument_bytes

__all__ = ["backend"]  # fixtures of another module

LENGTHS = [(1, 0), (2, 0), (17, 5), (64, 1024), (65, 3000), (500, 1), (1023, 2000), (2048, 2048)]


def recorded_calls(loaded: Any, launches: list[Recorded]) -> list[tuple[Any, ...]]:
    """The driver's calls: kernel, grid and the value of each argument."""
    kernels = {kernel.function: kernel for kernel in loaded.launches._kernels.values()}
    calls: list[tuple[Any, ...]] = []
    for launch in launches:
        slots = kernels[launch.function].manifest.abi
        sizes = [struct.calcsize({"pointer": "Q", "dim": "i", "stride": "q"}.get(slot.kind, "i")) for slot in slots]
        calls.append((launch.function, launch.grid, launch.block, launch.shared, launch.overlap, argument_bytes(launch, sizes)))
    return calls


def check_launches(loaded: Any, driver: FakeDriver, tokens: int, past: int, output_mode: Any) -> None:
    """Launches of a prepared prompt equal those that are planned one by one."""
    prefill = next(candidate for candidate in loaded._prefills if tokens <= candidate.largest)
    pointers = {name: pointer for name, (pointer, _) in loaded.prompt_allocations.items()}
    pointers |= {name: loaded._arena[0] + offset for name, offset in prefill.memory.offsets.items()}
    before = len(driver.launches)
    prepared = prefill.prepared(tokens, past, output_mode)
    for series, numbers in prepared.numbers:
        series.use(numbers)
    launched: list[tuple[Any, ...]] = []
    for series, index, overlaps in prepared.launches:
        assert overlaps
        series.launch(index, 7, overlap=True)
        launched += recorded_calls(loaded, [driver.launches.pop()])
    assert len(launched) == len(prepared.launches)
    plans = list(loaded.launches.plans(loaded.step.graph("prefill", output_mode, tokens=tokens, past=past), pointers))
    for plan in plans:
        plan.launch(7, overlap=True)
    assert launched == recorded_calls(loaded, driver.launches[before:])
    del driver.launches[before:]


@pytest.mark.parametrize("output_mode", OUTPUT_MODES)
def test_launches_equal_those_planned_one_by_one(backend: tuple[OneSequence, FakeDriver], output_mode: Any) -> None:
    for tokens, past in [*LENGTHS, *reversed(LENGTHS)]:  # and graphs prepared before
        check_launches(*backend, tokens, past, output_mode)


def test_a_new_length_checks_few_layers(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    deep_config = replace(SMALLEST, num_hidden_layers=12)
    loaded = OneSequence(CudaBackend(bundle, Device(FakeDriver())))
    loaded.load(deep_config, dummy_weights(deep_config, "bf16"), 64)
    looked_up: list[str] = []
    bundled_kernel = Launches.bundled_kernel

    def counted(launches: Launches, op: Any) -> Any:
        looked_up.append(op.name)
        return bundled_kernel(launches, op)

    loaded.forget_steps()
    monkeypatch.setattr(Launches, "bundled_kernel", counted)
    loaded.prefill([1] * 9)
    kinds = {_kind(op) for op in loaded.step.graph("prefill", tokens=9).ops}
    assert len(looked_up) == len(kinds)
    looked_up.clear()
    loaded.prefill([1] * 9)  # after the first: another value of `past`
    assert looked_up == ["layers.0.attention"]
    looked_up.clear()
    loaded.reset()
    loaded.prefill([2] * 9)
    assert not looked_up
    loaded.prefill([2] * 20)
    assert 0 < len(looked_up) < len(kinds)
    assert "lm_head" not in looked_up  # it adds the last token to the cache, for any number of tokens
    loaded.close()


def test_no_prompt_of_a_loaded_model_has_a_new_length(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver()
    loaded = OneSequence(CudaBackend(bundle, Device(driver)))
    loaded.load(SMALLEST, dummy_weights(SMALLEST, "bf16"), 1000)  # the caches have 1024 slots
    looked_up: list[str] = []
    bundled_kernel = Launches.bundled_kernel
    monkeypatch.setattr(
        Launches, "bundled_kernel", lambda launches, op: (looked_up.append(op.name), bundled_kernel(launches, op))[1]
    )
    for tokens in (1, 15, 16, 17, 33, 64, 65, 500, 961, 1000):
        loaded.reset()
        loaded.prefill([1] * tokens)
    assert not looked_up
    loaded.close()


def test_lengths_are_those_of_whole_tiles() -> None:
    assert padded_lengths(200) == [16, 32, 64, 128, 192, 200]
    assert [padded_length(tokens) for tokens in (1, 16, 17, 33, 64, 65, 2000)] == [16, 16, 32, 64, 64, 128, 2048]


def test_tokens_of_nobody_stay_inside_of_the_caches(backend: tuple[OneSequence, FakeDriver]) -> None:
    """A chunk is not padded where the slots of the padding would lie beyond the caches."""
    loaded, _ = backend
    slots = loaded.step.graph("decode", tokens=1).buffers["rope_table"].shape[0]
    assert loaded._padded(20, slots - 32) == 32
    assert loaded._padded(20, slots - 31) == 20
    assert loaded._padded(loaded._prefills[-1].largest, 0) == loaded._prefills[-1].largest


def test_layers_differ_only_in_their_index() -> None:
    """A step of `ALL_PAIRS` layers has every pair of neighbors of a longer one: the same operations on buffers at the same
    distance."""
    step = model_step(SMALLEST, 2048)

    def pairs(graph: StepGraph, layers: int) -> set[Any]:
        by_layer: dict[int, list[Any]] = {}
        for op in graph.ops:
            if op.name.startswith("layers."):
                layer = int(op.name.split(".")[1])
                views = [
                    (name, view.buffer.replace(f".{layer}.", ".*.").replace(f".{layer - 1}.", ".-."), view.shape)
                    for name, view in op.tensors.items()
                ]
                views = [(name, buffer.removesuffix(f".{layer}"), shape) for name, buffer, shape in views]
                by_layer.setdefault(layer, []).append((op.name.split(".", 2)[2], op.kernel, repr(views), repr(op.scalars)))
        return {(tuple(by_layer[n]), tuple(by_layer[n + 1]), n == 0, n + 2 == layers) for n in range(layers - 1)}

    for mode, output_mode, tokens in (
        ("decode", "argmax", 1),
        ("prefill", "argmax", 5),
        ("prefill", "argmax", 9),
        ("prefill", "none", 5),
    ):
        pairs_of_few_layers = pairs(step.graph(mode, output_mode, tokens=tokens, layers=ALL_PAIRS), ALL_PAIRS)
        pairs_of_many_layers = pairs(step.graph(mode, output_mode, tokens=tokens, layers=9), 9)
        assert pairs_of_few_layers == pairs_of_many_layers


def test_lengths_that_do_not_fit_are_refused(backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, _ = backend
    prefill = loaded._prefills[-1]
    with pytest.raises(GraphError, match=r"operation `layers.0.attention`.*past \+ T <= S.*past = 4096"):
        prefill.prepared(2048, 4096, "argmax")
    monkeypatch.setitem(prefill._bytes, "layers.*.act", 100)
    with pytest.raises(GraphError, match=r"`layers.0.act` is larger than that of 2048 tokens"):
        prefill.prepared(33, 0, "argmax")
    monkeypatch.undo()
    series = next(candidate for (kind, _), candidate in prefill._series.items() if kind[1] == "add_rms_norm")
    graph = loaded.step.graph("prefill", tokens=4000)
    op = next(op for op in graph.ops if op.kernel == "add_rms_norm")
    with pytest.raises(DeviceError, match=r"overlaps|reaches beyond what was checked"):
        loaded.launches.numbers(graph, op, series)


def test_every_length_has_the_same_operations(backend: tuple[OneSequence, FakeDriver]) -> None:
    step = backend[0].step
    small_m_lengths = [(tokens, past) for tokens, past in LENGTHS if tokens <= step.bound("few")]
    large_m_lengths = LENGTHS[len(small_m_lengths) :]
    for output_mode in OUTPUT_MODES:
        forms = [
            [
                [(op.name, op.kernel, {name: view.buffer for name, view in op.tensors.items()}) for op in graph.ops]
                for graph in (step.graph("prefill", output_mode, tokens=tokens, past=past) for tokens, past in lengths)
            ]
            for lengths in (small_m_lengths, large_m_lengths)
        ]
        assert all(length_operations == operations[0] for operations in forms for length_operations in operations)
        assert forms[0][0] != forms[1][0]


def test_a_graph_does_not_depend_on_earlier_graphs(backend: tuple[OneSequence, FakeDriver]) -> None:
    """Parts that do not depend on the length are built once: for any order of lengths, the graph equals that of a new form."""
    step = backend[0].step
    form = step.form("prefill", "argmax", layers=3)
    for tokens, past in [*LENGTHS, *reversed(LENGTHS)]:
        assert form.at(tokens, past) == form.only(form.resolved_ops).at(tokens, past)


@pytest.mark.parametrize("difference", ["a part of a buffer", "another access", "a part at the largest"])
def test_all_pairs_are_verified_unless_views_cover_whole_buffers(
    backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch, difference: str
) -> None:
    """A step whose views cover whole buffers is verified like the largest one; any other is checked operation by operation."""
    prefill = backend[0]._prefills[-1]
    verified: list[int] = []
    monkeypatch.setattr(prompts_module, "verify_operations", lambda graph, _: verified.append(len(graph.ops)))
    prefill.prepared(36, 0, "argmax")
    assert not verified
    if difference == "a part of a buffer":
        at = Form.at

        def part(form: Form, tokens: int, past: int = 0) -> StepGraph:
            graph = at(form, tokens, past)
            name = next(op for op in graph.ops if op.kernel == "embedding").tensors["out"].buffer
            graph.buffers[name] = replace(graph.buffers[name], shape=(tokens + 1, *graph.buffers[name].shape[1:]))
            return graph

        monkeypatch.setattr(Form, "at", part)
    elif difference == "another access":
        monkeypatch.setitem(prefill._uses, next(iter(prefill._uses)), [])
    else:
        monkeypatch.setitem(prefill._covers_whole, "argmax", False)
    step = backend[0].step
    pairs = len(step.graph("prefill", tokens=37, layers=min(step.layers, ALL_PAIRS)).ops)
    prefill.prepared(37, 0, "argmax")
    assert verified == [pairs]
    prefill.prepared(37, 100, "argmax")  # after other tokens: the properties of its kinds tell
    assert verified == [pairs, pairs]
