"""Score functions of attention: what becomes of a product of a query and a key before the softmax.

To write one of your own, copy this folder, and replace what the two functions below compute. Kernels ask for scores times
log2(e), and for the derivative of a score by `scale` times its product, by which its gradient is multiplied.
"""

import tilec as tl

LOG2E = 1.4426950408889634
ALIBI = 1
"""Minus a slope of the head times the distance of query and key (Press et al., ALiBi, 2021)."""
SOFTCAP = 2
"""`cap * tanh(score / cap)`, as in Gemma 2 (Gemma Team, 2024)."""


@tl.function
def factors(scale: tl.Scalar, cap: tl.Scalar, SCORE: tl.Const):
    """What `scored` needs of the numbers of a launch, computed once: a factor of products, and a limit."""
    if SCORE == ALIBI:
        gain, limit = scale * LOG2E, 0.0
    else:
        gain, limit = scale / cap, cap * LOG2E
    return gain, limit


@tl.function
def scored(
    s: tl.Tile, distance: tl.Tile | float, slope: tl.Tile | float, gain: tl.Scalar, limit: tl.Scalar | float, SCORE: tl.Const
):
    """Scores times log2(e), and their derivatives.

    s: products of queries and keys. distance: from query to key, in f32. slope: of the head, times log2(e).
    """
    if SCORE == ALIBI:
        scores, derivative = s * gain - slope * tl.abs(distance), 1.0
    else:
        bent = tl.tanh(s * gain, fast=True)
        scores, derivative = bent * limit, 1.0 - bent * bent
    return scores, derivative
