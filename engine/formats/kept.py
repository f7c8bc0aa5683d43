"""Quantised weights that stay as they are on the device: takes the weights of a folder, returns the format of a step that they
have, and the tensors of that format.

A format of a step (`tilec.step.formats`) is e4m3 codes with a scale for each block, or codes of four bits with a scale and a
zero point for each group of columns. Kernels take scales of blocks in f32, which holds every bf16 and f16 exactly, and scales
of groups in the dtype of the model, which must be that of the file: so no value changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.formats.codes import E4M3_MAX
from engine.formats.quantised import Quantised
from engine.formats.stored import Stored
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.models.steps import model_step
from tilec.step.declaration import DTYPE, Format
from tilec.step.expressions import StepError
from tilec.step.formats import SCALES, SIXTEEN_BIT, ZEROS
from tilec.target.dtypes import DTYPES

LARGEST_FIELD: Final = 15.0
"""The largest difference of a code of four bits and a zero point."""


@runtime_checkable
class BlockScheme(Protocol):
    """A scheme of e4m3 codes with scales, which can be read apart."""

    def block(self, stored: Stored) -> tuple[int, int]:
        """Rows and columns with one scale."""
        ...

    def codes(self, stored: Stored) -> NDArray[np.uint8]:
        """(N, K), a view of the file; ModelError if one is NaN."""
        ...

    def scales(self, stored: Stored) -> NDArray[np.floating]:
        """One for each block; ModelError if a product with a code is not finite."""
        ...


@runtime_checkable
class GroupScheme(Protocol):
    """A scheme of codes of four bits with scales and zero points, which can be read apart. `forms.Int4` says what they mean;
    its scales and zero points are transposed here."""

    def kept_group(self, stored: Stored) -> int | None:
        """The columns that share a scale; None if codes have more bits, or columns another order than activations. ModelError
        for bad groups."""
        ...

    def scales_dtype(self, stored: Stored) -> str:
        """Of the file, by its name there."""
        ...

    def words(self, stored: Stored) -> NDArray[np.uint32]:
        """(N, K / 8)"""
        ...

    def group_scales(self, stored: Stored) -> NDArray[Any]:
        """(K / group, N); ModelError if a product with a code is not finite."""
        ...

    def group_zeros(self, stored: Stored) -> NDArray[np.uint8]:
        """(K / group, N), from 0 to 15; ModelError for others than the config says."""
        ...


def kept_format(config: ModelConfig, dtype: str, quantised: Mapping[str, Quantised]) -> str:
    """The format of a model's step that all linear weights of a folder have, `16bit` if there is none."""
    for name, (form, _) in family_of(config.model_type).declaration().formats.items():
        try:
            step = model_step(config, 1, dtype, weight_format=name)
        except StepError:  # sizes that have no whole blocks
            continue
        linear = [row for weight in step.weights() if weight.dtype == form.dtype for row, _ in weight.rows]
        if all(row in quantised and _has(quantised[row], form, dtype) for row in linear):
            return name
    return SIXTEEN_BIT


def part(weight: Quantised, suffix: str) -> NDArray[Any]:
    """The tensor of a weight whose format is kept that has a suffix: codes, scales or zero points, in the layout of
    `tilec.step.formats`. ModelError for data that are no numbers."""
    scheme, stored = weight.scheme, weight.stored
    if isinstance(scheme, BlockScheme):
        return scheme.scales(stored).astype(np.float32) if suffix == SCALES else scheme.codes(stored)
    assert isinstance(scheme, GroupScheme)  # `kept_format` has seen it
    return {"": scheme.words, SCALES: scheme.group_scales, ZEROS: scheme.group_zeros}[suffix](stored)


def largest_code(weight: Quantised) -> float:
    """The largest number that a scale of a weight multiplies."""
    return E4M3_MAX if isinstance(weight.scheme, BlockScheme) else LARGEST_FIELD


def _has(weight: Quantised, form: Format, dtype: str) -> bool:
    """Whether a weight has a format in a model of `dtype`."""
    scheme, scales = weight.scheme, form.parts[1]
    if isinstance(scheme, GroupScheme):
        stated = dtype if scales.dtype == DTYPE else scales.dtype
        alike = scales.transposed and scheme.scales_dtype(weight.stored) == DTYPES[stated].safetensors
        return alike and (1, scheme.kept_group(weight.stored)) == form.block
    return isinstance(scheme, BlockScheme) and not scales.transposed and scheme.block(weight.stored) == form.block
