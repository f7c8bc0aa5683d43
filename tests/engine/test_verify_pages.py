"""The verifier on steps over pages: real ones pass, and what could reach another sequence, or add a row in another order, is
refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from step_contracts import DENSE, TINY, contract, shape_of

from engine.backends.paged_steps import check_replay
from engine.graph.integers import GraphError
from engine.graph.invariance import verify_invariance
from engine.graph.plan import plan_memory
from engine.graph.verify import Contract, verify
from engine.models.dense import UNMEASURED
from engine.models.steps import model_step
from tilec.artifact.records import ValueCheck
from tilec.step.graph import Kind, Op, StepGraph, View
from tilec.step.step import BUCKETS, Step


def step(shape: Any = TINY) -> Step:
    return model_step(shape, 2048).with_pages(50)


def serve(tokens: int = 32, head: Any = "argmax", shape: Any = TINY) -> StepGraph:
    return step(shape).graph("serve", head, tokens=tokens)


def chunk(tokens: int = 20, head: Any = "argmax", past: int = 70) -> StepGraph:
    return step().graph("chunk", head, tokens=tokens, past=past)


@pytest.mark.parametrize("name", DENSE)
def test_real_steps_are_verified(name: str) -> None:
    for head in ("argmax", "sample", "logits"):
        for tokens in (8, 32, 256):
            graph = serve(tokens, head, shape_of(name))
            check_replay(verify(graph, plan_memory(graph), contract))


@pytest.mark.parametrize("head", ["argmax", "sample", "logits", "none"])
def test_real_chunks_are_verified(head: str) -> None:
    graph = chunk(head=head)
    verify(graph, plan_memory(graph), contract)


def changed(graph: StepGraph, kernel: str, **others: Any) -> StepGraph:
    """Gives the first operation of a kernel other tensors, scalars or constants, by name."""
    position, op = next((position, op) for position, op in enumerate(graph.ops) if op.kernel == kernel)
    tensors = {name: others.get(name, view) for name, view in op.tensors.items()}
    constants = {name: others.get(name, value) for name, value in op.constants.items()}
    scalars = {name: others.get(name, value) for name, value in op.scalars.items()}
    graph.ops[position] = replace(op, tensors=tensors, constants=constants, scalars=scalars)
    return graph


def refused(graph: StepGraph, match: str, of: Callable[[Op], Contract] = contract) -> None:
    with pytest.raises(GraphError, match=match):
        verify(graph, plan_memory(graph), of)


def test_pages_of_another_table_are_refused() -> None:
    graph = serve()
    graph.buffer("others", "i32", (32, 32), Kind.INPUT, low=0, high=50)
    match = "finds its pages in `others`, which is not the step's `table`"
    refused(changed(graph, "paged_decode_attention", table=View("others", (32, 32))), match)


def test_slots_that_are_not_the_steps_are_refused() -> None:
    graph = serve()
    graph.buffer("others", "i32", (32,), Kind.INPUT, low=0, high=50 * 64, distinct=True)
    refused(changed(graph, "qk_norm_rope_kv", slots=View("others", (32,))), "which is not the step's `slots`")
    graph = chunk()
    graph.buffer("others", "i32", (32,), Kind.INPUT, low=0, high=50)
    refused(changed(graph, "paged_gather", table=View("others", (32,))), "which is not the step's `table`")


def test_a_pool_that_is_written_without_distinct_slots_is_refused() -> None:
    def careless(op: Op) -> Contract:
        own = contract(op)
        if op.kernel != "qk_norm_rope_kv":
            return own
        return replace(own, value_checks=tuple(replace(check, distinct=False) for check in own.value_checks))

    refused(serve(), "may write one of its slots for two tokens", careless)


def test_a_pool_whose_index_nobody_bounds_is_refused() -> None:
    def silent(op: Op) -> Contract:
        own = contract(op)
        checks: tuple[ValueCheck, ...] = tuple(check for check in own.value_checks if check.tensor != "table")
        return replace(own, value_checks=checks) if op.kernel == "paged_decode_attention" else own

    refused(serve(), "takes no index of its pages as `k_pages`", silent)


def test_a_part_of_a_pool_is_refused() -> None:
    refused(
        changed(serve(), "paged_decode_attention", k_pages=View("k_pages.0", (49, 64, 8, 128))), "is a part of it|extent 50"
    )


def test_pages_beyond_the_pool_are_refused() -> None:
    graph = serve()
    table = graph.buffers["serve.table"]
    graph.buffers["serve.table"] = replace(table, high=51)
    refused(graph, "holds 0 to 50, and `table` of `paged_decode_attention` takes 0 to 49")


@pytest.mark.parametrize("role", ["firsts", "lasts"])
def test_slots_of_a_chunk_that_are_not_those_that_the_host_sent_are_refused(role: str) -> None:
    """A chunk before may have left them (stale), or they are those of another launch."""
    graph = chunk()
    graph.buffer("left", "i32", (20,), Kind.CACHE, low=0, high=4096)
    refused(changed(graph, "packed_flash_attention", **{role: View("left", (20,))}), f"`{role}` from `left`|is computed")
    graph = chunk()
    graph.buffer("others", "i32", (20,), Kind.INPUT, low=0, high=4096)
    match = f"takes its `{role}` from `others`, not from the step's input"
    refused(changed(graph, "packed_flash_attention", **{role: View("others", (20,))}), match)


def test_attention_that_knows_no_prompt_of_a_chunk_is_refused() -> None:
    """`flash_attention` would attend to all tokens before a token's row, those of other prompts too."""
    graph = chunk()
    position, op = next((at, op) for at, op in enumerate(graph.ops) if op.kernel == "packed_flash_attention")
    tensors = {name: view for name, view in op.tensors.items() if name not in ("firsts", "lasts")}
    scalars = {**op.scalars, "past": 0}
    graph.ops[position] = replace(op, kernel="flash_attention", tensors=tensors, scalars=scalars)
    refused(graph, "takes its `firsts` from nothing")


