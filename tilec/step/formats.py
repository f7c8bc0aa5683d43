"""The step of a model whose linear weights do not have 16 bits: takes a declaration and a format, returns the format's step.

    formats = {"fp8": scaled(f8e4m3, [128, 128])}

Every linear weight is then two tensors: its codes, and its f32 scales, (N / 128, K / 128), under its name with `SCALES` after
it. A table of weights concatenates scales as it does rows. A launch that takes a linear weight changes in one of two ways:

| argument                       | kernel     | tensors                                                                        |
|--------------------------------|------------|--------------------------------------------------------------------------------|
| `w=mlp.down_proj`              | `NAME_fp8` | the codes as `w`, the scales as `w_scales`                                     |
| `w=dequantised(mlp.down_proj)` | `NAME`     | a buffer of 16 bits as `w`, which a launch of `dequantise_fp8` writes before   |

Such a buffer belongs to one weight, lives from one launch to the next, and shares its memory with others (`engine.graph.plan`).
The launch that reads it does not begin before all earlier ones have ended, unless its kernel reads it after its grid
dependency wait (`engine.graph.verify.may_overlap`): some kernels take a weight for data that nobody writes, and read it before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tilec.step.activations import SCALES, SCALES_DTYPE, Already, Quantiser, blocks
from tilec.step.declaration import (
    DTYPE,
    Condition,
    Declaration,
    Declared,
    Format,
    Items,
    Launch,
    Layers,
    Reference,
    Statement,
)  # fmt: skip
from tilec.step.expressions import StepError, expression
from tilec.step.graph import Kind

SIXTEEN_BIT: Final = "16bit"
"""The format of weights that have the dtype that the model runs in. Every step has it."""

WEIGHT_FORMAT: Final = "weight_format"
"""Key of a bundle's config for the format of its model's weights; absent for 16 bits."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A linear weight in a format: its codes, its scales, and the buffer for it in 16 bits."""

    codes: Declared
    scales: Declared
    buffer: Declared


def in_format(declaration: Declaration, form: Format) -> Declaration:
    """The step with all linear weights in a format; StepError if a name that it needs is taken."""
    stored = {name: _stored(weight, form) for name, weight in declaration.weights.items() if weight.linear}
    weights: dict[str, Declared] = {}
    buffers = dict(declaration.buffers)
    counts = dict(declaration.counts)
    for name, weight in declaration.weights.items():
        parts = stored.get(name)
        for added in (weight,) if parts is None else (parts.codes, parts.scales):
            weights[added.name] = added
        if parts is None:
            continue
        buffers[parts.buffer.name] = parts.buffer
        for added in (parts.scales, parts.buffer):
            if added.name in declaration.weights or added.name in declaration.buffers:
                raise StepError(f"`{added.name}` is there, and is the name of what `{name}` needs in `{form.name}`")
            if name in counts:
                counts[added.name] = counts[name]
    taken = {*declaration.weights, *declaration.buffers, *weights, *buffers}
    quantiser = Quantiser(form, {name: (parts.codes, parts.scales) for name, parts in stored.items()}, taken, counts)
    modes = {name: _in_format(statements, stored, form, quantiser) for name, statements in declaration.modes.items()}
    return replace(
        declaration, weights=weights, buffers=buffers | quantiser.buffers, counts=counts | quantiser.counts, modes=modes,
        variants={**declaration.variants, **quantiser.variants}, formats={},
    )  # fmt: skip


def stored_declaration(declaration: Declaration, name: str) -> Declaration:
    """The step for a format by name; StepError if the text does not declare it."""
    if name not in declaration.formats:
        known = ", ".join(f"`{one}`" for one in (SIXTEEN_BIT, *declaration.formats))
        raise StepError(f"the step has no weights in `{name}`, only in {known}")
    return declaration.formats[name][1]


def stored_as(declaration: Declaration, name: str) -> str:
    """The format that the weights of a format are stored in: it, or the one whose weights it has; 16 bits for other names."""
    return declaration.formats[name][0].stored_as if name in declaration.formats else SIXTEEN_BIT


def misfit(weight: Declared, form: Format, values: Mapping[str, Any]) -> str | None:
    """Why the blocks of a format do not fit a weight, or one of those that are its rows; None if they do."""
    for name, axes in weight.rows.items():
        shape = [axis.value(values) for axis in axes]
        if any(size % block for size, block in zip(shape, form.block, strict=True)):
            block = " x ".join(map(str, form.block))
            return (
                f"`{name}` is {shape}, and weights in `{form.name}` have a scale for each {block}: its sizes must be multiples"
            )
    return None


def _stored(weight: Declared, form: Format) -> _Stored:
    rows = {
        f"{name}{SCALES}": tuple(blocks(axis, block) for axis, block in zip(axes, form.block, strict=True))
        for name, axes in weight.rows.items()
    }
    shape = next(iter(rows.values())) if weight.shape else ()
    scales = Declared(f"{weight.name}{SCALES}", Kind.WEIGHT, SCALES_DTYPE, shape, {}, rows)
    buffer = replace(weight, name=f"{weight.name}.{SIXTEEN_BIT}", kind=Kind.ACTIVATION, linear=False)
    return _Stored(replace(weight, dtype=form.dtype, linear=False), scales, buffer)


def _in_format(
    statements: tuple[Statement, ...], stored: Mapping[str, _Stored], form: Format, quantiser: Quantiser
) -> tuple[Statement, ...]:
    found: list[Statement] = []
    already = Already()

    def inner(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        already.clear()
        return _in_format(body, stored, form, quantiser)

    for statement in statements:
        match statement:
            case Launch():
                found.extend(quantiser.statements(statement, tuple(_launches(statement, stored, form)), already))
            case Condition(test=test, then=then, otherwise=otherwise):
                found.append(Condition(test, inner(then), inner(otherwise)))
            case Layers(body=body):
                found.append(Layers(inner(body)))
            case Items(body=body):
                found.append(replace(statement, body=inner(body)))
    return tuple(found)


def _launches(launch: Launch, stored: Mapping[str, _Stored], form: Format) -> Iterator[Launch]:
    """A launch, after those that dequantise what it takes in 16 bits."""
    tensors: dict[str, Reference] = {}
    kernel, overlaps = launch.kernel, launch.overlaps
    for parameter, reference in launch.tensors.items():
        parts = stored.get(reference.declared.name)
        if parts is None:
            tensors[parameter] = reference
            continue
        codes, scales = replace(reference, declared=parts.codes), replace(reference, declared=parts.scales)
        if not reference.dequantised:
            kernel = f"{launch.kernel}_{form.stored_as}"
            tensors |= {parameter: codes, f"{parameter}{SCALES}": scales}
            continue
        whole = replace(reference, declared=parts.buffer, shape=None)
        dequantise = {"w": replace(codes, shape=None), f"w{SCALES}": replace(scales, shape=None), "out": whole}
        dtype = ast.copy_location(ast.Name(id=DTYPE), launch.node)
        name = f"{launch.name}_dequantise_{parameter}"
        yield Launch(name, f"dequantise_{form.stored_as}", {"E": expression(dtype)}, dequantise, {}, launch.node)
        tensors[parameter], overlaps = replace(whole, shape=reference.shape), False
    yield replace(launch, kernel=kernel, tensors=tensors, overlaps=overlaps)
