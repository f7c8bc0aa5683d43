"""What the kernels of the causal convolution share."""

import tilec as tl


class E(tl.Element):
    """bf16, f16 or f32"""


class B(tl.Dim):
    """sequences"""


class T(tl.Dim):
    """tokens of a sequence"""


class D(tl.Dim):
    """channels"""


class W(tl.Dim):
    """taps of the filter"""


@tl.function
def tokens(x: tl.Tensor, b: int, t: int, d: int, BT: int, BD: int) -> tl.Tile:
    """BT tokens from t and a tile of BD channels; 0 outside of the sequence."""
    return tl.load(x, offset=(b, t, d * BD), shape=(1, BT, BD), pad=0).reshape((BT, BD)).astype(tl.f32)


@tl.function
def tap(weight: tl.Tensor, d: int, k: int, BD: int) -> tl.Tile:
    """Weight k of each channel."""
    return tl.load(weight, (d, k), shape=(BD, 1), pad=0).astype(tl.f32).reshape((1, BD))


@tl.function
def convolved(x: tl.Tensor, weight: tl.Tensor, bias: tl.Tensor, b: int, t: int, d: int, W: int, BT: int, BD: int) -> tl.Tile:
    """Sums of the W tokens that end with each of BT tokens, before SiLU."""
    y = tl.zeros((BT, BD), tl.f32) + tl.load(bias, d, shape=BD, pad=0).astype(tl.f32)[None, :]
    for k in range(W):
        y = y + tokens(x, b, t + k - (W - 1), d, BT, BD) * tap(weight, d, k, BD)
    return y
