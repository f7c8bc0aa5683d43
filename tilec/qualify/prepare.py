"""Prepares the side file of a bundle: tile IR and contracts go in, launches and what they must write come out.

Launches are those at the edges of each contract (`tilec.audit.launches`) and those at the model's shapes (`model`). The tile
interpreter computes what they write. Of a launch of many blocks it runs a sample of them, and only what these write is
expected; blocks of a kernel share nothing that is written, except through atomics, whose kernels run whole. No GPU, no
compiler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import tilec
from tilec.artifact.records import OF_RANKS, Manifest, TensorSpec
from tilec.audit.contract import contract_of
from tilec.audit.launches import edge_launches
from tilec.interpreter import InterpreterError
from tilec.interpreter import run as interpret
from tilec.ir.core import Function
from tilec.ir.facts.order import order_dependent
from tilec.ir.text.parser import ParseError, parse_function
from tilec.project.trial.launches import Contract
from tilec.qualify.model import Shape, chosen, model_shapes
from tilec.qualify.recipe import KINDS, Form, NoContents, contents, digest, form_of, raw, widened
from tilec.qualify.references import compared_reference
from tilec.qualify.side_file import Entry, Expected, Launch, SideFile
from tilec.qualify.tolerance import Tolerance
from tilec.runtime import Bundle
from tilec.target.dtypes import DTYPES, numpy_dtype
from tilec.tuning.roofline import Work, work

Array = NDArray[Any]
CHECKER: Final = "the tile interpreter, from the tile IR of the bundle"
EDGES: Final = 5
"""Launches at the edges of a contract."""
BLOCKS: Final = 256
"""Blocks that the interpreter runs of a launch with more."""
OPERATIONS: Final = 6e9
"""MMA operations that the interpreter does for a launch; fewer blocks run where each does many."""
WHOLE: Final = 1 << 15
"""Elements of a result up to which all are expected."""
RUNS: Final = 1 << 10
RUN: Final = 8
"""Of a larger result, `RUNS` runs of `RUN` elements are expected."""
EDGE_SCALAR: Final = 0.5
"""Value of a float scalar of an artifact that the model does not launch."""
COMPARED: Final = 1 << 22
"""Elements of all tensors of a launch up to which a reference is run: it computes in float64."""
ROUNDINGS: Final = 2
"""Roundings on the way to a result, of the precision of the narrowest float, by which it may differ from a reference."""
POISON: Final = 0xFF


@dataclass(frozen=True, slots=True)
class Subject:
    """One artifact: its manifest, tile IR and launches of the model. Plain data, for another process."""

    name: str
    manifest: Manifest
    tir: bytes
    shapes: tuple[Shape, ...]


def subjects(bundle: Bundle, kernels: Sequence[str] = (), problems: list[str] | None = None) -> list[Subject]:
    """The artifacts of a bundle, or those whose name or kernel is in `kernels`."""
    texts, shapes = bundle.texts(), model_shapes(bundle, problems)
    found: list[Subject] = []
    for one in bundle.kernels:
        if not kernels or {one.name, one.manifest.kernel} & set(kernels):
            tir = texts.get(one.manifest.digests.get("tir", ""), b"")
            found.append(Subject(one.name, one.manifest, tir, tuple(chosen(shapes.get(one.name, [])))))
    return found


def side_file(bundle: Bundle, entries: Sequence[Entry]) -> SideFile:
    """The side file of a bundle with these entries."""
    return SideFile(bundle.digest, tilec.__version__, CHECKER, {entry.name: entry for entry in entries})


def prepared(subject: Subject, edges: int = EDGES, references: Path | None = None) -> Entry:
    """The entry of one artifact. What cannot be prepared is left out with its reason. `references` is a folder of kernels whose
    references are compared (`tilec.qualify.references`)."""
    manifest, left_out = subject.manifest, list[str]()
    tir = manifest.digests.get("tir", "")
    try:
        function = parse_function(subject.tir.decode())
    except (ParseError, UnicodeError, ValueError) as error:
        return Entry(subject.name, tir or "0" * 64, (), (f"all: the bundle lacks its tile IR ({error})"[:500],))
    if unordered := ", ".join(sorted(order_dependent(function))):
        return Entry(subject.name, tir, (), (f"all: what is in {unordered} depends on the order of atomics"[:500],))
    if any(spec.access in OF_RANKS for spec in manifest.tensors):
        return Entry(subject.name, tir, (), ("all: the kernel meets other ranks, and alone it would wait for ever",))
    scalars = {spec.name: EDGE_SCALAR for spec in manifest.scalars if DTYPES[spec.dtype].is_float}
    scalars |= subject.shapes[0].scalars if subject.shapes else {}
    wanted = [
        (case.name, {name: case.values[name] for name in sorted(case.values) if name not in scalars}, scalars, False)
        for case in edge_launches(manifest, function, contract_of(manifest, function), edges, left_out)
    ] if edges else []  # fmt: skip
    wanted += [(f"the model's {shape.name}", dict(shape.values), dict(shape.scalars), True) for shape in subject.shapes]
    launches: list[Launch] = []
    for name, values, floats, timed in wanted:
        try:
            launches.append(_launch(manifest, function, name, values, floats, references, timed=timed))
        except (NoContents, InterpreterError, KeyError) as error:
            left_out.append(f"{name}: {error}"[:500])
    return Entry(subject.name, tir, tuple(launches), tuple(line[:500] for line in left_out))


def _launch(
    manifest: Manifest, function: Function, name: str, values: dict[str, int], scalars: dict[str, float],
    references: Path | None, *, timed: bool,
) -> Launch:  # fmt: skip
    """One launch with its results, with the first kind of contents of which the fewest results are not finite."""
    amount, best, least = work(Contract.of_manifest(manifest), {**values, **scalars}, function), None, -1
    for kind in KINDS:
        expected, reference = _results(manifest, function, values, scalars, kind, amount, references)
        count = sum(_not_finite(one) for one in expected)
        if best is None or count < least:
            best, least = (kind, expected, reference), count
        if not count:
            break
    assert best is not None
    kind, expected, reference = best
    inputs, moved = digest(manifest, values, kind), _bytes(manifest, values, amount)
    return Launch(name, values, scalars, kind, inputs, moved, amount.products, timed, expected, reference)


def _not_finite(expected: Expected) -> int:
    """Number of expected elements that are infinite or NaN."""
    if not DTYPES[expected.dtype].is_float:
        return 0
    return int(np.count_nonzero(~np.isfinite(widened(expected.dtype, expected.bits))))


def _results(
    manifest: Manifest, function: Function, values: dict[str, int], scalars: dict[str, float], kind: str, amount: Work,
    references: Path | None,
) -> tuple[tuple[Expected, ...], str]:  # fmt: skip
    """What a launch writes, and what a reference says of it."""
    arrays: dict[str, Array] = {}
    before: dict[str, Array] = {}
    originals: dict[str, Array] = {}
    for spec in manifest.tensors:
        arrays[spec.name], _ = laid_out(manifest, spec, values, kind)
        if spec.access not in ("in", "scratch"):
            before[spec.name] = _bits(spec, arrays[spec.name])
    order = _sampled_blocks(manifest, values, amount)
    if references is not None and order is None and sum(array.size for array in arrays.values()) <= COMPARED:
        originals = {name: array.copy() for name, array in arrays.items()}
    given = {name: values[name] for name in function.dims if name in values}
    integers = {spec.name: values[spec.name] for spec in manifest.scalars if spec.name in values}
    interpret(function, arrays, {**scalars, **integers}, dims=given, block_order=order)
    tolerance, expected = Tolerance(function), list[Expected]()
    for spec in manifest.tensors:
        if spec.name in before:
            bits = _bits(spec, arrays[spec.name])
            places = np.arange(bits.size) if order is None else np.flatnonzero(_words(bits) != _words(before[spec.name]))
            expected.append(_expected(spec, bits, places, tolerance))
    if references is None or not originals:
        return tuple(expected), ""
    least = ROUNDINGS * tolerance.inner
    return tuple(expected), compared_reference(references, manifest, {**values, **scalars}, originals, arrays, least)


def laid_out(manifest: Manifest, spec: TensorSpec, values: Mapping[str, int], kind: str) -> tuple[Array, Form]:
    """A tensor before a launch as the interpreter takes it, and its form; what is only written is filled with 0xFF bytes."""
    dtype, storage = numpy_dtype(DTYPES[spec.dtype]), DTYPES[spec.dtype].storage
    if spec.access in ("out", "scratch"):
        form = form_of(spec, values)
        flat = np.full(form.span * DTYPES[spec.dtype].bytes, POISON, np.uint8).view(storage)
        filled = None
    else:
        block, form = contents(manifest, spec, values, kind)
        filled = np.resize(block, form.shape)
        if spec.strides is None:
            return filled.view(dtype), form
        flat = np.zeros(form.span, storage)
    view = np.lib.stride_tricks.as_strided(flat, form.shape, [stride * flat.itemsize for stride in form.strides])
    if filled is not None:
        view[...] = filled
    return view.view(dtype), form


def _bits(spec: TensorSpec, array: Array) -> Array:
    """A copy of the stored elements in row-major order."""
    return np.array(array, order="C").view(DTYPES[spec.dtype].storage).reshape(-1)


def _words(bits: Array) -> Array:
    """Stored elements as integers: two NaNs of the same bits are equal."""
    return bits.view(f"uint{8 * bits.itemsize}")


def _sampled_blocks(manifest: Manifest, values: Mapping[str, int], amount: Work) -> list[tuple[int, ...]] | None:
    """The blocks that the interpreter runs, in order; None for all of them."""
    grid = tuple(axis.evaluate(values) for axis in manifest.grid)
    blocks = prod(grid)
    if any(spec.access == "atomic" for spec in manifest.tensors):
        return None
    each = (amount.products or 0) / max(blocks, 1)
    most = int(min(BLOCKS, max(8, OPERATIONS / each))) if each else BLOCKS
    if blocks <= most:
        return None
    drawn = (raw(f"blocks {manifest.kernel}", most) % np.uint64(blocks)).astype(np.int64).tolist()
    numbers = sorted({0, 1, blocks - 2, blocks - 1, *drawn[4:]})
    return [tuple(int(part) for part in np.unravel_index(number, grid)) for number in numbers]


def _expected(spec: TensorSpec, bits: Array, places: NDArray[np.int64], tolerance: Tolerance) -> Expected:
    """The expected elements among `places`: all if they are few enough, else runs from the first to the last."""
    whole = places.size == bits.size and bits.size <= WHOLE
    if places.size > WHOLE:
        drawn = (raw(f"elements {spec.name}", RUNS) % np.uint64(places.size)).astype(np.int64)
        starts = np.unique(np.concatenate([[0, places.size - RUN], drawn]))
        near = np.unique((starts[:, None] + np.arange(RUN)).reshape(-1))
        places = places[near[near < places.size]]
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    parts: list[Any] = np.split(places, breaks) if places.size else []
    runs = np.array([(part[0], part.size) for part in parts], np.uint64).reshape(-1, 2)
    chosen_bits = bits[places]
    relative, absolute = tolerance.of(spec.dtype, chosen_bits)
    return Expected(spec.name, spec.dtype, relative, absolute, whole, runs, chosen_bits)


def _bytes(manifest: Manifest, values: Mapping[str, int], amount: Work) -> int:
    """Bytes that a launch moves at least. A table of which loaded integers choose the rows counts as no more than what is
    written."""
    chosen_dims = {name for check in manifest.value_checks for name in check.high.symbols()}
    sizes = {spec.name: prod(dim.evaluate(values) for dim in spec.dims) * DTYPES[spec.dtype].bytes for spec in manifest.tensors}
    written = sum(sizes[spec.name] for spec in manifest.tensors if spec.access not in ("in", "scratch"))
    total = amount.bytes
    for spec in manifest.tensors:
        symbols = {name for dim in spec.dims for name in dim.symbols()}
        if spec.access in ("in", "inout") and symbols & chosen_dims:
            times = 1 if spec.access == "in" else 2
            total -= times * max(0, sizes[spec.name] - written) if spec.access == "in" else 0
    return max(total, 1)
