"""Token sampling: the parameters, and a reference sampler in NumPy that every other sampler must agree with.

Steps are applied in the order of transformers' warpers (`LogitsProcessorList` of `GenerationMixin`): logits are divided by the
temperature, all but the `top_k` greatest are dropped, then all but the fewest whose probabilities reach `top_p`. The random
number of a step depends on (seed, step) alone, by Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
SC 2011). So a generation does not depend on what ran before it, and a device can draw the same numbers.
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
"""Maximum number of tokens to sample from: `keep` of the step (`engine/models/qwen3/qwen3.step`)."""

F32_RANGE: Final = (2.0**-100, 2.0**100)
"""Range well inside the normal numbers of f32."""

SEED_LIMIT: Final = 1 << 64
STEP_LIMIT: Final = 1 << 64

ROUNDS: Final = 10
WORD: Final = 0xFFFFFFFF
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a generation. UsageError for an invalid value, with its name.

    `temperature` is positive (greedy decoding has no parameters); `top_k` is from 1 to `TOP_K_LIMIT`; `top_p` is above
    0 and at most 1; `seed` is from 0 to 2^64 - 1.
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not _is_real(self.temperature) or not 0 < _python_number(self.temperature) <= sys.float_info.max:
            what = f"temperature is {self.temperature!r}, not a positive number"
            raise UsageError(what, fix="leave sampling out for the most likely token")
        if not _is_integer(self.top_k) or not 1 <= self.top_k <= TOP_K_LIMIT:
            raise UsageError(f"top-k is {self.top_k!r}, not a whole number from 1 to {TOP_K_LIMIT}")
        if not _is_real(self.top_p) or not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p!r}, not a number above 0 and at most 1")
        if not _is_integer(self.seed) or not 0 <= self.seed < SEED_LIMIT:
            raise UsageError(f"the seed is {self.seed!r}, not a whole number from 0 to 2^64 - 1")


def philox4x32(counter: tuple[Any, Any, Any, Any], key: tuple[int, int]) -> tuple[Any, Any, Any, Any]:
    """Philox4x32-10: four random 32-bit words of a counter under a key. The counter's words may also be arrays of u64."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        first, second = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (second >> 32) ^ c1 ^ k0, second & WORD, (first >> 32) ^ c3 ^ k1, first & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def uniform(seed: int, step: int) -> float:
    """The random number of a step: a multiple of 2^-24 in [0, 1), exact in f32. The seed is the key; the step is the lower half
    of the counter."""
    if not 0 <= step < STEP_LIMIT:
        raise ValueError(f"step {step} is not from 0 to 2^64 - 1")
    seed, step = int(seed), int(step)  # as Python integers: NumPy's would overflow
    word = philox4x32((step & WORD, step >> 32, 0, 0), (seed & WORD, seed >> 32))[0]
    return (word >> 8) / (1 << 24)


def uniforms(seed: int, count: int) -> NDArray[np.float32]:
    """`uniform` of the first `count` steps."""
    steps = np.arange(count, dtype=np.uint64)
    zeros = np.zeros_like(steps)
    words: Any = philox4x32((steps & WORD, steps >> 32, zeros, zeros), (int(seed) & WORD, int(seed) >> 32))[0]
    return ((words >> 8) / (1 << 24)).astype(np.float32)


def settings(params: SamplingParams, first: int, slots: int) -> dict[str, Any]:
    """The sampling inputs of a step, by role. `first` is the slot of the token before the first generated one; the random
    numbers start there. Temperature and `top_p` are clamped to `F32_RANGE`, beyond which the result does not change."""
    numbers = np.zeros(slots, np.float32)
    numbers[first:] = uniforms(params.seed, slots - first)
    low, high = F32_RANGE
    return {
        "top_k": params.top_k, "temperature": min(max(params.temperature, low), high), "top_p": max(params.top_p, low),
        "uniforms": numbers,
    }  # fmt: skip


def merge_top_k(values: NDArray[Any], indices: NDArray[Any], top_k: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The `top_k` greatest candidates, greatest first; ties go to the lower index. Returns fewer if there are fewer.

    `values` and `indices` have the same shape, such as (blocks, k); a negative index or a value of -inf is padding. UsageError
    if a value is NaN or +inf, or if no candidate is left.
    """
    flat_values, flat_indices = np.asarray(values, np.float32).ravel(), np.asarray(indices, np.int64).ravel()
    if flat_values.shape != flat_indices.shape:
        raise ValueError(f"{flat_values.size} values and {flat_indices.size} indices")
    valid = (flat_indices >= 0) & ~np.isneginf(flat_values)
    flat_values, flat_indices = flat_values[valid], flat_indices[valid]
    if not np.isfinite(flat_values).all() or not flat_values.size:
        raise UsageError("the logits are not finite, so no token can be drawn", fix="check the weights")
    if flat_values.size > top_k:  # everything equal to the k-th stays, so that ties go to the lower index
        bound = np.partition(flat_values, flat_values.size - top_k)[flat_values.size - top_k]
        flat_values, flat_indices = flat_values[flat_values >= bound], flat_indices[flat_values >= bound]
    order = np.lexsort((flat_indices, -flat_values))[:top_k]
    return flat_values[order], flat_indices[order]


def keep_top_p(probabilities: NDArray[np.float64], top_p: float) -> int:
    """The number of probabilities to keep, greatest first: the fewest whose sum reaches `top_p`, at least one."""
    before = np.cumsum(probabilities) - probabilities
    return max(1, int(np.count_nonzero(before < top_p)))


def sample(values: NDArray[Any], indices: NDArray[Any], params: SamplingParams, step: int) -> int:
    """The token of a step, from candidates in the layout of `topk_blocks`; see `merge_top_k`. Deterministic."""
    logits, tokens = merge_top_k(values, indices, params.top_k)
    with np.errstate(over="ignore"):  # with a tiny temperature all but the greatest become -inf
        scaled = (logits.astype(np.float64) - float(logits[0])) / params.temperature
    weights: NDArray[np.float64] = np.exp(scaled)
    probabilities = weights / weights.sum()
    count = keep_top_p(probabilities, params.top_p)
    cumulative: NDArray[np.float64] = np.cumsum(probabilities[:count])
    choice = int(np.count_nonzero(cumulative <= uniform(params.seed, step) * cumulative[-1]))
    return int(tokens[min(choice, count - 1)])


def sample_logits(logits: NDArray[np.float32], params: SamplingParams, step: int) -> int:
    """The token of a step, from the logits of the whole vocabulary, (vocab,)."""
    return sample(logits, np.arange(logits.size), params, step)


def _python_number(value: Any) -> int | float:
    """A NumPy scalar as a Python number, so that no comparison is made in its narrower dtype."""
    return value.item() if hasattr(value, "item") else value


def _is_real(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real)


def _is_integer(value: object) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True
