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
from engine.backends.prompts import _kind
from engine.errors import DeviceError
from engine.graph.verify import GraphError
from engine.models.steps import model_step
from engine.tools.dummy_weights import dummy_weights
from tilec.runtime import Bundle, Device
from tilec.step.form import Form
from tilec.step.graph import StepGraph
from tilec.step.step import ALL_PAIRS, HEADS

sys.path.append(str(Path(__file__).resolve().parents[1] / "runtime"))
from fake_driver import FakeDriver, Recorded, argument_bytes

__all__ = ["backend"]  # fixtures of another module

LENGTHS = [(1, 0), (2, 0), (17, 5), (64, 1024), (65, 3000), (500, 1), (1023, 2000), (2048, 2048)]


def said(made: Any, launches: list[Recorded]) -> list[tuple[Any, ...]]:
    """The driver's calls: kernel, grid and the value of each argument."""
    kernels = {kernel.function: kernel for kernel in made.launches._kernels.values()}
    found: list[tuple[Any, ...]] = []
    for launch in launches:
        slots = kernels[launch.function].manifest.abi
        sizes = [struct.calcsize({"pointer": "Q", "dim": "i", "stride": "q"}.get(slot.kind, "i")) for slot in slots]
        found.append((launch.function, launch.grid, launch.block, launch.shared, launch.overlap, argument_bytes(launch, sizes)))
    return found


@pytest.mark.parametrize("head", HEADS)
def test_launches_are_those_of_each_operation_by_itself(backend: tuple[OneSequence, FakeDriver], head: Any) -> None:
    made, driver = backend
    for tokens, past in [*LENGTHS, *reversed(LENGTHS)]:  # and graphs prepared before
        prompts = next(one for one in made._prompts if tokens <= one.largest)
        pointers = {name: pointer for name, (pointer, _) in made._places(prompts.whole).items()}
        pointers |= {name: made._arena[0] + offset for name, offset in prompts.memory.offsets.items()}
        before = len(driver.launches)
        prepared = prompts.prepared(tokens, past, head)
        for series, numbers in prepared.numbers:
            series.use(numbers)
        together: list[tuple[Any, ...]] = []
        for series, index in prepared.launches:
            series.launch(index, 7, overlap=True)
            together += said(made, [driver.launches.pop()])
        assert len(together) == len(prepared.launches)
        plans = list(made.launches.plans(made.step.graph("prefill", head, tokens=tokens, past=past), pointers))
        for plan in plans:
            plan.launch(7, overlap=True)
        assert together == said(made, driver.launches[before:])
        del driver.launches[before:]


