"""Sampling of tokens: the parameters, and a sampler in NumPy that says what every other sampler must answer.

The next token is drawn in the order transformers applies its warpers (`LogitsProcessorList` of `GenerationMixin`): logits are
divided by the temperature, all but the `top_k` greatest are dropped, then all but the fewest whose probabilities reach `top_p`.
The random number of a step depends on (seed, step) alone, by Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as
1, 2, 3", SC 2011), so that an answer does not depend on what ran before it, and a device can draw the same one.
"""

from __future__ import annotations

import numbers
import operator
import sys
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import UsageError

TOP_K_LIMIT: Final = 64
"""Tokens that sampling draws from at most: `keep` of the step (`engine/models/qwen3.step`)."""

F32_RANGE: Final = (2.0**-100, 2.0**100)
"""Well inside the normal numbers of f32."""

SEED_LIMIT: Final = 1 << 64
STEP_LIMIT: Final = 1 << 64

ROUNDS: Final = 10
WORD: Final = 0xFFFFFFFF
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to draw a token. UsageError for a value that makes no sense, with the name of the value.

    `temperature` is positive (greedy decoding takes no parameters at all); `top_k` is from 1 to `TOP_K_LIMIT`; `top_p` is above
    0 and at most 1; `seed` is from 0 to 2^64 - 1.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not _real(self.temperature) or not 0 < _plain(self.temperature) <= sys.float_info.max:
            what = f"temperature is {self.temperature!r}, not a positive number"
            raise UsageError(what, fix="leave sampling out for the most likely token")
        if not _whole(self.top_k) or not 1 <= self.top_k <= TOP_K_LIMIT:
            raise UsageError(f"top-k is {self.top_k!r}, not a whole number from 1 to {TOP_K_LIMIT}")
        if not _real(self.top_p) or not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p!r}, not a number above 0 and at most 1")
        if not _whole(self.seed) or not 0 <= self.seed < SEED_LIMIT:
            raise UsageError(f"the seed is {self.seed!r}, not a whole number from 0 to 2^64 - 1")


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Four random 32-bit words of a counter under a key: Philox4x32-10. The words of a counter may be arrays of u64 too."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & WORD, (first >> 32) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, step: int) -> float:
    """The random number of a step, a multiple of 2^-24 in [0, 1), which f32 holds exactly. The seed is the key; the step is the
    lower half of the counter."""
    if not 0 <= step < STEP_LIMIT:
        raise ValueError(f"step {step} is not from 0 to 2^64 - 1")
    seed, step = int(seed), int(step)  # NumPy's integers would overflow
    word = philox4x32((step & WORD, step >> 32, 0, 0), (seed & WORD, seed >> 32))[0]
    return (word >> 8) / (1 << 24)


def uniforms(seed: int, count: int) -> NDArray[np.float32]:
    """`uniform` of the first `count` steps."""
    steps = np.arange(count, dtype=np.uint64)
    nothing = np.zeros_like(steps)
    words: Any = philox4x32((steps & WORD, steps >> 32, nothing, nothing), (int(seed) & WORD, int(seed) >> 32))[0]
    return ((words >> 8) / (1 << 24)).astype(np.float32)


def settings(params: SamplingParams, first: int, slots: int) -> dict[str, Any]:
    """What a step that draws is told (`engine/models/qwen3.step`): an answer's first token follows the one in slot `first`.
    Temperatures that f32 cannot hold are brought to its ends, where they mean the same."""
    numbers = np.zeros(slots, np.float32)
    numbers[first:] = uniforms(params.seed, slots - first)
    low, high = F32_RANGE
    return {
        "top_k": params.top_k, "temperature": min(max(params.temperature, low), high), "top_p": max(params.top_p, low),
        "uniforms": numbers,
    }  # fmt: skip


def merge_top_k(values: NDArray[Any], indices: NDArray[Any], top_k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The `top_k` greatest of candidates, greatest first; of equal ones the lower index first. Fewer where there are fewer.

    `values` and `indices` have one shape, such as (blocks, k); candidates with a negative index or a value of -inf are padding.
    UsageError where a value is NaN or +inf, or nothing is left.
    """
    flat, places = np.asarray(values, np.float32).ravel(), np.asarray(indices, np.int64).ravel()
    if flat.shape != places.shape:
        raise ValueError(f"{flat.size} values and {places.size} indices")
    real = (places >= 0) & ~np.isneginf(flat)
    flat, places = flat[real], places[real]
    if not np.isfinite(flat).all() or not flat.size:
        raise UsageError("the logits are not finite, so no token can be drawn", fix="check the weights")
    if flat.size > top_k:  # everything as great as the k-th stays, so that ties go to the lower index
        bound = np.partition(flat, flat.size - top_k)[flat.size - top_k]
        flat, places = flat[flat >= bound], places[flat >= bound]
    order = np.lexsort((places, -flat))[:top_k]
    return flat[order], places[order]


def keep_top_p(probabilities: NDArray[np.float64], top_p: float) -> int:
    """How many of the probabilities, greatest first, stay: the fewest that reach `top_p` together, and one at least."""
    before = np.cumsum(probabilities) - probabilities
    return max(1, int(np.count_nonzero(before < top_p)))


def sample(values: NDArray[Any], indices: NDArray[Any], params: SamplingParams, step: int) -> int:
    """The token of a step from candidates as `topk_blocks` leaves them; see `merge_top_k`. Equal arguments, equal tokens."""
    logits, places = merge_top_k(values, indices, params.top_k)
    with np.errstate(over="ignore"):  # a tiny temperature: all but the greatest fall to -inf
        scaled = (logits.astype(np.float64) - float(logits[0])) / params.temperature
    weights: NDArray[np.float64] = np.exp(scaled)
    probabilities = weights / weights.sum()
    kept = keep_top_p(probabilities, params.top_p)
    reached: NDArray[np.float64] = np.cumsum(probabilities[:kept])
    drawn = int(np.count_nonzero(reached <= uniform(params.seed, step) * reached[-1]))
    return int(places[min(drawn, kept - 1)])


def sample_logits(logits: NDArray[np.float32], params: SamplingParams, step: int) -> int:
    """The token of a step from logits of the whole vocabulary, (vocab,)."""
    return sample(logits, np.arange(logits.size), params, step)


def _plain(value: Any) -> int | float:
    """A number of NumPy as Python's, so that no comparison is made in its own narrow type."""
    return value.item() if hasattr(value, "item") else value


def _real(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def _whole(value: object) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
