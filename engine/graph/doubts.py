"""Which pages of a cache may hold numbers that are not finite, and are zeroed before another sequence has them.

Attention multiplies the slots of a tile past the end of a sequence by a probability of 0, and 0 times infinity or NaN is NaN.
So a sequence must own no slot with such a number that it has not written itself. A masked key does no harm, because its score
is replaced; values do, and codes with their scales. Kernels stay as they are: a page is zeroed instead, and only if it may hold
one.

What clears a page of doubt is a token of the sequence that wrote it: if the token at position q was chosen, all values of slots
0 to q are finite, in every layer. For attention of that token multiplies by each of them, also by a weight of 0, so that one
that is infinite or NaN leaves infinity or NaN in the attention of its head. A product with the weights of the output keeps
that, a sum of the residual keeps it (infinities that cancel are NaN), the last norm makes NaN of it (an infinite sum of squares
gives a factor of 0), and a logit is a product with all elements of that norm. So every logit is NaN, and no token is chosen:
every way of choosing one says so (`NO_TOKEN`). Values of eight bits are no exception: an infinite row has an infinite scale and
a code that is NaN, and codes of activations keep NaN.

Nobody sees a token after some writes. These leave doubt, of the page in which they are:

- a chunk of a prompt whose last token was not chosen yet, also if the request is cancelled then;
- a step that is enqueued ahead of a token which ended its request, and one of a request that is cancelled meanwhile; the token
  that comes of it is fetched later, and may clear the page then;
- all tokens of a sequence of which no token could be chosen;
- steps whose logits are read in place of a token;
- guesses of next tokens: those that are wrong are seen at once, and their slots are zeroed if one has no token.

Tokens of nobody (rows without a sequence, those that fill a chunk) write to pages that belong to nobody, and no sequence
multiplies by these. Nobody is preempted. Another prompt may share a page of a prefix that is in doubt: it would compute the
same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.cache_layout import Run
from engine.graph.pages import Part


class Doubt(NamedTuple):
    """Pages that were called into doubt together, and the number of that."""

    pages: NDArray[np.int32]
    number: int


class Doubts:
    """Of a pool of `pages` pages with `page_tokens` slots each, those in doubt; none at first, since a pool is zeroed."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self._numbers, self._page_tokens, self._last = np.zeros(pages, np.int64), page_tokens, 0

    def raised(self, pages: Sequence[int], first: int, end: int) -> Doubt:
        """Call the pages of the tokens [`first`, `end`) of a sequence with these pages into doubt."""
        found = np.array(pages[first // self._page_tokens : -(-end // self._page_tokens)], np.int32)
        self._last += 1
        self._numbers[found] = self._last
        return Doubt(found, self._last)

    def settle(self, doubt: Doubt) -> None:
        """What was in doubt is finite. Pages that were called into doubt again since stay there."""
        self._numbers[doubt.pages[self._numbers[doubt.pages] == doubt.number]] = 0

    def proven(self, pages: Sequence[int], length: int) -> None:
        """A token was chosen after the first `length` tokens of a sequence with these pages, and nothing is enqueued for it."""
        self._numbers[np.array(pages[: -(-length // self._page_tokens)], np.int32)] = 0

    def chunk(self, parts: Sequence[Part]) -> list[Run]:
        """The slots to zero before a chunk of prompts: the rest of a page in doubt that one begins and does not fill. The pages
        that the chunk writes are in doubt from now on."""
        found: list[Run] = []
        for pages, first, tokens in parts:
            filled, rest = divmod(first + tokens, self._page_tokens)
            if rest and first <= filled * self._page_tokens and self._numbers[pages[filled]]:
                found.append(Run(pages[filled] * self._page_tokens + rest, self._page_tokens - rest))
            self.raised(pages, first, first + tokens)
        return found

    def step(self, slots: NDArray[np.int32]) -> list[Run]:
        """The slots to zero before a step that writes `slots`: what follows them in pages in doubt, which sequences begin
        with them. That settles these."""
        pages = slots // self._page_tokens
        doubtful = self._numbers[pages] != 0
        if not doubtful.any():
            return []
        self._numbers[pages[doubtful]] = 0
        following = (slots[doubtful] + 1).tolist()
        return [Run(slot, -slot % self._page_tokens) for slot in following if slot % self._page_tokens]
