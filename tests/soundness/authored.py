"""Runs a kernel's source text as Python, block by block, with elements as its author counts them: two of a packed dtype a byte.

It shares no code with the compiler, and unlike `enumeration` none with the frontend: a load that reads the wrong half of a
byte, or a store that is taken for whole bytes and is none, is seen here alone. Tiles are NumPy arrays, packed numbers those of
ml_dtypes. A fault is one of bounds, race (two blocks access a byte and one writes it), once (an element of an `Out` is written
twice in a block), order (an element of an `Out` or `Scratch` is read before its block wrote it), half (a block writes one half
of a byte), coverage (an element of an `Out` is written by no block). Integers of indices have no width: launches are small.
"""

from __future__ import annotations

import ast
import operator
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from types import SimpleNamespace
from typing import Any, Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from tests.soundness.memory import NoSuchLaunch

Array = NDArray[Any]
PACKED: Final[dict[str, Any]] = {"u4": ml_dtypes.uint4, "i4": ml_dtypes.int4, "f4e2m1": ml_dtypes.float4_e2m1fn}
NUMBERS: Final[dict[str, Any]] = PACKED | {
    "i8": np.int8, "u8": np.uint8, "i16": np.int16, "u16": np.uint16, "i32": np.int32, "u32": np.uint32, "i64": np.int64,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32,
}  # fmt: skip
Block = tuple[int, ...]
Element = tuple[int, ...]
LIMIT: Final = 6000
"""Elements that a launch may access; longer ones are not run."""


class TooLong(Exception):
    """The launch accesses too many elements."""


class _Grid(Exception):
    """The head of the kernel has been run."""


