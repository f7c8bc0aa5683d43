"""Storage sizes of dtypes: of every dtype against NumPy and ml_dtypes, of a packed one by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilec.ir.types import DTYPES, DType

NAMES = {"f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2, "bf16": ml_dtypes.bfloat16, "bool": np.bool_}
PACKED = DType("four", "i", 4)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_sizes_are_numpys(dtype: DType) -> None:
    numpy = np.dtype(NAMES.get(dtype.name, f"{dtype.kind}{dtype.bits // 8}"))
    assert dtype.bytes == numpy.itemsize
    assert [dtype.bytes_of(count) for count in (0, 1, 7, 64)] == [count * numpy.itemsize for count in (0, 1, 7, 64)]


def test_packed_elements_share_bytes() -> None:
    assert [PACKED.bytes_of(count) for count in range(6)] == [0, 1, 1, 2, 2, 3]


def test_a_packed_element_has_no_size_in_bytes() -> None:
    with pytest.raises(AssertionError, match="packed"):
        _ = PACKED.bytes
