"""The verifier of all ranks: real steps pass, planted mistakes are refused with rank, operation and buffer."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final

import pytest

from engine.backends.interpreter import KERNELS
from engine.graph.integers import GraphError
from engine.graph.plan import MemoryPlan, plan_memory
from engine.graph.verify import verify
from engine.ranks.barrier import RankBarrier
from engine.ranks.interpreter import RankInterpreter
from engine.ranks.lifetimes import read_by_peers
from engine.ranks.step import RankStep, rank_step
from engine.ranks.verify import verify_lasting, verify_ranks
from tests.campaign import first
from tilec.step.collectives import COLLECTIVES
from tilec.step.graph import Op, StepGraph, View
from tilec.step.step import OUTPUT_MODES, Mode

SIZES = {
    "qwen3": {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_key_value_heads": 8},
    "llama": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "qwen3_moe": {
        "hidden_size": 2048, "moe_intermediate_size": 768, "num_attention_heads": 32, "num_key_value_heads": 4,
        "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
}  # fmt: skip
FORMATS = [("16bit", "16bit"), ("fp8", "16bit"), ("int4", "16bit"), ("w8a8", "fp8")]


def ranked(family: str = "qwen3", ranks: int = 2, weights: str = "16bit", caches: str = "16bit") -> RankStep:
    shape: Any = SimpleNamespace(
        **SIZES[family], head_dim=128, num_hidden_layers=3, vocab_size=4096, rms_norm_eps=1e-6, tie_word_embeddings=False,
        model_type=family,
    )  # fmt: skip
    return rank_step(shape, 2048, "bf16", ranks, weight_format=weights, cache_format=caches)


RANK: Final = RankInterpreter(0, RankBarrier(1), KERNELS)
"""Its contracts are those of the kernels at block sizes of the interpreter: no bundle has the sizes of ranks."""


PROMPTS: Final[list[tuple[Mode, int]]] = [("decode", 1), ("batch", 4), ("prefill", 5), ("prefill", 517)]
"""Modes of steps, and their tokens."""


def verify_modes(step: RankStep, modes: Iterable[tuple[Mode, int]] = PROMPTS, *, alone: bool = True) -> None:
    """Verify each mode with each output: all ranks together, and a rank alone with contracts of kernels and collectives."""
    for mode, tokens in modes:
        for head in OUTPUT_MODES if mode == "prefill" else OUTPUT_MODES[:3]:
            graph = step.graph(mode, head, tokens=tokens)
            memory = plan_memory(graph)
            verify_lasting(graph, memory)
            if head == "argmax" and alone:
                verify(graph, memory, RANK.contract)


@pytest.mark.parametrize(
    ("family", "formats", "ranks"),
    first(4, [("qwen3", FORMATS[0], 2), ("llama", FORMATS[3], 2), ("qwen3", FORMATS[1], 4), ("qwen3", FORMATS[2], 2),
              *((one, form, ranks) for one, form, ranks in itertools.product(SIZES, FORMATS, (2, 4))
                if one != "qwen3_moe" or ranks == 2 or form == FORMATS[0])]),
    ids=str,
)  # fmt: skip
def test_steps_of_all_modes_are_verified(family: str, formats: tuple[str, str], ranks: int) -> None:
    """`graph` verifies all ranks; the step of each is also verified alone, with contracts of kernels and collectives."""
    verify_modes(ranked(family, ranks, *formats), alone=ranks == 2)


def test_what_a_rank_has() -> None:
    """The numbers of the paper's partition: heads, columns of o_proj, and elements of `act` are divided, all else is whole."""
    step = ranked()
    of_whole = {weight.name: weight.shape for weight in step.whole.weights()}
    shapes = {weight.name: weight.shape for weight in step.weights()}
    assert shapes["model.layers.1.self_attn.qkv_proj.weight"] == (5120, 5120)
    assert shapes["model.layers.1.self_attn.o_proj.weight"] == (5120, 4096)
    assert shapes["model.layers.1.mlp.gate_up_proj.weight"] == (25600, 5120)
    assert shapes["model.layers.1.mlp.down_proj.weight"] == (5120, 12800)
    same = {name for name, shape in shapes.items() if shape == of_whole[name]}
    assert {name.removeprefix("model.layers.1.") for name in same if "layers.1" in name} == {
        "input_layernorm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "post_attention_layernorm.weight",
    }  # fmt: skip
    graph = step.graph("decode")
    assert graph.buffers["k_cache.0"].shape == (2048, 4, 128)
    kernels = [op.kernel for op in graph.ops if op.kernel in COLLECTIVES]
    assert kernels == ["all_reduce_add_scaled"] * 5 + ["all_reduce_add"]


