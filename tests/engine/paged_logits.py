"""Logits of a row over pages, whose prompt comes in chunks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.paged_batch import PagedBatch


def logits_of(batch: PagedBatch, row: int, pages: Sequence[int], chunks: Sequence[Sequence[int]]) -> NDArray[np.float32]:
    """The logits after a prompt and its first two tokens, given in chunks."""
    first = 0
    for chunk in chunks[:-1]:
        batch.extend(pages, first, chunk)
        first += len(chunk)
    batch.join(row, pages, first, chunks[-1], None)
    batch.step(ahead=False)
    return batch.step_logits()[row]
