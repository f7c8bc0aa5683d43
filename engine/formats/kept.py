"""Quantised weights that stay as they are on the device: takes the weights of a folder, returns the format of a step that they
have, and their codes and scales.

A format of a step (`tilec.step.formats`) is e4m3 codes with a scale for each block. Kernels take scales in f32, which holds
every bf16 and f16 exactly, so no value changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from engine.formats.quantised import Quantised
from engine.formats.stored import Stored
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.models.steps import model_step
from tilec.step.expressions import StepError
from tilec.step.formats import SIXTEEN_BIT


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


def kept_format(config: ModelConfig, dtype: str, quantised: Mapping[str, Quantised]) -> str:
    """The format of a model's step that all linear weights of a folder have, `16bit` if there is none."""
    for name, (form, _) in family_of(config.model_type).declaration().formats.items():
        try:
            step = model_step(config, 1, dtype, weight_format=name)
        except StepError:  # sizes that have no whole blocks
            continue
        linear = [row for weight in step.weights() if weight.dtype == form.dtype for row, _ in weight.rows]
        if all(row in quantised and _block(quantised[row]) == form.block for row in linear):
            return name
    return SIXTEEN_BIT


def codes(weight: Quantised) -> NDArray[np.uint8]:
    """The codes of a weight whose format is kept, (N, K); ModelError if one is NaN."""
    assert isinstance(weight.scheme, BlockScheme)  # `kept_format` has seen it
    return weight.scheme.codes(weight.stored)


def scales(weight: Quantised) -> NDArray[np.float32]:
    """The scales of a weight whose format is kept, exactly; ModelError if a product with a code is not finite."""
    assert isinstance(weight.scheme, BlockScheme)  # `kept_format` has seen it
    return weight.scheme.scales(weight.stored).astype(np.float32)


def _block(weight: Quantised) -> tuple[int, int] | None:
    return weight.scheme.block(weight.stored) if isinstance(weight.scheme, BlockScheme) else None