def test_a_new_length_looks_at_few_layers(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = replace(SMALLEST, num_hidden_layers=12)
    made = OneSequence(CudaBackend(bundle, Device(FakeDriver())))
    made.load(deep, dummy_weights(deep, "bf16"), 64)
    seen: list[str] = []
    described = Launches.described

    def counted(launches: Launches, op: Any) -> Any:
        seen.append(op.name)
        return described(launches, op)

    made.forget_steps()
    monkeypatch.setattr(Launches, "described", counted)
    made.prefill([1] * 9)
    kinds = {_kind(op) for op in made.step.graph("prefill", tokens=9).ops}
    assert len(seen) == len(kinds)
    seen.clear()
    made.prefill([1] * 9)  # after the first: another value of `past`
    assert seen == ["layers.0.attention"]
    seen.clear()
    made.reset()
    made.prefill([2] * 9)
    assert not seen
    made.prefill([2] * 8)
    assert 0 < len(seen) < len(kinds)
    assert "lm_head" not in seen  # it adds the last token to the cache, for any number of tokens
    made.close()


def test_layers_are_told_apart_by_their_place_alone() -> None:
    """A step of `ALL_PAIRS` layers has every pair of neighbors of a longer one: the same operations on buffers at the same
    distance."""
    step = model_step(SMALLEST, 2048)

    def pairs(graph: StepGraph, layers: int) -> set[Any]:
        by_layer: dict[int, list[Any]] = {}
        for op in graph.ops:
            if op.name.startswith("layers."):
                layer = int(op.name.split(".")[1])
                near = [
                    (name, view.buffer.replace(f".{layer}.", ".*.").replace(f".{layer - 1}.", ".-."), view.shape)
                    for name, view in op.tensors.items()
                ]
                near = [(name, buffer.removesuffix(f".{layer}"), shape) for name, buffer, shape in near]
                by_layer.setdefault(layer, []).append((op.name.split(".", 2)[2], op.kernel, repr(near), repr(op.scalars)))
        return {(tuple(by_layer[n]), tuple(by_layer[n + 1]), n == 0, n + 2 == layers) for n in range(layers - 1)}

    for mode, head, tokens in (
        ("decode", "argmax", 1),
        ("prefill", "argmax", 5),
        ("prefill", "argmax", 9),
        ("prefill", "none", 5),
    ):
        few = pairs(step.graph(mode, head, tokens=tokens, layers=ALL_PAIRS), ALL_PAIRS)
        many = pairs(step.graph(mode, head, tokens=tokens, layers=9), 9)
        assert few == many


def test_what_does_not_fit_is_refused(backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = backend
    prompts = made._prompts[-1]
    with pytest.raises(GraphError, match=r"operation `layers.0.attention`.*past \+ T <= S.*past = 4096"):
        prompts.prepared(2048, 4096, "argmax")
    monkeypatch.setitem(prompts._bytes, "layers.*.act", 100)
    with pytest.raises(GraphError, match=r"`layers.0.act` is larger than that of 2048 tokens"):
        prompts.prepared(33, 0, "argmax")
    monkeypatch.undo()
    series = next(one for (kind, _), one in prompts._series.items() if kind[1] == "add_rms_norm")
    graph = made.step.graph("prefill", tokens=4000)
    op = next(op for op in graph.ops if op.kernel == "add_rms_norm")
    with pytest.raises(DeviceError, match=r"overlaps|reaches beyond what was checked"):
        made.launches.numbers(graph, op, series)


def test_every_length_has_the_same_operations(backend: tuple[OneSequence, FakeDriver]) -> None:
    step = backend[0].step
    few = [(tokens, past) for tokens, past in LENGTHS if tokens <= step.few_tokens]
    many = LENGTHS[len(few) :]
    for head in HEADS:
        forms = [
            [
                [(op.name, op.kernel, {name: view.buffer for name, view in op.tensors.items()}) for op in graph.ops]
                for graph in (step.graph("prefill", head, tokens=tokens, past=past) for tokens, past in lengths)
            ]
            for lengths in (few, many)
        ]
        assert all(one == touched[0] for touched in forms for one in touched)
        assert forms[0][0] != forms[1][0]


def test_a_graph_is_the_same_whatever_was_made_before(backend: tuple[OneSequence, FakeDriver]) -> None:
    """Parts that do not depend on the length are built once: for any order of lengths, the graph equals that of a new form."""
    step = backend[0].step
    form = step.form("prefill", "argmax", layers=3)
    for tokens, past in [*LENGTHS, *reversed(LENGTHS)]:
        assert form.at(tokens, past) == form.only(form.placed).at(tokens, past)


@pytest.mark.parametrize("doubt", ["a part of a buffer", "another access", "a part at the largest"])
def test_where_buffers_are_not_seen_alike_all_pairs_are_verified(
    backend: tuple[OneSequence, FakeDriver], monkeypatch: pytest.MonkeyPatch, doubt: str
) -> None:
    """A step whose views cover whole buffers is verified like the largest one; any other is checked operation by operation."""
    prompts = backend[0]._prompts[-1]
    verified: list[int] = []
    monkeypatch.setattr(prompts_module, "verify_operations", lambda graph, _: verified.append(len(graph.ops)))
    prompts.prepared(36, 0, "argmax")
    assert not verified
    if doubt == "a part of a buffer":
        at = Form.at

        def part(form: Form, tokens: int, past: int = 0) -> StepGraph:
            graph = at(form, tokens, past)
            name = next(op for op in graph.ops if op.kernel == "embedding").tensors["out"].buffer
            graph.buffers[name] = replace(graph.buffers[name], shape=(tokens + 1, *graph.buffers[name].shape[1:]))
            return graph

        monkeypatch.setattr(Form, "at", part)
    elif doubt == "another access":
        monkeypatch.setitem(prompts._uses, next(iter(prompts._uses)), [])
    else:
        monkeypatch.setitem(prompts._seen_whole, "argmax", False)
    step = backend[0].step
    pairs = len(step.graph("prefill", tokens=37, layers=min(step.layers, ALL_PAIRS)).ops)
    prompts.prepared(37, 0, "argmax")
    assert verified == [pairs]
    prompts.prepared(37, 100, "argmax")  # after other tokens: the properties of its kinds tell
    assert verified == [pairs, pairs]
