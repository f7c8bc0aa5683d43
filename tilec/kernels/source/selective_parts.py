"""What the kernels of the selective scan share: dims, and tiles of tokens, channels and states."""

import tilec as tl

LOG2E = 1.4426950408889634


class E(tl.Element):
    """bf16, f16 or f32"""


class B(tl.Dim):
    """sequences"""


class T(tl.Dim):
    """tokens of a sequence"""


class D(tl.Dim):
    """channels"""


class N(tl.Dim):
    """states of a channel"""


@tl.function
def of_channels(x: tl.Tensor, b: int, t: int, d: int, BT: int, BD: int) -> tl.Tile:
    """BT tokens from t and a tile of BD channels, `[BT, BD, 1]`; 0 outside of the sequence."""
    v = tl.load(x, offset=(b, t, d * BD), shape=(1, BT, BD), pad=0).astype(tl.f32)
    return v.reshape((BT, BD, 1))


@tl.function
def of_states(x: tl.Tensor, b: int, t: int, BT: int, STATES: int) -> tl.Tile:
    """BT tokens from t and all states, `[BT, 1, STATES]`; 0 outside of the sequence."""
    v = tl.load(x, offset=(b, t, 0), shape=(1, BT, STATES), pad=0).astype(tl.f32)
    return v.reshape((BT, 1, STATES))


@tl.function
def rates(a: tl.Tensor, d: int, BD: int, STATES: int) -> tl.Tile:
    """The logarithm to base 2 by which each state changes in a unit of time, `[1, BD, STATES]`."""
    return tl.load(a, (d, 0), shape=(BD, STATES), pad=0)[None, :, :] * LOG2E


@tl.function
def then(first: tuple[tl.Tile, tl.Tile], second: tuple[tl.Tile, tl.Tile]) -> tuple[tl.Tile, tl.Tile]:
    """Two steps `state = decay * state + x` are one of the same form."""
    (decay, state), (more_decay, more_state) = first, second
    return more_decay * decay, more_decay * state + more_state


@tl.function
def of_token(x: tl.Tile, token: int, BT: int) -> tl.Tile:
    """Of BT tokens the values of one, `[1, BD, STATES]`."""
    return tl.sum(tl.where(tl.arange(BT)[:, None, None] == token, x, 0), axis=0, keepdims=True)