class Tile(np.ndarray[Any, Any]):
    """A tile whose `astype` follows the rules of the language."""

    def astype(self, dtype: Any, *_: Any, **__: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _tile(converted(np.asarray(self), np.dtype(dtype)))


def _tile(array: Any) -> Any:
    return np.asarray(array).view(Tile)


def converted(x: Array, dtype: np.dtype[Any]) -> Array:
    """Numbers as another dtype. Integers keep low bits; floats become integers toward zero, at most the ends of the range, and
    NaN 0; as f4e2m1 numbers go to the nearest, of two equally near the one with an even code, NaN to 6."""
    if x.dtype == dtype:
        return x
    is_packed = x.dtype in map(np.dtype, PACKED.values())
    integral = np.issubdtype(x.dtype, np.integer) or (is_packed and x.dtype != np.dtype(PACKED["f4e2m1"]))
    if is_packed:
        x = x.astype(np.float32).astype(np.int64 if integral else np.float32)
    if dtype == np.dtype(PACKED["f4e2m1"]):
        return _nearest_f4(x.astype(np.float32))
    low_high = {np.dtype(PACKED["u4"]): (0, 15), np.dtype(PACKED["i4"]): (-8, 7)}.get(dtype)
    if low_high is None and not np.issubdtype(dtype, np.integer):
        with np.errstate(all="ignore"):
            return x.astype(np.float32 if dtype == np.dtype(ml_dtypes.bfloat16) else dtype).astype(dtype)
    if not integral:
        low, high = low_high or (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        numbers = [0 if n != n else int(min(max(n, low), high)) for n in x.astype(np.float64).reshape(-1).tolist()]
        x = np.array(numbers, np.int64).reshape(x.shape)
    if low_high is None:
        return x.astype(dtype)
    return (x.astype(np.int64) & 15).astype(np.uint8).view(dtype)


def _nearest_f4(x: Array) -> Array:
    table, codes = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0), list[int]()
    for number in x.astype(np.float64).reshape(-1).tolist():
        if number != number:
            codes.append(7)
            continue
        distance = [abs(one - min(abs(number), 6.0)) for one in table]
        codes.append(min(range(8), key=lambda code: (distance[code], code % 2)) + 8 * bool(np.signbit(number)))
    return np.array(codes, np.uint8).reshape(x.shape).view(PACKED["f4e2m1"])


def halves(packed: Array, dtype: Any) -> Array:
    """Numbers of bytes, twice as many along the last axis."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).astype(np.uint8)
    return codes.reshape(*packed.shape[:-1], -1).view(dtype)


def joined(numbers: Array) -> Array:
    """Bytes of numbers of a packed dtype."""
    codes = numbers.view(np.uint8) & 15
    return codes[..., 0::2] | codes[..., 1::2] << 4


@dataclass(frozen=True, slots=True)
class _Dtype:
    """A dtype of the language, for NumPy its own; called, it converts a number."""

    dtype: np.dtype[Any]

    def __call__(self, number: Any) -> Any:
        integral = np.issubdtype(self.dtype, np.integer)
        return int(number) if integral else _tile(converted(np.asarray(number), self.dtype))


@dataclass(slots=True)
class Tensor:
    """A tensor of the kernel: its elements, who has accessed which byte, and which elements the running block has written."""

    name: str
    access: str
    dtype: Any
    shape: tuple[int, ...]
    contents: Array
    strides: tuple[int, ...] = ()
    readers: dict[Element, set[Block]] = field(default_factory=dict[Element, "set[Block]"])
    writers: dict[Element, set[Block]] = field(default_factory=dict[Element, "set[Block]"])
    written: set[Element] = field(default_factory=set[Element])
    by_any: set[Element] = field(default_factory=set[Element])

    @property
    def packed(self) -> bool:
        """Whether two elements share a byte."""
        return self.dtype in PACKED.values()

    def unit(self, element: Element) -> Element:
        """What is accessed with an element: its byte, or the element itself; of a tensor with strides, its distance from the
        start."""
        if self.strides:
            distance = sum(one * stride for one, stride in zip(element, self.strides, strict=True))
            return (distance // 2 if self.packed else distance,)
        return (*element[:-1], element[-1] // 2) if self.packed else element


class Launch:
    """One launch. `arrays` gives contents, of packed tensors bytes; others are drawn."""

    def __init__(self, text: str, sizes: Mapping[str, int], seed: int = 0, arrays: Mapping[str, Array] | None = None) -> None:
        tree = ast.parse(text)
        kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
        self.random = random.Random(seed)
        self.limit = LIMIT if arrays is None else 1 << 30
        self.kinds: set[str] = set()
        self.grid: Block = ()
        self.block: Block = ()
        self.tensors: dict[str, Tensor] = {}
        self.names = {**_words(self), **{name: _Dtype(np.dtype(one)) for name, one in NUMBERS.items()}, **sizes}
        self.names |= dict.fromkeys(("tilec", "tl"), SimpleNamespace(**{**self.names, "max": _max, "sum": _sum}))
        self.arguments = [self._argument(one, sizes, arrays or {}) for one in kernel.args.args]
        for one in kernel.args.args:
            one.annotation = None
        kernel.decorator_list.clear()
        scope: dict[str, Any] = dict(self.names)
        exec(compile(ast.Module([kernel], []), "kernel", "exec"), scope)
        self.body: Callable[..., None] = scope[kernel.name]

    def _argument(self, one: ast.arg, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> Any:
        assert one.annotation is not None
        if not isinstance(one.annotation, ast.Subscript):
            return sizes[one.arg]
        access = ast.unparse(one.annotation.value).rpartition(".")[2]
        items = one.annotation.slice
        dtype, *dims = items.elts if isinstance(items, ast.Tuple) else [items]
        strides = [d for d in dims if isinstance(d, ast.Subscript)]
        extents = [self._number(d) for d in dims if d not in strides]
        steps = [self._number(d) for one in strides for d in getattr(one, "slice").elts]  # noqa: B009
        numpy, shape = NUMBERS[ast.unparse(dtype).rpartition(".")[2]], tuple(map(int, extents))
        if any(extent < 1 for extent in shape) or (numpy in PACKED.values() and shape[-1] % 2):
            raise NoSuchLaunch(one.arg)
        if one.arg in arrays:
            given = arrays[one.arg]
            contents = halves(given, numpy) if numpy in PACKED.values() else given.copy()
        else:
            count = int(np.prod(shape))
            if count > self.limit:
                raise TooLong
            numbers = [
                self.random.randint(0, 15) if numpy in PACKED.values() else self.random.randint(-2, 3) for _ in range(count)
            ]
            contents = np.array(numbers, np.uint8 if numpy in PACKED.values() else np.int64)
            contents = (contents.view(numpy) if numpy in PACKED.values() else contents.astype(numpy)).reshape(shape)
        self.tensors[one.arg] = tensor = Tensor(one.arg, access, numpy, shape, contents, tuple(steps))
        return tensor

    def _number(self, node: ast.expr) -> int:
        """An extent or a stride."""
        return int(eval(str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node), dict(self.names)))

    def run(self) -> set[str]:
        """The kinds of faults; `NoSuchLaunch` if the contract forbids the launch."""
        with suppress(_Grid):
            self.body(*self.arguments)
        for block in product(*map(range, self.grid)):
            self.block = block
            for tensor in self.tensors.values():
                tensor.written = set()
            self.body(*self.arguments)
            for tensor in self.tensors.values():
                if tensor.packed and any((*e[:-1], e[-1] ^ 1) not in tensor.written for e in tensor.written):
                    self.kinds.add("half")
        self.kinds |= {kind for tensor in self.tensors.values() for kind in _left(tensor)}
        return self.kinds

    def results(self) -> dict[str, Array]:
        """What the launch left in the tensors that are not only read, of packed ones bytes."""
        kept = {name: t for name, t in self.tensors.items() if t.access in ("Out", "InOut")}
        return {name: joined(t.contents) if t.packed else t.contents for name, t in kept.items()}

    def box(self, tensor: Tensor, index: Any, offset: Any, shape: Sequence[int], clipped: bool) -> list[Element | None]:
        """The elements of an access; None outside."""
        starts = _numbers(index if offset is None else offset)
        if offset is None:
            starts = tuple(one * extent for one, extent in zip(starts, shape, strict=True))
        self.limit -= int(np.prod(shape))
        if self.limit < 0:
            raise TooLong
        found: list[Element | None] = []
        for element in product(*(range(start, start + extent) for start, extent in zip(starts, shape, strict=True))):
            inside = all(0 <= one < extent for one, extent in zip(element, tensor.shape, strict=True))
            if not inside and not clipped:
                self.kinds.add("bounds")
            found.append(element if inside else None)
        return found

    def read(self, tensor: Tensor, element: Element) -> Any:
        """The number at an element."""
        if tensor.access in ("Out", "Scratch") and element not in tensor.written:
            self.kinds.add("order")
        tensor.readers.setdefault(tensor.unit(element), set()).add(self.block)
        return tensor.contents[element]

    def write(self, tensor: Tensor, element: Element, number: Any) -> None:
        """Stores a number."""
        if tensor.access == "Out" and element in tensor.written:
            self.kinds.add("once")
        tensor.writers.setdefault(tensor.unit(element), set()).add(self.block)
        tensor.written.add(element)
        tensor.by_any.add(element)
        tensor.contents[element] = number


def _left(tensor: Tensor) -> set[str]:
    """What is seen at the end of a launch."""
    kinds = set[str]()
    for unit, writers in tensor.writers.items():
        if len(writers | tensor.readers.get(unit, set())) > 1:
            kinds.add("race")
    if tensor.access == "Out" and len(tensor.by_any) < int(np.prod(tensor.shape)):
        kinds.add("coverage")
    return kinds


def _numbers(position: Any) -> tuple[int, ...]:
    return tuple(map(int, position if isinstance(position, tuple) else (position,)))  # pyright: ignore[reportUnknownArgumentType]


def _max(x: Any, axis: int | None = None) -> Any:
    return _tile(np.max(np.asarray(x), axis=axis))


def _sum(x: Any, axis: int | None = None) -> Any:
    return _tile(np.sum(np.asarray(x), axis=axis, dtype=x.dtype))


def _words(launch: Launch) -> dict[str, Any]:
    """The words of the language that such kernels use."""

    def grid(*extents: int) -> None:
        if not launch.grid:
            launch.grid = tuple(map(int, extents))
            raise _Grid

    def requires(*conditions: bool) -> None:
        if not all(conditions):
            raise NoSuchLaunch("requires")

    def values(tensor: Tensor, low: int, high: int, distinct: bool = False) -> None:
        if launch.grid:
            return
        count = tensor.contents.size
        if high <= low or (distinct and high - low < count):
            raise NoSuchLaunch(tensor.name)
        pick = launch.random
        drawn = pick.sample(range(low, high), count) if distinct else [pick.randrange(low, high) for _ in range(count)]
        tensor.contents = np.array(drawn).reshape(tensor.shape)

    def load(tensor: Tensor, index: Any = None, *, offset: Any = None, shape: Any = None, pad: Any = None) -> Any:
        extents: tuple[int, ...] = (1,) * len(tensor.shape) if shape is None else _numbers(shape)
        elements = launch.box(tensor, index, offset, extents, pad is not None)
        zero = converted(np.array(0 if pad is None else pad, np.float32), np.dtype(tensor.dtype))
        found = np.array([zero if one is None else launch.read(tensor, one) for one in elements]).astype(tensor.dtype)
        return _tile(found.reshape(extents)) if shape is not None else _scalar(found.reshape(-1)[0], tensor.dtype)

    def store(tensor: Tensor, first: Any, second: Any = None, *, offset: Any = None, mask: bool = False) -> None:
        index, tile = (None, first) if offset is not None else (first, second)
        tile = np.asarray(tile)
        tile = (tile if tile.ndim else tile.reshape((1,) * len(tensor.shape))).astype(tensor.dtype)
        for element, number in zip(launch.box(tensor, index, offset, tile.shape, mask), tile.reshape(-1), strict=True):
            if element is not None:
                launch.write(tensor, element, number)

    def bid(axis: int) -> int:
        return launch.block[axis]

    def num_blocks(axis: int) -> int:
        return launch.grid[axis]

    return {
        "grid": grid, "requires": requires, "values": values, "load": load, "store": store, "bid": bid,
        "num_blocks": num_blocks, "full": _full, "mma": _mma, "cdiv": _cdiv, "minimum": _minimum, "maximum": _maximum,
        "min": min, "max": max, "where": _where, "zeros": _zeros, "abs": operator.abs, "static_range": range,
    }  # fmt: skip


def _full(shape: Any, number: Any, dtype: Any) -> Any:
    return _tile(np.broadcast_to(converted(np.asarray(number), np.dtype(dtype)), shape))


def _zeros(shape: Any, dtype: Any) -> Any:
    return _tile(np.zeros(shape, np.dtype(dtype)))


def _mma(a: Any, b: Any, acc: Any) -> Any:
    wide = [np.asarray(one).astype(np.float64) for one in (a, b, acc)]
    return _tile((wide[0] @ wide[1] + wide[2]).astype(acc.dtype))


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


def _scalar(number: Any, dtype: Any) -> Any:
    """A number as Python's if it is an integer that may be an index, else a tile without axes."""
    return int(number) if dtype in (np.int32, np.int64) else _tile(np.asarray(number))


def _minimum(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else _tile(np.minimum(a, b))


def _maximum(a: Any, b: Any) -> Any:
    return max(a, b) if isinstance(a, int) and isinstance(b, int) else _tile(np.maximum(a, b))


def _where(condition: Any, a: Any, b: Any) -> Any:
    return (a if condition else b) if isinstance(condition, bool) else _tile(np.where(condition, a, b))
