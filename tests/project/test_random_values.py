"""Random values of tensors: normal floats of every dtype, and integers of the whole range that a contract allows."""

from __future__ import annotations

import numpy as np
import pytest

from tilec.artifact.records import TensorSpec, ValueCheck
from tilec.ir.expr import const
from tilec.ir.types import DTYPES
from tilec.project.trial.launches import Stored, random_values
from tilec.tuning.bench import widened

COUNT = 20_000


def spec(dtype: str) -> TensorSpec:
    return TensorSpec("x", "in", dtype, (const(COUNT),), None, 4, False)


@pytest.mark.parametrize("dtype", [name for name, dtype in DTYPES.items() if dtype.is_float])
def test_floats_are_normal_and_read_back_with_their_values(dtype: str) -> None:
    values = widened(spec(dtype), random_values(np.random.default_rng(3), spec(dtype), COUNT, Stored()))
    assert values.dtype == np.float32 and np.isfinite(values).all()
    assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05 and 3 < np.abs(values).max() < 6


@pytest.mark.parametrize(
    ("dtype", "low", "high", "least", "most"),
    [
        ("i32", 0, 5000, 0, 4999),
        ("i64", -3, 1 << 40, 1 << 39, 1 << 40),
        ("i8", 0, 5000, 0, 127),
        ("u8", -9, 256, 0, 255),
        ("u64", 0, 1 << 64, 1 << 63, (1 << 64) - 1),
        ("u64", 1 << 63, (1 << 63) + 5000, 1 << 63, (1 << 63) + 4999),
    ],
)
def test_integers_cover_what_the_contract_and_the_dtype_allow(dtype: str, low: int, high: int, least: int, most: int) -> None:
    check = ValueCheck("x", const(low), const(high), False, False, False)
    found = random_values(np.random.default_rng(3), spec(dtype), COUNT, Stored.of(check, spec(dtype), {})).astype(object)
    first, last = max(low, DTYPES[dtype].integer_range()[0]), min(high - 1, DTYPES[dtype].integer_range()[1])
    span = last - first
    assert first <= found.min() <= first + span // 100 and last - span // 100 <= found.max() <= last
    assert least <= found.max() <= most
