"""Contents of tensors: a tensor's contract, sizes and a kind go in; the same bytes come out on every machine and NumPy.

Random bits come from Philox, whose raw stream NumPy guarantees; everything after that is integer arithmetic, or exact in f32. A
float is the sum of four random bytes, shifted and scaled: nearly normal, a multiple of 1/256 between -2 and 2. So a sum of
products of two is exact in f32, in every order, as long as it stays below 2^8: the order of sums hides nothing. With the kind
`positive` a float is from 1/16 to 2.1. An integer with a range is its lower end, its upper end, or in between, with equal
probability; an integer without one is from -1000 to 1000, or as far as its dtype reaches. Contents are within every value check
of the manifest, so a side file cannot ask for a launch outside of the contract. Tensors of more than `PERIOD` elements repeat a
block of that many.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import Manifest, TensorSpec
from tilec.project.trial.launches import repeated
from tilec.target.dtypes import DTYPES

Array = NDArray[Any]
PERIOD: Final = 1_000_003
"""Elements of a block. A prime: no row is a multiple of it, so two rows of a large tensor are alike only after so many."""
MOST_UNREPEATED: Final = 1 << 22
"""Maximum elements of a tensor whose integers must be distinct, also in rows only, or sorted: they are made as one block."""
SCALE: Final = np.float32(256)
"""Of floats: with larger ones, a softmax would have one key, and one flipped bit of a rounded score would change it."""
KINDS: Final = ("normal", "positive")
"""Kinds of floats: `positive` is for kernels whose results are not finite otherwise, such as a root of a given sum."""
UNRANGED: Final = 1000
BITS: Final = (1 << 56) - 1


class NoContents(ValueError):
    """No contents satisfy the value checks at these sizes, or they would be too large to make."""


@dataclass(frozen=True, slots=True)
class Range:
    """What the integers of a tensor must satisfy: `low <= v < high`, and the properties of `ValueCheck`."""

    low: int
    high: int
    distinct: bool = False
    sorted: bool = False
    ends: bool = False
    row: int = 0
    """Extent of the last axis, if the elements along it are distinct."""


@dataclass(frozen=True, slots=True)
class Form:
    """Where the elements of a tensor are: its shape, and its strides in elements; `span` is the elements from first to last."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    span: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return prod(self.shape)


def form_of(spec: TensorSpec, env: Mapping[str, int]) -> Form:
    """The form of a tensor in a launch. NoContents for negative strides, and extents below one."""
    shape = tuple(dim.evaluate(env) for dim in spec.dims)
    if min(shape, default=1) < 1:
        raise NoContents(f"`{spec.name}` has a shape of {list(shape)}")
    if spec.strides is None:
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return Form(shape, strides, prod(shape))
    strides = tuple(stride.evaluate(env) for stride in spec.strides)
    if min(strides, default=1) < 0:
        raise NoContents(f"`{spec.name}` has strides of {list(strides)}")
    return Form(shape, strides, 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)))


def range_of(manifest: Manifest, tensor: str, env: Mapping[str, int]) -> Range | None:
    """The range that all value checks of a tensor leave; None if it has none."""
    dims = next(spec.dims for spec in manifest.tensors if spec.name == tensor)
    checks = [check for check in manifest.value_checks if check.tensor == tensor]
    if not checks:
        return None
    return Range(
        max(check.low.evaluate(env) for check in checks), min(check.high.evaluate(env) for check in checks),
        any(check.distinct for check in checks), any(check.sorted for check in checks), any(check.ends for check in checks),
        dims[-1].evaluate(env) if any(check.distinct_in_rows for check in checks) else 0,
    )  # fmt: skip


def contents(manifest: Manifest, spec: TensorSpec, env: Mapping[str, int], kind: str) -> tuple[Array, Form]:
    """The block of a tensor that a launch reads, in the dtype of `DType.storage`, and its form: element number i in row-major
    order is `block[i % block.size]`. NoContents if there is none."""
    form, limits = form_of(spec, env), range_of(manifest, spec.name, env)
    slot = manifest.tensors.index(spec)
    whole = limits is not None and (limits.distinct or limits.sorted or limits.ends or limits.row > 1)
    if whole and form.count > MOST_UNREPEATED:
        raise NoContents(f"`{spec.name}` has {form.count} integers that depend on each other")
    size = form.count if whole else min(form.count, PERIOD)
    if whole:
        assert limits is not None
        return _dependent(spec.dtype, limits, slot, size), form
    return _block(spec.dtype, kind, limits, slot)[:size], form


def raw(name: str, count: int) -> NDArray[np.uint64]:
    """`count` random words, a function of `name`."""
    key = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16], "little")
    return np.random.Philox(key=key).random_raw(count)


