"""How many of some sorted numbers are below each number: where runs of equal numbers begin."""

import tilec as tl

HALVINGS = 31
LAST = 0x7FFFFFFF


class N(tl.Dim):
    """sorted numbers"""


class Q(tl.Dim):
    """numbers to compare with"""


@tl.kernel
def count_below(numbers: tl.In[tl.i32, N], out: tl.Out[tl.i32, Q], count: tl.i32, *, BLOCK: tl.Const):
    """`out[q] = sum(numbers < q)` for q from 0 to below Q, by bisection; `count` is Q. If `numbers` are not sorted, results are
    any from 0 to N. A block finds BLOCK results."""
    tl.requires(N <= 536870912 and count == Q)
    tl.grid(tl.cdiv(Q, BLOCK))
    q = tl.bid(0) * BLOCK + tl.arange(BLOCK)
    low, high = tl.zeros((BLOCK,), tl.i32), tl.zeros((BLOCK,), tl.i32) + N
    for _ in range(HALVINGS):
        middle = tl.minimum((low + high) // 2, N)
        is_below = tl.gather(numbers, middle, pad=LAST) < q
        low, high = tl.where(is_below & (low < high), tl.minimum(middle + 1, N), low), tl.where(is_below, high, middle)
    tl.store(out, tl.bid(0), low, mask=True)