Mutation = Callable[[StepGraph], StepGraph]


def changed(name: str, change: Callable[[Op], Op]) -> Mutation:
    def mutate(graph: StepGraph) -> StepGraph:
        assert any(op.name == name for op in graph.ops)
        return replace(graph, ops=[change(op) if op.name == name else op for op in graph.ops])

    return mutate


def viewed(name: str, parameter: str, change: Callable[[View], View]) -> Mutation:
    return changed(name, lambda op: replace(op, tensors={**op.tensors, parameter: change(op.tensors[parameter])}))


def reading(name: str, parameter: str, buffer: str) -> Mutation:
    return viewed(name, parameter, lambda view: replace(view, buffer=buffer))


def without(name: str) -> Mutation:
    return lambda graph: replace(graph, ops=[op for op in graph.ops if op.name != name])


def called(name: str, kernel: str) -> Mutation:
    return changed(name, lambda op: replace(op, kernel=kernel))


def unreduced(graph: StepGraph) -> StepGraph:
    """A sum that nobody makes whole: its reader takes the part."""
    return reading("layers.0.post_attention_layernorm", "x", "layers.0.o_proj_part")(graph)


@pytest.mark.parametrize(
    ("tokens", "mutate", "message"),
    [
        (517, unreduced,
         "rank 0: operation `layers.0.post_attention_layernorm`: buffer `layers.0.o_proj_part` is a part of a sum, and "
         "`add_rms_norm` takes `x` as whole"),
        (517, reading("layers.1.o_proj_sum", "out", "layers.1.o_proj_part"),
         "buffer `layers.1.o_proj_part` is a part of a sum, and `all_reduce` takes `out` as whole"),
        (517, called("layers.0.o_proj_sum", "rms_norm"),
         "operation `layers.0.o_proj_sum`: buffer `layers.0.o_proj_part` is a part of a sum, and `rms_norm` takes `x`"),
        (517, reading("layers.1.o_proj_sum", "x", "layers.0.normed_again"),
         "buffer `layers.0.normed_again` is whole, and `all_reduce` would add it 2 times"),
        (517, reading("layers.1.post_attention_layernorm", "x", "layers.1.act"), "axis 1"),
        (517, viewed("layers.0.attention", "q", lambda view: replace(view, shape=(517, 8, 4, 128))), "axis"),
        (517, called("layers.0.gate_up_proj", "matmul_with_bias"),
         "buffer `model.layers.0.mlp.gate_up_proj.weight` is a slice along axis 1, and `matmul_with_bias` takes `b` as whole"),
        (5, reading("layers.0.post_attention_layernorm", "parts", "layers.0.o_proj_part_2"),
         "buffer `layers.0.o_proj_part_2` is a part of a sum, and `add_rms_norm_splits` takes `parts` as whole"),
        (5, called("layers.0.post_attention_layernorm", "rms_norm_of_rows"),
         "buffer `layers.0.o_parts` is parts of a sum side by side, and `rms_norm_of_rows` does not add them"),
        (5, called("layers.0.o_proj_gather", "all_reduce"), "is `all_reduce`, and in the whole step `all_gather`"),
    ],
)  # fmt: skip
def test_planted_mistakes_in_every_rank(tokens: int, mutate: Mutation, message: str) -> None:
    """The same mistake in every rank and in the whole step, so that shapes agree and only what buffers hold can tell; or in the
    ranks only, if shapes are the mistake."""
    step = ranked()
    graph, whole = step.graph("prefill", tokens=tokens), step.whole.graph("prefill", tokens=tokens)
    of_shapes = "in the whole step" in message or message.startswith("axis")
    with pytest.raises(GraphError, match=re.escape(message)):
        verify_ranks([mutate(copy.copy(graph))] * 2, whole if of_shapes else mutate(copy.copy(whole)))


def swapped(first_name: str, second_name: str) -> Mutation:
    def mutate(graph: StepGraph) -> StepGraph:
        ops = list(graph.ops)
        a, b = (next(i for i, op in enumerate(ops) if op.name == name) for name in (first_name, second_name))
        ops[a], ops[b] = ops[b], ops[a]
        return replace(graph, ops=ops)

    return mutate


