"""Keeps Python's garbage collector away from what lives as long as a model."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without_collections(*, tidy: bool = True) -> Generator[None]:
    """A block whose objects live as long as the model. A garbage collection over them would stop a step for tens of
    milliseconds, and a start for longer, so that there is none in the block, and none over them later. `tidy`: but one at its
    end, for a program that may load more models; else a few megabytes of garbage stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        if tidy:
            gc.collect()
        gc.freeze()
    finally:
        if enabled:
            gc.enable()
