"""Mixtures of experts that ranks share, before the verifier of all ranks: real steps pass, planted mistakes are refused."""

from __future__ import annotations

import copy
import re
from dataclasses import replace
from typing import Any

import pytest
from test_verify_ranks import FORMATS, PROMPTS, Mutation, called, changed, ranked, reading, verify_modes, viewed, without

from engine.graph.integers import GraphError
from engine.graph.invariance import verify_invariance, with_tiles
from engine.ranks.shards import ShardError, shards_of, verify_shards
from engine.ranks.step import RankStep
from engine.ranks.verify import verify_ranks
from tests.campaign import first
from tilec.step.collectives import COLLECTIVES
from tilec.step.expressions import StepError
from tilec.step.graph import StepGraph
from tilec.step.ranks import among_ranks

GATE = "model.layers.*.mlp.gate.weight"
DOWN = "model.layers.*.mlp.experts.down_proj.weight"
GATE_UP = "model.layers.*.mlp.experts.gate_up_proj.weight"


@pytest.mark.parametrize(("weights", "caches"), first(2, [FORMATS[0], FORMATS[3], *FORMATS[1:3]]))
def test_steps_of_all_modes_are_verified(weights: str, caches: str) -> None:
    """Of all tiles of experts, of 16, 64 and 128 rows."""
    step = ranked("qwen3_moe", 2, weights, caches).with_pages(40)
    verify_modes(step, [*PROMPTS, ("prefill", 1500), ("serve", 8), ("chunk", 300)])


def test_what_a_rank_has() -> None:
    """Half of the rows of gate and of up and of the columns of down, of every expert; the router is whole."""
    step = ranked("qwen3_moe")
    of_whole = {weight.name: weight.shape for weight in step.whole.weights()}
    shapes = {weight.name: weight.shape for weight in step.weights()}
    layer = "model.layers.1."
    assert shapes[f"{layer}mlp.experts.gate_up_proj.weight"] == (128, 768, 2048)
    assert shapes[f"{layer}mlp.experts.down_proj.weight"] == (128, 2048, 384)
    assert {name.removeprefix(layer) for name, shape in shapes.items() if layer in name and shape == of_whole[name]} == {
        "input_layernorm.weight", "self_attn.q_norm.weight", "self_attn.k_norm.weight", "post_attention_layernorm.weight",
        "mlp.gate.weight",
    }  # fmt: skip


@pytest.mark.parametrize(("mode", "tokens"), [("decode", 1), ("prefill", 5), ("prefill", 1500), ("serve", 8)])
def test_ranks_meet_twice_in_a_layer(mode: Any, tokens: int) -> None:
    """As in dense models; of a prompt with a row for each token, not for each expert of each."""
    graph = ranked("qwen3_moe").with_pages(40).graph(mode, "none" if mode == "prefill" else "argmax", tokens=tokens)
    met = [op for op in graph.ops if op.kernel in COLLECTIVES]
    assert len(met) == (4 if mode == "prefill" else 6)
    assert {op.tensors["x"].shape[-2:] for op in met} == {(tokens, 2048)}


@pytest.mark.parametrize("weights", ["16bit", "fp8", "int4", "w8a8"])
def test_no_sum_of_a_row_over_pages_depends_on_the_number_of_rows(weights: str) -> None:
    """Rows in the order of experts are quantised one by one, and have room that the number of tokens decides."""
    step = ranked("qwen3_moe", 2, weights).with_pages(40)
    chunks = [step.graph("chunk", tokens=tokens) for tokens in (1, 129, 600)]
    verify_invariance(chunks, lambda op: op.constants)
    rows = [step.graph("serve", tokens=tokens) for tokens in (8, 32)]
    verify_invariance([with_tiles(graph, 16) for graph in rows], lambda op: {**op.constants, "ROWS": 0})


def test_every_element_of_an_expert_is_in_one_rank() -> None:
    """`shards_of` has checked all; a rank without its part of one expert, or with that of the other rank, is refused."""
    step = ranked("qwen3_moe")
    ranks = [shards_of(step, rank) for rank in range(2)]
    shapes = {name: shard.shape for name, shard in ranks[0].items()}
    name = "model.layers.2.mlp.experts.77.down_proj.weight"
    assert (shapes[name], ranks[1][name].begin, ranks[1][name].end, ranks[1][name].axis) == ((2048, 768), 384, 768, 1)
    verify_shards(shapes, ranks)
    for changed_ranks, message in (
        ([ranks[0], {other: shard for other, shard in ranks[1].items() if other != name}], f"rank 1 has no part of `{name}`"),
        ([ranks[0], {**ranks[1], name: ranks[0][name]}], f"the columns 0..384 of `{name}` are of rank 0 and of rank 1 too"),
        ([ranks[0], {**ranks[1], name: replace(ranks[1][name], begin=385)}], f"columns 384..385 of `{name}` are of no rank"),
    ):
        with pytest.raises(ShardError, match=re.escape(message)):
            verify_shards(shapes, changed_ranks)


def resharded(**changes: Any) -> RankStep:
    """The step of another table `shards`; None takes a weight out."""
    step = ranked("qwen3_moe")
    (declaration, numbers, ranks), formats = step._given, step._formats  # pyright: ignore[reportPrivateUsage]
    shards = {name: shard for name, shard in {**declaration.shards, **changes}.items() if shard is not None}
    return RankStep(replace(declaration, shards=shards), numbers, ranks, **formats)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({GATE_UP: None}, r"experts.0.gate_proj.weight` is \[768, 2048\] and \[384, 2048\] .* says that it is whole"),
        ({DOWN: None}, r"experts.0.down_proj.weight` is \[2048, 768\] and \[2048, 384\] .* says that it is whole"),
        ({GATE: "rows"}, r"rank 1 has the rows 128..256 of `model.layers.0.mlp.gate.weight`, which has 128"),
    ],
)
def test_a_table_that_does_not_say_what_is_shared(changes: dict[str, Any], message: str) -> None:
    shards = ranked("qwen3_moe").declaration.shards
    rows = shards[GATE_UP]
    with pytest.raises(ShardError, match=message):
        shards_of(resharded(**{name: rows if one == "rows" else one for name, one in changes.items()}), 0)


