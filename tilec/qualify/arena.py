"""Tensors of a launch in one allocation, between guard zones, with the input of everything that the launch may write.

In: a manifest, the sizes of a launch, contents by `recipe`, and how bases are aligned: as little as the contract allows, which
shows a kernel that needs more, or as allocators do, for times. The memory around every tensor, and between the elements of a
strided one, is filled with `PATTERN`. `reset` restores what a launch may have written; `harm` says which byte it should not
have written. All copies go through one page-locked buffer (`Staging`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tilec.artifact.records import Manifest, TensorSpec
from tilec.qualify.recipe import Form, contents, form_of
from tilec.runtime import Driver, TensorView
from tilec.target.dtypes import DTYPES

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
GUARD: Final = 16 << 10
"""Bytes of a guard zone, before and after every tensor."""
ALIGN: Final = 1024
PATTERN: Final = 0xA5
POISON: Final = 0xFF
"""Byte of what is only written: NaN in every float dtype, -1 in a signed integer."""
STAGING: Final = 32 << 20
"""Bytes of the page-locked buffer."""
PART: Final = 8 << 20
"""Bytes of a result that one repetition compares: copying all of a large one so often would take minutes."""


class Staging:
    """A page-locked host buffer. `close` frees it."""

    def __init__(self, driver: Driver, size: int = STAGING) -> None:
        self.driver, self.size = driver, size
        self.pointer = driver.allocate_host(size)
        self.bytes: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.pointer))

    def close(self) -> None:
        """Free the buffer."""
        self.driver.free_host(self.pointer)

    def upload(self, pointer: int, data: Bytes) -> None:
        """Copy bytes to the device; done when it returns."""
        for start in range(0, data.size, self.size):
            part = data[start : start + self.size]
            self.bytes[: part.size] = part
            self.driver.copy_to_device(pointer + start, self.pointer, part.size, 0)
            self.driver.synchronize(0)

    def fetch(self, pointer: int, size: int) -> Bytes:
        """Bytes of the device, at most `STAGING`, valid until the next call."""
        self.driver.copy_to_host(self.pointer, pointer, size, 0)
        self.driver.synchronize(0)
        return self.bytes[:size]

    def download(self, pointer: int, size: int) -> Bytes:
        """A copy of bytes of the device."""
        found = np.empty(size, np.uint8)
        for start in range(0, size, self.size):
            part = min(self.size, size - start)
            found[start : start + part] = self.fetch(pointer + start, part)
        return found


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor in an arena: `offset` of its first byte, `size` in bytes of its span, `copy` the offset of its pristine contents
    (None if a launch may not write it, or may assume nothing of them). `pattern` is what it holds before a launch, repeated."""

    spec: TensorSpec
    form: Form
    offset: int
    size: int
    copy: int | None
    pattern: Bytes

    @property
    def written(self) -> bool:
        """Whether a launch may write it."""
        return self.spec.access != "in"


