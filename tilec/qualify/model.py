"""Launches at the shapes of a bundle's model: the bundle's own step goes in, launch values of each artifact come out.

Decode, batches, prefill and steps over pages are asked at every variant and output mode, prompts at the lengths at which the
tuning changes its choice. Of each artifact the smallest and the largest launch are kept; a launch that several layers repeat is
one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Final

from tilec.artifact.records import Manifest
from tilec.runtime import Bundle, BundledKernel, BundleError, LaunchError, TensorView, check_launch
from tilec.runtime.tensors import contiguous_strides
from tilec.step.declaration import Condition, Launch, Statement
from tilec.step.expressions import StepError
from tilec.step.graph import CHUNK, SERVE, Op, StepGraph
from tilec.step.requests import choices
from tilec.step.step import ALL_KINDS, BATCHES, BUCKETS, DTYPES, OUTPUT_MODES, Step
from tilec.target.dtypes import DTYPES as ELEMENTS

SLOTS: Final = 2048
"""Tokens of the caches."""
PAGES: Final = 64
"""Pages of the pool."""
LENGTHS: Final = (1, 3, 17, 33, 65, 130, 300, 512)
"""Prompts that are always asked, in tokens: one, odd ones, and one of many blocks."""
UNKNOWN: Final = 1e-6
"""Value of a number that only scalars of launches use: bundles do not carry it, because no artifact depends on it."""
MOST_BYTES: Final = 3 << 30
"""Maximum bytes of all tensors of a launch."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch of the model: the operation's name, dims, strides and integer scalars, float scalars, bytes of all tensors."""

    name: str
    values: Mapping[str, int]
    scalars: Mapping[str, float]
    bytes: int


def model_shapes(bundle: Bundle, problems: list[str] | None = None) -> dict[str, list[Shape]]:
    """By artifact, its launches in the model, smallest first. `problems` gets a line for what the step cannot say."""
    found: dict[str, dict[str, Shape]] = {}
    for dtype in DTYPES:
        try:
            for graph in _graphs(bundle, dtype):
                for op in graph.ops:
                    kernel = _kernel(bundle, op)
                    shape = None if kernel is None else _shape(kernel.manifest, graph, op)
                    if kernel is not None and shape is not None and shape.bytes <= MOST_BYTES:
                        found.setdefault(kernel.name, {}).setdefault(repr((shape.values, shape.scalars)), shape)
        except StepError as error:
            if problems is not None:
                problems.append(f"the step of `{bundle.model}` in {dtype}: {error}")
    return {name: sorted(shapes.values(), key=lambda one: one.bytes) for name, shapes in found.items()}


def chosen(shapes: list[Shape]) -> list[Shape]:
    """The smallest and the largest of an artifact's launches."""
    return shapes if len(shapes) < 2 else [shapes[0], shapes[-1]]


def _graphs(bundle: Bundle, dtype: str) -> Iterator[StepGraph]:
    """The step's graphs with few layers, of each kind; StepError if the bundle's model does not define one."""
    numbers = {**bundle.config, **bundle.tuning.numbers}
    if "num_hidden_layers" not in numbers:
        return
    numbers = dict.fromkeys(_scalar_names(bundle), UNKNOWN) | numbers
    tied = bool(bundle.config.get("tie_word_embeddings", False))
    step = Step(
        bundle.declaration, numbers, tied=tied, dtype=dtype, max_seq_len=SLOTS, weight_format=bundle.weight_format,
        cache_format=bundle.cache_format, pages=PAGES,
    )  # fmt: skip
    layers = step.few_layers(ALL_KINDS)
    for head in OUTPUT_MODES:
        for variants in step.all_decode_variants():
            if head != "none":
                yield step.graph("decode", head, layers=layers, variants=variants)
                for count in BATCHES if "batch" in bundle.declaration.modes else ():
                    yield step.graph("batch", head, tokens=count, layers=layers, variants=variants)
        for tokens in _lengths(bundle, step):
            past = SLOTS // 4 if tokens < SLOTS // 2 else 0
            yield step.graph("prefill", head, tokens=tokens, layers=layers, past=past)
            if CHUNK in bundle.declaration.modes:
                yield step.graph(CHUNK, head, tokens=tokens, layers=layers, past=past)
        for rows in BUCKETS if head != "none" and SERVE in bundle.declaration.modes else ():
            yield step.graph(SERVE, head, tokens=rows, layers=layers)


def _scalar_names(bundle: Bundle) -> set[str]:
    """The names that scalars of launches are computed from."""
    found: set[str] = set()
    pending: list[Statement] = [one for body in bundle.declaration.modes.values() for one in body]
    while pending:
        statement = pending.pop()
        if isinstance(statement, Launch):
            found |= {name for value in statement.scalars.values() for name in value.names}
        elif isinstance(statement, Condition):
            pending += (*statement.then, *statement.otherwise)
        else:
            pending += statement.body
    return found


def _lengths(bundle: Bundle, step: Step) -> list[int]:
    """Lengths of prompts, at most those that the caches hold."""
    ends = {end for one in choices(step, bundle.tuning) if one.op.startswith("prefill") for end in (one.first, one.last)}
    known = {*LENGTHS, *ends, *step.prefills(step.chunk_tokens)}
    return sorted(length for length in known if 1 <= length <= SLOTS)


def _kernel(bundle: Bundle, op: Op) -> BundledKernel | None:
    """The artifact that an operation launches; None if the bundle has none, as for a dtype that it was not built for."""
    try:
        shapes = {name: view.shape for name, view in op.tensors.items()}
        return bundle.find(op.kernel, **{**bundle.tuning.constants(op.kernel, shapes), **op.constants})
    except (BundleError, StepError, KeyError, IndexError):
        return None


def _shape(manifest: Manifest, graph: StepGraph, op: Op) -> Shape | None:
    """The launch values of an operation; None if its contract refuses them, as a longer cache would."""
    views: dict[str, TensorView] = {}
    address = 1 << 20
    for name, view in op.tensors.items():
        dtype = graph.buffers[view.buffer].dtype
        views[name] = TensorView(address, dtype, view.shape, contiguous_strides(view.shape))
        address += -(-prod(view.shape) * ELEMENTS[dtype].bytes // 4096) * 4096
    try:
        launch = check_launch(manifest, {**views, **op.scalars})
    except LaunchError:
        return None
    floats = {one.name: float(launch.scalars[one.name]) for one in manifest.scalars if ELEMENTS[one.dtype].is_float}
    return Shape(op.name, dict(launch.env), floats, address - (1 << 20))