@functools.lru_cache(maxsize=64)
def _block(dtype: str, kind: str, limits: Range | None, slot: int) -> Array:
    """A block of `PERIOD` elements, cached: most launches share theirs."""
    element = DTYPES[dtype]
    if element.is_float:
        words = raw(f"{kind} {slot}", -(-PERIOD // 2)).view(np.uint8).reshape(-1, 4)[:PERIOD]
        sums = words.sum(axis=1, dtype=np.int32) - 510
        values = sums.astype(np.float32) / SCALE
        if kind == "positive":
            values = np.abs(values) + np.float32(0.0625)
        found = stored(dtype, values)
    else:
        found = _integers(dtype, limits, raw(f"integers {slot}", PERIOD))
    found.flags.writeable = False
    return found


def _integers(dtype: str, limits: Range | None, words: NDArray[np.uint64]) -> Array:
    low, high = DTYPES[dtype].integer_range()
    first, last = max(low, -UNRANGED), min(high, UNRANGED)
    if limits is not None:
        first, last = max(low, limits.low), min(high, limits.high - 1)
    if last < first:
        raise NoContents("no integer is in the range of a value check")
    inside = _drawn(first, last, words)
    pick = (words >> np.uint64(56)) % np.uint64(3)
    chosen = inside if limits is None else np.where(pick == 0, first, np.where(pick == 1, last, inside))
    return chosen.astype(DTYPES[dtype].storage)


def _drawn(first: int, last: int, words: NDArray[np.uint64]) -> Array:
    """An integer from `first` to `last` for each word."""
    return _above(first, last, (words & np.uint64(BITS)) % np.uint64(min(last - first + 1, 1 << 63)))


def _above(first: int, last: int, steps: Array) -> Array:
    """`first + steps`, at most `last`: without a sign if that is 2^63 or more."""
    return np.uint64(first) + steps.astype(np.uint64) if last >= 1 << 63 else first + steps.astype(np.int64)


def _dependent(dtype: str, limits: Range, slot: int, size: int) -> Array:
    """Integers that must be distinct, in all or in each row, or sorted, or must reach both ends of their range."""
    low, high = DTYPES[dtype].integer_range()
    first, last = max(low, limits.low), min(high, limits.high - 1)
    words = raw(f"dependent {slot}", max(size, 1))
    if last < first or last - first + 1 < (size if limits.distinct else limits.row):
        raise NoContents("no integers satisfy a value check at these sizes")
    if limits.distinct or limits.row > 1:
        room = min(last - first + 1, max(size, PERIOD))
        numbers = _above(first, last, np.argsort(raw(f"order {slot}", room), kind="stable"))
        chosen = numbers[:size] if limits.distinct else repeated(numbers, limits.row, size)
    else:
        chosen = _drawn(first, last, words)
    if limits.sorted:
        chosen = np.sort(chosen)
    if limits.ends:
        if limits.distinct and size != last - first + 1:
            raise NoContents("distinct integers that reach both ends are made for a whole range only")
        if limits.distinct:  # all values are there: the ends change places with what stands where they belong
            for end, value in ((0, first), (-1, last)):
                chosen[np.flatnonzero(chosen == value)[0]] = chosen[end]
                chosen[end] = value
        chosen[0], chosen[-1] = first, last
        if size == 1 and first != last:
            raise NoContents("one integer cannot reach both ends of a range")
    return chosen.astype(DTYPES[dtype].storage)


def stored(dtype: str, values: NDArray[np.float32]) -> Array:
    """f32 values rounded to nearest even as the bits of a float dtype, in its storage; finite values within its range only."""
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
    if dtype in ("f8e4m3", "f8e5m2"):
        table = _f8(dtype)
        finite = np.flatnonzero(np.isfinite(table))
        order = finite[np.argsort(table[finite], kind="stable")]
        ordered = table[order]
        above = np.clip(np.searchsorted(ordered, values), 1, ordered.size - 1)
        nearer = above - (values - ordered[above - 1] < ordered[above] - values)
        return order[nearer].astype(np.uint8)
    return values.astype(DTYPES[dtype].storage)


def widened(dtype: str, bits: Array) -> NDArray[np.float64]:
    """The values of floats as stored, exactly."""
    if dtype == "bf16":
        with np.errstate(invalid="ignore"):  # of NaNs that signal
            return (bits.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    if dtype in ("f8e4m3", "f8e5m2"):
        return _f8(dtype)[bits.view(np.uint8)].astype(np.float64)
    return bits.astype(np.float64)


@functools.cache
def _f8(dtype: str) -> NDArray[np.float64]:
    """The values of all 256 encodings (OCP 8-bit floating point specification, 1.0)."""
    mantissa = DTYPES[dtype].significand - 1
    bias = (1 << 6 - mantissa) - 1
    codes = np.arange(256)
    exponent, fraction = codes >> mantissa & (0xFF >> 1 >> mantissa), codes & (1 << mantissa) - 1
    scaled = np.where(exponent == 0, fraction / (1 << mantissa) * 2.0 ** (1 - bias), 0.0)
    normal = (1 + fraction / (1 << mantissa)) * 2.0 ** (exponent.astype(np.float64) - bias)
    values = np.where(exponent == 0, scaled, normal) * np.where(codes >= 128, -1.0, 1.0)
    if dtype == "f8e4m3":
        values[codes & 0x7F == 0x7F] = np.nan
    else:
        infinite = exponent == 31
        values[infinite] = np.where(fraction[infinite] == 0, np.where(codes[infinite] >= 128, -np.inf, np.inf), np.nan)
    return values


def digest(manifest: Manifest, env: Mapping[str, int], kind: str) -> str:
    """Hex digest of everything that the recipe makes for a launch: both sides must compute the same."""
    total = hashlib.sha256()
    for spec in manifest.tensors:
        if spec.access not in ("out", "scratch"):
            block, form = contents(manifest, spec, env, kind)
            total.update(f"{spec.name} {spec.dtype} {form}".encode())
            total.update(np.ascontiguousarray(block).tobytes())
    return total.hexdigest()
