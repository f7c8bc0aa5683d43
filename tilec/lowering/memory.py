"""Accesses to global memory: boxes as vectors where the whole box is inside its tensor, else element by element under masks.

Addresses are 64-bit. The test whether a box is inside is the same for all threads of a block, so the tail of a tensor costs
the full blocks one comparison. Which threads must have met before an access is decided before (`tilec.passes.meetings`).
"""

from __future__ import annotations

from collections.abc import Callable, Set
from functools import partial

from tilec.ir.blocked_layouts import vector_length
from tilec.ir.core import Access, Value
from tilec.ir.layout import Layout
from tilec.ir.ops import AtomicUpdate, Constant, Gather, Load, Scatter, Store
from tilec.ir.types import DType
from tilec.lowering import positions
from tilec.lowering.atomics import float_extremum
from tilec.lowering.context import Context, literal, storage
from tilec.lowering.convert import registers_in
from tilec.lowering.tensor_core import GLOBAL, arith, compare, number, offset_pointer


def lower_load(context: Context, op: Load) -> None:
    """Vectors of `op.vector` bytes; `In` tensors go through the read-only path."""
    layout = op.result.layout or Layout(op.result.tile.rank, (), (), ())
    dtype = op.result.tile.dtype
    box = _Box(context, op.source, op.offsets, op.result.tile.shape, layout)
    invariant = context.function.parameter_of(op.source).access is Access.IN
    width = vector_length(layout, op.vector // dtype.bytes)

    words = _Words(context, dtype, width)

    def whole() -> list[str]:
        return [word for r in range(0, layout.num_registers, width) for word in words.load(box.pointer(r), invariant)]

    if op.pad is None:
        context.assign(op.result, words.elements(whole()))
        return
    pad = literal(context, op.pad, dtype)

    def element(register: int) -> str:
        load = partial(_load_one, context, box.pointer(register), dtype, invariant)
        return _guarded(context, box.element_inside(register), load, pad, dtype)

    def access(register: int, outside: list[str]) -> list[str]:
        return _choose(
            context,
            box.element_inside(register),
            lambda: words.load(box.pointer(register), invariant),
            lambda: outside,
            words.type,
        )

    def partly() -> list[str]:
        if not box.whole_rows:
            return words.pack([element(register) for register in range(layout.num_registers)])
        outside = words.pack([pad] * width)
        return [word for register in range(0, layout.num_registers, width) for word in access(register, outside)]

    held = _choose(context, box.whole_inside(), whole, partly, words.type)
    context.assign(op.result, words.elements(held))


def lower_store(context: Context, op: Store) -> None:
    """Each element by the first of the threads that hold it."""
    dtype = op.tile.tile.dtype
    layout = op.tile.layout or Layout(op.tile.tile.rank, (), (), ())
    held = context.registers(op.tile)
    box = _Box(context, op.target, op.offsets, op.tile.tile.shape, layout)
    width = vector_length(layout, op.vector // dtype.bytes)
    if dtype.kind == "b":
        held = [context.value(f"llvm.zext {name} : i1 to i8") for name in held]
    type_ = "i8" if dtype.kind == "b" else storage(dtype)
    owner = _owns(context, layout)
    if owner:
        context.effect(f"scf.if {owner} {{")
    if op.mask:
        context.effect(f"scf.if {box.whole_inside()} {{")
    for first in range(0, layout.num_registers, width):
        _store_vector(context, box.pointer(first), held[first : first + width], type_, dtype.bytes)
    if op.mask:
        context.effect("} else {")
        step = width if box.whole_rows else 1
        for first in range(0, layout.num_registers, step):
            context.effect(f"scf.if {box.element_inside(first)} {{")
            _store_vector(context, box.pointer(first), held[first : first + step], type_, dtype.bytes)
            context.effect("}")
        context.effect("}")
    if owner:
        context.effect("}")


def lower_gather(context: Context, op: Gather) -> None:
    """One element per position; outside positions read the pad."""
    layout = op.result.layout
    assert layout is not None
    dtype = op.result.tile.dtype
    invariant = context.function.parameter_of(op.source).access is Access.IN
    indices = [_wide(context, index, registers_in(context, index, layout)) for index in op.indices]
    out: list[str] = []
    for register in range(layout.num_registers):
        place = [names[register] for names in indices]
        if op.pad is None:
            out.append(_load_one(context, _element(context, op.source, place), dtype, invariant))
        else:
            pad = literal(context, op.pad, dtype)
            load = partial(_load_place, context, op.source, place, dtype, invariant)
            out.append(_guarded(context, _inside(context, op.source, place), load, pad, dtype))
    context.assign(op.result, out)


def lower_scatter(context: Context, op: Scatter) -> None:
    """One element per position; masked positions outside are not written."""
    layout = op.tile.layout
    assert layout is not None
    dtype = op.tile.tile.dtype
    held = context.registers(op.tile)
    indices = [_wide(context, index, registers_in(context, index, layout)) for index in op.indices]
    owner = _owns(context, layout)
    if owner:
        context.effect(f"scf.if {owner} {{")
    for register in range(layout.num_registers):
        place = [names[register] for names in indices]
        if op.mask:
            context.effect(f"scf.if {_inside(context, op.target, place)} {{")
        _store_vector(context, _element(context, op.target, place), [held[register]], storage(dtype), dtype.bytes)
        if op.mask:
            context.effect("}")
    if owner:
        context.effect("}")


def lower_atomic(context: Context, op: AtomicUpdate) -> None:
    """One relaxed atomic per element."""
    dtype = op.tile.tile.dtype
    layout = op.tile.layout or Layout(op.tile.tile.rank, (), (), ())
    held = context.registers(op.tile)
    box = _Box(context, op.target, op.offsets, op.tile.tile.shape, layout)
    signed = "" if dtype.kind == "i" else "u"
    kind = ("fadd" if dtype.is_float else "add") if op.kind == "add" else ("f" if dtype.is_float else signed) + op.kind
    owner = _owns(context, layout)
    if owner:
        context.effect(f"scf.if {owner} {{")
    for register in range(layout.num_registers):
        if op.mask:
            context.effect(f"scf.if {box.element_inside(register)} {{")
        if kind in ("fmax", "fmin"):
            float_extremum(context, op.kind, box.pointer(register), held[register])
        else:
            target, value = box.pointer(register), held[register]
            context.value(f"llvm.atomicrmw {kind} {target}, {value} monotonic : {GLOBAL}, {storage(dtype)}")
        if op.mask:
            context.effect("}")
    if owner:
        context.effect("}")


class _Box:
    """Addresses and edges of a box, for the elements this thread holds."""

    def __init__(self, context: Context, tensor: Value, offsets: list[Value], shape: tuple[int, ...], layout: Layout) -> None:
        self.context, self.tensor, self.shape, self.layout = context, tensor, shape, layout
        self.known_inside = _known_inside(tensor, offsets, shape)
        self.offsets = [_wide(context, offset, [context.scalar(offset)])[0] for offset in offsets]
        self.wraps = [offset.tile.dtype.bits == 64 for offset in offsets]
        own = context.thread_coordinates(layout) if layout.lanes else [number(context, 0)] * len(shape)
        self.first = [
            arith(context, "add", offset, context.value(f"llvm.zext {coordinate} : i32 to i64"), "i64")
            for offset, coordinate in zip(self.offsets, own, strict=True)
        ]
        self.base = _element(context, tensor, self.first)

    def pointer(self, register: int) -> str:
        """Address of a register's element."""
        context, size = self.context, self.tensor.tensor.dtype.bytes
        fixed, pointer = 0, self.base
        for axis, step in enumerate(self.layout.coordinates(register, 0, 0)):
            stride = context.stride_constant(self.tensor, axis)
            if stride is not None:
                fixed += step * stride * size
            elif step:
                moved = arith(context, "mul", context.stride(self.tensor, axis), number(context, step * size, "i64"), "i64")
                pointer = offset_pointer(context, pointer, moved, GLOBAL, "i64")
        return offset_pointer(context, pointer, fixed, GLOBAL)

    def whole_inside(self) -> str:
        """Whether the whole box lies in the tensor; the same for all threads."""
        out = ""
        for axis, offset in enumerate(self.offsets):
            limit = self._extent(axis)
            out = _and(self.context, out, compare(self.context, "sge", offset, number(self.context, 0, "i64"), "i64"))
            if self.wraps[axis]:  # the end of a box at such an offset may be past the largest i64
                last = arith(self.context, "sub", limit, number(self.context, self.shape[axis], "i64"), "i64")
                out = _and(self.context, out, compare(self.context, "sle", offset, last, "i64"))
                continue
            end = arith(self.context, "add", offset, number(self.context, self.shape[axis], "i64"), "i64")
            out = _and(self.context, out, compare(self.context, "sle", end, limit, "i64"))
        return out

    @property
    def whole_rows(self) -> bool:
        """Whether the box is known to lie inside along the last axis, so that an access is inside or outside as a whole."""
        return self.tensor.tensor.rank - 1 in self.known_inside

    def element_inside(self, register: int) -> str:
        """Whether a register's element lies in the tensor."""
        steps = self.layout.coordinates(register, 0, 0)
        place = [
            arith(self.context, "add", first, number(self.context, step, "i64"), "i64") if step else first
            for first, step in zip(self.first, steps, strict=True)
        ]
        return _inside(self.context, self.tensor, place, self.known_inside) or number(self.context, 1, "i1")

    def _extent(self, axis: int) -> str:
        return self.context.host(self.tensor.tensor.dims[axis])


def _known_inside(tensor: Value, offsets: list[Value], shape: tuple[int, ...]) -> set[int]:
    """Axes along which a box at a constant place lies inside a constant extent."""
    found: set[int] = set()
    for axis, (offset, extent) in enumerate(zip(offsets, shape, strict=True)):
        limit = tensor.tensor.dims[axis].constant
        if isinstance(offset.owner, Constant) and limit is not None and 0 <= offset.owner.value <= limit - extent:
            found.add(axis)
    return found


def _inside(context: Context, tensor: Value, place: list[str], known: Set[int] = frozenset()) -> str:
    """Whether an element lies in the tensor, from its place on the axes that are not `known`; empty where none is left."""
    out = ""
    for axis, index in enumerate(place):
        if axis in known:
            continue
        # Unsigned comparison covers negative indices too.
        out = _and(context, out, compare(context, "ult", index, context.host(tensor.tensor.dims[axis]), "i64"))
    return out


def _and(context: Context, left: str, right: str) -> str:
    return context.value(f"llvm.and {left}, {right} : i1") if left else right


def _wide(context: Context, value: Value, names: list[str]) -> list[str]:
    """Positions as i64, which addresses and masks here are both made from."""
    return [positions.position(context, value, name).wide(context) for name in names]


def _element(context: Context, tensor: Value, place: list[str]) -> str:
    size = tensor.tensor.dtype.bytes
    pointer = context.pointer(tensor)
    for axis, index in enumerate(place):
        stride = context.stride_constant(tensor, axis)
        if stride is not None:
            moved = arith(context, "mul", index, number(context, stride * size, "i64"), "i64")
        else:
            elements = arith(context, "mul", index, context.stride(tensor, axis), "i64")
            moved = arith(context, "mul", elements, number(context, size, "i64"), "i64")
        pointer = offset_pointer(context, pointer, moved, GLOBAL, "i64")
    return pointer


class _Words:
    """Elements as they come from memory in one access: up to 32 bits of neighbours in a register, so that a branch passes
    registers on and not their parts. `width` elements make an access."""

    def __init__(self, context: Context, dtype: DType, width: int) -> None:
        self.context, self.dtype, self.width = context, dtype, width
        self.each = max(1, min(width, 4 // dtype.bytes))  # elements in a word
        self.vector = f"vector<{self.each}x{_memory_type(dtype)}>"
        self.type = storage(dtype) if self.each == 1 else f"i{self.each * dtype.bytes * 8}"
        self.raw = _memory_type(dtype) if self.each == 1 else self.type

    def load(self, pointer: str, invariant: bool) -> list[str]:
        """The words of one access."""
        context, count = self.context, self.width // self.each
        if invariant and self.raw in ("i32", "f32"):
            return _load_read_only(context, pointer, self.raw, count)
        type_ = self.raw if count == 1 else f"vector<{count}x{self.raw}>"
        loaded = _load(context, pointer, type_, self.width * self.dtype.bytes, invariant)
        words = [loaded] if count == 1 else [_extract(context, loaded, type_, i) for i in range(count)]
        return words if self.each > 1 else [_from_memory(context, word, self.dtype) for word in words]

    def pack(self, elements: list[str]) -> list[str]:
        """Elements, one by one, into words."""
        if self.each == 1:
            return elements
        context, out = self.context, list[str]()
        for first in range(0, len(elements), self.each):
            packed = context.value(f"llvm.mlir.zero : {self.vector}")
            for position, name in enumerate(elements[first : first + self.each]):
                if self.dtype.kind == "b":
                    name = context.value(f"llvm.zext {name} : i1 to i8")
                packed = context.value(
                    f"llvm.insertelement {name}, {packed}[{number(context, position)} : i32] : {self.vector}"
                )
            out.append(context.value(f"llvm.bitcast {packed} : {self.vector} to {self.type}"))
        return out

    def elements(self, words: list[str]) -> list[str]:
        """Words into elements."""
        if self.each == 1:
            return words
        context, out = self.context, list[str]()
        for word in words:
            lanes = context.value(f"llvm.bitcast {word} : {self.type} to {self.vector}")
            out += [_from_memory(context, _extract(context, lanes, self.vector, i), self.dtype) for i in range(self.each)]
        return out


def _extract(context: Context, vector: str, type_: str, position: int) -> str:
    return context.value(f"llvm.extractelement {vector}[{number(context, position)} : i32] : {type_}")


def _load_read_only(context: Context, pointer: str, type_: str, count: int) -> list[str]:
    """1, 2 or 4 words in one access of data that nothing writes while the kernel runs (PTX ISA, `ld.global.nc`). As text,
    because LLVM takes a vector load apart when all that is used of it are its parts, and forgets that it is invariant."""
    names = ", ".join(f"${i}" for i in range(count))
    target, vector = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
    constraint = {"i32": "=r", "f32": "=f"}[type_]
    outputs = ",".join([constraint] * count)
    result = f"!llvm.struct<({', '.join([type_] * count)})>" if count > 1 else type_
    loaded = context.value(
        f'llvm.inline_asm "ld.global.nc{vector}.b32 {target}, [${count}];", "{outputs},l" {pointer} : ({GLOBAL}) -> {result}'
    )
    if count == 1:
        return [loaded]
    return [context.value(f"llvm.extractvalue {loaded}[{i}] : {result}") for i in range(count)]


def _load(context: Context, pointer: str, type_: str, align: int, invariant: bool) -> str:
    hint = " invariant" if invariant else ""
    return context.value(f"llvm.load {pointer}{hint} {{alignment = {align} : i64}} : {GLOBAL} -> {type_}")


def _memory_type(dtype: DType) -> str:
    return "i8" if dtype.kind == "b" else storage(dtype)


def _from_memory(context: Context, name: str, dtype: DType) -> str:
    if dtype.kind != "b":
        return name
    return compare(context, "ne", name, number(context, 0, "i8"), "i8")


def _load_place(context: Context, tensor: Value, place: list[str], dtype: DType, invariant: bool) -> str:
    return _load_one(context, _element(context, tensor, place), dtype, invariant)


def _load_one(context: Context, pointer: str, dtype: DType, invariant: bool) -> str:
    return _from_memory(context, _load(context, pointer, _memory_type(dtype), dtype.bytes, invariant), dtype)


def _store_vector(context: Context, pointer: str, names: list[str], type_: str, size: int) -> None:
    align = f"{{alignment = {len(names) * size} : i64}}"
    if len(names) == 1:
        context.effect(f"llvm.store {names[0]}, {pointer} {align} : {type_}, {GLOBAL}")
        return
    vector = f"vector<{len(names)}x{type_}>"
    packed = context.value(f"llvm.mlir.zero : {vector}")
    for position, name in enumerate(names):
        packed = context.value(f"llvm.insertelement {name}, {packed}[{number(context, position)} : i32] : {vector}")
    words = len(names) * size // 4
    if words:
        raw = "i32" if words == 1 else f"vector<{words}xi32>"
        if raw != vector:
            packed = context.value(f"llvm.bitcast {packed} : {vector} to {raw}")
        vector = raw
    context.effect(f"llvm.store {packed}, {pointer} {align} : {vector}, {GLOBAL}")


def _guarded(context: Context, condition: str, inside: Callable[[], str], outside: str, dtype: DType) -> str:
    name, type_ = context.name(), storage(dtype)
    context.effect(f"{name} = scf.if {condition} -> ({type_}) {{")
    context.effect(f"scf.yield {inside()} : {type_}")
    context.effect("} else {")
    context.effect(f"scf.yield {outside} : {type_}")
    context.effect("}")
    return name


def _choose(
    context: Context, condition: str, whole: Callable[[], list[str]], partly: Callable[[], list[str]], type_: str
) -> list[str]:
    name = context.name()
    place = len(context.lines)
    context.effect("")
    held = whole()
    types = ", ".join([type_] * len(held))
    context.lines[place] = f"{name}:{len(held)} = scf.if {condition} -> ({types}) {{"
    context.effect(f"scf.yield {', '.join(held)} : {types}")
    context.effect("} else {")
    context.effect(f"scf.yield {', '.join(partly())} : {types}")
    context.effect("}")
    return [f"{name}#{i}" for i in range(len(held))]


def _owns(context: Context, layout: Layout) -> str:
    """True in the first of the threads that hold the same elements; empty where no element is held twice."""
    if not layout.lanes:
        return compare(context, "eq", context.thread(), number(context, 0))
    out = ""
    lane, warp = arith(context, "and", context.thread(), 31), arith(context, "lshr", context.thread(), 5)
    for index, digits in ((lane, layout.lanes), (warp, layout.warps)):
        position = 1
        for digit in digits:
            if digit.axis is None and digit.extent > 1:
                step = arith(context, "urem", arith(context, "udiv", index, position), digit.extent)
                out = _and(context, out, compare(context, "eq", step, number(context, 0)))
            position *= digit.extent
    return out
