"""The step of a model whose linear weights do not have 16 bits: takes a declaration and a format, returns the format's step.

    formats = {"fp8": scaled(f8e4m3, [128, 128]), "int4": grouped(u4, 128, scales=dtype, zeros=u8, rows=16)}

Every linear weight (N, K) is then several tensors, the parts of its format:

| format | codes, under the weight's name | under its name and `_scales` | under its name and `_zeros` |
|--------|--------------------------------|------------------------------|-----------------------------|
| `fp8`  | f8e4m3 (N, K)                  | f32 (N / 128, K / 128)       |                             |
| `int4` | eight in a word, u32 (N, K / 8)| (K / 128, N)                 | u8 (K / 128, N)             |

A table of weights concatenates parts as it does rows: along the last axis where the rows of a weight lie there. Scales of
`int4` have the dtype that the model runs in, which published files have; kernels take it as the constant `F`. Their blocks
have 16 outputs, as a product on tensor cores has rows: a launch that gives `ROWS` gives 16 (`rows`). Kernels of all formats
have 8 tokens in a tile for up to so many, 16 for up to 16, and else at most `MOST_TOKENS`: a launch that gives more as `BM`
gives these, unless the weight is stacked. They choose their columns themselves: `BN` is left out. A launch that takes a linear
weight changes in one of two ways:

| argument                       | kernel     | tensors                                                                        |
|--------------------------------|------------|--------------------------------------------------------------------------------|
| `w=mlp.down_proj`              | `NAME_fp8` | the codes as `w`, the scales as `w_scales`, zero points as `w_zeros`           |
| `w=dequantised(mlp.down_proj)` | `NAME`     | a buffer of 16 bits as `w`, which a launch of `dequantise_fp8` writes before   |

A kernel of a format takes each part in the shape that it is declared in, whatever shape the launch gives the weight. The parts
of a stacked weight (X, N, K) have the item as their first axis too, and `dequantise_each_fp8` is what dequantises it.

A format may have a head, a weight that is not `linear` (`headed(int4, lm_head.weight, fp8)`): it is then in that other format,
and no longer tied to a table. Files have it in 16 bits, and whoever loads them makes the codes.

Such a buffer belongs to one weight, lives from one launch to the next, and shares its memory with others (`engine.graph.plan`).
The launch that reads it does not begin before all earlier ones have ended, unless its kernel reads it after its grid
dependency wait (`engine.graph.verify.may_overlap`): some kernels take a weight for data that nobody writes, and read it before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from tilec.step import parsing
from tilec.step.activations import SCALES, Already, Quantiser, blocks
from tilec.step.declaration import (
    DTYPE,
    TOKENS,
    Condition,
    Declaration,
    Declared,
    Format,
    Items,
    Launch,
    Layers,
    Part,
    Reference,
    Statement,
)  # fmt: skip
from tilec.step.expressions import Expression, StepError, expression
from tilec.step.graph import Kind

SIXTEEN_BIT: Final = "16bit"
"""The format of weights that have the dtype that the model runs in. Every step has it."""

WEIGHT_FORMAT: Final = "weight_format"
"""Key of a bundle's config for the format of its model's weights; absent for 16 bits."""

ZEROS: Final = "_zeros"
"""Ends the name of a weight's zero points, and of the parameter that takes them."""

TILES_OF_TOKENS: Final = (8, 16)
"""Tokens of a tile, of kernels that convert weights in registers, in steps of up to so many."""

MOST_TOKENS: Final = 32
"""Tokens of a tile at most, in kernels that convert weights in registers (`MOST` of `kernels_src/few_tokens.py`)."""

CODED_HEAD: Final = "coded_head"
"""The name by which conditions ask whether the format of the weights has a head."""

EACH: Final = "each_"
"""Begins the format's name in that of the kernel that dequantises a stacked weight, one item after the other."""


def scaled(name: str, dtype: str, block: tuple[int, int]) -> Format:
    """Codes of `dtype` with an f32 scale for each block of `block[0]` rows and `block[1]` columns."""
    return Format(name, (Part("", dtype, (1, 1)), Part(SCALES, "f32", block)))


def grouped(name: str, group: int, scales: str, zeros: str, rows: int) -> Format:
    """Codes of four bits, eight neighbors of a row in a u32, with a scale and a zero point for each `group` columns of a row:
    their dtypes are `scales` and `zeros`. Its kernels have `rows` outputs in a block."""
    parts = (
        Part("", "u32", (1, 8)), Part(SCALES, scales, (1, group), transposed=True),
        Part(ZEROS, zeros, (1, group), transposed=True),
    )  # fmt: skip
    return Format(name, parts, (("F", scales),), rows)


@dataclass(frozen=True, slots=True)
class _Stored:
    """A linear weight in a format: its parts by suffix, codes first, and the buffer for it in 16 bits."""

    parts: Mapping[str, Declared]
    buffer: Declared


