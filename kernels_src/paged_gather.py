"""Keys and values of a sequence in the order of its tokens, from its pages: what `flash_attention` multiplies by many times."""

import tilec as tl

from .dims import HKV, D, E, S
from .paged_dims import MAX, PAGE, PAGES


@tl.kernel
def paged_gather(
    k_pages: tl.In[E, PAGES, PAGE, HKV, D],
    v_pages: tl.In[E, PAGES, PAGE, HKV, D],
    table: tl.In[tl.i32, MAX],
    k_cache: tl.InOut[E, S, HKV, D],
    v_cache: tl.InOut[E, S, HKV, D],
    filled: tl.i32,
    *,
    E: tl.Const,
    D: tl.Const,
    PAGE: tl.Const,
):
    """Slots of the pages of the first `filled` tokens, `table[i // PAGE]` of token i; other slots stay as they are. A block has
    a head of a page."""
    tl.requires(filled >= 1, filled <= MAX * PAGE, filled <= S, S <= 536870912, MAX * PAGE <= 536870912)
    tl.values(table, 0, PAGES)
    tl.grid(HKV, tl.cdiv(filled, PAGE))
    head, i = tl.bid(0), tl.bid(1)
    page = tl.load(table, i)
    k, v = (
        tl.load(k_pages, (page, 0, head, 0), shape=(1, PAGE, 1, D)),
        tl.load(v_pages, (page, 0, head, 0), shape=(1, PAGE, 1, D)),
    )
    tl.store(k_cache, (i, head, 0), k.reshape((PAGE, 1, D)), mask=True)
    tl.store(v_cache, (i, head, 0), v.reshape((PAGE, 1, D)), mask=True)
