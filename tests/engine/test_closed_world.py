"""The artifacts that the graphs of every model launch are exactly those that its bundle would contain."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.models.families import FAMILIES
from engine.sampling import TOP_K_LIMIT
from tests import campaign
from tests.shipped import ROOT
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.closed_world import default_entries, enumerate_world
from tilec.project.read.models import Constant, Model
from tilec.project.read.plan import artifact_name
from tilec.step.collectives import COLLECTIVES, GATHER, MEET
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import SERVE, Op
from tilec.step.step import BATCHES, BUCKETS, CHUNK_TOKENS, DTYPES, OUTPUT_MODES, Step
from tilec.target.targets import Target

BUILD = read_build_file(ROOT / "build.toml")
STORED = (
    "scaled_matvec", "scaled_matvec_silu_mul", "matvec_add_scaled", "matvec_add", "scaled_matvec_rows",
    "scaled_matvec_silu_mul_rows", "matvec_add_scaled_rows", "matmul_few", "matmul_split", "matmul_silu_mul_few",
)  # fmt: skip
"""Kernels that take weights as they are stored."""
OF_FORMAT = {
    SIXTEEN_BIT: set[str](),
    "fp8": {"dequantise_fp8", *(f"{name}_fp8" for name in STORED)},
    "w8a8": {"quantise_rows", "matmul_fp8", "matmul_silu_mul_fp8", *(f"{name}_fp8" for name in STORED)},
    "int4": {"dequantise_int4", *(f"{name}_int4" for name in STORED)},
    "fp8_head": {"dequantise_fp8", *(f"{name}_fp8" for name in STORED if name != "matvec_add")},
    "int4_head": {
        "dequantise_int4", *(f"{name}_int4" for name in STORED if name != "matvec_add"), "scaled_matvec_fp8",
        "scaled_matvec_rows_fp8", "matmul_few_fp8",
    },
}  # fmt: skip
LENGTHS = [tokens for tokens in range(1, CHUNK_TOKENS + 1) if tokens % 32 in (0, 1, 31)]
"""The lengths around those at which the tiles of a product can change."""
LONGER = range(CHUNK_TOKENS + 512, 8192 + 1, 512)
"""Of models whose prefill takes more tokens at once."""


def launched(build: BuildFile, model: Model, target: Target, weights: str, gpus: int = 1) -> set[str]:
    """The artifacts that graphs of a model with weights in a format launch, looked up one by one as a bundle's reader does; on
    each of several GPUs also the one in which they meet."""
    family = build.families[model.family]
    tuning = family.tunings[target]
    numbers = {**model.config, **tuning.numbers, "num_hidden_layers": 3, "rms_norm_eps": 1e-6}
    found: set[str] = set()
    for dtype in DTYPES:
        step = Step(
            family.declaration, numbers, tied=True, dtype=dtype, max_seq_len=4096, weight_format=weights, pages=100, ranks=gpus
        )
        graphs = [
            step.graph("decode", output_mode, variants=variants)
            for output_mode in OUTPUT_MODES
            for variants in step.all_decode_variants()
        ]
        graphs += [
            step.graph("prefill", output_mode, tokens=tokens)
            for output_mode in OUTPUT_MODES
            for tokens in (1, 2, 16, CHUNK_TOKENS)
        ]
        graphs += [step.graph("prefill", tokens=tokens) for tokens in (*LENGTHS, *LONGER) if tokens <= step.chunk_tokens]
        graphs += [
            step.graph("batch", output_mode, tokens=tokens, variants=variants)
            for output_mode in OUTPUT_MODES
            for tokens in BATCHES
            for variants in step.all_decode_variants()
        ]
        if SERVE in step.declaration.modes:
            graphs += [step.graph("serve", output_mode, tokens=tokens) for output_mode in OUTPUT_MODES for tokens in BUCKETS]
            graphs += [step.graph("chunk", output_mode, tokens=CHUNK_TOKENS) for output_mode in OUTPUT_MODES]
            graphs += [step.graph("chunk", tokens=tokens) for tokens in LENGTHS]
        requested = {
            (op.kernel, frozenset({**tuning.constants(op.kernel, shapes(op)), **op.constants}.items()))
            for graph in graphs
            for op in graph.ops
        }
        requested |= {(MEET, frozenset({"RANKS": gpus}.items()))} if gpus > 1 else set()
        found |= {artifact_of(build, kernel, dict(constants), target) for kernel, constants in requested}
    return found


def shapes(op: Op) -> dict[str, tuple[int, ...]]:
    return {name: view.shape for name, view in op.tensors.items()}


def artifact_of(build: BuildFile, kernel: str, constants: dict[str, Constant], target: Target) -> str:
    """The one artifact of a kernel with these constants."""
    fitting = [
        artifact_name(entry.name, values)
        for entry in build.entries
        if entry.name == kernel and target in entry.among(None)
        for values in entry.specialisations()
        if all(values.get(name) == value for name, value in constants.items())
    ]
    assert len(fitting) == 1, (kernel, constants, fitting)
    return fitting[0]


CASES = [(model, target, weights) for model in BUILD.models for target in BUILD.targets for weights in model.weights]
IDS = [f"{model.bundle_name(weights)}-{target}" for model, target, weights in CASES]


def is_sampled(case: tuple[Model, Target, str]) -> bool:
    """In the default run each model is tested on one architecture, round-robin, and in each format on another one."""
    at = BUILD.models.index(case[0]), BUILD.targets.index(case[1]), case[0].weights.index(case[2])
    return sum(at) % len(BUILD.targets) == 0


@pytest.mark.parametrize(("model", "target", "weights"), campaign.chosen(CASES, is_sampled), ids=IDS)
def test_a_bundle_contains_exactly_what_its_step_needs(model: Model, target: Target, weights: str) -> None:
    available = set(enumerate_world(BUILD, models=[model.name], weights=[weights]).artifacts(model.name, target, weights))
    needed = launched(BUILD, model, target, weights)
    assert (len(available - needed), len(needed - available)) == (0, 0)
    if model.family == "qwen3_moe":  # the counts below are those of dense models
        kernels = {name.partition("-")[0] for name in available}
        end = "" if weights == SIXTEEN_BIT else "_fp8" if weights == "w8a8" else f"_{weights}"
        names = ("experts_silu_mul", "experts_add_scaled", "experts_add", "experts_matmul_few", "experts_matmul_silu_mul_few")
        assert {"route_experts", "experts_combine", *(f"{name}{end}" for name in names)} <= kernels
        assert ({f"dequantise{end}", f"dequantise_each{end}"} <= kernels) == (weights in ("fp8", "int4"))
        of_codes = {"quantise_rows", "matmul_fp8", "experts_matmul_fp8", "experts_matmul_silu_mul_fp8"}
        assert kernels & of_codes == (of_codes if weights == "w8a8" else set())
        assert not kernels & {"matvec_add", "matmul_silu_mul", "scaled_matvec_silu_mul"}
        return
    products = {name for name in available if name.startswith("matmul")}
    query = model.config["num_attention_heads"] * model.config["head_dim"]
    rows_of_both = 0 if query == model.config["hidden_size"] else 2 * len(DTYPES)  # of one prompt, and of several, are gathered
    # What dequantises or quantises, and kernels of batches that the head shares with a linear layer if that has 16 bits too.
    more = 0 if weights == SIXTEEN_BIT else 1 + len(BATCHES)
    if weights.endswith("_head"):  # it has kernels of linear layers, and the norm before it none of its own
        more -= 3 + 2 * len(BATCHES)
        more += 0 if weights == "fp8_head" else 1 + len(BATCHES)
    pages = 2 + 7 * len(DTYPES)  # kernels that only steps over pages launch, attention for three sizes of batches
    assert len(available - products) == 88 + rows_of_both + len(DTYPES) * more + pages
    ends_of_formats = ("_fp8", "_int4", "quantise_rows")
    assert {kernel for name in available if (kernel := name.partition("-")[0]).endswith(ends_of_formats)} == OF_FORMAT[weights]
    ends = ("_fp8-", "-") if weights == "w8a8" else ("-", "_fp8-")
    for kernel, limit in (("matmul", 18), ("matmul_silu_mul", 12)):  # the number of tile shapes depends on measurements
        of_tiles, others = ([name for name in products if name.startswith(kernel + end)] for end in ends)
        assert 2 <= len(of_tiles) <= limit and not others


SHARED = [(model, target, weights) for model, target, weights in CASES if 2 in model.gpus]


@pytest.mark.parametrize(
    ("model", "target", "weights"), campaign.chosen(SHARED, is_sampled), ids=[IDS[CASES.index(case)] for case in SHARED]
)
def test_a_bundle_of_two_gpus_contains_exactly_what_a_rank_s_step_needs(model: Model, target: Target, weights: str) -> None:
    """Of steps over pages, too; with the kernels in which ranks meet, and none that takes a sum of all columns."""
    world = enumerate_world(BUILD, models=[model.name], weights=[weights], gpus=[2])
    available = set(world.artifacts(model.name, target, weights, gpus=2))
    needed = launched(BUILD, model, target, weights, 2)
    assert (available - needed, needed - available) == (set(), set())
    kernels = {name.partition("-")[0] for name in available}
    if model.family == "qwen3_moe":
        end = "" if weights == SIXTEEN_BIT else "_fp8" if weights == "w8a8" else f"_{weights}"
        assert kernels >= {
            "experts_sum",
            *(f"{name}{end}" for name in ("experts_silu_mul", "experts_down", "experts_matmul_few")),
        }
        assert not [name for name in kernels if name.startswith(("experts_add", "experts_combine"))]
        attention = "paged_decode_attention_wide" if model.name == "qwen3-235b-a22b" else "paged_decode_attention"
        assert kernels >= {*COLLECTIVES, MEET, attention, "paged_gather", "argmax_blocks"}
        return
    # A head of codes takes its inputs with the scale of the norm, as linear layers do: no sum of ranks is added without one.
    collectives = {*COLLECTIVES} - ({"all_reduce_add"} if weights.endswith("_head") else set())
    assert kernels & {*COLLECTIVES} == collectives
    assert kernels >= {MEET, "paged_decode_attention", "paged_gather", "paged_merge", "argmax_blocks"}
    assert not [name for name in kernels if name.startswith("matvec_add")]
    assert {use.constants["PARTS"] for use in world.uses if use.kernel == GATHER} <= {2, 4}


MIXED = [
    (base, dense_layers, target, weights, gpus)
    for base, dense_layers in (
        ("qwen3-30b-a3b", "0"),
        ("qwen3-235b-a22b", "1,2"),
        ("qwen3-30b-a3b", "2"),
        ("qwen3-30b-a3b", "0,2"),
    )
    for target in BUILD.targets
    for weights in ("16bit", "fp8", "w8a8", "int4")
    for gpus in (1, 2)
]


@pytest.mark.parametrize(
    ("base", "dense_layers", "target", "weights", "gpus"),
    campaign.one_of_each(MIXED, lambda case: case[1], lambda case: case[3], lambda case: case[4]),
)  # fmt: skip
def test_a_mixture_with_dense_layers_has_the_kernels_of_both(
    base: str, dense_layers: str, target: Target, weights: str, gpus: int
) -> None:
    """No build file has such a model; its entries have all that one asks for, and a bundle of it no more than it launches. The
    step has three layers, as those that are compared."""
    of_base = next(model for model in BUILD.models if model.name == base)
    numbers = {
        "intermediate_size": 3 * int(of_base.config["hidden_size"]),
        "dense_layers": dense_layers,
        "num_hidden_layers": 3,
    }
    model = replace(of_base, name="mixed", config={**of_base.config, **numbers})
    build = replace(BUILD, models=(model,))
    world = enumerate_world(build, weights=[weights], gpus=[gpus])
    assert not world.problems
    available, needed = set(world.artifacts("mixed", target, weights, gpus=gpus)), launched(build, model, target, weights, gpus)
    assert (available - needed, needed - available) == (set(), set())
    kernels = {name.partition("-")[0] for name in available}
    end = {"16bit": "", "w8a8": "_fp8"}.get(weights, f"_{weights}")
    assert {f"matmul_silu_mul_few{end}", f"experts_matmul_few{end}", f"scaled_matvec_silu_mul{end}", "route_experts"} <= kernels
    assert ("matvec_add" in {name.removesuffix(end) for name in kernels}) == ("2" in dense_layers and gpus == 1)


def test_no_build_has_the_kernels_of_a_requested_model() -> None:
    """Every request is checked, and a build that names no kernel has what other models need, as before."""
    assert [model.name for model in BUILD.models if model.requested] == ["qwen3-30b-a3b", "qwen3-235b-a22b"]
    world = enumerate_world(BUILD)
    assert not world.problems
    others = enumerate_world(BUILD, models=[model.name for model in BUILD.models if not model.requested])
    assert len(others.uses) < len(world.uses)
    assert default_entries(BUILD, world) == default_entries(BUILD, others)
    assert not [entry.name for entry in default_entries(BUILD, world) if "experts" in entry.name]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_engine_has_the_declaration_that_is_built(name: str) -> None:
    family, own = BUILD.families[name], FAMILIES[name]
    assert own.declaration().syntax == family.declaration.syntax
    assert all(own.unmeasured.keys() == tuning.numbers.keys() for tuning in family.tunings.values())
    keep = next(number for name, number in family.declaration.numbers if name == "keep")
    assert keep.value({}) == TOP_K_LIMIT