@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (without("layers.1.o_proj_sum"),
         "`layers.1.o_proj_sum` (E=bf16, RANKS=2; x [517, 5120], out [517, 5120]), and rank 1 in "
         "`all_reduce` of `layers.1.down_proj_sum`"),
        (without("layers.1.down_proj_sum"), "rank 0 meets in `all_reduce` of `layers.1.down_proj_sum`, and rank 1 never does"),
        (swapped("layers.0.o_proj_sum", "layers.0.down_proj_sum"),
         "rank 0 meets in `all_reduce` of `layers.0.o_proj_sum`"),
        (viewed("layers.0.o_proj_sum", "x", lambda view: replace(view, shape=(516, 5120))),
         "out [517, 5120]), and rank 1 in `all_reduce` of `layers.0.o_proj_sum` (E=bf16, RANKS=2; x [516, 5120]"),
        (changed("layers.0.o_proj_sum", lambda op: replace(op, constants={**op.constants, "RANKS": 4})), "RANKS=4"),
        (called("layers.0.o_proj_sum", "all_gather"), "and rank 1 in `all_gather` of `layers.0.o_proj_sum`"),
        (without("layers.0.qkv_proj"), "rank 0 runs `matmul` as `layers.0.qkv_proj`, and rank 1 `qk_norm_rope_kv` as"),
        (called("layers.0.qkv_proj", "matmul_few"), "and rank 1 `matmul_few` as `layers.0.qkv_proj`"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("guilty", [0, 1])
def test_ranks_that_do_not_meet(mutate: Mutation, message: str, guilty: int) -> None:
    step = ranked()
    graph, whole = step.graph("prefill", "none", tokens=517), step.whole.graph("prefill", "none", tokens=517)
    graphs = [graph, graph]
    graphs[guilty] = mutate(graph)
    with pytest.raises(GraphError) as caught:
        verify_ranks(graphs, whole)
    if guilty:
        assert message in str(caught.value)
    verify_ranks([graph, graph], whole)


def test_a_rank_whose_extents_are_no_equal_part() -> None:
    step = ranked()
    graph, whole = step.graph("prefill", tokens=517), step.whole.graph("prefill", tokens=517)
    buffers = {**graph.buffers, "layers.0.act": replace(graph.buffers["layers.0.act"], shape=(517, 12000))}
    with pytest.raises(GraphError, match=r"`layers.0.act` has 12000 of 25600 on axis 1, and 2 ranks have equal parts"):
        verify_ranks([replace(graph, buffers=buffers)] * 2, whole)


def test_a_slice_seen_along_another_axis_is_refused() -> None:
    """`mixed` is sliced by key heads; a reader that took the slice for one of queries of all of them would be wrong."""
    step = ranked()
    graph, whole = step.graph("prefill", tokens=517), step.whole.graph("prefill", tokens=517)
    mine = viewed("layers.0.attention", "out", lambda view: replace(view, shape=(517, 8, 4, 128)))(graph)
    with pytest.raises(GraphError, match=r"`layers.0.mixed` is a slice along axis 1, and as `out` a slice along axis 2"):
        verify_ranks([mine] * 2, whole)


def test_an_output_that_is_not_whole_is_refused() -> None:
    step = ranked()
    graph, whole = step.graph("decode", "logits"), step.whole.graph("decode", "logits")
    buffers = {**graph.buffers, "logits": replace(graph.buffers["logits"], shape=(1, 2048))}
    ops = [
        replace(op, tensors={**op.tensors, "out": replace(op.tensors["out"], shape=(1, 2048))}) if op.name == "lm_head" else op
        for op in graph.ops
    ]
    with pytest.raises(GraphError, match=r"`logits` is a slice along axis 1, and `matvec` takes `out` as whole"):
        verify_ranks([replace(graph, buffers=buffers, ops=ops)] * 2, whole)


def plan_without_peers(graph: StepGraph) -> MemoryPlan:
    """A plan that does not know that other ranks read."""
    from engine.graph import plan

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "read_by_peers", lambda _, ranges: ranges)
        return plan.plan_memory(graph)


@pytest.mark.parametrize("tokens", [5, 517])
def test_nobody_writes_what_others_may_still_read(tokens: int) -> None:
    graph = ranked().graph("prefill", tokens=tokens)
    verify_lasting(graph, plan_memory(graph))
    with pytest.raises(GraphError, match=r"lies where other ranks may still read `layers.0.o_proj_part(_2)?`"):
        verify_lasting(graph, plan_without_peers(graph))


def test_what_others_read_lives_until_the_next_collective() -> None:
    graph = ranked().graph("prefill", tokens=517)
    positions = {op.name: position for position, op in enumerate(graph.ops)}
    short = {"layers.0.o_proj_part": (0, positions["layers.0.o_proj_sum"])}
    assert read_by_peers(graph, short)["layers.0.o_proj_part"][1] == positions["layers.0.down_proj_sum"]
    last = [op for op in graph.ops if op.kernel in COLLECTIVES][-1]
    name = last.tensors["x"].buffer
    assert read_by_peers(graph, {name: (0, positions[last.name])})[name][1] == len(graph.ops) - 1