def in_format(declaration: Declaration, form: Format) -> Declaration:
    """The step with all linear weights in a format, and the weight that its `head` names; StepError if a name that it needs is
    taken, or if `head` names no such weight."""
    if form.head is not None:
        declaration = _with_head(declaration, *form.head)
    stored = {name: _stored(weight, form) for name, weight in declaration.weights.items() if weight.linear}
    weights: dict[str, Declared] = {}
    buffers = dict(declaration.buffers)
    counts = dict(declaration.counts)
    for name, weight in declaration.weights.items():
        found = stored.get(name)
        for added in (weight,) if found is None else found.parts.values():
            weights[added.name] = added
        if found is None:
            continue
        buffers[found.buffer.name] = found.buffer
        for added in (*list(found.parts.values())[1:], found.buffer):
            if added.name in declaration.weights or added.name in declaration.buffers:
                raise StepError(f"`{added.name}` is there, and is the name of what `{name}` needs in `{form.name}`")
            if name in counts:
                counts[added.name] = counts[name]
    taken = {*declaration.weights, *declaration.buffers, *weights, *buffers}
    quantiser = Quantiser(form, {name: (one.parts[""], one.parts[SCALES]) for name, one in stored.items()}, taken, counts)
    modes = {name: _in_format(statements, stored, form, quantiser) for name, statements in declaration.modes.items()}
    return replace(
        declaration, weights=weights, buffers=buffers | quantiser.buffers, counts=counts | quantiser.counts, modes=modes,
        variants={**declaration.variants, **quantiser.variants}, formats={},
    )  # fmt: skip


def _with_head(declaration: Declaration, name: str, form: Format) -> Declaration:
    """The step with one weight in a format, which others no longer are tied to."""
    found = declaration.weights.get(name)
    if found is None or found.linear or found.per_layer or len(found.shape) != 2 or name in declaration.tied.values():
        raise StepError(f"`{name}` is not a matrix of its own in 16 bits, as the head of `headed(...)` is")
    alone = {other: replace(one, linear=other == name) for other, one in declaration.weights.items()}
    tied = {other: one for other, one in declaration.tied.items() if other != name}
    coded = in_format(replace(declaration, weights=alone), form)
    return replace(coded, weights={other: declaration.weights.get(other, one) for other, one in coded.weights.items()} | {
        name: coded.weights[name]
    }, tied=tied)  # fmt: skip


def coded_head(declaration: Declaration, weight_format: str) -> str | None:
    """The weight that a format of weights has as codes and files have in 16 bits; None if there is none."""
    found = declaration.formats.get(weight_format)
    return None if found is None or found[0].head is None else found[0].head[0]


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
    buffer = replace(weight, name=f"{weight.name}.{SIXTEEN_BIT}", kind=Kind.ACTIVATION, linear=False)
    return _Stored({part.suffix: _part(weight, part) for part in form.parts}, buffer)


def _part(weight: Declared, part: Part) -> Declared:
    rows = {f"{name}{part.suffix}": part.shape(*axes, over=blocks) for name, axes in weight.rows.items()}
    shape = next(iter(rows.values())) if weight.shape else ()
    axis = int(part.transposed)
    name = f"{weight.name}{part.suffix}"
    return Declared(name, Kind.WEIGHT, part.dtype, shape, {}, rows, axis=axis, items=weight.items, only=weight.only)


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
    kernel, constants, overlaps = launch.kernel, launch.constants, launch.overlaps
    own = {name: _dtype(dtype, launch) for name, dtype in form.constants}
    for parameter, reference in launch.tensors.items():
        found = stored.get(reference.declared.name)
        if found is None:
            tensors[parameter] = reference
            continue
        parts = {suffix: replace(reference, declared=part, shape=None) for suffix, part in found.parts.items()}
        if not reference.dequantised:
            kernel, constants = f"{launch.kernel}_{form.stored_as}", {**launch.constants, **own}
            constants.pop("BN", None)  # kernels that convert weights have ROWS of their own
            if form.rows is not None and "ROWS" in constants:
                constants["ROWS"] = expression(ast.copy_location(ast.Constant(value=form.rows), launch.node))
            if "BM" in constants and not reference.declared.items:  # tiles of experts have the height that rows are sorted by
                constants["BM"] = _at_most(constants["BM"])
            tensors |= {f"{parameter}{suffix}": part for suffix, part in parts.items()}
            continue
        whole = replace(reference, declared=found.buffer, shape=None)
        dequantise = {**{f"w{suffix}": part for suffix, part in parts.items()}, "out": whole}
        name, each = f"{launch.name}_dequantise_{parameter}", EACH if reference.declared.items else ""
        of_format = f"dequantise_{each}{form.stored_as}"
        yield Launch(name, of_format, {"E": _dtype(DTYPE, launch), **own}, dequantise, {}, launch.node)
        tensors[parameter], overlaps = replace(whole, shape=reference.shape), False
    yield replace(launch, kernel=kernel, constants=constants, tensors=tensors, overlaps=overlaps)


def _at_most(value: Expression) -> Expression:
    """The lesser of the tokens of a tile and what kernels of all formats have: the fewest that hold all, or `MOST_TOKENS`."""
    fitting = "".join(f"{tile} if {TOKENS} <= {tile} else " for tile in TILES_OF_TOKENS)
    node = cast("ast.Call", parsing.term(f"min(0, {fitting}{MOST_TOKENS})"))
    for each in ast.walk(node):
        ast.copy_location(each, value.node)
    node.args[0] = value.node
    return expression(node)


def _dtype(name: str, launch: Launch) -> Expression:
    """A dtype as a constant of a launch."""
    node = ast.Name(id=DTYPE) if name == DTYPE else ast.Constant(value=name)
    return expression(ast.copy_location(node, launch.node))
