"""Products of activations of eight bits: takes a launch and a format that quantises activations, returns the statements for it.

    formats = {"fp8": scaled(f8e4m3, [128, 128]), "w8a8": activations(fp8, f8e4m3, [1, 128], above=w8a8_tokens)}
    product = matmul(a=quantised(normed), b=dequantised(mlp.down_proj), out=down)

In such a format, the launch has two cases. In a prefill of at most `w8a8_tokens` tokens, it is that of the format of the
weights: the weight is dequantised, and the activations have 16 bits. In longer ones, `quantise_rows` writes codes of the
activations and f32 scales (K / 128, M), and the kernel is `matmul_fp8`, which takes `a`, `a_scales`, `b`, `b_scales`. With
`serve=True` after `above` so do all rows of a step that serves. In all other formats `quantised(normed)` is `normed`. A tensor
that several products take is quantised once, if no launch between them uses it in another way.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Final

from tilec.step.declaration import (
    DTYPE,
    TOKENS,
    Condition,
    Declared,
    Format,
    Launch,
    Reference,
    Statement,
    Variant,
)  # fmt: skip
from tilec.step.expressions import Expression, StepError, expression
from tilec.step.graph import Kind

SCALES: Final = "_scales"
"""Ends the name of the scales of a weight or an activation, and of the parameter that takes them."""

SCALES_DTYPE: Final = "f32"

QUANTISE: Final = "quantise_rows"
"""The kernel that makes codes and scales of activations."""

Already = dict[tuple[str, bool], "_Quantised"]
"""What has been quantised and not changed since: by the name of its declaration, and whether it is the previous layer's."""


@dataclass(frozen=True, slots=True)
class _Quantised:
    """References to the codes and scales of an activation."""

    codes: Reference
    scales: Reference


class Quantiser:
    """Rewrites the launches of a step for a format. `weights` are the codes and scales of each linear weight; `taken` are the
    names that other weights and buffers have. `buffers`, `counts` and `variants` are what the new launches need."""

    def __init__(
        self, form: Format, weights: Mapping[str, tuple[Declared, Declared]], taken: Set[str], counts: Mapping[str, str]
    ) -> None:
        self._form, self._weights, self._taken, self._counts = form, weights, taken, counts
        self.buffers: dict[str, Declared] = {}
        self.counts: dict[str, str] = {}
        self.variants: dict[str, Variant] = {}

    def statements(self, launch: Launch, otherwise: tuple[Launch, ...], already: Already) -> tuple[Statement, ...]:
        """The statements for a launch; `otherwise` are those of the format of its weights. StepError if a name is taken."""
        activations = self._form.activations
        for reference in launch.tensors.values():
            if not reference.quantised:  # it may write it
                already.pop((reference.declared.name, reference.previous), None)
        if activations is None or not any(reference.quantised for reference in launch.tensors.values()):
            return otherwise
        few = f"{self._form.name}.few"
        self.variants[few] = Variant(TOKENS, activations.above)
        test = expression(ast.copy_location(ast.Name(id=few), launch.node))
        return (Condition(test, otherwise, tuple(self._launches(launch, already))),)

    def _launches(self, launch: Launch, already: Already) -> Iterator[Launch]:
        """The product of eight bits, after the launches that quantise what it takes."""
        tensors: dict[str, Reference] = {}
        for parameter, reference in launch.tensors.items():
            if reference.quantised:
                key = reference.declared.name, reference.previous
                found = self._quantised(reference, launch.node)
                if already.get(key) != found:
                    yield _quantise(f"{launch.name}_quantise_{parameter}", reference, found, launch.node)
                    already[key] = found
                tensors |= {parameter: found.codes, f"{parameter}{SCALES}": found.scales}
            elif reference.declared.name in self._weights:
                codes, scales = self._weights[reference.declared.name]
                shape = reference.shape
                of_scales = None
                if shape is not None:
                    last = zip(shape[-2:], self._form.block, strict=True)
                    of_scales = (*shape[:-2], *(blocks(axis, block) for axis, block in last))
                tensors[parameter] = replace(reference, declared=codes, dequantised=False)
                tensors[f"{parameter}{SCALES}"] = replace(reference, declared=scales, shape=of_scales, dequantised=False)
            else:
                tensors[parameter] = reference
        yield replace(launch, kernel=f"{launch.kernel}_{self._form.stored_as}", tensors=tensors)

    def _quantised(self, reference: Reference, node: ast.stmt) -> _Quantised:
        """Buffers for the codes and the scales of an activation as a launch sees it."""
        activations = self._form.activations
        assert activations is not None  # `statements` has seen it
        declared = reference.declared
        rows, columns = reference.shape or declared.shape
        codes = Declared(f"{declared.name}.{activations.dtype}", Kind.ACTIVATION, activations.dtype, (rows, columns), {}, {})
        across = blocks(columns, activations.block[1])
        scales = Declared(f"{codes.name}{SCALES}", Kind.ACTIVATION, SCALES_DTYPE, (across, rows), {}, {})
        for added in (codes, scales):
            known = self.buffers.setdefault(added.name, added)
            if added.name in self._taken or _text(known) != _text(added):
                what = f"`{added.name}` is there, and is the name of what `{declared.name}` needs in `{self._form.name}`"
                raise StepError(what, node)
            if declared.name in self._counts:
                self.counts[added.name] = self._counts[declared.name]
        return _Quantised(*(Reference(self.buffers[added.name], reference.previous, None) for added in (codes, scales)))


def _quantise(name: str, reference: Reference, found: _Quantised, node: ast.stmt) -> Launch:
    dtype = ast.copy_location(ast.Name(id=DTYPE), node)
    tensors = {"x": replace(reference, quantised=False), "codes": found.codes, "scales": found.scales}
    return Launch(name, QUANTISE, {"E": expression(dtype)}, tensors, {}, node)


def _text(declared: Declared) -> list[str]:
    """The shape of a declaration as it is written."""
    return [ast.unparse(axis.node) for axis in declared.shape]


def blocks(axis: Expression, block: int) -> Expression:
    """The number of blocks along an axis, which has a whole number of them."""
    if block == 1:
        return axis
    node = ast.BinOp(left=axis.node, op=ast.FloorDiv(), right=ast.Constant(value=block))
    for each in (node, node.right):
        ast.copy_location(each, axis.node)
    return expression(node)
