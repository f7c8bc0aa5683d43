"""`paged_gather` of a cache of codes: keys and values of 16 bits in the order of their tokens, from pages of codes."""

import tilec as tl

from .dims import HKV, D, E, S
from .paged_dims import MAX, PAGE, PAGES


@tl.kernel
def paged_gather_c8(
    k_pages: tl.In[tl.f8e4m3, PAGES, PAGE, HKV, D],
    k_scales: tl.In[tl.f32, PAGES, PAGE, HKV],
    v_pages: tl.In[tl.f8e4m3, PAGES, PAGE, HKV, D],
    v_scales: tl.In[tl.f32, PAGES, PAGE, HKV],
    table: tl.In[tl.i32, MAX],
    k_cache: tl.InOut[E, S, HKV, D],
    v_cache: tl.InOut[E, S, HKV, D],
    filled: tl.i32,
    *,
    E: tl.Const,
    D: tl.Const,
    PAGE: tl.Const,
):
    """Slots of the pages of the first `filled` tokens, `table[i // PAGE]` of token i, get codes times the scale of their token
    and head, the f32 product rounded once, as `dequantise_c8` gives them; other slots stay as they are. A block has a head of
    a page."""
    tl.requires(filled >= 1, filled <= MAX * PAGE, filled <= S, S <= 536870912, MAX * PAGE <= 536870912)
    tl.values(table, 0, PAGES)
    tl.grid(HKV, tl.cdiv(filled, PAGE))
    head, i = tl.bid(0), tl.bid(1)
    page = tl.load(table, i)
    k, v = (
        tl.load(k_pages, (page, 0, head, 0), shape=(1, PAGE, 1, D)).astype(tl.f32),
        tl.load(v_pages, (page, 0, head, 0), shape=(1, PAGE, 1, D)).astype(tl.f32),
    )
    k_scale, v_scale = (
        tl.load(k_scales, (page, 0, head), shape=(1, PAGE, 1)),
        tl.load(v_scales, (page, 0, head), shape=(1, PAGE, 1)),
    )
    tl.store(k_cache, (i, head, 0), tl.astype(k * k_scale[:, :, :, None], E).reshape((PAGE, 1, D)), mask=True)
    tl.store(v_cache, (i, head, 0), tl.astype(v * v_scale[:, :, :, None], E).reshape((PAGE, 1, D)), mask=True)
