"""The step of a model whose caches do not have 16 bits: takes a declaration and a format of caches, returns the format's step.

    caches = {"fp8": coded(f8e4m3)}

Every cache of the model's dtype is then two buffers: its codes, and an f32 scale for each row of its last axis, under its name
with `SCALES` after it. A launch that takes such a cache changes in one of two ways:

| argument                       | kernel    | tensors                                                            |
|--------------------------------|-----------|--------------------------------------------------------------------|
| `k_cache=k_cache`              | `NAME_c8` | the codes as `k_cache`, the scales as `k_scales`                   |
| `k_cache=dequantised(k_cache)` | `NAME`    | a cache of 16 bits that all layers share, whose filled slots       |
|                                |           | a launch of `dequantise_c8` writes before                          |

The shared cache is filled anew in each layer, and no layer reads what another left there. It is a cache and no activation
because only the filled slots are written, and no others are read.

Pools of pages change as caches do, `k_pages=k_pages` with scales as `k_scales`. Modes over pages keep nothing elsewhere: caches
of their own, such as `chunk.k_cache`, are where a kernel puts what it took from pages, and stay in 16 bits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from tilec.step import parsing
from tilec.step.activations import SCALES, SCALES_DTYPE
from tilec.step.declaration import (
    DTYPE,
    PAST,
    TOKENS,
    CacheFormat,
    Condition,
    Declaration,
    Declared,
    Items,
    Launch,
    Layers,
    Reference,
    Statement,
)  # fmt: skip
from tilec.step.expressions import Expression, StepError, expression
from tilec.step.formats import SIXTEEN_BIT
from tilec.step.graph import PAGED, Kind

CACHE_FORMAT: Final = "cache_format"
"""Key of a bundle's config for the format of its caches; absent for 16 bits."""

CODED: Final = "c8"
"""Ends the name of a kernel whose caches have codes of eight bits."""

CODED_CACHES: Final = "coded"
"""A step's name for whether its caches have codes."""

STORES: Final = ("_cache", "_pages")
"""End the name of a parameter that takes a cache; that of its scales has `SCALES` instead."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A cache in a format: its codes, its scales, and the cache of 16 bits that layers share."""

    codes: Declared
    scales: Declared
    shared: Declared


def with_caches(declaration: Declaration, caches: Mapping[str, CacheFormat]) -> Declaration:
    """The declaration, and each of its formats of weights, with the steps of all formats of caches."""
    formats = {name: (form, with_caches(one, caches)) for name, (form, one) in declaration.formats.items()}
    own = {name: (form, _in_format(declaration, form)) for name, form in caches.items()}
    return replace(declaration, formats=formats, caches=own)


def cached_declaration(declaration: Declaration, name: str) -> Declaration:
    """The step for a format of caches by name; StepError if the text does not declare it."""
    if name == SIXTEEN_BIT:
        return declaration
    if name not in declaration.caches:
        known = ", ".join(f"`{one}`" for one in (SIXTEEN_BIT, *declaration.caches))
        raise StepError(f"the step has no caches in `{name}`, only in {known}")
    return declaration.caches[name][1]


def is_coded(declared: Declared) -> bool:
    """Whether a buffer is a cache that formats store in another way."""
    keeps = declared.kind is Kind.POOL or (declared.kind is Kind.CACHE and declared.name.partition(".")[0] not in PAGED)
    return keeps and declared.dtype == DTYPE


def _in_format(declaration: Declaration, form: CacheFormat) -> Declaration:
    stored = {name: _stored(cache, form) for name, cache in declaration.buffers.items() if is_coded(cache)}
    buffers: dict[str, Declared] = {}
    for name, buffer in declaration.buffers.items():
        parts = stored.get(name)
        for added in (buffer,) if parts is None else (parts.codes, parts.scales, parts.shared):
            if parts is not None and added.name != name and (added.name in declaration.buffers or added.name in buffers):
                raise StepError(f"`{added.name}` is there, and is the name of what `{name}` needs in `{form.name}`")
            buffers[added.name] = added
    modes = {name: _statements(statements, stored) for name, statements in declaration.modes.items()}
    return replace(declaration, buffers=buffers, modes=modes, formats={}, caches={})


def _stored(cache: Declared, form: CacheFormat) -> _Stored:
    if len(cache.shape) < 2 or cache.loops > 1:
        raise StepError(f"`{cache.name}` has no rows of elements, as a cache in `{form.name}` needs")
    stem = cache.name.removesuffix(".*")
    scales = replace(cache, name=_ended(cache.name, f"{stem}{SCALES}"), dtype=SCALES_DTYPE, shape=cache.shape[:-1])
    return _Stored(replace(cache, dtype=form.dtype), scales, replace(cache, name=f"{stem}.{SIXTEEN_BIT}"))


def _ended(name: str, stem: str) -> str:
    return f"{stem}.*" if name.endswith(".*") else stem


def _statements(statements: tuple[Statement, ...], stored: Mapping[str, _Stored]) -> tuple[Statement, ...]:
    found: list[Statement] = []
    for statement in statements:
        match statement:
            case Launch():
                found.extend(_launches(statement, stored))
            case Condition(test=test, then=then, otherwise=otherwise):
                found.append(Condition(test, _statements(then, stored), _statements(otherwise, stored)))
            case Layers(body=body):
                found.append(Layers(_statements(body, stored)))
            case Items(body=body):
                found.append(replace(statement, body=_statements(body, stored)))
    return tuple(found)


def _launches(launch: Launch, stored: Mapping[str, _Stored]) -> Iterator[Launch]:
    """A launch, after those that dequantise what it takes in 16 bits."""
    tensors: dict[str, Reference] = {}
    kernel = launch.kernel
    for parameter, reference in launch.tensors.items():
        parts = stored.get(reference.declared.name)
        if parts is None:
            tensors[parameter] = reference
            continue
        shape = None if reference.shape is None else reference.shape[:-1]
        scales = Reference(parts.scales, reference.previous, shape)
        if not reference.dequantised:
            kernel = f"{launch.kernel}_{CODED}"
            tensors |= {parameter: replace(reference, declared=parts.codes), _scales_of(parameter): scales}
            continue
        yield _dequantise(launch, parameter, reference, parts)
        tensors[parameter] = Reference(parts.shared, False, reference.shape)
    yield replace(launch, kernel=kernel, tensors=tensors)


def _scales_of(parameter: str) -> str:
    """The parameter that takes the scales of what another takes the codes of: `k_scales` of `k_cache` and of `k_pages`."""
    for ending in STORES:
        parameter = parameter.removesuffix(ending)
    return f"{parameter}{SCALES}"


def _dequantise(launch: Launch, parameter: str, reference: Reference, parts: _Stored) -> Launch:
    """The launch that writes the filled slots of a cache in 16 bits, those of the step's tokens included."""
    tensors = {
        "cache": Reference(parts.codes, reference.previous, None),
        "scales": Reference(parts.scales, reference.previous, None),
        "out": Reference(parts.shared, False, None),
    }
    constants = {"E": _read(DTYPE, launch.node), "D": parts.codes.shape[-1]}
    scalars = {"filled": _read(f"{PAST} + {TOKENS}", launch.node)}
    return Launch(f"{launch.name}_dequantise_{parameter}", f"dequantise_{CODED}", constants, tensors, scalars, launch.node)


def _read(text: str, node: ast.stmt) -> Expression:
    """An expression, at the location of a launch."""
    body = parsing.term(text)
    for each in ast.walk(body):
        ast.copy_location(each, node)
    return expression(body)
