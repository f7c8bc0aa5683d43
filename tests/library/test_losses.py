"""`cross_entropy` is the loss of PyTorch, reduction, ignored labels, other shapes and gradient included."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt, references, slope

REFERENCES = references()


def _example(dtype: Any = np.float32) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    logits = tensor(random.normal(size=(2, 3, 40)) * 4, dtype)
    return logits, tensor([[0, -100, 39], [7, 40, -100]], np.int64)


def test_reductions_and_ignored_labels() -> None:
    logits, labels = _example()
    labels[1, 1] = 12
    wide = logits.astype(np.float64)
    log_softmax = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    kept = [(0, 0, 0), (0, 2, 39), (1, 0, 7), (1, 1, 12)]
    expected = np.zeros((2, 3))
    for index in kept:
        expected[index[:2]] = -log_softmax[index]
    with interpreted() as library:
        cross_entropy = library.module.cross_entropy
        np.testing.assert_allclose(cross_entropy(logits, labels, reduction="none"), expected, rtol=1e-5)
        np.testing.assert_allclose(cross_entropy(logits, labels, reduction="sum"), expected.sum(), rtol=1e-5)
        np.testing.assert_allclose(cross_entropy(logits, labels), expected.sum() / 4, rtol=1e-5)
        others = tensor(labels, np.int32)
        others[0, 1] = others[1, 2] = 5
        np.testing.assert_allclose(cross_entropy(logits, others, "sum", ignore_index=5), expected.sum(), rtol=1e-5)
        strided = tensor(np.repeat(logits, 2, axis=1))[:, ::2]
        np.testing.assert_allclose(cross_entropy(strided, labels, "sum"), expected.sum(), rtol=1e-5)


def test_a_label_outside_of_the_vocabulary_has_no_logit() -> None:
    logits, labels = _example()
    labels[0, 1] = -1
    labels[0, 2] = 2**32 + 5
    with interpreted() as library:
        loss = library.module.cross_entropy(logits, labels, reduction="none")
    assert np.isinf(loss).tolist() == [[False, True, True], [False, True, False]]
    assert loss[1, 2] == 0


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_the_gradient_is_registered(dtype: Any) -> None:
    logits, labels = _example(dtype)
    tokens, flat = logits.reshape(6, 40), labels.reshape(6)
    flat[4] = 2**32 + 5
    dloss = tensor(np.linspace(-1, 2, 6), np.float32)
    with interpreted() as library:
        library.module.cross_entropy(logits, labels)
        output = library.ops["cross_entropy"](tokens, flat, -100)
        dlogits, *rest = library.gradient("cross_entropy", (tokens, flat, -100), output, dloss[::-1], None)
    wide = tokens.astype(np.float64)
    weights = np.exp(wide - np.log(np.exp(wide).sum(axis=1, keepdims=True)))
    expected = weights * dloss[::-1, None]
    for token, label in enumerate(flat):
        if label == -100:
            expected[token] = 0
        elif label < 40:
            expected[token, label] -= dloss[::-1][token]
    assert (rest, dlogits.dtype) == ([None, None], dtype)
    np.testing.assert_allclose(dlogits, expected, atol=1e-6 if dtype == np.float32 else 1e-3)


def test_the_reference_of_the_gradient_is_the_slope_of_the_loss() -> None:
    random = np.random.default_rng(1)
    logits, direction, dloss = random.normal(size=(5, 9)), random.normal(size=(5, 9)), random.normal(size=5)
    labels = np.array([0, 8, -100, 3, 3])
    _, lse = REFERENCES.cross_entropy(logits, labels, -100)
    gradient = REFERENCES.cross_entropy_backward(logits, labels, lse, dloss, -100)
    found = slope(lambda at: (REFERENCES.cross_entropy(at, labels, -100)[0] * dloss).sum(), logits, direction)
    np.testing.assert_allclose((gradient * direction).sum(), found, rtol=1e-9)
    assert not gradient[2].any()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 5000), st.sampled_from(["int32", "int64"]), st.sampled_from(["float32", "float16"]))
def test_chosen_constants_are_prebuilt(tokens: int, classes: int, labels: str, dtype: str) -> None:
    with interpreted() as library:
        given_labels = tensor(np.zeros(tokens), labels)
        logits = tensor(np.zeros((tokens, classes)), dtype)
        loss = library.module.cross_entropy(logits, given_labels, "sum")
        np.testing.assert_allclose(loss, tokens * np.log(classes), rtol=1e-5, atol=1e-6)
        saved = (logits, given_labels, -100)
        output = library.ops["cross_entropy"](*saved)
        library.gradient("cross_entropy", saved, output, tensor(np.ones(tokens), np.float32), None)
        assert {call.kernel for call in library.calls} == {"cross_entropy", "cross_entropy_backward"}
        assert all(is_prebuilt(call.kernel, call.constants) for call in library.calls)


def test_no_tokens_and_wrong_arguments() -> None:
    logits, labels = _example()
    with interpreted() as library:
        cross_entropy = library.module.cross_entropy
        assert cross_entropy(logits[:0], labels[:0], reduction="none").shape == (0, 3)
        assert cross_entropy(logits[:0], labels[:0], reduction="sum") == 0
        with np.errstate(invalid="ignore"):
            assert np.isnan(cross_entropy(logits[:0], labels[:0]))
        with pytest.raises(ValueError, match=r"`reduction` is 'max'; it is one of 'mean', 'sum', 'none'"):
            cross_entropy(logits, labels, reduction="max")
        with pytest.raises(ValueError, match=r"`labels` has the shape \[2, 2\].*\[2, 3\]"):
            cross_entropy(logits, labels[:, :2])
        with pytest.raises(ValueError, match=r"`logits` has the shape \[2, 3, 0\]"):
            cross_entropy(logits[..., :0], labels)
