"""The operations of the LLVM and NVVM dialects that kernels use, each a method that checks the types of its operands.

In: typed values (`tilec.mlir.types`). Out: typed values, and the text in `lines`. Operations have only the flags that the
rule of lowered code allows; `tilec.lowering.total` checks the text independently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from tilec.ir.core import VerifyError
from tilec.mlir.operand_rules import check_constraints, converts, is_of_floats, type_mismatch, wrong_type
from tilec.mlir.types import GENERIC, GLOBAL, SHARED, SsaValue, Type, f32, i1, i32, structure
from tilec.mlir.writer import Writer

IntegerOp = Literal["add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr", "udiv", "urem", "sdiv", "srem"]
FloatOp = Literal["fadd", "fsub", "fmul", "fdiv"]
IntegerTest = Literal["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
FloatTest = Literal["oeq", "une", "olt", "ole", "ogt", "oge", "uno"]

DYNAMIC_SHARED: Final = "dynamic_shared"
"""Symbol of the dynamic shared memory, which `module` defines."""
PRINTED: Final = "printed"
"""Prefix of the symbols of the texts that a kernel prints, which `module` defines."""
VPRINTF: Final = "vprintf"
"""The function of the CUDA driver that prints; `module` declares it."""
PROVEN: Final = "tilec.proven"
"""Attribute of an operation whose right operand is proven to be one for which LLVM defines the result."""
_CONTRACT: Final = " {fastmathFlags = #llvm.fastmath<contract>}"
_UNCHANGED: Final = frozenset({("add", 0), ("mul", 1), ("shl", 0), ("lshr", 0), ("udiv", 1)})


class Builder(Writer):
    """Appends operations in the order of the calls."""

    converts_f8: bool = True
    """Whether `cvt` of the target has floats of 8 bits."""
    multiplies_f8: bool = False
    """Whether `mma.sync` of the target has floats of 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: dict[str, str] = {}
        """The symbols of the texts that are printed, by text."""
        self._arguments: SsaValue | None = None

    def float_constant(self, bits: int) -> SsaValue:
        """The f32 with these bits, so that infinities and rounding survive the text."""
        return self._constant(f"llvm.mlir.constant(0x{bits:08X} : f32) : f32", f32)

    def truth(self, value: bool) -> SsaValue:
        """A constant i1."""
        return self._constant(f"llvm.mlir.constant({'true' if value else 'false'}) : i1", i1)

    def zero(self, type: Type) -> SsaValue:
        """The value of a vector type with all bits zero."""
        return self._constant(f"llvm.mlir.zero : {type.text}", type)

    def special_register(self, name: str) -> SsaValue:
        """A special register of PTX (`tid.x`, `ctaid.y`, ...), i32."""
        return self._value(f"nvvm.read.ptx.sreg.{name} : i32", i32)

    def dynamic_shared(self) -> SsaValue:
        """Address of the dynamic shared memory."""
        return self._constant(f"llvm.mlir.addressof @{DYNAMIC_SHARED} : {SHARED.text}", SHARED)

    # Integers

    def integer(self, kind: IntegerOp, left: SsaValue, right: SsaValue | int, *, proven: bool = False) -> SsaValue:
        """`left kind right`; no operation is emitted if an integer on the right is the neutral element. `proven`: the result of
        the division, remainder or shift is defined for the right operand."""
        if isinstance(right, int):
            if (kind, right) in _UNCHANGED:
                return left
            right = self.constant(right, left.type)
        elif right.type is not left.type:
            raise type_mismatch(kind, left, right)
        if left.type.kind != "integer":
            raise wrong_type(kind, left)
        mark = f" {{{PROVEN}}}" if proven else ""
        return self._value(f"llvm.{kind} {left.name}, {right.name}{mark} : {left.type.text}", left.type)

    def add(self, left: SsaValue, right: SsaValue | int) -> SsaValue:
        """The sum, modulo the width."""
        return self.integer("add", left, right)

    def sub(self, left: SsaValue, right: SsaValue | int) -> SsaValue:
        """The difference, modulo the width."""
        return self.integer("sub", left, right)

    def mul(self, left: SsaValue, right: SsaValue | int) -> SsaValue:
        """The product, modulo the width."""
        return self.integer("mul", left, right)

    def udiv(self, left: SsaValue, right: int) -> SsaValue:
        """The quotient of unsigned numbers by a constant."""
        return self.integer("udiv", left, right)

    def urem(self, left: SsaValue, right: int) -> SsaValue:
        """The remainder of unsigned numbers by a constant."""
        return self.integer("urem", left, right)

    def shl(self, left: SsaValue, right: int) -> SsaValue:
        """Shifted left by a constant."""
        return self.integer("shl", left, right)

    def lshr(self, left: SsaValue, right: int) -> SsaValue:
        """Shifted right by a constant, filled with zeros."""
        return self.integer("lshr", left, right)

    def bit_and(self, left: SsaValue, right: SsaValue | int) -> SsaValue:
        """Bits set in both."""
        return self.integer("and", left, right)

    def bit_or(self, left: SsaValue, right: SsaValue | int) -> SsaValue:
        """Bits set in either."""
        return self.integer("or", left, right)

    def bit_xor(self, left: SsaValue, right: SsaValue | int) -> SsaValue:
        """Bits set in exactly one."""
        return self.integer("xor", left, right)

    def compare(self, kind: IntegerTest, left: SsaValue, right: SsaValue) -> SsaValue:
        """`left kind right` of integers as i1; `s` compares them as signed, `u` as unsigned."""
        if right.type is not left.type or left.type.kind != "integer":
            raise type_mismatch("icmp", left, right)
        return self._value(f'llvm.icmp "{kind}" {left.name}, {right.name} : {left.type.text}', i1)

    def select(self, condition: SsaValue, on_true: SsaValue, on_false: SsaValue) -> SsaValue:
        """`condition ? on_true : on_false`."""
        if on_true.type is not on_false.type:
            raise type_mismatch("select", on_true, on_false)
        if condition.type is not i1:
            raise wrong_type("select", condition)
        names = f"{condition.name}, {on_true.name}, {on_false.name}"
        return self._value(f"llvm.select {names} : i1, {on_true.type.text}", on_true.type)

    # Floats

    def float_op(self, kind: FloatOp, left: SsaValue, right: SsaValue, *, contract: bool = False) -> SsaValue:
        """`left kind right` of floats or vectors of them, rounded to nearest even. `contract` allows a product and the sum that
        uses it to be one `fma`."""
        if right.type is not left.type or not is_of_floats(left.type):
            raise type_mismatch(kind, left, right)
        text = f"llvm.{kind} {left.name}, {right.name}{_CONTRACT if contract else ''} : {left.type.text}"
        return self._value(text, left.type)

    def negated(self, value: SsaValue) -> SsaValue:
        """A float with its sign flipped."""
        if value.type.kind != "float":
            raise wrong_type("fneg", value)
        return self._value(f"llvm.fneg {value.name} : {value.type.text}", value.type)

    def float_function(self, name: Literal["fabs", "sqrt", "floor", "ceil", "roundeven"], value: SsaValue) -> SsaValue:
        """A function for which LLVM has an intrinsic."""
        if value.type.kind != "float":
            raise wrong_type(name, value)
        text = value.type.text
        return self._value(f"llvm.intr.{name}({value.name}) : ({text}) -> {text}", value.type)

    def float_compare(self, kind: FloatTest, left: SsaValue, right: SsaValue) -> SsaValue:
        """`left kind right` of floats as i1; with a NaN, `o` (ordered) tests are false and `u` (unordered) tests are true."""
        if right.type is not left.type or left.type.kind != "float":
            raise type_mismatch("fcmp", left, right)
        return self._value(f'llvm.fcmp "{kind}" {left.name}, {right.name} : {left.type.text}', i1)

    # Conversions

    def _converted(self, kind: str, value: SsaValue, type: Type) -> SsaValue:
        if not converts(kind, value.type, type):
            raise VerifyError(f"MLIR: `{kind}` makes no {type} of {value.name} of {value.type}")
        return self._value(f"llvm.{kind} {value.name} : {value.type.text} to {type.text}", type)

    def extended(self, value: SsaValue, type: Type, *, signed: bool) -> SsaValue:
        """An integer sign-extended or zero-extended to a wider type."""
        return self._converted("sext" if signed else "zext", value, type)

    def zext(self, value: SsaValue, type: Type) -> SsaValue:
        """An unsigned integer in a wider type."""
        return self._converted("zext", value, type)

    def trunc(self, value: SsaValue, type: Type) -> SsaValue:
        """The low bits of an integer."""
        return self._converted("trunc", value, type)

    def fpext(self, value: SsaValue, type: Type) -> SsaValue:
        """A float in a wider type; exact."""
        return self._converted("fpext", value, type)

    def fptrunc(self, value: SsaValue, type: Type) -> SsaValue:
        """A float rounded to a narrower type, to nearest even."""
        return self._converted("fptrunc", value, type)

    def integer_to_float(self, value: SsaValue, type: Type, *, signed: bool) -> SsaValue:
        """An integer rounded to a float, to nearest even."""
        return self._converted("sitofp" if signed else "uitofp", value, type)

    def bitcast(self, value: SsaValue, type: Type) -> SsaValue:
        """The same bits as another type."""
        return self._converted("bitcast", value, type)

    def address(self, pointer: SsaValue, type: Type) -> SsaValue:
        """A pointer as an integer."""
        return self._converted("ptrtoint", pointer, type)

    def pointer_to(self, address: SsaValue, type: Type) -> SsaValue:
        """An integer as a pointer."""
        return self._converted("inttoptr", address, type)

    # Vectors and structures

    def extract(self, vector: SsaValue, position: int) -> SsaValue:
        """An element of a vector."""
        if vector.type.kind != "vector":
            raise wrong_type("extractelement", vector)
        index, text = self.constant(position), vector.type.text
        return self._value(f"llvm.extractelement {vector.name}[{index.name} : i32] : {text}", vector.type.parts[0])

    def packed(self, values: Sequence[SsaValue], type: Type) -> SsaValue:
        """The vector of these elements."""
        packed = self.zero(type)
        if type.kind != "vector" or type.bits != sum(value.type.bits for value in values):
            raise VerifyError(f"MLIR: {len(values)} values of {values[0].type} are no {type}")
        for position, value in enumerate(values):
            packed = self.insert(value, packed, position)
        return packed

    def insert(self, value: SsaValue, vector: SsaValue, position: int) -> SsaValue:
        """The vector with the element at a position replaced."""
        if vector.type.kind != "vector" or value.type is not vector.type.parts[0]:
            raise type_mismatch("insertelement", vector, value)
        index, text = self.constant(position), vector.type.text
        return self._value(f"llvm.insertelement {value.name}, {vector.name}[{index.name} : i32] : {text}", vector.type)

    def _fields(self, aggregate: SsaValue) -> list[SsaValue]:
        text = aggregate.type.text
        return [
            self._value(f"llvm.extractvalue {aggregate.name}[{i}] : {text}", type)
            for i, type in enumerate(aggregate.type.parts)
        ]

    # Memory

    def offset(self, pointer: SsaValue, by: SsaValue | int) -> SsaValue:
        """`pointer` moved by a number of bytes."""
        space = pointer.type.text
        if pointer.type.kind != "pointer":
            raise wrong_type("getelementptr", pointer)
        if isinstance(by, int):
            if not by:
                return pointer
            return self._value(f"llvm.getelementptr {pointer.name}[{by}] : ({space}) -> {space}, i8", pointer.type)
        if by.type.kind != "integer":
            raise wrong_type("getelementptr", by)
        text = f"llvm.getelementptr {pointer.name}[{by.name}] : ({space}, {by.type.text}) -> {space}, i8"
        return self._value(text, pointer.type)

    def load(self, pointer: SsaValue, type: Type, *, alignment: int = 0, invariant: bool = False) -> SsaValue:
        """The value in memory at a pointer. `alignment` in bytes, 0 for that of the type; `invariant` if nothing writes it
        while the kernel runs."""
        if pointer.type.kind != "pointer":
            raise wrong_type("load", pointer)
        attributes = f"{' invariant' if invariant else ''}{_alignment(alignment)}"
        return self._value(f"llvm.load {pointer.name}{attributes} : {pointer.type.text} -> {type.text}", type)

    def store(self, value: SsaValue, pointer: SsaValue, *, alignment: int = 0) -> None:
        """Writes `value` to memory at a pointer; `alignment` as in `load`."""
        if pointer.type.kind != "pointer":
            raise wrong_type("store", pointer)
        types = f"{value.type.text}, {pointer.type.text}"
        self._effect(f"llvm.store {value.name}, {pointer.name}{_alignment(alignment)} : {types}")

    # Synchronization, asynchronous copies and shuffles

    def barrier(self) -> None:
        """Synchronize all threads of the block."""
        self._effect("nvvm.barrier")

    def named_barrier(self, number: int, threads: int) -> None:
        """Synchronize `threads` threads on the named barrier `number`, 1 to 15; barrier 0 is that of the block."""
        if not 1 <= number <= 15 or threads % 32 or threads < 32:
            raise VerifyError(f"MLIR: no barrier {number} of {threads} threads")
        barrier, count = self.constant(number), self.constant(threads)
        self._effect(f"nvvm.barrier id = {barrier.name} number_of_threads = {count.name}")

    def commit_group(self) -> None:
        """Commit this thread's group of asynchronous copies."""
        self._effect("nvvm.cp.async.commit.group")

    def wait_group(self, pending: int) -> None:
        """Wait for all but `pending` of this thread's groups of asynchronous copies."""
        self._effect(f"nvvm.cp.async.wait.group {pending}")

    def shuffle(self, value: SsaValue, mask: int) -> SsaValue:
        """The i32 or f32 of the lane whose index is this lane's xor `mask` (PTX ISA, `shfl.sync.bfly`)."""
        if value.type not in (i32, f32):
            raise wrong_type("shfl.sync", value)
        members, offset, clamp = self.constant(-1), self.constant(mask), self.constant(31)
        names, text = f"{members.name}, {value.name}, {offset.name}, {clamp.name}", value.type.text
        return self._value(f"nvvm.shfl.sync bfly {names} : {text} -> {text}", value.type)

    # Calls

    def intrinsic(self, name: str, operands: Sequence[SsaValue], results: Sequence[Type] = ()) -> list[SsaValue]:
        """An intrinsic of LLVM; `name` is without `llvm.`."""
        return self._call(f'llvm.call_intrinsic "llvm.{name}"({_names(operands)})', operands, results)

    def instruction(self, name: str, operands: Sequence[SsaValue], results: Sequence[Type] = ()) -> list[SsaValue]:
        """An intrinsic for a PTX instruction; `name` is without `llvm.nvvm.`."""
        return self._call(f'llvm.call_intrinsic "llvm.nvvm.{name}"({_names(operands)})', operands, results)

    def inline_ptx(
        self,
        text: str,
        constraints: str,
        operands: Sequence[SsaValue] = (),
        results: Sequence[Type] = (),
        *,
        side_effects: bool = False,
    ) -> list[SsaValue]:
        """PTX as text, in which `$i` is the i-th of results and operands; `constraints` are LLVM's, one letter for each."""
        check_constraints(constraints, list(results), [value.type for value in operands])
        effects = " has_side_effects" if side_effects else ""
        names = f" {_names(operands)}" if operands else ""
        return self._call(f'llvm.inline_asm{effects} "{text}", "{constraints}"{names}', operands, results)

    # Output

    def reserve_arguments(self, bytes_: int) -> None:
        """Reserve local memory for the arguments of every `call_vprintf`; call it outside of all regions."""
        count = self.constant(bytes_)
        self._arguments = self._value(f"llvm.alloca {count.name} x i8 {{alignment = 8 : i64}} : (i32) -> !llvm.ptr", GENERIC)

    def printed_text(self, text: str) -> SsaValue:
        """Generic address of a text in global memory that ends with a zero byte; call it outside of all regions."""
        symbol = self.printed.setdefault(text, f"{PRINTED}${len(self.printed)}")
        address = self._constant(f"llvm.mlir.addressof @{symbol} : {GLOBAL.text}", GLOBAL)
        return self._value(f"llvm.addrspacecast {address.name} : {GLOBAL.text} to {GENERIC.text}", GENERIC)

    def call_vprintf(self, text: SsaValue, arguments: Sequence[SsaValue]) -> None:
        """Print a line. The arguments, of 32 or 64 bits, are fields of a structure in the reserved memory."""
        assert self._arguments is not None, "no memory is reserved for arguments"
        at = 0
        for argument in arguments:
            size = argument.type.bytes
            at += -at % size
            self.store(argument, self.offset(self._arguments, at), alignment=size)
            at += size
        operands = [text, self._arguments]
        self._call(f"llvm.call @{VPRINTF}({_names(operands)})", operands, [i32])

    def _call(self, text: str, operands: Sequence[SsaValue], results: Sequence[Type]) -> list[SsaValue]:
        signature = f"{text} : ({', '.join([value.type.text for value in operands])}) -> "
        if not results:
            self._effect(f"{signature}()")
            return []
        result_type = results[0] if len(results) == 1 else structure(*results)
        value = self._value(f"{signature}{result_type.text}", result_type)
        return [value] if len(results) == 1 else self._fields(value)


def _names(values: Sequence[SsaValue]) -> str:
    return ", ".join([value.name for value in values])


def _alignment(bytes_: int) -> str:
    return f" {{alignment = {bytes_} : i64}}" if bytes_ else ""
