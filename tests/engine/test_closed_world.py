"""The artifacts that the graphs of every model launch are exactly those that its bundle would contain."""

from __future__ import annotations

import pytest

from engine.models.dense import UNMEASURED
from engine.models.qwen3 import FAMILY
from engine.sampling import TOP_K_LIMIT
from tests import campaign
from tests.shipped import ROOT
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.closed_world import enumerate_world
from tilec.project.read.models import Constant, Model
from tilec.project.read.plan import artifact_name
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import Op
from tilec.step.step import BATCHES, CHUNK_TOKENS, DTYPES, OUTPUT_MODES, Step
from tilec.target.targets import Target

BUILD = read_build_file(ROOT / "build.toml")
FP8_KERNELS = {
    "scaled_matvec_fp8", "scaled_matvec_silu_mul_fp8", "matvec_add_scaled_fp8", "matvec_add_fp8", "scaled_matvec_rows_fp8",
    "scaled_matvec_silu_mul_rows_fp8", "matvec_add_scaled_rows_fp8", "dequantise_fp8",
}  # fmt: skip
OF_FORMATS = {
    SIXTEEN_BIT: set[str](), "fp8": FP8_KERNELS, "int4": {name.replace("_fp8", "_int4") for name in FP8_KERNELS},
}  # fmt: skip
LENGTHS = [tokens for tokens in range(1, CHUNK_TOKENS + 1) if tokens % 32 in (0, 1, 31)]
"""The lengths around those at which the tiles of a product can change."""


def launched(build: BuildFile, model: Model, target: Target, weights: str) -> set[str]:
    """The artifacts that graphs of a model with weights in a format launch, looked up one by one as a bundle's reader does."""
    family = build.families[model.family]
    tuning = family.tunings[target]
    numbers = {**model.config, **tuning.numbers, "num_hidden_layers": 3, "rms_norm_eps": 1e-6}
    found: set[str] = set()
    for dtype in DTYPES:
        step = Step(family.declaration, numbers, tied=True, dtype=dtype, max_seq_len=4096, weight_format=weights)
        graphs = [
            step.graph("decode", output_mode, variants=variants)
            for output_mode in OUTPUT_MODES
            for variants in step.all_decode_variants()
        ]
        graphs += [
            step.graph("prefill", output_mode, tokens=tokens) for output_mode in OUTPUT_MODES for tokens in (1, 2, CHUNK_TOKENS)
        ]
        graphs += [step.graph("prefill", tokens=tokens) for tokens in LENGTHS]
        graphs += [
            step.graph("batch", output_mode, tokens=tokens, variants=variants)
            for output_mode in OUTPUT_MODES
            for tokens in BATCHES
            for variants in step.all_decode_variants()
        ]
        requested = {
            (op.kernel, frozenset({**tuning.constants(op.kernel, shapes(op)), **op.constants}.items()))
            for graph in graphs
            for op in graph.ops
        }
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
    places = BUILD.models.index(case[0]), BUILD.targets.index(case[1]), case[0].weights.index(case[2])
    return sum(places) % len(BUILD.targets) == 0


@pytest.mark.parametrize(("model", "target", "weights"), campaign.chosen(CASES, is_sampled), ids=IDS)
def test_a_bundle_contains_exactly_what_its_step_needs(model: Model, target: Target, weights: str) -> None:
    available = set(enumerate_world(BUILD, models=[model.name], weights=[weights]).artifacts(model.name, target, weights))
    needed = launched(BUILD, model, target, weights)
    assert (len(available - needed), len(needed - available)) == (0, 0)
    products = {name for name in available if name.startswith("matmul")}
    query = model.config["num_attention_heads"] * model.config["head_dim"]
    rows_of_both = 0 if query == model.config["hidden_size"] else 2  # are gathered
    # The kernel that dequantises, and kernels of batches that the head shares with a linear layer if that has 16 bits too.
    more = 0 if weights == SIXTEEN_BIT else len(DTYPES) * (1 + len(BATCHES))
    assert len(available - products) == 84 + rows_of_both + more
    kernels = {name.partition("-")[0] for name in available}
    assert {name for name in kernels if name.endswith(("_fp8", "_int4"))} == OF_FORMATS[weights]
    for kernel, limit in (("matmul-", 18), ("matmul_silu_mul-", 8)):  # the number of tile shapes depends on measurements
        assert 2 <= len([name for name in products if name.startswith(kernel)]) <= limit


def test_the_engine_has_the_declaration_that_is_built() -> None:
    family = BUILD.families["qwen3"]
    assert FAMILY.declaration().syntax == family.declaration.syntax
    assert all(UNMEASURED.keys() == tuning.numbers.keys() for tuning in family.tunings.values())
    keep = next(number for name, number in family.declaration.numbers if name == "keep")
    assert keep.value({}) == TOP_K_LIMIT
