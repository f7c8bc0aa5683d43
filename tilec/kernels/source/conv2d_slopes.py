"""The transpose of a convolution's gradient, with positions in the order of boxes."""

from conv_parts import HO, MOST, WO, B, E, O, T

import tilec as tl


@tl.kernel
def conv2d_slopes(
    dout: tl.In[E, B, HO, WO, O],
    transposed: tl.Out[E, O, T],
    *,
    E: tl.Const,
    BB: tl.Const,
    BH: tl.Const,
    BW: tl.Const,
    BM: tl.Const,
):
    """`transposed[o, k * BOX + q] = dout[b, i, j, o]`, with position q of box k, of BOX = BB x BH x BW positions; 0 outside.
    BB or BH is 1. Boxes go along columns first, then along that of samples and rows of which a box has several."""
    tl.requires(O % 8 == 0 and T % (BB * BH * BW) == 0)
    tl.requires(B <= MOST and O <= MOST and HO <= MOST and WO <= MOST and T <= 1073741824)
    tl.grid(tl.cdiv(T, BB * BH * BW), tl.cdiv(O, BM))
    k, m = tl.bid(0), tl.bid(1)
    across, down = tl.cdiv(WO, BW), tl.cdiv(B if BB > 1 else HO, BB * BH)
    j, t = k % across, k // across
    z, y = t % down, t // down
    box = tl.load(dout, (z if BB > 1 else y, y if BB > 1 else z, j, m), shape=(BB, BH, BW, BM), pad=0)
    tl.store(transposed, (m, k), box.reshape((BB * BH * BW, BM)).T, mask=True)