def test_slots_beyond_the_copy_of_a_chunk_are_refused() -> None:
    graph = chunk()
    graph.buffers["chunk.lasts"] = replace(graph.buffers["chunk.lasts"], high=4097)
    refused(graph, "holds 0 to 4096, and `lasts` of `packed_flash_attention` takes 0 to 4095")


def test_a_prompt_that_ends_beyond_the_chunk_is_refused() -> None:
    graph = chunk()
    graph.buffers["chunk.last"] = replace(graph.buffers["chunk.last"], high=21)
    refused(graph, "holds 0 to 20, and `ids` of `embedding` takes 0 to 19")


def test_tokens_that_count_from_what_they_were_are_refused() -> None:
    graph = step().graph("serve", tokens=16)
    replay = verify(graph, plan_memory(graph), contract)
    (written,) = replay.written_values
    with pytest.raises(GraphError, match="`ids` is written, and counts from what it was"):
        check_replay(replace(replay, written_values=(replace(written, above=("ids",)),)))
    with pytest.raises(GraphError, match="`ids` is written, and could leave its bounds"):
        check_replay(replace(replay, written_values=(replace(written, high=written.high + 1),)))


def constants(op: Op) -> Any:
    return op.constants


@pytest.mark.parametrize("head", ["argmax", "sample", "logits"])
def test_rows_of_all_buckets_and_tokens_of_all_chunks_are_invariant(head: Any) -> None:
    verify_invariance([serve(tokens, head) for tokens in BUCKETS], constants)
    verify_invariance([chunk(tokens, head, past) for tokens, past in ((1, 0), (7, 64), (2048, 0))], constants)


