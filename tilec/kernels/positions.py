"""Rotary position embedding with its gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tilec.kernels.ops import library_op
from tilec.kernels.shapes import remembered, shaped, whole

HEAD_SIZES: Final = (64, 96, 128, 256)
"""Elements of a head for which kernels are prebuilt."""
MOST_SEQUENCES: Final = 65535
"""Blocks on the second axis of a grid."""


def _heads(known: Mapping[str, Any]) -> dict[str, int]:
    """A block takes four positions if heads are few."""
    return {"POSITIONS": 4, "HEADS": 8} if known["H"] <= 8 else {"POSITIONS": 1, "HEADS": 32}


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, cos, sin, ctx.sign = inputs
    ctx.save_for_backward(cos, sin)


def _differentiate(ctx: Any, dout: Any) -> tuple[Any, None, None, None]:
    """A rotation by the negative angle."""
    cos, sin = ctx.saved_tensors
    return _rope()(whole(dout), cos, sin, -ctx.sign), None, None, None


_rope = library_op("rope", _heads, gradient=(_differentiate, _save))


def rope(x: Any, cos: Any, sin: Any) -> Any:
    """Rotary position embedding that rotates halves, as in Llama and Qwen3, computed in f32 and rounded once.

    x: `[..., P, H, D]`, positions and heads of D elements, bf16, f16 or f32; D is 64, 96, 128 or 256. With gaps it is copied.
    cos, sin: f32, of each angle: `[P, D / 2]`, or one table for each sequence, `[..., P, D / 2]` with all axes of `x` before H.
    With tables for all sequences there are at most 65535 sequences.
    Returns `x * cos - y * sin` for the first half of each head and `y * cos + x * sin` for the second half `y`. Gradient: of
    `x`; cos and sin are constants. ValueError for another D, other tables, and more sequences."""
    rows, table = _checked(x.shape, cos.shape, sin.shape)
    out = _rope()(whole(shaped(x, rows)), whole(shaped(cos, table)), whole(shaped(sin, table)), 1.0)
    return shaped(out, x.shape)


@remembered
def _checked(x: Any, cos: Any, sin: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes in which the kernel takes tensors of given shapes, `x` and tables; ValueError for others."""
    if len(x) < 3 or x[-1] not in HEAD_SIZES:
        limit = f"`[..., P, H, D]` with D one of {', '.join(map(str, HEAD_SIZES))}"
        raise ValueError(f"`x` has the shape {list(x)}; it is {limit}")
    *sequences, positions, heads, size = x
    wanted = [(positions, size // 2), (*sequences, positions, size // 2)]
    for name, table in (("cos", cos), ("sin", sin)):
        if tuple(table) not in wanted or tuple(table) != tuple(cos):
            shown = " or ".join(str(list(shape)) for shape in dict.fromkeys(wanted))
            raise ValueError(f"`{name}` has the shape {list(table)}; it is {shown}, as of the other table")
    if len(cos) == 2:
        count = math.prod(sequences)
        if count > MOST_SEQUENCES:
            raise ValueError(f"`x` has {count} sequences; with one table they are at most {MOST_SEQUENCES}")
    else:
        count, positions = 1, math.prod((*sequences, positions))
    return (count, positions, heads, size), (positions, size // 2)
