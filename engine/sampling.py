"""Token sampling: the parameters, and a reference sampler in NumPy that every other sampler must agree with.

Steps are applied in this order, which is that of transformers (`LogitsProcessorList` of `GenerationMixin`): penalties, bias and
bars change logits to scores (`adjusted`); scores are divided by the temperature; all but the `top_k` greatest are dropped, then
all but the fewest whose probabilities reach `top_p`, then those below `min_p` times the greatest. Among equal scores the lower
token comes first.

Probabilities are integers, units of 2^-40 of the greatest: their sums have no order, so a device that adds them in another
one draws the same token. The random number of a step depends on (seed, step) alone, by Philox4x32-10 (Salmon et al.,
"Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). So a token depends on its logits, parameters, seed and number alone.
"""

from __future__ import annotations

import numbers
import operator
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import UsageError

TOP_K_LIMIT: Final = 64
"""Maximum number of tokens that a step of one sequence samples from: `keep` of the step (`engine/models/qwen3/qwen3.step`)."""

TOP_LOGPROBS: Final = 20
"""Maximum number of most likely tokens that are returned with their probabilities."""

IN_PROMPT, BARRED_FIRST, BARRED = 1 << 24, 1 << 25, 1 << 26
"""Bits of a token's mark; the bits below them count how often the generation has it."""

UNIT: Final = 2.0**40
WHOLE: Final = 1 << 30
"""The greatest weight of a token, and the integer that is a share of 1."""

ADJUSTED, PROBABILITIES = 1, 2
"""What a row of a batch asks for besides a token: changed logits, and probabilities."""

F32_RANGE: Final = (2.0**-100, 2.0**100)
"""Range well inside the normal numbers of f32."""

NOT_FINITE: Final = "the logits are not finite, so no token can be drawn"

SEED_LIMIT: Final = 1 << 64
STEP_LIMIT: Final = 1 << 64

