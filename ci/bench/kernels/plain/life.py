"""A step of the game of life; 32 cells in a word, the lowest bit at the left; cells outside are dead."""

import tilec as tl


class R(tl.Dim):
    """rows"""


class C(tl.Dim):
    """words of a row"""


@tl.kernel
def life(board: tl.In[tl.u32, R, C], out: tl.Out[tl.u32, R, C], *, BR: tl.Const, BW: tl.Const):
    tl.grid(tl.cdiv(R, BR), tl.cdiv(C, BW))
    i, j = tl.bid(0), tl.bid(1)
    centre = tl.load(board, (i, j), shape=(BR, BW), pad=0)
    s0 = tl.zeros((BR, BW), tl.u32)
    s1 = tl.zeros((BR, BW), tl.u32)
    s2 = tl.zeros((BR, BW), tl.u32)
    for d in tl.static_range(-1, 2):
        mid = tl.load(board, offset=(i * BR + d, j * BW), shape=(BR, BW), pad=0)
        before = tl.load(board, offset=(i * BR + d, j * BW - 1), shape=(BR, BW), pad=0)
        after = tl.load(board, offset=(i * BR + d, j * BW + 1), shape=(BR, BW), pad=0)
        cells = ((mid << 1) | (before >> 31), (mid >> 1) | (after << 31))
        if d != 0:
            cells = (*cells, mid)
        for n in cells:
            c0 = s0 & n
            s0 = s0 ^ n
            c1 = s1 & c0
            s1 = s1 ^ c0
            s2 = s2 ^ c1
    tl.store(out, (i, j), s1 & ~s2 & (s0 | centre), mask=True)