@pytest.mark.parametrize(("mode", "tokens"), [("decode", 1), ("prefill", 5), ("prefill", 517)])
def test_a_router_of_which_a_rank_has_a_part_is_refused(mode: Any, tokens: int) -> None:
    """Ranks would choose among their own experts."""
    step = ranked("qwen3_moe")
    graph = step.graph(mode, "none" if mode == "prefill" else "argmax", tokens=tokens)
    whole = step.whole.graph(mode, "none" if mode == "prefill" else "argmax", tokens=tokens)

    def halved(of: StepGraph, name: str, parameter: str, axis: int) -> StepGraph:
        buffer = next(op for op in of.ops if op.name == name).tensors[parameter].buffer
        shape = list(of.buffers[buffer].shape)
        shape[axis] //= 2
        ops = [
            replace(op, tensors={
                key: replace(view, shape=tuple(shape)) if view.buffer == buffer else view for key, view in op.tensors.items()
            }) for op in of.ops
        ]  # fmt: skip
        return replace(of, ops=ops, buffers={**of.buffers, buffer: replace(of.buffers[buffer], shape=tuple(shape))})

    weight = "w" if mode == "decode" else "b"
    mine = halved(halved(graph, "layers.0.router", weight, 0), "layers.0.router", "out", 1)
    with pytest.raises(GraphError, match=r"`layers.0.router` is a slice along axis 1, and `route_experts` takes `logits` as"):
        verify_ranks([mine] * 2, whole)


@pytest.mark.parametrize(
    ("mode", "tokens", "mutate", "message"),
    [
        ("decode", 1, called("layers.1.down_proj_product", "experts_add"),
         "buffer `layers.0.act` is a slice along axis 2, and `experts_add` takes `x` as whole"),
        ("decode", 1, reading("layers.2.down_proj_sum", "x", "layers.1.scaled"),
         "buffer `layers.1.scaled` is whole, and `all_reduce_add_scaled` would add it 2 times"),
        ("decode", 1, called("layers.1.down_proj_sum", "rms_norm_of_rows"),
         "buffer `layers.1.down_proj_part` is a part of a sum, and `rms_norm_of_rows` takes `x` as whole"),
        ("prefill", 5, reading("layers.1.input_layernorm_norm", "x", "layers.1.input_layernorm_part"),
         "buffer `layers.1.input_layernorm_part` is a part of a sum, and `add_rms_norm` takes `x` as whole"),
        ("prefill", 517, reading("layers.1.input_layernorm_sum", "x", "layers.0.o"),
         "buffer `layers.0.o` is whole, and `all_reduce` would add it 2 times"),
        ("prefill", 517, called("layers.1.input_layernorm_of_rank", "experts_combine"),
         "is a part of a sum, and `experts_combine` takes `y` as whole"),
        ("prefill", 517, viewed("layers.0.gate_up_proj", "out", lambda view: replace(view, shape=(view.shape[0] // 2, 768))),
         "axis"),
        ("serve", 8, reading("layers.1.input_layernorm_of_rank", "y", "layers.0.few_sorted_act"), "axis 1"),
        ("serve", 8, called("layers.0.route", "experts_silu_mul"), "whose axes no signature of `experts_silu_mul` gives"),
    ],
)  # fmt: skip
def test_planted_mistakes_in_every_rank(mode: Any, tokens: int, mutate: Mutation, message: str) -> None:
    """The same mistake in every rank and in the whole step, so that shapes agree and only what buffers hold can tell; or in the
    ranks only, if shapes are the mistake."""
    step = ranked("qwen3_moe").with_pages(40)
    graph, whole = step.graph(mode, tokens=tokens), step.whole.graph(mode, tokens=tokens)
    with pytest.raises(GraphError, match=re.escape(message)):
        verify_ranks([mutate(copy.copy(graph))] * 2, whole if message.startswith("axis") else mutate(copy.copy(whole)))


@pytest.mark.parametrize("guilty", [0, 1])
@pytest.mark.parametrize(
    ("mutate", "message"),
    [
        (without("layers.0.route"), "runs `route_experts` as `layers.0.route`"),
        (without("layers.1.input_layernorm_sum"), "meets in `all_reduce` of `layers.1.input_layernorm_sum`"),
        (changed("layers.0.down_proj", lambda op: replace(op, kernel="experts_matmul_few")), "`experts_matmul_few` as"),
    ],
)
def test_a_rank_that_runs_something_else(mutate: Mutation, message: str, guilty: int) -> None:
    step = ranked("qwen3_moe")
    graph, whole = step.graph("prefill", "none", tokens=1500), step.whole.graph("prefill", "none", tokens=1500)
    graphs = [graph, graph]
    graphs[guilty] = mutate(graph)
    with pytest.raises(GraphError) as caught:
        verify_ranks(graphs, whole)
    assert message in str(caught.value) or guilty == 0


def test_products_of_experts_that_nothing_makes_whole_are_refused() -> None:
    declaration = ranked("qwen3_moe")._given[0]  # pyright: ignore[reportPrivateUsage]
    sums = {name: one for name, one in declaration.sums.items() if name != "experts_combine"}
    with pytest.raises(StepError, match="`experts_combine` reads a part of a sum, and `sums` has no launches for it"):
        among_ranks(replace(declaration, sums=sums))
