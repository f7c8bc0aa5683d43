"""Operand readers that several families share: a source and a frame in, its values in every lane and their poison out."""

from __future__ import annotations

import numpy as np

from tilec.emulator.errors import Lanes, Poison
from tilec.emulator.machine.frame import Frame
from tilec.emulator.machine.sources import Source


def read(source: Source, frame: Frame) -> tuple[Lanes, Poison | None]:
    """Values [lanes of the frame] and their poison or None."""
    value = source.value(frame)
    return np.broadcast_to(value, (frame.n,)), source.poison(frame)


def poison_of(source: Source, frame: Frame) -> Poison | None:
    """The poison of a source, or None."""
    source.value(frame)
    return source.poison(frame)
