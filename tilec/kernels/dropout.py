"""Dropout whose mask is computed again for the gradient."""

from __future__ import annotations

from typing import Any, Final

from tilec.kernels.ops import library_op
from tilec.kernels.shapes import flat, whole, zeros

WORD: Final = 1 << 32


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.numbers = inputs[1:]


def _differentiate(ctx: Any, dout: Any) -> tuple[Any, ...]:
    """The same mask and scale."""
    return _dropout()(whole(dout), *ctx.numbers), *(None for _ in ctx.numbers)


_dropout = library_op("dropout", {"BLOCK": 4096}, gradient=(_differentiate, _save))


def dropout(x: Any, p: float, seed: int, offset: int = 0) -> Any:
    """`x / (1 - p)` with each element replaced by 0 with probability p, as `torch.nn.functional.dropout`.

    x: bf16, f16 or f32, of any shape, at most 2147418112 elements; with gaps it is copied. seed, offset: 64 bits each, the key
    and the upper half of the counter of Philox-4x32-10. The mask depends on them, p and the place of an element alone, on every
    GPU and for every dtype: give each call of a step an offset of its own, and each step another seed. p is rounded to a
    multiple of 2 ** -32. An element that is dropped is 0 even if it is inf or NaN. Gradient: of `x`; no mask is stored.
    ValueError for a p outside of 0 to 1, and for more elements."""
    if not 0 <= p <= 1:
        raise ValueError(f"`p` is {p}; a probability is at least 0 and at most 1")
    if p == 1:
        return zeros(x)
    numbers = (min(round(p * WORD), WORD - 1), 1 / (1 - p))
    words = (word % WORD for word in (seed, seed // WORD, offset, offset // WORD))
    return _dropout()(flat("x", x), *numbers, *words).reshape(x.shape)
