"""Keys of full pages: equal keys mean equal tokens, those of the page and all before it.

A key is the sha256 of the key before and the page's tokens, so nobody can find two prompts of one key. The pages of a pool are
of one model and one format of caches, so keys have nothing of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np


def page_keys(ids: Sequence[int], page_tokens: int) -> tuple[bytes, ...]:
    """The keys of the full pages with which a sequence of these token ids begins."""
    data, size = np.asarray(ids, np.dtype("<i4")).tobytes(), 4 * page_tokens
    keys, key = list[bytes](), b""
    for start in range(0, len(data) - size + 1, size):
        key = hashlib.sha256(key + data[start : start + size]).digest()
        keys.append(key)
    return tuple(keys)
