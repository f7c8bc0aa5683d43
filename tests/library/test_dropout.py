"""`dropout` keeps elements by numbers of Philox-4x32-10, each with the wanted probability, and the same for the gradient."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.library.interpreted import interpreted, tensor
from tests.library.prebuilt import is_prebuilt, references

REFERENCES = references()
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
"""Counter, key and words of Philox-4x32-10 in `kat_vectors` of Random123, the authors' implementation."""


def _words(text: str) -> np.ndarray:
    return np.array([int(word, 16) for word in text.split()], np.uint32)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_reference_has_the_published_words(counter: str, key: str, words: str) -> None:
    assert REFERENCES.philox(_words(counter)[None], _words(key)).tolist() == [_words(words).tolist()]


def test_the_kernel_has_the_words_of_the_first_published_vector() -> None:
    """Elements 0, 1024, 2048 and 3072 are those of counter 0."""
    x = tensor(np.ones(4096), np.float32)
    words = _words(KNOWN[0][2])
    with interpreted() as library:
        library.module.dropout(x, 0.5, 0)
        dropout = library.ops["dropout"]
        for quarter, word in enumerate(int(word) for word in words):
            kept = [dropout(x, threshold, 1.0, 0, 0, 0, 0)[1024 * quarter] for threshold in (word, word + 1)]
            assert kept == [1, 0]


@settings(max_examples=20, deadline=None)
@given(
    st.integers(0, 9000), st.floats(0, 1), st.integers(-(2**63), 2**64 - 1), st.integers(0, 2**64 - 1),
    st.sampled_from(["float32", "float16"]),
)  # fmt: skip
def test_results_and_gradient(count: int, p: float, seed: int, offset: int, dtype: str) -> None:
    x = tensor(np.random.default_rng(count).normal(size=count), dtype)
    with interpreted() as library:
        out = library.module.dropout(x, p, seed, offset)
        assert all(is_prebuilt("dropout", call.constants) for call in library.calls) and (library.calls or p == 1)
    counters = np.zeros((count, 4), np.uint32)
    element = np.arange(count)
    counters[:, 0] = element // 4096 * 1024 + element % 1024
    counters[:, 2:] = offset % 2**32, offset >> 32
    words = REFERENCES.philox(counters, np.array([seed % 2**32, (seed % 2**64) >> 32], np.uint32))
    kept = words[element, element // 1024 % 4] >= p * 2.0**32
    scaled = x.astype(np.float64) * (1 / (1 - p) if p < 1 else 0)
    assert out.shape == x.shape and out.dtype == x.dtype
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(out, np.where(kept, scaled, 0).astype(dtype), rtol=1e-6 if dtype == "float32" else 1e-3)


def test_the_gradient_has_the_same_mask() -> None:
    x, dout = (tensor(np.ones(5000) * value, np.float32) for value in (2, 3))
    with interpreted() as library:
        out = library.module.dropout(x, 0.25, 2**40 + 1, offset=6)
        numbers = (1 << 30, 1 / 0.75, 1, 256, 6, 0)
        np.testing.assert_array_equal(library.ops["dropout"](x, *numbers), out)
        dx, *rest = library.gradient("dropout", (x, *numbers), out, dout)
    np.testing.assert_array_equal(dx != 0, out != 0)
    np.testing.assert_allclose(dx[dx != 0], 4, rtol=1e-6)
    assert rest == [None] * 6


def test_kept_elements_are_as_frequent_as_wanted_and_differ_from_call_to_call() -> None:
    count = 40000
    x = tensor(np.ones((count // 100, 100)), np.float32)
    with interpreted() as library:
        dropout = library.module.dropout
        for p in (0.1, 0.5):
            kept = np.count_nonzero(dropout(x, p, 1234))
            assert abs(kept - (1 - p) * count) < 5 * np.sqrt(p * (1 - p) * count)
        first, other, later = dropout(x, 0.5, 1), dropout(x, 0.5, 2), dropout(x, 0.5, 1, offset=1)
        for one, two in ((first, other), (first, later), (other, later)):
            assert abs(np.count_nonzero((one != 0) & (two != 0)) - count / 4) < 5 * np.sqrt(count * 3 / 16)


def test_probabilities_at_the_ends_and_outside() -> None:
    x = tensor([1.0, -2.0, 3.0], np.float32)
    with interpreted() as library:
        dropout = library.module.dropout
        assert dropout(x, 0, 5).tolist() == [1, -2, 3]
        assert dropout(x, 1, 5).tolist() == [0, 0, 0]
        for p in (-0.1, 1.5, float("nan")):
            with pytest.raises(ValueError, match=f"`p` is {p}; a probability is at least 0 and at most 1"):
                dropout(x, p, 5)
