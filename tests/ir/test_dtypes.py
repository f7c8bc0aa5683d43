"""The table of dtypes: complete, in agreement with NumPy and ml_dtypes, and the only one."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from engine.checkpoint.safetensors_file import ITEM_BYTES
from tests.files import ROOT
from tilec.language import tiles
from tilec.runtime.tensors import DLPACK_TYPES, TYPE_STRINGS
from tilec.target.dtypes import DTYPES, DType, numpy_dtype

PACKED = DType("four", "i", 4)
OTHER_TYPES = ("tilec/emulator/", "ci/bench/judges/ptx_semantics")
"""Types of PTX registers and instructions are another set: they include tf32, f16x2 and untyped bits."""
LISTS = ("tilec/language/__init__.py", "tilec/ir/types.py")
"""Names that a module exports."""


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_sizes_are_numpys(dtype: DType) -> None:
    numpy = numpy_dtype(dtype)
    assert (numpy.name, numpy.kind if not dtype.extension else "f") == (dtype.numpy, dtype.kind)
    assert dtype.bytes == numpy.itemsize == np.dtype(dtype.storage).itemsize
    assert [dtype.bytes_of(count) for count in (0, 1, 7, 64)] == [count * numpy.itemsize for count in (0, 1, 7, 64)]


def _limits(dtype: Any) -> tuple[float, float]:
    finfo: Any = ml_dtypes.finfo
    return float(finfo(dtype).max), float(finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if dtype.is_float], ids=str)
def test_a_float_has_a_largest_value_a_significand_and_a_tolerance(dtype: DType) -> None:
    largest, eps = _limits(numpy_dtype(dtype))
    assert (dtype.largest, 2.0 ** (1 - dtype.significand)) == (largest, eps)
    assert eps / 8 < dtype.tolerance < 3 * eps or dtype.bits == 32


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES.values() if not dtype.is_float], ids=str)
def test_an_integer_has_the_range_of_its_width(dtype: DType) -> None:
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)
    assert dtype.integer_range() == limits
    assert (dtype.largest, dtype.significand, dtype.tolerance) == (0.0, 0, 0.0)


def test_protocols_of_tensors_name_each_dtype_once() -> None:
    assert sorted(DLPACK_TYPES.values()) == sorted(DTYPES)
    assert {DTYPES[name] for name in TYPE_STRINGS.values()} == {one for one in DTYPES.values() if not one.extension}
    for dtype in DTYPES.values():
        array = np.zeros(3, numpy_dtype(dtype))
        if not dtype.extension:
            assert TYPE_STRINGS[array.__array_interface__["typestr"]] == dtype.name
            assert array.__dlpack_device__() and str(np.from_dlpack(array).dtype) == dtype.numpy


def test_safetensors_reads_each_dtype_by_its_name() -> None:
    assert len({dtype.safetensors for dtype in DTYPES.values()}) == len(DTYPES)
    for dtype in DTYPES.values():
        assert dtype.safetensors.replace("_", "").lower() == dtype.name
        assert ITEM_BYTES[dtype.safetensors] == dtype.bytes


def test_a_kernel_can_name_each_dtype() -> None:
    assert all(hasattr(tiles, name) for name in DTYPES if name != "bool")


@functools.cache
def _lists() -> tuple[tuple[str, int], ...]:
    return tuple(_found())


def _found() -> Iterator[tuple[str, int]]:
    """Displays of three and more dtypes by name, other than of integers alone."""
    for path in sorted(path for package in ("tilec", "engine", "ci") for path in (ROOT / package).rglob("*.py")):
        name, text = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if any(f'"{dtype}"' in text for dtype in DTYPES) else ():
            if isinstance(node, ast.Dict | ast.Tuple | ast.List | ast.Set):
                parts = node.keys if isinstance(node, ast.Dict) else node.elts
                found = {part.value for part in parts if isinstance(part, ast.Constant)} & DTYPES.keys()
                if len(found) >= 3 and any(DTYPES[one].is_float for one in found if isinstance(one, str)):
                    yield name, node.lineno


def test_no_other_module_has_a_table_of_dtypes() -> None:
    assert [(name, line) for name, line in _lists() if not name.startswith(OTHER_TYPES) and name not in LISTS] == []
    assert {name for name, _ in _lists()} >= set(LISTS)


def test_packed_elements_share_bytes() -> None:
    assert [PACKED.bytes_of(count) for count in range(6)] == [0, 1, 1, 2, 2, 3]


def test_a_bool_is_a_bit_in_registers_and_a_byte_in_memory() -> None:
    assert [(DTYPES["bool"].register_bytes(count), DTYPES["bool"].bytes_of(count)) for count in (7, 8, 33)] == [
        (0, 7),
        (1, 8),
        (4, 33),
    ]
    assert DTYPES["bf16"].register_bytes(3) == 6


def test_a_packed_element_has_no_size_in_bytes() -> None:
    with pytest.raises(AssertionError, match="packed"):
        _ = PACKED.bytes
