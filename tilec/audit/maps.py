"""Checks the arguments and tensor maps of a manifest, derived independently from the tile IR and the PTX.

A map's tensor, dims, strides and element type are those of the tensor parameter, on which manifest and tile IR agree
(`contract.disagreements`). Its swizzle is the byte size of its box's row (`tilec.artifact.manifest_reader`). Left to check are
the tensor that a map describes, and its box. The PTX gives the maps that an instruction may use, its direction and rank, the
coordinate differences between the copies that fill one tile, and the bytes that the mbarrier expects; if a smaller box replaces
the full one at an edge, also the bytes counted instead and the number of remaining rows. The tile IR gives the tile's shape.
The copies partition the tile at their coordinates, which determines each box on every axis. For PTX of any other form nothing
is derived and the status is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from math import prod
from typing import Any, Final

from tilec.artifact.records import Manifest, TensorMapSpec
from tilec.audit.contract import arguments_agree
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN
from tilec.audit.flow import Choice, Flow, Held, Sum, summed
from tilec.audit.values import tile_shape
from tilec.ir.core import Function
from tilec.ir.ops import MemoryOp
from tilec.ir.types import DTYPES

Result = dict[str, Any]
LAYOUTS: Final = {1: 128, 2: 64, 3: 32}
"""Bytes of a swizzle by the layout field of a matrix descriptor (PTX ISA, "Matrix Descriptor Format", bits 62 and 63)."""


class Differs(Exception):
    """The manifest contradicts the kernel."""


class Unclear(Exception):
    """The PTX does not determine the property."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy by a tensor map: `maps` with the predicates that select each, `offsets` of its coordinates from their `bases`,
    outermost axis first; `barrier` is the mbarrier that counts its bytes, None for a store."""

    line: int
    maps: tuple[tuple[dict[int, bool], TensorMapSpec], ...]
    bases: tuple[Any, ...]
    offsets: tuple[int, ...]
    barrier: Any


@dataclass(slots=True)
class Barrier:
    """The bytes that a phase expects, the bytes counted in place of those that a smaller box omits (`instead`), and the bytes
    of each full box."""

    expected: set[int] = field(default_factory=set[int])
    instead: list[Held] = field(default_factory=list[Held])
    copied: dict[Any, int] = field(default_factory=dict[Any, int])


def judged(manifest: Manifest, function: Function, ptx: str) -> Result:
    """`status` of the arguments is confirmed, refuted or unknown, with a `reason`. The PTX is parsed only if there are
    maps."""
    if not arguments_agree(manifest, function):
        return {"status": REFUTED, "reason": "the order of the arguments is not that of the tile IR"}
    if not manifest.tensor_maps:
        return {"status": CONFIRMED, "reason": ""}
    try:
        emulator: Any = import_module("tilec.emulator")
    except ModuleNotFoundError as error:
        return {"status": UNKNOWN, "reason": f"no reader of PTX: {error.name} is not installed"}
    try:
        code = emulator.parse(ptx).functions.get(manifest.entry)
        if code is None:
            raise Differs(f"the PTX has no entry `{manifest.entry}`")
        _Maps(manifest, function, code).judge()
    except Differs as error:
        return {"status": REFUTED, "reason": str(error)}
    except (Unclear, emulator.UnsupportedPtx) as error:
        return {"status": UNKNOWN, "reason": f"not derived: {error}"}
    return {"status": CONFIRMED, "reason": ""}


class _Maps:
    def __init__(self, manifest: Manifest, function: Function, code: Any) -> None:
        self.function, self.flow = function, Flow(code)
        self.barriers: dict[Any, Barrier] = {}
        if len(code.parameters) != len(manifest.abi):
            raise Differs(f"the PTX takes {len(code.parameters)} arguments, the manifest gives {len(manifest.abi)}")
        maps = iter(manifest.tensor_maps)
        self.of_parameter: dict[str, TensorMapSpec] = {
            parameter.name: next(maps)
            for parameter, slot in zip(code.parameters, manifest.abi, strict=True)
            if slot.kind == "tensor_map"
        }

    def judge(self) -> None:
        """Raises Differs or Unclear unless every check succeeds."""
        copies = list(self._copies())
        used = {id(spec) for copy in copies for _, spec in copy.maps}
        for spec in self.of_parameter.values():
            if id(spec) not in used:
                raise Differs(f"no copy of the PTX is by the map of `{spec.tensor}` with the box {list(spec.box)}")
        tiles: dict[Any, list[Copy]] = {}
        for copy in copies:
            tiles.setdefault((copy.barrier, copy.maps[-1][1].tensor, copy.bases), []).append(copy)
        for same in tiles.values():
            self._tile(same)
        for copy in copies:
            if copy.barrier is not None:
                self._smaller_boxes(copy)
        for place, barrier in self.barriers.items():
            if barrier.copied and barrier.expected != {sum(barrier.copied.values())}:
                said = ", ".join(map(str, sorted(barrier.expected))) or "no"
                raise Differs(f"{sum(barrier.copied.values())} bytes are copied where {said} are waited for ({_named(place)})")
        self._swizzles([spec for copy in copies if copy.barrier is not None for _, spec in copy.maps])

    def _copies(self) -> Iterator[Copy]:
        for place, one in enumerate(self.flow.instructions):
            words = one.modifiers
            if one.opcode == "mbarrier" and ("expect_tx" in words or "complete_tx" in words):
                barrier = self.barriers.setdefault(self._barrier(one.operands[-2], place), Barrier())
                held = self.flow.held(one.operands[-1], place)
                if "complete_tx" in words:
                    barrier.instead.append(held)
                elif isinstance(held, Sum) and held.base is None:
                    barrier.expected.add(held.constant)
                else:
                    raise Unclear(f"PTX line {one.line}: how many bytes are expected")
            elif one.opcode == "cp" and "tensor" in words and "bulk" in words:
                yield self._copy(one, place)

    def _barrier(self, address: Any, place: int) -> Any:
        held = summed(self.flow.held(address.base, place))
        return held.base, held.constant + address.offset

    def _copy(self, one: Any, place: int) -> Copy:
        loads = one.modifiers.index("global") > min(k for k, word in enumerate(one.modifiers) if word.startswith("shared"))
        described = one.operands[1 if loads else 0]
        maps = tuple(self._specs(self.flow.held(described.base, place), {}, one.line))
        (coordinates,) = described.extra
        held = [summed(self.flow.held(item, place)) for item in reversed(coordinates.items)]
        tensors = {spec.tensor for _, spec in maps}
        if len(tensors) != 1 or f"{len(held)}d" not in one.modifiers or any(len(spec.box) != len(held) for _, spec in maps):
            raise Differs(f"PTX line {one.line}: a copy of rank {len(held)} by maps of {', '.join(sorted(tensors))}")
        accesses = {op.opcode for op in self._accesses(maps[0][1].tensor)}
        if ("load" if loads else "store") not in accesses:
            raise Differs(f"PTX line {one.line}: `{maps[0][1].tensor}` is {'read' if loads else 'written'} by a tensor map")
        barrier = self._barrier(one.operands[2], place) if loads else None
        return Copy(one.line, maps, tuple(one.base for one in held), tuple(one.constant for one in held), barrier)

    def _specs(self, held: Held, chosen: dict[int, bool], line: int) -> Iterator[tuple[dict[int, bool], TensorMapSpec]]:
        """The maps whose address a value may be, each with its selecting predicates; the one with all predicates false comes
        last."""
        if isinstance(held, Choice):
            yield from self._specs(held.on_true, {**chosen, held.predicate: True}, line)
            yield from self._specs(held.on_false, {**chosen, held.predicate: False}, line)
        elif isinstance(held.base, str) and held.base in self.of_parameter and not held.constant:
            yield chosen, self.of_parameter[held.base]
        else:
            raise Unclear(f"PTX line {line}: which tensor map a copy is by")

    def _accesses(self, tensor: str) -> Iterator[MemoryOp]:
        for op in self.function.body.walk():
            if isinstance(op, MemoryOp) and op.operands[0] is self.function.parameter(tensor).value:
                yield op

    def _tile(self, copies: list[Copy]) -> None:
        """The copies of one tile partition it at their coordinates: the full box of each extends to the next coordinate."""
        full = copies[0].maps[-1][1]
        opcode = "store" if copies[0].barrier is None else "load"
        size = DTYPES[self._dtype(full.tensor)].bytes
        shapes = {tile_shape(op) for op in self._accesses(full.tensor) if op.opcode == opcode}
        wrong: list[str] = []
        for shape in sorted(shapes):
            boxes = _cut({copy.offsets for copy in copies}, shape)
            bad = [copy for copy in copies if boxes.get(copy.offsets) != copy.maps[-1][1].box]
            if not bad:
                break
            wrong.append(f"{list(boxes.get(bad[0].offsets, ()))} of a tile of {list(shape)}")
        else:
            known = " or ".join(wrong) or "none"
            where = f"PTX line {copies[0].line}: the box of `{full.tensor}`"
            raise Differs(f"{where} is {list(full.box)} in the manifest, and by the tile IR {known}")
        for copy in copies:
            if copy.barrier is not None:
                key = full.tensor, copy.bases, copy.offsets
                barrier = self.barriers.setdefault(copy.barrier, Barrier())
                barrier.copied[key] = prod(copy.maps[-1][1].box) * size

    def _smaller_boxes(self, copy: Copy) -> None:
        """A smaller box omits exactly the bytes that are counted instead, and has at least as many rows as its predicates
        leave."""
        *parts, (_, full) = copy.maps
        size = DTYPES[self._dtype(full.tensor)].bytes
        for chosen, spec in parts:
            where = f"PTX line {copy.line}: a box {list(spec.box)} of `{spec.tensor}`"
            rows = _fewer_rows(full.box, spec.box)
            missing = size * (prod(full.box) - prod(spec.box))
            counted = {number for held in self.barriers[copy.barrier].instead if (number := _under(held, chosen)) is not None}
            if rows is None or missing not in counted:
                said = f"{', '.join(map(str, sorted(counted))) or 'no'} bytes are counted for what is left out"
                raise Differs(f"{where} is {missing} bytes short of {list(full.box)}, and {said}")
            limits = [self._most(predicate) for predicate, holds in chosen.items() if holds]
            known = [limit for limit in limits if limit is not None]
            if not known:
                raise Unclear(f"{where}: how many rows are left for it")
            if rows < min(known):
                raise Differs(f"{where} where {min(known)} rows may be left")

    def _most(self, predicate: int) -> int | None:
        """The largest number that satisfies the comparison of a predicate with a constant, `lt` or `le`."""
        one = self.flow.predicate(predicate)
        if one is None or one.opcode != "setp" or not hasattr(one.operands[-1], "value"):
            return None
        limit = int(one.operands[-1].value)
        return limit - 1 if "lt" in one.modifiers else limit if "le" in one.modifiers else None

    def _swizzles(self, loaded: Iterable[TensorMapSpec]) -> None:
        """Products must read the copied operands with the swizzles of the maps."""
        read = {
            LAYOUTS.get(operand.value >> 62 & 3, 0)
            for one in self.flow.instructions
            if one.opcode == "or" and "b64" in one.modifiers
            for operand in one.operands[1:]
            if hasattr(operand, "value") and operand.value >> 62 & 3
        }
        written = {spec.swizzle for spec in loaded}
        if read and read != written:
            raise Differs(f"products read rows of {_bytes(read)} bytes, and the maps write rows of {_bytes(written)}")

    def _dtype(self, tensor: str) -> str:
        return self.function.parameter(tensor).value.tensor.dtype.name


def _cut(offsets: set[tuple[int, ...]], shape: tuple[int, ...]) -> Mapping[tuple[int, ...], tuple[int, ...]]:
    """The boxes that begin at these offsets and partition a tile of this shape, by offset; empty if there is no such
    partition."""
    least = tuple(map(min, zip(*offsets, strict=True)))
    if len(least) != len(shape):
        return {}
    starts = [sorted({one[axis] - least[axis] for one in offsets}) for axis in range(len(shape))]
    if prod(map(len, starts)) != len(offsets):
        return {}
    ends = [dict(zip(axis, [*axis[1:], extent], strict=True)) for axis, extent in zip(starts, shape, strict=True)]
    return {one: tuple(ends[axis][at - least[axis]] - (at - least[axis]) for axis, at in enumerate(one)) for one in offsets}


def _under(held: Held, chosen: Mapping[int, bool]) -> int | None:
    """The constant value under these predicate values, or None."""
    while isinstance(held, Choice):
        if held.predicate not in chosen:
            return None
        held = held.on_true if chosen[held.predicate] else held.on_false
    return held.constant if held.base is None else None


def _fewer_rows(full: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    """The rows of a box that is smaller than the full one on one outer axis only; otherwise None."""
    axes = [axis for axis, (a, b) in enumerate(zip(full, part, strict=True)) if a != b]
    return part[axes[0]] if len(axes) == 1 and axes[0] < len(full) - 1 and part[axes[0]] < full[axes[0]] else None


def _bytes(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))


def _named(place: Any) -> str:
    base, constant = place
    return f"the mbarrier at {base if isinstance(base, str) else 'a register'} + {constant}"