OF_ROWS = [
    ("qwen3-4b", "gate_up_proj", "BM", [64, 64, 64, 64, 128, 256]),
    ("qwen3-14b", "gate_up_proj", "BM", [64, 64, 64, 64, 128, 128]),  # 182 tiles of 96 outputs
    ("qwen3-8b", "qkv_proj", "BN", [64, 64, 64, 64, 64, 96]),
    ("qwen3-14b", "qkv_proj", "BN", [64, 64, 64, 64, 64, 128]),  # 150 tiles of 96 outputs by 128 rows
    ("qwen3-8b", "attention", "ROWS", [256, 256, 32, 256, 256, 256]),
]


@pytest.mark.parametrize(("name", "launch", "constant", "wanted"), OF_ROWS)
def test_tiles_follow_the_number_of_rows(name: str, launch: str, constant: str, wanted: list[int]) -> None:
    """Larger ones where each of 132 multiprocessors has at most one; and attention is that of a bucket."""
    measured = {**UNMEASURED, "few_blocks": 132, "row_blocks": 528}
    of = model_step(shape_of(name), 2048, measured=measured).with_pages(50)
    graphs = [of.graph("serve", "argmax", tokens=tokens, layers=1) for tokens in BUCKETS]
    found = [[op.constants[constant] for op in graph.ops if op.name.endswith(launch)] for graph in graphs]
    assert found == [[one] for one in wanted]


SHAPING: list[tuple[str, dict[str, Any], str]] = [
    ("matmul_split", {"S": 4}, "`S` = 8, or 4"),
    ("paged_decode_attention", {"CHUNK": 512}, "`CHUNK` = 256, or 512"),
    ("paged_decode_attention", {"scale": 0.5}, "`scale` = "),
    ("add_rms_norm_splits", {"eps": 0.5}, "`eps` = "),
    ("chunk_starts", {"CHUNK": 128}, "`CHUNK` = 256, or 128"),
    ("qk_norm_rope_kv", {"GROUP": 1}, "`GROUP` = 8, or 1"),
    ("add_rms_norm_splits", {"parts": View("layers.0.o_parts", (7, 64, 1024))}, "extent 8, or 7, on axis 0 of `parts`"),
    ("paged_merge", {"out": View("layers.0.mixed", (32, 16, 2, 128))}, "extent 8, or 16, on axis 1 of `out`"),
    ("paged_merge", {"out": View("layers.1.mixed", (64, 8, 2, 128))}, "has another `out`"),
]


@pytest.mark.parametrize(("kernel", "others", "match"), SHAPING)
def test_what_shapes_a_sum_may_not_follow_the_number_of_rows(kernel: str, others: dict[str, Any], match: str) -> None:
    with pytest.raises(GraphError, match=match):
        verify_invariance([serve(32), changed(serve(64), kernel, **others)], constants)


def test_a_number_of_parts_that_equals_the_rows_is_refused() -> None:
    first, other = serve(16), serve(32)
    for graph in (first, other):
        changed(graph, "paged_merge", out=View("layers.0.mixed", (graph.tokens, graph.tokens, 8, 128)))
    with pytest.raises(GraphError, match="on axis 1 of `out`, which does not count rows"):
        verify_invariance([first, other], constants)


def test_another_launch_in_another_bucket_is_refused() -> None:
    other = serve(64)
    other.ops[3] = replace(other.ops[3], kernel="matmul")
    with pytest.raises(GraphError, match="launches `matmul_few`, or `matmul`"):
        verify_invariance([serve(32), other], constants)
    with pytest.raises(GraphError, match="launches"):
        verify_invariance([serve(32), replace(serve(64), ops=serve(64).ops[1:])], constants)


def test_prefills_with_small_m_are_not_invariant() -> None:
    """The launches of a prefill without pages follow from its length, which is what the rule is for."""
    prefills = [model_step(TINY, 2048).graph("prefill", tokens=tokens) for tokens in (4, 100)]
    with pytest.raises(GraphError, match="launches"):
        verify_invariance(prefills, constants)