class Arena:
    """The tensors of one launch on a device. `close` frees the memory. `loose`: bases are multiples of what the manifest asks
    for and, below `ALIGN`, of no more."""

    def __init__(
        self, driver: Driver, staging: Staging, manifest: Manifest, values: Mapping[str, int], kind: str, *, loose: bool = False
    ) -> None:
        self.driver, self.staging = driver, staging
        self.tensors: dict[str, Placed] = {}
        step = max([ALIGN, *(spec.align for spec in manifest.tensors)])
        end = _rounded(GUARD, step)
        for spec in manifest.tensors:
            placed = _placed(manifest, spec, values, kind, end + (spec.align % ALIGN if loose else 0))
            end = _rounded(placed.offset + placed.size + GUARD, step)
            if spec.access in ("inout", "atomic"):
                placed = Placed(spec, placed.form, placed.offset, placed.size, end, placed.pattern)
                end = _rounded(end + placed.size + GUARD, step)
            self.tensors[spec.name] = placed
        self.size = end
        self._allocated = driver.allocate(end + step, 0)
        self.base = _rounded(self._allocated, step)
        driver.fill(self.base, PATTERN, self.size, 0)
        for placed in self.tensors.values():
            self._fill(placed, placed.offset)
            if placed.copy is not None:
                self._fill(placed, placed.copy)
        driver.synchronize(0)

    def close(self) -> None:
        """Free the memory."""
        self.driver.free(self._allocated, 0)

    def views(self) -> dict[str, TensorView]:
        """The tensors as a launch takes them."""
        return {
            name: TensorView(self.base + one.offset, one.spec.dtype, one.form.shape, one.form.strides)
            for name, one in self.tensors.items()
        }

    def reset(self) -> None:
        """Enqueue restoring everything that a launch may write."""
        for one in self.tensors.values():
            if one.copy is not None:
                self.driver.copy_on_device(self.base + one.offset, self.base + one.copy, one.size, 0)
            elif one.written and one.spec.strides is None:
                self.driver.fill(self.base + one.offset, POISON, one.size, 0)
            elif one.written:
                self._fill(one, one.offset)

    def result(self, name: str) -> Array:
        """The stored elements of a tensor in row-major order, as (count,)."""
        one = self.tensors[name]
        raw = self.staging.download(self.base + one.offset, one.size)
        return elements(one, raw)

    def part(self, name: str, number: int) -> tuple[int, Array]:
        """Part `number` of a tensor: its first element, and stored elements, valid until the next copy. A tensor of at most
        `PART` bytes, or with gaps, is one part; the parts of a larger one wrap around."""
        one = self.tensors[name]
        if one.size <= PART or one.spec.strides is not None:
            return 0, self.result(name)
        start = number % -(-one.size // PART) * PART
        found = self.staging.fetch(self.base + one.offset + start, min(PART, one.size - start))
        return start // DTYPES[one.spec.dtype].bytes, found.view(DTYPES[one.spec.dtype].storage)

    def harm(self) -> str:
        """The first byte outside of what a launch may write that it wrote, as text; empty if there is none."""
        for start, size in self._guards():
            found = self.staging.fetch(self.base + start, size)
            wrong = np.flatnonzero(found != PATTERN)
            if wrong.size:
                return _where(self.tensors, start + int(wrong[0]), int(found[wrong[0]]), wrong.size)
        for name, one in self.tensors.items():
            text = self._changed(name, one, one.copy) if one.copy is not None else ""
            text = text or (self._gaps(name, one) if one.written else self._changed(name, one, one.offset))
            if text:
                return text
        return ""

    def _fill(self, one: Placed, offset: int) -> None:
        """Upload the first period of a tensor, and double it on the device."""
        period = min(one.pattern.size, one.size)
        self.staging.upload(self.base + offset, one.pattern[:period])
        done = period
        while done < one.size:
            part = min(done, one.size - done)
            self.driver.copy_on_device(self.base + offset + done, self.base + offset, part, 0)
            done += part

    def _guards(self) -> list[tuple[int, int]]:
        """Guard zones: first byte and size."""
        zones, before = list[tuple[int, int]](), 0
        for one in self.tensors.values():
            for offset in (one.offset, one.copy):
                if offset is not None:
                    zones.append((before, offset - before))
                    before = offset + one.size
        return [*zones, (before, self.size - before)]

    def _changed(self, name: str, one: Placed, offset: int) -> str:
        """Whether a tensor that may not be written was, in pieces of whole periods."""
        period = one.pattern.size
        piece = max(1, self.staging.size // period) * period if period <= self.staging.size else period
        for start in range(0, one.size, piece):
            size = min(piece, one.size - start)
            found = self.staging.fetch(self.base + offset + start, size) if size <= self.staging.size else (
                self.staging.download(self.base + offset + start, size)
            )  # fmt: skip
            whole = size // period * period
            same = bool((found[:whole].reshape(-1, period) == one.pattern).all()) if whole else True
            if not same or not np.array_equal(found[whole:], one.pattern[: size - whole]):
                expected = np.resize(one.pattern, size)
                wrong = np.flatnonzero(found != expected)
                index = start + int(wrong[0])
                kind = "is only read" if not one.written else "is its copy from before the launch"
                return (
                    f"`{name}`, which {kind}: byte {index} is {int(found[wrong[0]]):#04x}, not {int(expected[wrong[0]]):#04x}"
                )
        return ""

    def _gaps(self, name: str, one: Placed) -> str:
        """Whether bytes between the elements of a strided tensor were written."""
        if one.spec.strides is None:
            return ""
        raw = self.staging.download(self.base + one.offset, one.size)
        inside = np.zeros(one.form.span, np.bool_)
        np.lib.stride_tricks.as_strided(inside, one.form.shape, one.form.strides)[...] = True
        outside = ~np.repeat(inside, one.size // one.form.span)
        wrong = np.flatnonzero(outside & (raw != PATTERN))
        return f"between the elements of `{name}`, at byte {int(wrong[0])}" if wrong.size else ""


def elements(one: Placed, raw: Bytes) -> Array:
    """The elements in the bytes of a tensor's span, as (count,)."""
    flat = raw.view(DTYPES[one.spec.dtype].storage)
    if one.spec.strides is None:
        return flat
    steps = [stride * flat.itemsize for stride in one.form.strides]
    return np.lib.stride_tricks.as_strided(flat, one.form.shape, steps).reshape(-1)


def _rounded(byte: int, step: int) -> int:
    """The first multiple of `step` from `byte` on."""
    return -(-byte // step) * step


def _placed(manifest: Manifest, spec: TensorSpec, values: Mapping[str, int], kind: str, offset: int) -> Placed:
    """A tensor at `offset`, with its contents before a launch; NoContents if there are none."""
    storage = DTYPES[spec.dtype].storage
    if spec.access in ("out", "scratch"):
        form = form_of(spec, values)
        block: Array = np.full(DTYPES[spec.dtype].bytes, POISON, np.uint8).view(storage)
    else:
        block, form = contents(manifest, spec, values, kind)
    size = form.span * DTYPES[spec.dtype].bytes
    if spec.strides is None:
        return Placed(spec, form, offset, size, None, np.ascontiguousarray(block).view(np.uint8))
    flat = np.full(size, PATTERN, np.uint8)
    view = np.lib.stride_tricks.as_strided(
        flat.view(storage), form.shape, [stride * DTYPES[spec.dtype].bytes for stride in form.strides]
    )
    view[...] = np.resize(block, form.shape)
    return Placed(spec, form, offset, size, None, flat)


def _where(tensors: Mapping[str, Placed], byte: int, found: int, count: int) -> str:
    """Which tensor a byte of a guard zone is next to, as text."""
    distances: list[tuple[int, str]] = []
    for name, one in tensors.items():
        for offset in (one.offset, one.copy):
            if offset is not None and byte >= offset + one.size:
                distances.append((byte - offset - one.size, f"bytes after the end of `{name}`"))
            elif offset is not None and byte < offset:
                distances.append((offset - byte, f"bytes before `{name}`"))
    distance, index = min(distances)
    return f"{distance} {index}: {found:#04x} ({count} bytes of this guard zone)"
