"""The verifier on steps of several sequences: real ones pass, and every access that could reach another sequence's cache is
refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from step_contracts import MODELS, TINY, contract, shape_of

from engine.graph.contract import Contract
from engine.graph.plan import plan_memory
from engine.graph.verify import GraphError, verify
from engine.models.steps import model_step
from tests import shipped
from tilec import frontend
from tilec.artifact.records import parameter_specs
from tilec.step.expressions import StepError
from tilec.step.graph import Kind, Op, StepGraph, View
from tilec.step.reader import read_declaration
from tilec.step.step import BATCHES, NO_VARIANT, Variants


def batch(output_mode: Any = "argmax", sequences: int = 4, shape: Any = TINY, *, variants: Variants = NO_VARIANT) -> StepGraph:
    return model_step(shape, 2048).graph("batch", output_mode, tokens=sequences, variants=variants)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("output_mode", ["argmax", "sample", "logits"])
def test_real_batches_are_verified(name: str, output_mode: str) -> None:
    for sequences in BATCHES:
        graph = batch(output_mode, sequences, shape_of(name))
        assert graph.sequences == sequences
        verify(graph, plan_memory(graph), contract)


def changed(graph: StepGraph, name: str, parameter: str, view: Callable[[View], View]) -> None:
    """Gives an operation another view."""
    position, op = next((position, op) for position, op in enumerate(graph.ops) if op.name == name)
    graph.ops[position] = replace(op, tensors={**op.tensors, parameter: view(op.tensors[parameter])})


def with_row_axis(op: Op, kernel: str, parameter: str, row: int | None) -> Contract:
    """A kernel whose manifest has different data for one parameter."""
    own_contract = contract(op)
    if op.kernel != kernel:
        return own_contract
    return replace(
        own_contract, tensors=tuple(replace(spec, row=row) if spec.name == parameter else spec for spec in own_contract.tensors)
    )


TENSORS = {"rotary_decode_attention": 8, "decode_merge_kv": 9, "rotary_decode_attention_kv": 6}
"""The number of tensors of an operation with an entry for each sequence."""
OTHER_ROWS = [(kernel, row) for kernel in TENSORS for row in (None, 0, 1) if (kernel, row) != ("rotary_decode_attention_kv", 1)]
"""Axes of the grid that do not index sequences."""


@pytest.mark.parametrize(("kernel", "row"), OTHER_ROWS)
def test_a_kernel_that_may_access_another_sequence_is_refused(kernel: str, row: int | None) -> None:
    graph = batch(variants=frozenset({"short"} if kernel == "rotary_decode_attention_kv" else ()))
    op = next(op for op in graph.ops if op.kernel == kernel)
    refused = 0
    for parameter, view in op.tensors.items():
        if graph.buffers[view.buffer].kind in (Kind.WEIGHT, Kind.TABLE):
            continue
        with pytest.raises(GraphError, match="does not keep to one of them"):
            verify(
                graph,
                plan_memory(graph),
                lambda op, changed_parameter=parameter: with_row_axis(op, kernel, changed_parameter, row),
            )
        refused += 1
    assert refused == TENSORS[kernel]


def test_a_cache_seen_as_one_sequence_or_in_part_is_refused() -> None:
    views: tuple[Callable[[View], View], ...] = (
        lambda view: View(view.buffer, (view.shape[0] - 1, *view.shape[1:])),
        lambda view: View(view.buffer, (view.shape[0] - 1, *view.shape[1:]), view.elements // view.shape[0]),
        lambda view: View(view.buffer, (1, view.shape[0] * view.shape[1], *view.shape[2:])),
    )
    for view in views:
        for kernel in ("attention", "merge"):
            for parameter in ("k_cache", "v_cache"):
                graph = batch()
                changed(graph, f"layers.0.{kernel}", parameter, view)
                with pytest.raises(GraphError, match=r"batch\.[kv]_cache\.0"):
                    verify(graph, plan_memory(graph), contract)


def test_lengths_of_another_buffer_are_refused() -> None:
    graph = batch()
    changed(graph, "layers.0.attention", "lengths", lambda _: View("positions", (4,)))  # may be 0
    with pytest.raises(GraphError, match=r"holds 0 to 2047, and `lengths` of `rotary_decode_attention` takes 1 to 2048"):
        verify(graph, plan_memory(graph), contract)


OTHER_KERNEL = """
import tilec
from tilec import Dim, In, Out, bid, f32, grid, load, store, sum, values, i32

class B(Dim): ...
class S(Dim): ...

@tilec.kernel
def other(cache: In[f32, B, S], at: In[i32, B], out: Out[f32, B]):
    grid(B)
    values(at, 0, B)
    b = bid(0)
    store(out, b, LOAD)
"""


@pytest.mark.parametrize(
    ("read", "row"),
    [
        ("load(cache, (b, 0), shape=(1, 1)).reshape((1,))", 0),
        ("load(cache, (B - 1 - b, 0), shape=(1, 1)).reshape((1,))", None),
        ("load(cache, (load(at, b), 0), shape=(1, 1)).reshape((1,))", None),
        ("sum(load(cache, offset=(b, 0), shape=(2, 1), pad=0), axis=0)", None),
        ("load(cache, (b, 0), shape=(1, 1)).reshape((1,)) + load(cache, (0, 0), shape=(1, 1)).reshape((1,))", None),
    ],
)
def test_the_accesses_of_a_kernel_decide_whether_it_has_a_row_axis(tmp_path: Any, read: str, row: int | None) -> None:
    path = tmp_path / "other.py"
    path.write_text(OTHER_KERNEL.replace("LOAD", read))
    (cache, _, out), _ = parameter_specs(frontend.load_kernel(path, {}, root=tmp_path))
    assert (cache.row, out.row) == (row, 0)


def test_a_declaration_without_batch_has_no_batch_steps() -> None:
    text = (shipped.ROOT / "engine" / "models" / "qwen3" / "qwen3.step").read_text(encoding="utf-8")
    begin, end = text.index("def batch():"), text.index("def prefill():")
    step = model_step(TINY, 64, declaration=read_declaration(text[:begin] + text[end:]))
    with pytest.raises(StepError, match=r"there is no `def batch\(\)`"):
        step.graph("batch", tokens=2)