ROUNDS: Final = 10
WORD: Final = 0xFFFFFFFF
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters of a generation. UsageError for an invalid value, with its name.

    `temperature` is positive (the most likely token: `top_k` 1, or no parameters); `top_k` is a number of tokens, 0 for all;
    `top_p` is above 0 and at most 1; `seed` is from 0 to 2^64 - 1; `min_p` is from 0 to 1.

    `repetition_penalty` is positive, and divides positive logits of tokens in the prompt or the generation and multiplies
    negative ones; `frequency_penalty` is subtracted for each time that the generation has a token, `presence_penalty` once;
    both are from -2 to 2. `logit_bias` are tokens and what is added to their logits, from -100 to 100. Of `allowed`, if there
    are any, a token is chosen; none of `barred` is one of the first `min_tokens` tokens. `logprobs`: how many most likely
    tokens are returned with each token's probability, to `TOP_LOGPROBS`; None for no probabilities. `masked`: which tokens may
    be next is said before each of them (`engine.constraint`).
    """

    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: tuple[int, ...] = ()
    barred: tuple[int, ...] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    masked: bool = False

    def __post_init__(self) -> None:
        if not _is_real(self.temperature) or not 0 < _python_number(self.temperature) <= sys.float_info.max:
            what = f"temperature is {self.temperature!r}, not a positive number"
            raise UsageError(what, fix="leave sampling out for the most likely token")
        if not _is_integer(self.top_k) or not 0 <= self.top_k < 1 << 31:
            raise UsageError(f"top-k is {self.top_k!r}, not a number of tokens, or 0 for all")
        if not _is_real(self.top_p) or not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p!r}, not a number above 0 and at most 1")
        if not _is_integer(self.seed) or not 0 <= self.seed < SEED_LIMIT:
            raise UsageError(f"the seed is {self.seed!r}, not a whole number from 0 to 2^64 - 1")
        _check_range("min-p", self.min_p, 0, 1)
        _check_range("the repetition penalty", self.repetition_penalty, 0.01, 100)
        _check_range("the frequency penalty", self.frequency_penalty, -2, 2)
        _check_range("the presence penalty", self.presence_penalty, -2, 2)
        for token, bias in self.logit_bias:
            _check_range(f"the bias of token {token}", bias, -100, 100)
        if not _is_integer(self.min_tokens) or not 0 <= self.min_tokens < 1 << 31:
            raise UsageError(f"min-tokens is {self.min_tokens!r}, not a number of tokens")
        if self.logprobs is not None and (not _is_integer(self.logprobs) or not 0 <= self.logprobs <= TOP_LOGPROBS):
            raise UsageError(f"logprobs is {self.logprobs!r}, not a whole number from 0 to {TOP_LOGPROBS}")

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed before a token is chosen."""
        factors = self.repetition_penalty != 1 or self.frequency_penalty != 0 or self.presence_penalty != 0
        return factors or self.masked or bool(self.logit_bias or self.allowed) or (self.min_tokens > 0 and bool(self.barred))

    @property
    def may_guess(self) -> bool:
        """Whether a token depends on its logits and number alone, so that several can be drawn in one step."""
        return not self.adjusts and self.logprobs is None

    @property
    def simple(self) -> bool:
        """Whether a step of one sequence has all that this asks for: it draws from `TOP_K_LIMIT` tokens at most."""
        return 1 <= self.top_k <= TOP_K_LIMIT and self.min_p == 0 and not self.adjusts and self.logprobs is None

    def check_tokens(self, vocabulary: int) -> None:
        """UsageError for a token that is not in the vocabulary, or if no token is allowed."""
        named = (*(token for token, _ in self.logit_bias), *self.allowed, *self.barred)
        outside = next((token for token in named if not 0 <= token < vocabulary), None)
        if outside is not None:
            raise UsageError(f"token {outside} is not in the vocabulary of {vocabulary}")
        barred = set(self.barred) if self.min_tokens else set[int]()
        if len(barred) == vocabulary or (self.allowed and barred.issuperset(self.allowed)):
            raise UsageError("no token is allowed", fix="allow one that may be among the first")


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural logarithms of probabilities among all tokens, before any parameter: of a token, and of the most likely ones, the
    likeliest first and the lower one first among equals."""

    own: float
    tokens: list[int]
    values: list[float]

    @classmethod
    def of_row(cls, values: NDArray[np.float32], tokens: NDArray[np.int32], count: int) -> Logprobs:
        """Those that a step writes for a row: its token's own and the greatest, (1 + n,), and the most likely tokens, (n,).
        A vocabulary of fewer tokens has fewer."""
        count = min(count, int(np.isfinite(values[1:]).sum()))
        return cls(float(values[0]), tokens[:count].tolist(), values[1 : count + 1].tolist())


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
        raise UsageError(NOT_FINITE, fix="check the weights")
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


def token_marks(params: SamplingParams, prompt: Iterable[int], generated: Iterable[int], vocabulary: int) -> NDArray[np.int32]:
    """What sampling has to know of each token, (vocab,): whether it is barred or in the prompt, how often it was generated."""
    marks = np.zeros(vocabulary, np.int32)
    marks[list(set(prompt))] |= IN_PROMPT
    if params.min_tokens:
        marks[list(params.barred)] |= BARRED_FIRST
    if params.allowed:
        marks |= BARRED
        marks[list(params.allowed)] &= ~BARRED
    np.add.at(marks, list(generated), 1)
    return marks


def token_bias(params: SamplingParams, vocabulary: int) -> NDArray[np.float32]:
    """What is added to the logit of each token, (vocab,)."""
    bias = np.zeros(vocabulary, np.float32)
    for token, value in params.logit_bias:
        bias[token] += np.float32(value)
    return bias


def adjusted(logits: NDArray[np.float32], marks: NDArray[np.int32], params: SamplingParams, step: int) -> NDArray[np.float32]:
    """Scores of logits, (vocab,), in f32; barred tokens are -inf."""
    repetition, frequency, presence = map(
        np.float32, (params.repetition_penalty, params.frequency_penalty, params.presence_penalty)
    )
    count = marks & (IN_PROMPT - 1)
    repeated = np.where(logits > 0, logits / repetition, logits * repetition)
    scores = np.where(marks & (2 * IN_PROMPT - 1) != 0, repeated, logits) - frequency * count.astype(np.float32)
    scores = scores - np.where(count > 0, presence, np.float32(0)) + token_bias(params, logits.size)
    bars = BARRED | BARRED_FIRST if step < params.min_tokens else BARRED
    return np.where(marks & bars != 0, np.float32(-np.inf), scores).astype(np.float32)


def token_weights(scores: NDArray[np.float32], temperature: float) -> NDArray[np.int64]:
    """`exp((score - greatest) / temperature)` in units of 2^-40, rounded down, as a device computes it in f32."""
    low, high = F32_RANGE
    scale = np.float32(np.log2(np.e)) / np.float32(min(max(temperature, low), high))
    with np.errstate(over="ignore"):
        exponents = (scores - scores.max()) * scale
    share = np.exp2(exponents.astype(np.float64)).astype(np.float32)
    return (share * np.float32(UNIT)).astype(np.int64)


def sample_logits(
    logits: NDArray[np.float32], params: SamplingParams, step: int, marks: NDArray[np.int32] | None = None
) -> int:
    """The token of a step, from the logits of the whole vocabulary, (vocab,). `marks` are needed if the parameters adjust
    logits. UsageError if a logit is NaN or infinite, or if all tokens are barred."""
    logits = np.asarray(logits, np.float32)
    if np.isnan(logits).any() or np.isposinf(logits).any():
        raise UsageError(NOT_FINITE, fix="check the weights")
    if params.adjusts:
        marks = token_marks(params, (), (), logits.size) if marks is None else marks
        logits = adjusted(logits, marks, params, step)
    if not np.isfinite(logits.max()):
        raise UsageError(NOT_FINITE, fix="check the weights, and which tokens are allowed")
    order = np.argsort(-logits, kind="stable")
    weights = token_weights(logits[order], params.temperature)[: params.top_k or None]
    running: NDArray[np.int64] = np.cumsum(weights)
    reach = max(1, int(running[-1]) * share_of(params.top_p) // WHOLE)
    weights = weights[: np.count_nonzero(running < reach) + 1]
    weights = weights[weights >= floor_of(params.min_p) << 10]
    running = np.cumsum(weights)
    goal = int(running[-1]) * int(uniform(params.seed, step) * WHOLE) // WHOLE
    return int(order[np.count_nonzero(running <= goal)])


def logprobs_of(logits: NDArray[np.float32], token: int, count: int) -> Logprobs:
    """Probabilities of a token and of the `count` most likely ones, from the logits of the whole vocabulary, (vocab,)."""
    wide = np.asarray(logits, np.float64)
    wide = wide - wide.max()
    wide = wide - np.log(np.exp(wide).sum())
    order = np.argsort(-np.asarray(logits, np.float32), kind="stable")[:count]
    return Logprobs(float(wide[token]), order.tolist(), wide[order].tolist())


def share_of(top_p: float) -> int:
    """A share of a mass in units of 2^-30, at least one."""
    return max(1, round(float(top_p) * WHOLE))


def floor_of(min_p: float) -> int:
    """The least probability in units of 2^-30 of the greatest."""
    return round(float(min_p) * WHOLE)


def row_numbers(params: SamplingParams, first: int, vocabulary: int) -> NDArray[np.int32]:
    """The integers of a row's parameters, in the order of `kernels_src/sample_scores.py`. `first` is the slot of the token
    before the first generated one, whose random number is the first."""
    asks = ADJUSTED * params.adjusts + PROBABILITIES * (params.logprobs is not None)
    seed = np.array([params.seed & WORD, params.seed >> 32], np.uint32).view(np.int32)
    numbers = [min(params.top_k or vocabulary, vocabulary), share_of(params.top_p), floor_of(params.min_p)]
    return np.array([*numbers, *seed, first, params.min_tokens, asks], np.int32)


def row_factors(params: SamplingParams) -> NDArray[np.float32]:
    """The floats of a row's parameters, likewise."""
    low, high = F32_RANGE
    temperature = min(max(params.temperature, low), high)
    return np.array([temperature, params.repetition_penalty, params.frequency_penalty, params.presence_penalty], np.float32)


def _check_range(name: str, value: object, low: float, high: float) -> None:
    if not _is_real(value) or not low <= _python_number(value) <= high:
        raise UsageError(f"{name} is {value!r}, not a number from {low} to {high}")


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
