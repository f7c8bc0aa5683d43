"""Attention with biases of distances or a soft cap: results and gradients at odd sizes, wrong arguments, machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.campaign import first
from tests.library.emulated import check_emulated
from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import SOURCE, is_prebuilt, request, specialisations
from tilec.project.read.python_file import execute
from tilec.project.trial.trial import trials
from tilec.target.targets import MAIN_TARGETS

ALL = 1 << 24
LOG2E = 1.4426950408889634
SMALL = {
    "attention_scored": {"BM": 32, "BN": 32}, "attention_scored_backward_q": {"BM": 32, "BN": 32},
    "attention_scored_backward_kv": {"ROWS": 64, "BM": 32, "BN": 32},
}  # fmt: skip
"""Tiles of which few queries and keys fill several."""
SIZES = ((37, 71), (64, 64), (100, 50), (33, 97))
"""Queries and keys."""
reference: Any = execute(SOURCE / "reference_varlen.py", "reference")
dense: Any = execute(SOURCE / "reference_attention.py", "reference")


def scores_of(q: Any, k: Any, slopes: Any, cap: float, scale: float, before: int, after: int) -> Any:
    """Of one sequence (T, HKV, G, D) and slopes (HKV, G), written anew: element by element, -inf where nothing is seen."""
    found = np.full((*q.shape[1:3], len(q), len(k)), -np.inf)
    for h, g, t, s in np.ndindex(*found.shape):
        distance = s - (t + len(k) - len(q))
        if -before <= distance <= after:
            score = float(q[t, h, g] @ k[s, h]) * scale
            found[h, g, t, s] = cap * np.tanh(score / cap) if cap else score - slopes[h, g] * abs(distance)
    return found


def attended(scores: Any, v: Any) -> Any:
    top = np.maximum(scores.max(axis=-1, keepdims=True), -1e30)
    weights = np.exp(scores - top)
    return np.einsum("hgts,shd->thgd", weights / np.maximum(weights.sum(axis=-1, keepdims=True), 1e-300), v)


@pytest.mark.parametrize("kernel", SMALL)
@pytest.mark.parametrize("score", [1, 2])
@pytest.mark.parametrize("seed", first(2, range(4)))
def test_results_are_those_of_the_reference(kernel: str, score: int, seed: int) -> None:
    constants: dict[str, Any] = {"E": ("bf16", "f16")[seed % 2], "D": 64, "SCORE": score, **SMALL[kernel]}
    launch = {"T": SIZES[seed][0], "S": SIZES[seed][1], "HKV": 1, "G": 2, "scale": 0.125}
    (trial,) = trials(request(kernel, constants, launch, seed=seed))
    assert trial.right, trial


@pytest.mark.parametrize("sequences", [1, 3])
def test_slopes_of_rows_are_those_of_their_sequences(sequences: int) -> None:
    launch = {"N": sequences, "T": 37, "S": 71, "HKV": 2, "G": 2}
    (trial,) = trials(request("attention_slopes", {"ROWS": 16}, launch, seed=sequences))
    assert trial.right, trial


@pytest.mark.parametrize("visible", [(ALL, 0), (2, 0), (1, 1), (ALL, ALL)])
@pytest.mark.parametrize("cap", [0.0, 0.8])
def test_the_reference_is_attention_of_each_sequence_and_its_gradients(visible: tuple[int, int], cap: float) -> None:
    """By a definition of its own, and by finite differences of that."""
    random, scale, score = np.random.default_rng(2), 0.3, 2 if cap else 1
    queries, keys = np.array([0, 3, 3, 8, 9]), np.array([0, 4, 6, 13, 13])
    inputs = {"q": random.normal(size=(11, 2, 2, 4)), "k": random.normal(size=(13, 2, 4)), "v": random.normal(size=(13, 2, 4))}
    dout, slopes = random.normal(size=(11, 2, 2, 4)), random.uniform(0, 1, (4, 2, 2))
    spans, tiles = reference.attention_spans(queries, keys, 11, 13, *visible, 4)
    rows_of_slopes = reference.attention_slopes(slopes, spans)

    def all_sequences(q: Any, k: Any, v: Any) -> Any:
        out = np.zeros_like(q)
        for b in range(4):
            mine, others = slice(queries[b], queries[b + 1]), slice(keys[b], keys[b + 1])
            if len(q[mine]) and len(k[others]):
                out[mine] = attended(scores_of(q[mine], k[others], slopes[b], cap, scale, *visible), v[others])
        return out

    wanted = all_sequences(**inputs)
    shared = spans, tiles, rows_of_slopes, scale, cap, score
    out, lse = reference.attention_scored(*inputs.values(), *shared)
    np.testing.assert_allclose(out, wanted, atol=1e-12)
    rows = dense.attention_rows(out[None], dout[None], lse[None])[0]
    dq = reference.attention_scored_backward_q(*inputs.values(), dout, rows, *shared)
    dk, dv = reference.attention_scored_backward_kv(*inputs.values(), dout, rows, *shared)
    gradients: dict[str, Any] = {"q": dq, "k": dk, "v": dv}
    for name, gradient in gradients.items():
        direction, step = np.asarray(random.normal(size=inputs[name].shape)), 1e-5
        moved: list[Any] = [all_sequences(**{**inputs, name: inputs[name] + side * step * direction}) for side in (-1, 1)]
        ends = [float(np.sum(dout * one)) for one in moved]
        assert np.isclose((ends[1] - ends[0]) / (2 * step), float(np.sum(gradient * direction)), rtol=1e-5, atol=1e-8), name


def _random(seed: int, *shape: int) -> Any:
    return tensor(np.random.default_rng(seed).normal(size=shape), np.float16)


@pytest.mark.parametrize(("size", "scores"), [(64, "heads"), (128, "sequences"), (128, "softcap")])
def test_the_dense_function(size: int, scores: str) -> None:
    """A window with biases, groups of heads, strided tensors, fewer queries than keys."""
    joined = _random(0, 2, 9, 4, size)
    q, k, v = _random(1, 2, 5, 4, size), joined[:, :, :2], joined[:, :, 2:]
    slopes = {"heads": np.array([0.5, 0.25, 0.125, 0.0625]), "sequences": np.array([[0.5, 0.1, 0, 1], [0.2, 0.3, 2, 0]])}
    given = tensor(slopes[scores], np.float32) if scores in slopes else None
    cap = 0.0 if scores in slopes else 0.7
    with interpreted() as library:
        out = library.module.attention(q, k, v, causal=True, window=4, alibi_slopes=given, softcap=cap or None)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    for b in range(2):
        own = np.zeros(4) if given is None else np.asarray(given.reshape(-1, 4)[b % (given.size // 4)])
        one = [np.asarray(x[b], np.float64) for x in (q.unflatten(2, (2, 2)), k, v)]
        wanted = attended(scores_of(one[0], one[1], own.reshape(2, 2), cap, size**-0.5, 3, 0), one[2])
        np.testing.assert_allclose(out[b].unflatten(1, (2, 2)).astype(np.float64), wanted, atol=4e-3)


@pytest.mark.parametrize(("size", "cap"), [(64, 0.0), (128, 0.0), (64, 0.9), (128, 0.9)])
def test_the_function_of_several_lengths_and_its_gradients(size: int, cap: float) -> None:
    joined = _random(0, 40, 8, size)
    q, k, v, dout = joined[:, :4], joined[:, 4:6], joined[:, 6:], _random(1, 40, 4, size)
    offsets, scale = tensor([0, 7, 7, 30, 38], np.int32), size**-0.5
    slopes = tensor(np.random.default_rng(4).uniform(0, 1, (4, 4)), np.float32)
    spans, tiles = reference.attention_spans(offsets, offsets, 40, 40, 9, 0, 128)
    grouped, gradient = (np.asarray(one.unflatten(1, (2, 2)), np.float64) for one in (q, dout))
    exact = grouped, np.asarray(k, np.float64), np.asarray(v, np.float64)
    shared = spans, tiles, reference.attention_slopes(slopes.reshape(4, 2, 2), spans), scale, cap, 2 if cap else 1
    wanted, lse = reference.attention_scored(*exact, *shared)
    rows = dense.attention_rows(wanted[None], gradient[None], lse[None])[0]
    expected = (
        reference.attention_scored_backward_q(*exact, gradient, rows, *shared),
        *reference.attention_scored_backward_kv(*exact, gradient, rows, *shared),
    )
    scores = {"softcap": cap} if cap else {"alibi_slopes": slopes}
    with interpreted() as library:
        out = library.module.attention_varlen(q, k, v, offsets, offsets, causal=True, window=10, **scores)
        seen = library.ops["attention_spans"](offsets, offsets, 40, 40, 9, 0)
        own = library.ops["attention_slopes"](slopes.reshape(4, 2, 2), seen[0], 40, 40)
        inputs = (q.unflatten(1, (2, 2)), k, v, *seen, own, scale, cap)
        op = f"attention_scored_{'softcap' if cap else 'alibi'}"
        output = library.ops[op](*inputs)
        found = library.gradient(op, inputs, output, dout.unflatten(1, (2, 2)), None)
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)
    np.testing.assert_allclose(out.unflatten(1, (2, 2)).astype(np.float64), wanted, atol=4e-3)
    assert found[3:] == (None,) * 5
    for one, truth in zip(found, expected, strict=False):
        np.testing.assert_allclose(one.astype(np.float64), truth, atol=2e-2)


def test_wrong_numbers_of_sequences_reach_no_other_memory() -> None:
    """The interpreter refuses an access outside of a tensor."""
    spans = tensor(np.random.default_rng(1).integers(-(2**31), 2**31 - 1, (2, 4, 128)), np.int32)
    slopes = tensor([[[1.0]], [[2.0]]], np.float32)
    with interpreted() as library:
        rows = np.asarray(library.ops["attention_slopes"](slopes, spans, 5, 5), np.float64)
    assert np.isin((rows / LOG2E).round(5), (1, 2)).all()


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"alibi_slopes": tensor(np.ones(4), np.float32), "softcap": 1.0}, "not both"),
        ({"alibi_slopes": tensor(np.ones(4), np.float16)}, "float16"),
        ({"alibi_slopes": tensor(np.ones(3), np.float32)}, r"\[3\]; .* float32 \[4\] or \[2, 4\]"),
        ({"alibi_slopes": tensor(np.ones((3, 4)), np.float32)}, r"\[3, 4\]"),
        ({"softcap": 0.0}, "`softcap` is 0.0"),
        ({"softcap": np.inf}, "`softcap` is inf"),
    ],
)
def test_wrong_arguments(scores: dict[str, Any], message: str) -> None:
    """Also where nothing is to be computed."""
    q, offsets = _random(0, 2, 6, 4, 64), tensor([0, 6, 12], np.int32)
    with interpreted() as library:
        for one in (q, q[:, :0]):
            with pytest.raises(ValueError, match=message):
                library.module.attention(one, one, one, **scores)
            joined = one.reshape(-1, 4, 64)
            with pytest.raises(ValueError, match=message):
                library.module.attention_varlen(joined, joined, joined, offsets, offsets, **scores)


EMULATED = [
    (entry, constants)
    for entry, constants in specialisations(*SMALL)
    if MAIN_TARGETS[0] in entry.targets and constants["E"] == "bf16"
]  # fmt: skip


@pytest.mark.parametrize(("entry", "constants"), first(3, EMULATED), ids=lambda one: getattr(one, "name", None))
def test_emulated_launches_are_clean_and_right(entry: Any, constants: dict[str, Any]) -> None:
    size, axes = constants["D"], ("QO" if "backward" in entry.name else "Q")
    strides = {f"{name}{axis}": step for name in axes for axis, step in (("T", 2 * size), ("H", 2 * size), ("G", size))}
    strides |= {f"{name}{axis}": size for name in "KV" for axis in "SH"}
    check_emulated(entry, constants, {"T": 37, "S": 71, "HKV": 1, "G": 2, "scale": 0.125, "cap": 1.5, **strides})
