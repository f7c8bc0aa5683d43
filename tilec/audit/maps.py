"""Checks the arguments and tensor maps of a manifest, derived independently from the tile IR and the PTX.

A map's tensor, dims, strides and element type are those of the tensor parameter, on which manifest and tile IR agree
(`contract.disagreements`). Its swizzle is the byte size of its box's row (`tilec.artifact.manifest_reader`). Left to check are
the tensor that a map describes, and its box. The PTX gives the maps that an instruction may use, its direction and rank, the
coordinate differences between the copies that fill one tile, and the bytes that the mbarrier expects; if a smaller box replaces
the full one at an edge, also the bytes counted instead and the number of remaining rows. The tile IR gives the tile's shape.
The copies partition the tile at their coordinates, which determines each box on every axis. For PTX of any other form nothing
is derived and the status is unknown. Two blocks of a pair copy a tile together (`pairs`); each is checked alone first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from importlib import import_module
from math import prod
from typing import Any

from tilec.artifact.records import Manifest, TensorMapSpec
from tilec.audit import clusters, pairs
from tilec.audit.alike import Alike
from tilec.audit.contract import arguments_agree
from tilec.audit.copies import Barrier, BlockCopies, Copy, Differs, Unclear, cut, named, refuse_unknown_forms
from tilec.audit.descriptors import swizzles
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN
from tilec.audit.flow import WHOLE, Choice, Flow, Sum, SymbolicValue, summed
from tilec.audit.positions import tile_shape
from tilec.ir.core import Function
from tilec.ir.ops import MemoryOp
from tilec.ir.types import DTYPES

Result = dict[str, Any]


def checked(manifest: Manifest, function: Function, ptx: str) -> Result:
    """`status` of the arguments is confirmed, refuted or unknown, with a `reason`."""
    if not arguments_agree(manifest, function):
        return {"status": REFUTED, "reason": "the order of the arguments differs from the tile IR's"}
    try:
        emulator: Any = import_module("tilec.emulator")
    except ModuleNotFoundError as error:
        return {"status": UNKNOWN, "reason": f"no reader of PTX: {error.name} is not installed"}
    try:
        code = emulator.parse(ptx).functions.get(manifest.entry)
        clusters.agree(manifest, code)
        if manifest.tensor_maps:
            _check(manifest, function, code)
    except Differs as error:
        return {"status": REFUTED, "reason": str(error)}
    except (Unclear, emulator.UnsupportedPtx) as error:
        return {"status": UNKNOWN, "reason": f"not derived: {error}"}
    return {"status": CONFIRMED, "reason": ""}


def _check(manifest: Manifest, function: Function, code: Any | None) -> None:
    """Raises Differs or Unclear unless the tensor maps are confirmed."""
    if code is None:
        raise Differs(f"the PTX has no entry `{manifest.entry}`")
    if manifest.cluster == 1:
        _Maps(manifest, function, code).check()
        return
    for rank in range(manifest.cluster):
        _Maps(manifest, function, code, rank).checked_apart()
    if manifest.cluster != pairs.BLOCKS:
        raise Unclear(f"which part of what the tile IR names each of the {manifest.cluster} blocks of a cluster copies")
    alike = Alike(Flow(code), code)
    pairs.check(function, alike, lambda rank: _Maps(manifest, function, code, rank, alike.apart).checked_apart())


class _Maps:
    """The checks of one block; `rank` is its rank in its cluster, which has one axis, and `apart` are instructions that other
    blocks may execute at other times, or never."""

    def __init__(
        self, manifest: Manifest, function: Function, code: Any, rank: int | None = None, apart: Set[int] = frozenset()
    ) -> None:  # fmt: skip
        special = {} if rank is None else {"%cluster_ctarank": rank, "%cluster_ctaid.x": rank}
        self.function, self.flow = function, Flow(code, special, apart)
        self._alone = Flow(code, special)  # of this block, whatever the others execute
        self.barriers: dict[Any, Barrier] = {}
        if len(code.parameters) != len(manifest.abi):
            raise Differs(f"the PTX has {len(code.parameters)} arguments, the manifest has {len(manifest.abi)}")
        maps = iter(manifest.tensor_maps)
        self.of_parameter: dict[str, TensorMapSpec] = {
            parameter.name: next(maps)
            for parameter, slot in zip(code.parameters, manifest.abi, strict=True)
            if slot.kind == "tensor_map"
        }

    def check(self) -> None:
        """Raises Differs or Unclear unless every check succeeds."""
        copies = list(self._copies())
        self._used(copies)
        tiles: dict[Any, list[Copy]] = {}
        for copy in copies:
            tiles.setdefault((copy.barrier, copy.maps[-1][1].tensor, copy.bases), []).append(copy)
        for tile_copies in tiles.values():
            self._tile(tile_copies)
        for copy in copies:
            if copy.barrier is not None:
                self._smaller_boxes(copy)
        for address, barrier in self.barriers.items():
            known = set(barrier.expected.values())
            if barrier.copied and known != {sum(barrier.copied.values())}:
                expected = ", ".join(map(str, sorted(known))) or "no"
                raise Differs(
                    f"{sum(barrier.copied.values())} bytes are copied where {expected} are waited for ({named(address)})"
                )
        self._swizzles(copies)
        self._counted_once(copies)

    def checked_apart(self) -> BlockCopies:
        """The copies of this block of a cluster, after each check that needs no other block: raises Differs if one fails."""
        copies = list(self._copies())
        self._used(copies)
        self._swizzles(copies)
        for copy in copies:
            opcode = "store" if copy.barrier is None else "load"
            for _, spec in copy.maps:
                shapes = sorted({tile_shape(op) for op in self._accesses(spec.tensor) if op.opcode == opcode})
                if not any(_within(spec.box, shape) for shape in shapes):
                    tiles = " or ".join(str(list(shape)) for shape in shapes)
                    raise Differs(
                        f"PTX line {copy.line}: a box {list(spec.box)} of `{spec.tensor}` is larger than its tile of {tiles}"
                    )
        return BlockCopies(copies, self.barriers)

    def _counted_once(self, copies: list[Copy]) -> None:
        """Raises Unclear where the bytes of a copy may be expected, counted or copied more than once."""
        smaller = Counter(copy.barrier for copy in copies if len(copy.maps) > 1)
        seen: set[Any] = set()
        for copy in copies:
            if (key := (copy.barrier, copy.maps[-1][1].tensor, copy.bases, copy.offsets)) in seen:
                raise Unclear(f"PTX line {copy.line}: whether a box is copied twice")
            seen.add(key)
        for address, barrier in self.barriers.items():
            if len(barrier.expected) > 1 or (barrier.expected and not barrier.copied):
                raise Unclear(f"which copies the bytes are expected for ({named(address)})")
            if len(barrier.compensation) != smaller[address]:
                raise Unclear(f"which copies bytes are counted in place of ({named(address)})")

    def _used(self, copies: list[Copy]) -> None:
        used = {id(spec) for copy in copies for _, spec in copy.maps}
        for spec in self.of_parameter.values():
            if id(spec) not in used:
                raise Differs(f"no copy of the PTX is by the map of `{spec.tensor}` with the box {list(spec.box)}")

    def _copies(self) -> Iterator[Copy]:
        for position, instruction in enumerate(self.flow.instructions):
            modifiers = instruction.modifiers
            refuse_unknown_forms(instruction)
            if instruction.opcode == "mbarrier" and ("expect_tx" in modifiers or "complete_tx" in modifiers):
                barrier = self.barriers.setdefault(self._barrier(instruction.operands[-2], position), Barrier())
                byte_count = self.flow.symbolic(instruction.operands[-1], position)
                if "complete_tx" in modifiers:
                    barrier.compensation.append((instruction, byte_count))
                elif isinstance(byte_count, Sum) and byte_count.base is None:
                    barrier.expected[position] = byte_count.constant
                else:
                    raise Unclear(f"PTX line {instruction.line}: how many bytes are expected")
            elif instruction.opcode == "cp" and "tensor" in modifiers and "bulk" in modifiers:
                yield self._copy(instruction, position)

    def _barrier(self, address: Any, position: int) -> Any:
        symbolic = summed(self.flow.symbolic(address.base, position))
        return symbolic.base, symbolic.constant + address.offset

    def _copy(self, instruction: Any, position: int) -> Copy:
        loads = instruction.modifiers.index("global") > min(
            k for k, word in enumerate(instruction.modifiers) if word.startswith("shared")
        )
        described = instruction.operands[1 if loads else 0]
        maps = tuple(self._specs(self.flow.symbolic(described.base, position), {}, instruction.line))
        (coordinates,) = described.extra
        coordinate_values = [summed(self.flow.symbolic(item, position)) for item in reversed(coordinates.items)]
        tensors = {spec.tensor for _, spec in maps}
        if (
            len(tensors) != 1
            or f"{len(coordinate_values)}d" not in instruction.modifiers
            or any(len(spec.box) != len(coordinate_values) for _, spec in maps)
        ):
            raise Differs(
                f"PTX line {instruction.line}: a copy of rank {len(coordinate_values)} by maps of {', '.join(sorted(tensors))}"
            )
        accesses = {op.opcode for op in self._accesses(maps[0][1].tensor)}
        if ("load" if loads else "store") not in accesses:
            raise Differs(
                f"PTX line {instruction.line}: `{maps[0][1].tensor}` is {'read' if loads else 'written'} by a tensor map"
            )
        barrier = self._barrier(instruction.operands[2], position) if loads else None
        return Copy(
            position,
            instruction.line,
            maps,
            tuple(value.base for value in coordinate_values),
            tuple(value.constant for value in coordinate_values),
            barrier,
        )

    def _specs(
        self, symbolic: SymbolicValue, chosen: dict[int, bool], line: int
    ) -> Iterator[tuple[dict[int, bool], TensorMapSpec]]:
        """The maps whose address a value may be, each with its selecting predicates; the one with all predicates false comes
        last."""
        if isinstance(symbolic, Choice):
            yield from self._specs(symbolic.on_true, {**chosen, symbolic.predicate: True}, line)
            yield from self._specs(symbolic.on_false, {**chosen, symbolic.predicate: False}, line)
        elif isinstance(symbolic.base, str) and symbolic.base in self.of_parameter and not symbolic.constant:
            yield chosen, self.of_parameter[symbolic.base]
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
            boxes = cut({copy.offsets for copy in copies}, shape)
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
        (none, full) = copy.maps[-1]
        size = DTYPES[self._dtype(full.tensor)].bytes
        for chosen, spec in copy.maps if none else ():
            where = f"PTX line {copy.line}: a box {list(spec.box)} of `{spec.tensor}`"
            rows = _fewer_rows(full.box, spec.box)
            missing = size * (prod(full.box) - prod(spec.box))
            counted = {
                number if self._executed(instruction, chosen) else 0
                for instruction, compensation in self.barriers[copy.barrier].compensation
                if (number := _under(compensation, chosen)) is not None
            }
            if (rows is None and spec is not full) or missing not in counted:
                message = f"{', '.join(map(str, sorted(counted))) or 'no'} bytes are counted for what is left out"
                raise Differs(f"{where} is {missing} bytes short of {list(full.box)}, and {message}")
            if rows is None:
                continue
            limits = [self._most(predicate) for predicate, holds in chosen.items() if holds]
            known = [limit for limit in limits if limit is not None]
            if not known:
                raise Unclear(f"{where}: how many rows are left for it")
            if rows < min(known):
                raise Differs(f"{where} where {min(known)} rows may be left")

    def _executed(self, instruction: Any, chosen: Mapping[int, bool]) -> bool:
        """Whether an instruction is executed where these predicates hold: its guard is one of them, or holds with one because
        it compares the same number with a larger one. Raises Unclear if that is not known."""
        guard = instruction.guard
        if guard is None:
            return True
        if guard.index in chosen:
            return chosen[guard.index] is not instruction.guard_negated
        limit, compared = self._most(guard.index), self.flow.definition(guard.index)
        for predicate in (index for index, holds in chosen.items() if holds):
            lower, other = self._most(predicate), self.flow.definition(predicate)
            if limit is None or lower is None or compared is None or other is None or lower > limit:
                continue
            number, unchanged = other.operands[1], compared.modifiers == other.modifiers
            if unchanged and compared.operands[1] == number and self.flow.definition(getattr(number, "index", -1)) is not None:
                return not instruction.guard_negated
        raise Unclear(f"PTX line {instruction.line}: where it is executed")

    def _most(self, predicate: int) -> int | None:
        """The largest number that satisfies the comparison of a predicate with a constant, `lt` or `le`."""
        instruction = self.flow.definition(predicate)
        if instruction is None or instruction.opcode != "setp" or not hasattr(instruction.operands[-1], "value"):
            return None
        result = getattr(instruction.operands[0], "index", None)  # the second of two results is the opposite
        if result != predicate or instruction.guard is not None or not WHOLE & set(instruction.modifiers):
            return None
        limit = int(instruction.operands[-1].value)
        return limit - 1 if "lt" in instruction.modifiers else limit if "le" in instruction.modifiers else None

    def _swizzles(self, copies: Iterable[Copy]) -> None:
        """Products must read the copied operands with the swizzles of the maps. A kernel whose products read no descriptors
        finds swizzled elements by arithmetic, which is left to the emulator."""
        written = {spec.swizzle for copy in copies if copy.barrier is not None for _, spec in copy.maps}
        found = list(swizzles(self._alone))
        read = {size for _, size in found if size is not None}
        unclear = [line for line, size in found if size is None]
        if found and (not read <= written or not (unclear or read == written)):
            sizes = _bytes(read - {0}) or "no such swizzle"
            raise Differs(f"products read rows of {sizes} bytes, and the maps write rows of {_bytes(written)}")
        if unclear:
            raise Unclear(f"PTX line {unclear[0]}: in which layout a product reads an operand")

    def _dtype(self, tensor: str) -> str:
        return self.function.parameter(tensor).value.tensor.dtype.name


def _within(box: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """Whether a box has the axes of a tile, none of which it exceeds."""
    return len(box) == len(shape) and all(a <= b for a, b in zip(box, shape, strict=True))


def _under(symbolic: SymbolicValue, chosen: Mapping[int, bool]) -> int | None:
    """The constant value under these predicate values, or None."""
    while isinstance(symbolic, Choice):
        if symbolic.predicate not in chosen:
            return None
        symbolic = symbolic.on_true if chosen[symbolic.predicate] else symbolic.on_false
    return symbolic.constant if symbolic.base is None else None


def _fewer_rows(full: tuple[int, ...], part: tuple[int, ...]) -> int | None:
    """The rows of a box that is smaller than the full one on one outer axis only; otherwise None."""
    axes = [axis for axis, (a, b) in enumerate(zip(full, part, strict=True)) if a != b]
    return part[axes[0]] if len(axes) == 1 and axes[0] < len(full) - 1 and part[axes[0]] < full[axes[0]] else None


def _bytes(sizes: set[int]) -> str:
    return ", ".join(map(str, sorted(sizes)))
