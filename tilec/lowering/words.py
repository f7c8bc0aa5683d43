"""One access of a thread to global memory: a single element, or consecutive elements packed in 32-bit words.

In: an address that is a multiple of the access size, elements in registers. Out: loads and stores, as inline PTX where LLVM
would split a vector or cannot express a cache hint.
"""

from __future__ import annotations

from typing import Final

from tilec.ir.types import DType
from tilec.lowering.context import Context, Path, storage
from tilec.mlir.types import SsaValue, Type, f32, i1, i8, i32, integer, vector


class Words:
    """Elements of one access, packed up to 32 bits per register, so that a branch yields whole registers. `width`: elements per
    access; `once`: the data is not loaded again."""

    def __init__(self, context: Context, dtype: DType, width: int, *, once: bool = False) -> None:
        self.context, self.dtype, self.width, self.once = context, dtype, width, once
        self.per_word = max(1, min(width, 4 // dtype.bytes))  # elements per word
        self.vector = vector(self.per_word, _memory_type(dtype))
        self.type = storage(dtype) if self.per_word == 1 else integer(self.per_word * dtype.bytes * 8)
        self.raw = _memory_type(dtype) if self.per_word == 1 else self.type

    def load(self, pointer: SsaValue, path: Path) -> list[SsaValue]:
        """The words of one access."""
        context, count = self.context, self.width // self.per_word
        if path is not Path.WRITTEN and self.raw in (i32, f32):
            return _load_text(context, pointer, self.raw, count, path, STREAMED if self.once and count >= 4 else "")
        type_ = self.raw if count == 1 else vector(count, self.raw)
        alignment = self.width * self.dtype.bytes
        loaded = context.load(pointer, type_, alignment=alignment, invariant=path is Path.CONSTANT)
        words = [loaded] if count == 1 else [context.extract(loaded, i) for i in range(count)]
        return words if self.per_word > 1 else [_from_memory(context, word, self.dtype) for word in words]

    def load_if(self, condition: SsaValue, pointer: SsaValue, padding: list[SsaValue], path: Path) -> list[SsaValue]:
        """The words of one access, or `padding` where the condition is false: of data that this kernel does not write by one
        predicated instruction (`load_predicated`)."""
        count = len(padding)
        if path is Path.WRITTEN or self.raw not in (i32, f32) or count > 4:
            return self.context.choose_all(condition, lambda: self.load(pointer, path), lambda: padding)
        names = ", ".join(f"${i}" for i in range(count))
        target, suffix = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
        text = f"@${count + 1} ld.global{'.nc' if path is Path.CONSTANT else ''}{suffix}.b32 {target}, [${count}];"
        constraints = ",".join([*["=r" if self.raw is i32 else "=f"] * count, "l", "b", *map(str, range(count))])
        operands, types = [pointer, condition, *padding], [self.raw] * count
        return self.context.inline_ptx(text, constraints, operands, types, side_effects=path is Path.PROLOGUE)

    def pack(self, elements: list[SsaValue]) -> list[SsaValue]:
        """Elements to words."""
        if self.per_word == 1:
            return elements
        context, out = self.context, list[SsaValue]()
        for start in range(0, len(elements), self.per_word):
            packed = context.zero(self.vector)
            for position, value in enumerate(elements[start : start + self.per_word]):
                packed = context.insert(context.zext(value, i8) if value.type is i1 else value, packed, position)
            out.append(context.bitcast(packed, self.type))
        return out

    def elements(self, words: list[SsaValue]) -> list[SsaValue]:
        """Words to elements."""
        if self.per_word == 1:
            return words
        context, out = self.context, list[SsaValue]()
        for word in words:
            packed = context.bitcast(word, self.vector)
            out += [_from_memory(context, context.extract(packed, i), self.dtype) for i in range(self.per_word)]
        return out


STREAMED: Final = ".L1::no_allocate.L2::128B"
"""Cache hint for vectors of 16 bytes and more that are read once: not allocated in L1, with a prefetch of 128 bytes into L2."""


def _load_text(
    context: Context, pointer: SsaValue, type_: Type, count: int, path: Path, hint: str
) -> list[SsaValue]:  # fmt: skip
    """1, 2, 4 or 8 words in one access to data that this kernel does not write. Inline PTX, because LLVM splits a vector load
    whose elements are all used separately. `hint` is the cache hint."""
    names = ", ".join(f"${i}" for i in range(count))
    target, vector_suffix = (f"{{{names}}}", f".v{count}") if count > 1 else (names, "")
    outputs = ",".join(["=r" if type_ is i32 else "=f"] * count)
    text = f"ld.global{'.nc' if path is Path.CONSTANT else ''}{hint}{vector_suffix}.b32 {target}, [${count}];"
    return context.inline_ptx(text, f"{outputs},l", [pointer], [type_] * count, side_effects=path is Path.PROLOGUE)


def load_predicated(
    context: Context, in_bounds: SsaValue, pointer: SsaValue, pad: SsaValue, dtype: DType, path: Path
) -> SsaValue:  # fmt: skip
    """An element if `in_bounds`, else `pad`. A 32-bit word that this kernel does not write is loaded by one predicated
    instruction: a branch per element prevents sharing of address computations and issuing the loads together."""
    raw = _memory_type(dtype)
    if path is Path.WRITTEN or raw not in (i32, f32):
        return context.choose(in_bounds, lambda: load_element(context, pointer, dtype, path), lambda: pad)
    constraint = "r" if raw is i32 else "f"
    text = f"@$2 ld.global{'.nc' if path is Path.CONSTANT else ''}.b32 $0, [$1];"
    operands = [pointer, in_bounds, pad]
    return context.inline_ptx(text, f"={constraint},l,b,0", operands, [raw], side_effects=path is Path.PROLOGUE)[0]


def _memory_type(dtype: DType) -> Type:
    return i8 if dtype.kind == "b" else storage(dtype)


def _from_memory(context: Context, value: SsaValue, dtype: DType) -> SsaValue:
    return context.compare("ne", value, context.constant(0, i8)) if dtype.kind == "b" else value


def load_element(context: Context, pointer: SsaValue, dtype: DType, path: Path) -> SsaValue:
    loaded = context.load(pointer, _memory_type(dtype), alignment=dtype.bytes, invariant=path is Path.CONSTANT)
    return _from_memory(context, loaded, dtype)


def store_vector(context: Context, pointer: SsaValue, values: list[SsaValue], *, streamed: bool = False) -> None:
    """Stores consecutive values of one type in one access. `streamed`: if they fill whole words, mark them for early eviction
    (PTX ISA, `st`, `.cs`)."""
    type_ = values[0].type
    bytes_ = len(values) * type_.bytes
    words, streamed = bytes_ // 4, streamed and bytes_ >= 4
    packed = values[0] if len(values) == 1 else context.packed(values, vector(len(values), type_))
    if words and (streamed or len(values) > 1):
        raw = i32 if words == 1 else vector(words, i32)
        packed = packed if raw is packed.type else context.bitcast(packed, raw)
    if not streamed:
        context.store(packed, pointer, alignment=bytes_)
        return
    stored_words = [packed] if words == 1 else [context.extract(packed, word) for word in range(words)]
    names = ", ".join(f"${1 + word}" for word in range(words))
    vector_suffix, source = (f".v{words}", f"{{{names}}}") if words > 1 else ("", names)
    text, constraints = f"st.global.cs{vector_suffix}.b32 [$0], {source};", ",".join(["l", *["r"] * words, "~{memory}"])
    context.inline_ptx(text, constraints, [pointer, *stored_words], side_effects=True)
