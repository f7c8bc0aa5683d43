"""Losses, activations, positions, a step of AdamW and dropout in NumPy and
float64. Functions and parameters are named like kernels and theirs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Float = NDArray[np.float64]
Integers = NDArray[np.integer]
Words = NDArray[np.uint32]

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


def _chosen(labels: Integers, classes: int) -> NDArray[np.bool_]:
    return labels[:, None] == np.arange(classes)


def cross_entropy(logits: Array, labels: Integers, ignore_index: int) -> tuple[Float, Float]:
    wide = logits.astype(np.float64)
    top = wide.max(axis=1)
    lse = np.log(np.exp(wide - top[:, None]).sum(axis=1)) + top
    logit = np.where(_chosen(labels, wide.shape[1]), wide, -np.inf).max(axis=1)
    return np.where(labels == ignore_index, 0.0, lse - logit), lse


def cross_entropy_backward(logits: Array, labels: Integers, lse: Array, dloss: Array, ignore_index: int) -> Float:
    weights = np.exp(logits.astype(np.float64) - lse.astype(np.float64)[:, None])
    factors = np.where(labels == ignore_index, 0.0, dloss.astype(np.float64))
    return (weights - _chosen(labels, weights.shape[1])) * factors[:, None]


def _sigmoid(x: Float) -> Float:
    return 0.5 * (1 + np.tanh(0.5 * x))


def swiglu(gate: Array, up: Array) -> Float:
    wide = gate.astype(np.float64)
    return wide * _sigmoid(wide) * up.astype(np.float64)


def swiglu_backward(gate: Array, up: Array, dout: Array) -> tuple[Float, Float]:
    wide, factor, gradient = gate.astype(np.float64), up.astype(np.float64), dout.astype(np.float64)
    s = _sigmoid(wide)
    return gradient * factor * (s + wide * s * (1 - s)), gradient * wide * s


def _below(x: Float) -> Float:
    """The distribution function of the standard normal."""
    return 0.5 * np.vectorize(math.erfc, otypes=[np.float64])(-x / math.sqrt(2))


def gelu(x: Array) -> Float:
    wide = x.astype(np.float64)
    return wide * _below(wide)


def gelu_backward(x: Array, dout: Array) -> Float:
    wide = x.astype(np.float64)
    density = np.exp(-0.5 * wide * wide) / math.sqrt(2 * math.pi)
    return dout.astype(np.float64) * (_below(wide) + wide * density)


def rope(x: Array, cos: Array, sin: Array, sign: float) -> Float:
    half = cos.shape[1]
    pairs = x[..., :half].astype(np.float64) + 1j * x[..., half:].astype(np.float64)
    turned = pairs * (cos.astype(np.float64) + 1j * sign * sin.astype(np.float64))[:, None, :]
    return np.concatenate((turned.real, turned.imag), axis=-1)


def adamw(
    p: Array, grad: Array, m: Array, v: Array, weight1: float, weight2: float, keep: float, step_size: float, scale: float,
    eps: float,
) -> tuple[Float, Float, Float]:  # fmt: skip
    gradient = grad.astype(np.float64)
    mean = (1 - weight1) * m.astype(np.float64) + weight1 * gradient
    square = (1 - weight2) * v.astype(np.float64) + weight2 * gradient**2
    with np.errstate(invalid="ignore"):
        root = np.sqrt(square)
    return keep * p.astype(np.float64) - step_size * mean / (scale * root + eps), mean, square


def philox(counter: Words, key: Words) -> Words:
    """The four words at each counter `[N, 4]` with the key `[2]`, by Salmon and others, Parallel Random Numbers, SC 2011."""
    multipliers = np.array([0xD2511F53, 0xCD9E8D57], np.uint64)
    weyl = np.array([0x9E3779B9, 0xBB67AE85], np.uint64)
    words, k = counter.astype(np.uint64), key.astype(np.uint64)
    for _ in range(10):
        products = words[:, [0, 2]] * multipliers
        high, low = products >> HALF, products & LOW
        words = np.stack((high[:, 1] ^ words[:, 1] ^ k[0], low[:, 1], high[:, 0] ^ words[:, 3] ^ k[1], low[:, 0]), axis=1)
        k = (k + weyl) & LOW
    return words.astype(np.uint32)


def dropout(
    x: Array, threshold: int, scale: float, seed_low: int, seed_high: int, offset_low: int, offset_high: int, BLOCK: int
) -> Float:
    element = np.arange(len(x))
    quarter = BLOCK // 4
    counter = np.zeros((len(x), 4), np.uint32)
    counter[:, 0] = element // BLOCK * quarter + element % quarter
    counter[:, 2:] = offset_low, offset_high
    words = philox(counter, np.array([seed_low, seed_high], np.uint32))
    number = words[element, element // quarter % 4]
    return np.where(number >= threshold, x.astype(np.float64) * scale, 0.0)


def cross_entropy_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    """One label of five is ignored."""
    labels: NDArray[np.int64] = rng.integers(0, int(dims["V"]), int(dims["T"]))
    return {"labels": np.where(rng.random(labels.shape) < 0.2, dims["ignore_index"], labels)}


def cross_entropy_backward_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return cross_entropy_inputs(rng, dims)


def adamw_inputs(rng: np.random.Generator, dims: dict[str, Any]) -> dict[str, Any]:
    return {"v": rng.standard_normal(dims["N"]) ** 2}
