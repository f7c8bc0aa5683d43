"""The whole-graph verifier: real steps pass; modified steps are refused with the operation and the buffer."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from step_contracts import MODELS, TINY, contract, planned_step, shape_of

from engine.graph.contract import Contract
from engine.graph.memory_rule import verify_captured
from engine.graph.plan import MemoryPlan
from engine.graph.verify import GraphError, verify
from tests.campaign import chosen
from tilec.artifact.records import TensorSpec
from tilec.ir.expr import sym
from tilec.step.graph import Kind, Op, StepGraph, View

CASES = [
    *[(1, output_mode, True, 0) for output_mode in ("argmax", "sample", "logits")],
    *[(tokens, output_mode, False, past) for tokens in (1, 17, 512, 1024) for past in (0, 64)
      for output_mode in ("argmax", "sample", "logits", "none")],
]  # fmt: skip


def is_sampled(case: tuple[str, tuple[int, str, bool, int]]) -> bool:
    """In the default run each case is tested on one model, round-robin."""
    name, case_tuple = case
    return list(MODELS).index(name) == CASES.index(case_tuple) % len(MODELS)


@pytest.mark.parametrize(("name", "case"), chosen(itertools.product(MODELS, CASES), is_sampled), ids=str)
def test_real_steps_are_verified(name: str, case: tuple[int, str, bool, int]) -> None:
    verify(*planned_step(shape_of(name), *case), contract)


Mutation = Callable[[StepGraph, MemoryPlan], tuple[StepGraph, MemoryPlan]]


def with_op(name: str, change: Callable[[Op], Op]) -> Mutation:
    def mutate(graph: StepGraph, memory: MemoryPlan) -> tuple[StepGraph, MemoryPlan]:
        graph.ops = [change(op) if op.name == name else op for op in graph.ops]
        return graph, memory

    return mutate


def with_view(name: str, parameter: str, view: Callable[[View], View]) -> Mutation:
    return with_op(name, lambda op: replace(op, tensors={**op.tensors, parameter: view(op.tensors[parameter])}))


def with_buffer(name: str, **changes: Any) -> Mutation:
    def mutate(graph: StepGraph, memory: MemoryPlan) -> tuple[StepGraph, MemoryPlan]:
        graph.buffers[name] = replace(graph.buffers[name], **changes)
        return graph, memory

    return mutate


def without(name: str) -> Mutation:
    return lambda graph, memory: (replace(graph, ops=[op for op in graph.ops if op.name != name]), memory)


def swapped(first: str, second: str) -> Mutation:
    def mutate(graph: StepGraph, memory: MemoryPlan) -> tuple[StepGraph, MemoryPlan]:
        positions = {op.name: position for position, op in enumerate(graph.ops)}
        a, b = positions[first], positions[second]
        graph.ops[a], graph.ops[b] = graph.ops[b], graph.ops[a]
        return graph, memory

    return mutate


def with_offset(name: str, change: Callable[[MemoryPlan], int | None]) -> Mutation:
    def mutate(graph: StepGraph, memory: MemoryPlan) -> tuple[StepGraph, MemoryPlan]:
        offset = change(memory)
        others = {key: value for key, value in memory.offsets.items() if key != name}
        return graph, MemoryPlan(others if offset is None else {**others, name: offset}, memory.size)

    return mutate


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (without("layers.1.qkv_proj"), "operation `layers.1.attention`: buffer `layers.1.qkv` is read before"),
        (without("layers.0.embed_tokens"), "operation `layers.0.qkv_proj`: buffer `layers.0.scaled` is read before"),
        (without("argmax"), "operation `advance`: buffer `token` is read before"),
        (swapped("layers.0.attention", "layers.0.merge"), "`layers.0.merge`: buffer `layers.0.partial` is read before"),
        (swapped("layers.1.o_proj", "layers.1.merge"), "operation `layers.1.o_proj`: buffer `layers.1.mixed` is read before"),
        (without("layers.1.down_proj"), "operation `layers.1.qkv_proj`: buffer `layers.1.scaled` is read before"),
        (without("last_down_proj"), "operation `layers.1.gate_up_proj`: buffer `layers.1.act` is written for nothing"),
        (with_view("layers.1.o_proj", "x", lambda view: replace(view, buffer="layers.0.mixed")),
         "operation `layers.1.merge`: buffer `layers.1.mixed` is written for nothing"),
        (with_view("lm_head", "x", lambda view: replace(view, offset=8)), "`lm_head`: buffer `normed` has 1024 elements"),
        (with_view("lm_head", "x", lambda view: replace(view, offset=-8)), "`lm_head`: buffer `normed` has 1024 elements"),
        (with_view("lm_head", "x", lambda view: replace(view, buffer="nobody")), "buffer `nobody` is not one of the step"),
        (with_view("lm_head", "x", lambda view: replace(view, shape=(1024,))), "bf16 of rank 1, and `x` takes bf16 of rank 2"),
        (with_view("norm", "x", lambda view: replace(view, buffer="head.maxima")), "buffer `head.maxima` is f32 of rank 2"),
        (with_view("norm", "out", lambda view: replace(view, buffer="model.norm.weight")), "`model.norm.weight` is a weight"),
        (with_view("layers.0.embed_tokens", "out", lambda view: replace(view, buffer="model.embed_tokens.weight")),
         "`layers.0.embed_tokens`: buffer `model.embed_tokens.weight` is a weight, and is written"),
        (with_view("norm", "out", lambda view: replace(view, buffer="hidden")), "`hidden` is written as `out`, and is `x` too"),
        (with_view("layers.1.o_proj", "x", lambda view: replace(view, buffer="hidden", shape=(1, 1024))),
         "operation `layers.1.o_proj`: buffer `hidden` is written as `residual`, and is `x` too"),
        (with_view("argmax", "out", lambda view: replace(view, buffer="positions")),
         "operation `argmax`: buffer `positions` is an input that a later operation uses"),
        (with_op("lm_head", lambda op: replace(op, tensors={k: v for k, v in op.tensors.items() if k != "x"})),
         "operation `lm_head`: parameter `x` of `matvec_argmax` is not given"),
        (with_op("norm", lambda op: replace(op, scalars={})), "operation `norm`: parameter `eps` of `rms_norm` is not given"),
        (with_op("norm", lambda op: replace(op, tensors={**op.tensors, "more": op.tensors["x"]})),
         "operation `norm`: parameter `more` of `rms_norm` is unknown to the kernel"),
        (with_op("norm", lambda op: replace(op, scalars={"epsilon": 1e-6})), "parameter `eps` of `rms_norm` is not given"),
        (with_view("lm_head", "x", lambda view: replace(view, shape=(0, 1024))), "shape (0, 1024), which has no elements"),
        (with_view("lm_head", "x", lambda view: replace(view, shape=(-1, -1024))), "buffer `normed` is seen as `x` of shape"),
        (with_view("lm_head", "x", lambda view: replace(view, shape=(1024, 1))),
         "operation `lm_head`: buffer `normed` has extent 1024 on axis 0 of `x`, and `matvec_argmax` takes 1"),
        (with_view("argmax", "maxima", lambda view: replace(view, shape=(1, 4))),
         "operation `argmax`: buffer `head.indices` has extent 8 on axis 1 of `indices`, and `argmax_reduce` takes P = 4"),
        (with_view("layers.1.merge", "partial", lambda view: replace(view, buffer="layers.0.partial")),
         "operation `layers.1.attention`: buffer `layers.1.partial` is written for nothing"),
        (with_view("layers.1.merge", "sums", lambda view: replace(view, buffer="layers.1.maxima")),
         "operation `layers.1.attention`: buffer `layers.1.sums` is written for nothing"),
        (with_buffer("ids", kind=Kind.ACTIVATION), "`layers.0.embed_tokens`: buffer `ids` is read before it is written"),
        (with_buffer("ids", high=2049), "buffer `ids` holds 0 to 2048, and `ids` of `embedding_scaled` takes 0 to 2047"),
        (with_buffer("ids", high=None), "operation `layers.0.embed_tokens`: buffer `ids` must have known bounds"),
        (with_buffer("positions", low=None), "buffer `positions` must have known bounds"),
        (with_buffer("slots", high=None), "operation `layers.0.merge`: buffer `slots` must have known bounds"),
        (with_buffer("lengths", high=None), "operation `layers.0.attention`: buffer `lengths` must have known bounds"),
        (with_buffer("layers.0.act", kind=Kind.OUTPUT, shape=(2, 3072)), "`layers.0.act` is an output that no"),
        (with_buffer("model.layers.0.mlp.down_proj.weight", kind=Kind.ACTIVATION),
         "operation `layers.1.down_proj`: buffer `model.layers.0.mlp.down_proj.weight` is `w`, which"),
        (with_offset("hidden", lambda _: None), "operation `layers.0.embed_tokens`: buffer `hidden` has no place in the arena"),
        (with_offset("hidden", lambda memory: memory.size), "buffer `hidden` lies at"),
        (with_offset("hidden", lambda memory: memory.offsets["hidden"] + 8), "buffer `hidden` lies at"),
        (with_offset("hidden", lambda _: -256), "buffer `hidden` lies at [-256"),
        (with_offset("layers.1.act", lambda memory: memory.size - 6144), "`layers.1.act` shares bytes with `hidden`"),
        (with_offset("layers.0.maxima", lambda memory: memory.offsets["layers.0.sums"]), "shares bytes with"),
    ],
)  # fmt: skip
def test_a_broken_rule_names_operation_and_buffer(mutate: Mutation, message: str) -> None:
    graph, memory = mutate(*planned_step(TINY, 1, "argmax", True, 0))
    with pytest.raises(GraphError) as caught:
        verify(graph, memory, contract)
    assert message in str(caught.value)
    assert caught.value.exit_code == 1


def test_no_operation_can_be_left_out() -> None:
    """Every operation of a decode step is needed: without it, a buffer is missing or was computed for nothing. Only `advance`
    serves the next step."""
    for name in [op.name for op in planned_step(TINY, 1, "sample", True, 0)[0].ops if op.name != "advance"]:
        with pytest.raises(GraphError):
            verify(*without(name)(*planned_step(TINY, 1, "sample", True, 0)), contract)


REAL = [
    (1, "sample", True, 0),
    (1, "argmax", True, 0),
    (17, "sample", False, 64),
    (17, "argmax", False, 0),
    (7, "argmax", False, 0),
]
"""Decode, prefill, and prefill with small M (`UNMEASURED`)."""


@pytest.mark.parametrize("case", REAL, ids=str)
def test_every_view_and_parameter_is_checked_against_its_kernel(case: Any) -> None:
    """Moves each view of a step by one element, and removes each parameter."""
    graph, memory = planned_step(TINY, *case)
    for op in graph.ops:
        for name, view in op.tensors.items():
            message = f"operation `{op.name}`: buffer `{view.buffer}` has"
            for offset in (-1, 1):
                moved = replace(view, offset=offset)
                with pytest.raises(GraphError, match=re.escape(message)):
                    verify(*with_view(op.name, name, lambda _, moved=moved: moved)(*planned_step(TINY, *case)), contract)
            tensors = {key: value for key, value in op.tensors.items() if key != name}
            with pytest.raises(GraphError, match=f"operation `{op.name}`: parameter `{name}` of `{op.kernel}` is not given"):
                verify(
                    *with_op(op.name, lambda op, tensors=tensors: replace(op, tensors=tensors))(graph_of(graph), memory),
                    contract,
                )


@pytest.mark.parametrize("case", REAL, ids=str)
def test_constant_buffers_are_never_written(case: Any) -> None:
    """Declares each buffer that a step writes a weight, a table or a setting."""
    graph, memory = planned_step(TINY, *case)
    checked = 0
    for op in graph.ops:
        for spec in contract(op).tensors:
            if spec.access == "in":
                continue
            name = op.tensors[spec.name].buffer
            writers = [
                other.name
                for other in graph.ops
                for spec_of_other in contract(other).tensors
                if spec_of_other.access != "in" and other.tensors[spec_of_other.name].buffer == name
            ]
            for kind in (Kind.WEIGHT, Kind.TABLE, Kind.SETTING):
                message = f"operation `{writers[0]}`: buffer `{name}` is a {kind.value}, and is written"
                with pytest.raises(GraphError, match=re.escape(message)):
                    verify(*with_buffer(name, kind=kind)(graph_of(graph), memory), contract)
                checked += 1
    assert checked > 3 * len(graph.ops)


@pytest.mark.parametrize("case", REAL, ids=str)
def test_every_bound_is_needed(case: Any) -> None:
    """Each bound of a buffer whose integers a kernel relies on: removed, and widened by one."""
    graph, memory = planned_step(TINY, *case)
    checks = [(op, check) for op in graph.ops for check in contract(op).value_checks]
    for name in {op.tensors[check.tensor].buffer for op, check in checks}:
        buffer = graph.buffers[name]
        assert buffer.low is not None
        assert buffer.high is not None
        wider = [{"low": None}, {"high": None}, {"low": buffer.low - 1}, {"high": buffer.high + 1}]
        distinct = any(check.distinct for op, check in checks if op.tensors[check.tensor].buffer == name)
        for change in [*wider, *([{"distinct": False}] if distinct else [])]:
            with pytest.raises(GraphError, match=f"operation `.*`: buffer `{name}` (must have known bounds|holds)"):
                verify(*with_buffer(name, **change)(graph_of(graph), memory), contract)


@pytest.mark.parametrize("case", REAL, ids=str)
def test_a_resident_tensor_is_not_written_before(case: Any) -> None:
    """Declares each tensor that an operation reads resident: refused if the step computes it, or has already changed it."""
    graph, memory = planned_step(TINY, *case)
    changed: set[str] = set()
    refused = 0
    for op in graph.ops:
        own_contract = contract(op)
        for spec in own_contract.tensors:
            buffer = graph.buffers[op.tensors[spec.name].buffer]
            if spec.access != "in" or spec.resident:
                continue
            tensors = tuple(replace(other_spec, resident=other_spec is spec) for other_spec in own_contract.tensors)
            resident_contract = replace(own_contract, tensors=tensors)

            def declared(other: Op, op: Op = op, resident_contract: Contract = resident_contract) -> Contract:
                return resident_contract if other is op else contract(other)

            if buffer.kind not in (Kind.ACTIVATION, Kind.OUTPUT) and buffer.name not in changed:
                verify(graph, memory, declared)
                continue
            message = (
                f"operation `{op.name}`: buffer `{buffer.name}` is `{spec.name}`, which `{op.kernel}` reads before earlier"
            )
            with pytest.raises(GraphError, match=re.escape(message)):
                verify(graph, memory, declared)
            refused += 1
        changed |= written_by(op)
    assert refused > len(graph.ops)


@pytest.mark.parametrize("past", [-1, 2048 - 16, 2**30])
def test_a_prompt_ends_within_the_cache(past: int) -> None:
    mutate = with_op("layers.0.attention", lambda op: replace(op, scalars={**op.scalars, "past": past}))
    with pytest.raises(GraphError, match=r"operation `layers.0.attention`: buffer `k_cache.0` breaks .*past \+ T <= S"):
        verify(*mutate(*planned_step(TINY, 17, "argmax", False, 64)), contract)
    mutate = with_op("layers.0.attention", lambda op: replace(op, scalars={**op.scalars, "past": 2048 - 17}))
    verify(*mutate(*planned_step(TINY, 17, "argmax", False, 64)), contract)


@pytest.mark.parametrize("case", REAL, ids=str)
def test_offsets_in_the_arena(case: Any) -> None:
    """Moves each activation onto each other one: refused if both are live at once, whoever reads or writes them."""
    graph, memory = planned_step(TINY, *case)
    touched = {name: [i for i, op in enumerate(graph.ops) if name in buffers_of(op)] for name in memory.offsets}
    conflicts = 0
    for name, uses in touched.items():
        for other, other_uses in touched.items():
            if name == other or uses[0] > other_uses[-1] or other_uses[0] > uses[-1]:
                continue
            conflicts += 1
            with pytest.raises(GraphError, match=r"operation `.*`: buffer `.*` (shares bytes with `.*`|lies at)"):
                verify(graph, MemoryPlan({**memory.offsets, name: memory.offsets[other]}, memory.size), contract)
        for offset in (memory.offsets[name] + 128, memory.size, -256):
            with pytest.raises(GraphError, match=f"buffer `{name}` lies at"):
                verify(graph, MemoryPlan({**memory.offsets, name: offset}, memory.size), contract)
    assert conflicts > len(memory.offsets)


@pytest.mark.parametrize("case", REAL, ids=str)
def test_neighbors_stay_in_order(case: Any) -> None:
    """Swapped neighbors are refused. Contracts do not describe what a kernel computes, so one swap is accepted: a read may move
    before an in-place update of a buffer that was complete already."""
    graph, memory = planned_step(TINY, *case)
    refused = 0
    for first, second in pairwise(graph.ops):
        swap = {first.name: second, second.name: first}
        changed = StepGraph(graph.name, graph.tokens, graph.buffers, [swap.get(op.name, op) for op in graph.ops])
        try:
            verify(changed, memory, contract)
        except GraphError as error:
            assert re.search("operation `.*`: buffer `.*`", str(error))
            refused += 1
        else:
            assert written_by(first) & buffers_of(second) | buffers_of(first) & written_by(second) == {"hidden"}
            assert {"residual"} & (first.tensors.keys() | second.tensors.keys())
    assert refused > len(graph.ops) // 2


def graph_of(graph: StepGraph) -> StepGraph:
    """A step that can be changed without changing the original."""
    return StepGraph(graph.name, graph.tokens, dict(graph.buffers), list(graph.ops))


def buffers_of(op: Op) -> set[str]:
    return {view.buffer for view in op.tensors.values()}


def written_by(op: Op) -> set[str]:
    return {op.tensors[spec.name].buffer for spec in contract(op).tensors if spec.access != "in"}


def test_a_kernel_that_writes_nothing_is_refused() -> None:
    graph, memory = planned_step(TINY, 1, "argmax", True, 0)
    idle = Op("idle", "idle", {}, {"x": graph.view("hidden")})
    graph.ops.append(idle)
    spec = TensorSpec("x", "in", "bf16", (sym("A"), sym("B")), None, 16)
    with pytest.raises(GraphError, match="operation `idle`: buffer `hidden` is read for nothing"):
        verify(graph, memory, lambda op: Contract((spec,), (), ()) if op is idle else contract(op))


def test_computed_values_have_no_bounds() -> None:
    """A declared bound of a buffer that the step itself writes proves nothing."""
    graph, memory = planned_step(TINY, 17, "argmax", False, 0)
    graph.buffer("picked", "i32", (1,), Kind.ACTIVATION, low=0, high=1)
    memory = MemoryPlan({**memory.offsets, "picked": memory.size}, memory.size + 256)
    position = next(i for i, op in enumerate(graph.ops) if op.name == "layers.1.last_hidden")
    graph.ops[position] = replace(graph.ops[position], tensors={**graph.ops[position].tensors, "index": graph.view("picked")})
    writer = Op("pick", "pick", {}, {"out": graph.view("picked")})
    graph.ops.insert(position, writer)
    spec = TensorSpec("out", "out", "i32", (sym("N"),), None, 16)
    message = r"operation `pick`: buffer `picked` holds 0 to 0, and `pick` writes it as `out` and promises nothing"
    with pytest.raises(GraphError, match=message):
        verify(graph, memory, lambda op: Contract((spec,), (), ()) if op is writer else contract(op))
    graph.buffers["picked"] = replace(graph.buffers["picked"], low=None, high=None)
    message = r"operation `layers\.1\.last_hidden`: buffer `picked` is computed, so nothing bounds it"
    with pytest.raises(GraphError, match=message):
        verify(graph, memory, lambda op: Contract((spec,), (), ()) if op is writer else contract(op))


def captured() -> tuple[StepGraph, dict[str, tuple[int, int]]]:
    graph, _ = planned_step(TINY, 1, "sample", True, 0)
    allocations: dict[str, tuple[int, int]] = {}
    pointer = 1 << 20
    for buffer in graph.buffers.values():
        if buffer.kind is not Kind.ACTIVATION:
            allocations[buffer.name] = (pointer, buffer.bytes)
            pointer += -(-buffer.bytes // 256) * 256
    return graph, allocations


def test_memory_of_a_captured_step() -> None:
    graph, allocations = captured()
    arena = (0, 1 << 20)
    verify_captured(graph, allocations, arena)
    for name, (pointer, size) in allocations.items():
        with pytest.raises(GraphError, match=f"buffer `{name}` has no memory that outlives the graph"):
            verify_captured(graph, {key: allocation for key, allocation in allocations.items() if key != name}, arena)
        with pytest.raises(GraphError, match=f"buffer `{name}` has {size - 1} bytes of memory"):
            verify_captured(graph, allocations | {name: (pointer, size - 1)}, arena)
        with pytest.raises(GraphError, match="shares memory with"):
            verify_captured(graph, allocations | {name: (arena[1] - 1, size)}, arena)


def test_only_activations_are_in_the_arena() -> None:
    graph, memory = planned_step(TINY, 1, "argmax", True, 0)
    for name in ("model.norm.weight", "token", "nobody"):
        with pytest.raises(GraphError, match=f"buffer `{name}` has a place in the arena, and is no activation"):
            verify(graph, MemoryPlan({**memory.offsets, name: 0}, memory.size), contract)


@pytest.mark.parametrize("value", [float("nan"), 0.5])
def test_integers_are_integers(value: float) -> None:
    graph, memory = planned_step(TINY, 17, "argmax", False, 64)
    change = with_op("layers.0.attention", lambda op: replace(op, scalars={**op.scalars, "past": value}))
    with pytest.raises(GraphError, match=r"scalar `past` of `flash_attention` is .*, not an integer"):
        verify(*change(graph, memory), contract)


def test_a_cache_bounds_no_index() -> None:
    graph, memory = planned_step(TINY, 1, "argmax", True, 0)
    with pytest.raises(GraphError, match="buffer `lengths` is computed, so nothing bounds it"):
        verify(*with_buffer("lengths", kind=Kind.CACHE)(graph, memory), contract)
