"""Kernel signatures: tensor and scalar parameters, dims, strides, alignment, specialisation constants.

A dim is a constant if a `Const` has its name, an integer parameter if one has its name, and otherwise symbolic: read from the
tensors at launch. Some extent or stride must therefore determine every symbolic dim: it is the whole of it, or the only unknown
under `+`, `-` and `*`, which the launcher inverts (`tilec.runtime.dims`).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tilec.diagnostics.diagnostic import Diagnostic, Label, Span
from tilec.diagnostics.spelling import ask_first, nearest
from tilec.frontend.extents import determined, module_integer
from tilec.frontend.module import DimName, ElementName, Module, ModuleConstant, Routine, dtype_word, word_of
from tilec.frontend.report import Refused, compile_error
from tilec.ir.core import Access, Parameter, Value
from tilec.ir.expr import Expr, binary, const, sym
from tilec.ir.ops.rank_ops import MOST_RANKS
from tilec.ir.packed import halved
from tilec.ir.types import DTYPES, PACKED, DType, TensorType, TileType, u8, u32
from tilec.untrusted.limits import MAX_HOST_DEPTH

Constant = int | float | bool | str
_ACCESS: Final = {"In": Access.IN, "Out": Access.OUT, "InOut": Access.INOUT, "Scratch": Access.SCRATCH, "Atomic": Access.ATOMIC}
_OF_RANKS: Final = {"Peer": Access.PEER, "Signal": Access.SIGNAL}
_ARITHMETIC: Final[dict[type[ast.operator], str]] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
MAX_EXTENT: Final = 2**31 - 1


@dataclass(slots=True)
class Signature:
    """Parameters in order; symbolic launch values in order of first appearance; values of the constants (an `Element`'s is a
    dtype name); `of_ranks`: by name, the tensors of a parameter that has one for each rank, in order; `even`: extents that must
    be even at a launch, since two elements share a byte."""

    parameters: list[Parameter] = field(default_factory=list[Parameter])
    dims: list[str] = field(default_factory=list[str])
    strides: list[str] = field(default_factory=list[str])
    constants: dict[str, Constant] = field(default_factory=dict[str, Constant])
    of_ranks: dict[str, tuple[Parameter, ...]] = field(default_factory=dict[str, "tuple[Parameter, ...]"])
    even: dict[Expr, Span] = field(default_factory=dict[Expr, Span])


def dtype_named(name: str) -> DType:
    """The dtype of a word (`boolean` is `bool`)."""
    return PACKED[name] if name in PACKED else DTYPES["bool" if name == "boolean" else name]


def constant_names(routine: Routine) -> list[str]:
    """Names of the `Const` parameters."""
    return [arg.arg for arg in routine.node.args.kwonlyargs]


def read_signature(routine: Routine, constants: Mapping[str, Constant]) -> Signature:
    """Parses the parameters for one specialisation; CompileError E0107, E0211..E0214."""
    reader = _Reader(routine, constants)
    reader.read()
    if reader.problems:
        raise compile_error(reader.problems)
    return reader.signature


def read_declared(routine: Routine) -> list[Parameter]:
    """Parses the parameters before any constant has a value: a constant dim is a symbol, and an `Element` is a placeholder
    dtype of its own name whose other properties are meaningless. CompileError E0107, E0213."""
    reader = _Declaration(routine, {})
    reader.positional()
    if reader.problems:
        raise compile_error(reader.problems)
    return reader.signature.parameters


class _Reader:
    def __init__(self, routine: Routine, constants: Mapping[str, Constant]) -> None:
        self.routine = routine
        self.module: Module = routine.module
        self.source = routine.module.source
        self.given = constants
        self.signature = Signature()
        self.problems: list[Diagnostic] = []
        self.integers: set[str] = set()
        self.extents: list[Expr] = []

    def read(self) -> None:
        arguments = self.routine.node.args
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                self._refuse("E0107", "kernels take a fixed list of parameters", extra, "name every tensor and scalar")
        for default in (*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)):
            self._refuse("E0107", "kernel parameters have no defaults", default, "give the value in build.toml or at launch")
        self._constants(arguments.kwonlyargs)
        if self.problems:
            return
        self.positional()
        measured = determined(self.extents, self.integers)
        for name in self.signature.dims:
            if name not in measured:
                message = f"no extent determines dim `{name}`, so a launch cannot measure it"
                hint = f"declare a tensor with `{name}` as an axis, or pass `{name}: i32`"
                if name in {symbol for expr in self.signature.even for symbol in expr.symbols()}:
                    hint = f"a launch sees bytes of two elements: write the extent as `2 * {name}`, or pass `{name}: i32`"
                self._refuse("E0214", message, self.routine.node, hint)

    def positional(self) -> None:
        """Reads the launch parameters."""
        arguments = self.routine.node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        self.integers = {arg.arg for arg in positional if dtype_word(word := _word(self.module, arg.annotation))
                         and word is not None and dtype_named(word).is_integer}  # fmt: skip
        for arg in positional:
            self._try(lambda arg=arg: self._parameter(arg))
        written = {arg.arg for arg in (*positional, *arguments.kwonlyargs)}
        for name, tensors in self.signature.of_ranks.items():
            taken = next((one.name for one in tensors if one.name in written and len(tensors) > 1), None)
            if taken is not None:
                message = f"`{name}` has a tensor `{taken}`, and a parameter has that name"
                self._refuse("E0107", message, next(arg for arg in positional if arg.arg == name), "use another name")

    def _refuse(self, code: str, message: str, node: ast.AST, hint: str) -> None:
        self.problems.append(Diagnostic(code, message, Label(self.source.span(node)), hint=hint))

    def _try(self, step: Callable[[], object]) -> None:
        try:
            step()
        except Refused as refused:
            self.problems.extend([refused.diagnostic] if refused.diagnostic else [])

    def _constants(self, arguments: list[ast.arg]) -> None:
        known = [arg.arg for arg in arguments]
        for arg in arguments:
            self._try(lambda arg=arg: self._constant(arg))
        for name in self.given:
            if name not in known:
                listed = ", ".join(f"`{n}`" for n in known) or "none"
                message = f"kernel `{self.routine.name}` has no constant `{name}`"
                self._refuse("E0212", message, self.routine.node, ask_first(name, known, f"its constants: {listed}"))

    def _constant(self, arg: ast.arg) -> None:
        name = arg.arg
        if _word(self.module, arg.annotation) != "Const":
            raise self.source.error("E0107", f"keyword-only parameter `{name}` must be annotated `Const`", arg,
                             hint=f"write `{name}: Const`, or move it before the `*`")  # fmt: skip
        if name not in self.given:
            raise self.source.error("E0211", f"constant `{name}` has no value", arg,
                             hint=f"give it in build.toml: `constants = {{ {name} = ... }}`")  # fmt: skip
        value: object = self.given[name]
        entry = self.module.names.get(name)
        if isinstance(entry, ElementName):
            if not isinstance(value, str) or value not in DTYPES:
                raise self.source.error("E0213", f"`{name}` is an Element: its value names a dtype, not {value!r}", arg,
                                 hint="one of " + ", ".join(DTYPES))  # fmt: skip
        elif isinstance(entry, DimName):
            if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MAX_EXTENT:
                raise self.source.error("E0213", f"`{name}` is a Dim: its value is a positive integer, not {value!r}", arg,
                                 hint="give an integer in build.toml")  # fmt: skip
        elif not isinstance(value, int | float | bool):
            hint = f"for a dtype, declare `class {name}(Element)`"
            raise self.source.error("E0213", f"constant `{name}` is a number or a bool, not {value!r}", arg, hint=hint)
        self.signature.constants[name] = self.given[name]

    def _parameter(self, arg: ast.arg) -> None:
        note = arg.annotation
        if note is None:
            raise self.source.error("E0107", f"parameter `{arg.arg}` has no annotation", arg,
                             hint=f"write `{arg.arg}: In[bf16, N]` for a tensor, `{arg.arg}: f32` for a scalar")  # fmt: skip
        note = _unquoted(note)
        span = self.source.span(arg)
        word = _word(self.module, note)
        if dtype_word(word) and word is not None:
            if word in PACKED:
                message = f"a scalar of {word} does not exist: two elements share a byte"
                raise self.source.error("E0107", message, note, hint=f"write `{arg.arg}: In[{word}, 2]`, or use a wider dtype")
            value = Value(TileType(dtype_named(word)), arg.arg)
            self.signature.parameters.append(Parameter(arg.arg, value, None, span))
            return
        base = _word(self.module, note.value) if isinstance(note, ast.Subscript) else None
        if isinstance(note, ast.Subscript) and base in _ACCESS:
            value = Value(self._tensor(note), arg.arg)
            packed = value.tensor.packed
            if packed is not None and _ACCESS[base] is Access.ATOMIC:
                message = f"atomics of {packed} do not exist: two elements share a byte"
                raise self.source.error("E0201", message, note, hint="declare it `InOut`, or use i32")
            self.signature.parameters.append(Parameter(arg.arg, value, _ACCESS[base], span))
            return
        if isinstance(note, ast.Subscript) and base in _OF_RANKS:
            self._of_ranks(arg, note, _OF_RANKS[base])
            return
        if word == "Const":
            raise self.source.error("E0107", f"constant `{arg.arg}` must be keyword-only", arg, hint="put it after a bare `*`")
        raise self.source.error("E0107", f"parameter `{arg.arg}` has an annotation that is not a kernel type", note,
                         hint=_meant_type(note))  # fmt: skip

    def _of_ranks(self, arg: ast.arg, note: ast.Subscript, access: Access) -> None:
        """A tensor for each rank."""
        items = note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]
        shown = "Peer[bf16, RANKS, N]" if access is Access.PEER else "Signal[RANKS, BLOCKS]"
        if (len(items) < 3) if access is Access.PEER else (len(items) != 2):
            raise self.source.error("E0107", f"`{arg.arg}` lacks what its type says of ranks", note, hint=f"write `{shown}`")
        ranks = self._extent(items[1 if access is Access.PEER else 0], stride=False)
        if not self._are_ranks(ranks):
            message = f"`{arg.arg}` is of {ranks} ranks"
            raise self.source.error("E0213", message, note, hint=f"give a constant from 2 to {MOST_RANKS}, as in `{shown}`")
        if access is Access.PEER:
            type_ = self._tensor(note, (items[0], *items[2:]))
            if type_.packed is not None:
                hint = "declare it of u8, two elements a byte, and take them apart with `&` and `>>`"
                raise self.source.error("E0201", f"a tensor of ranks holds no {type_.packed}", note, hint=hint)
        else:
            type_ = TensorType(u32, (self._extent(items[1], stride=False), const(2), ranks))
            if type_.dims[0].constant is None and ranks.constant is not None:
                message = f"`{arg.arg}` is for {type_.dims[0]} blocks"
                raise self.source.error("E0213", message, note, hint="make the number of blocks a `Const`")
        names = [arg.arg] if ranks.constant is None else [f"{arg.arg}_{rank}" for rank in range(ranks.constant)]
        span = self.source.span(arg)
        tensors = tuple(Parameter(name, Value(type_, name), access, span) for name in names)
        self.signature.of_ranks[arg.arg] = tensors
        self.signature.parameters += tensors

    def _are_ranks(self, ranks: Expr) -> bool:
        return ranks.constant is not None and 2 <= ranks.constant <= MOST_RANKS

    def _tensor(self, note: ast.Subscript, given: Sequence[ast.expr] = ()) -> TensorType:
        items = list(given or (note.slice.elts if isinstance(note.slice, ast.Tuple) else [note.slice]))
        if not items:
            raise self.source.error("E0107", "the tensor type names no dtype", note, hint="write `In[f32, N]`")
        dtype = self._dtype(items[0])
        dims: list[Expr] = []
        known = len(self.extents)
        strides: tuple[Expr, ...] | None = None
        align = 16
        for item in items[1:]:
            base = _word(self.module, item.value) if isinstance(item, ast.Subscript) else None
            if isinstance(item, ast.Subscript) and base == "Align":
                align = self._align(item)
            elif isinstance(item, ast.Subscript) and base == "Strides":
                parts = item.slice.elts if isinstance(item.slice, ast.Tuple) else [item.slice]
                strides = tuple(self._extent(part, stride=True) for part in parts)
            elif strides is not None:
                raise self.source.error("E0107", "dims come before `Strides[...]`", item, hint="list the dims first")
            else:
                dims.append(self._extent(item, stride=False))
        if not dims:
            raise self.source.error(
                "E0107", "the tensor has no dims", note, hint="write `In[f32, N]`, or pass a scalar as `x: f32`"
            )
        if strides is not None and len(strides) != len(dims):
            raise self.source.error(
                "E0107", f"{len(dims)} dims but {len(strides)} strides", note, hint="give one stride per dim"
            )
        if dtype not in PACKED.values():
            return TensorType(dtype, tuple(dims), strides, align)
        dims[-1] = self._bytes(dims[-1], dtype, note)
        if strides is not None:
            strides = (*(self._bytes(stride, dtype, note, stride=True) for stride in strides[:-1]), strides[-1])
            if strides[-1].constant != 1:
                hint = "write `Strides[..., 1]`: elements of the last axis lie two in a byte"
                raise self.source.error("E0107", f"the last stride of {dtype} is {strides[-1]}, not 1", note, hint=hint)
        self.extents[known:] = [*dims, *(strides or ())]
        return TensorType(u8, tuple(dims), strides, align, dtype)

    def _bytes(self, extent: Expr, dtype: DType, note: ast.expr, *, stride: bool = False) -> Expr:
        """Bytes of an even number of packed elements; E0213."""
        bytes_, even = halved(extent)
        if stride and not even:
            message = f"the stride `{extent}` of {dtype} may be odd, and rows begin at whole bytes"
            raise self.source.error("E0213", message, note, hint="write it as an even number, such as `2 * S`")
        if extent.constant is not None and not even:
            elements = "1 element" if extent.constant == 1 else f"{extent} elements"
            message = f"the last axis of {dtype} has {elements}, an odd number, and two share a byte"
            raise self.source.error("E0213", message, note, hint=f"make it {extent.constant + 1}")
        if not even:
            self.signature.even.setdefault(extent, self.source.span(note))
        return bytes_

    def _dtype(self, node: ast.expr) -> DType:
        word = _word(self.module, node)
        if word is not None and dtype_word(word):
            return dtype_named(word)
        entry = self.module.names.get(node.id) if isinstance(node, ast.Name) else None
        if isinstance(entry, ElementName):
            value = self.signature.constants.get(entry.name)
            if not isinstance(value, str):
                raise self.source.error("E0214", f"Element `{entry.name}` has no constant of its name", node,
                                 hint=f"add `{entry.name}: Const` after the `*`")  # fmt: skip
            return DTYPES[value]
        raise self.source.error("E0107", "the first item of a tensor type is its dtype", node,
                         hint=_meant_dtype(node, self.module))  # fmt: skip

    def _align(self, item: ast.Subscript) -> int:
        bytes_ = _integer(_unliteral(item.slice))
        if bytes_ is None or bytes_ < 1 or bytes_ & (bytes_ - 1) or bytes_ > 4096:
            raise self.source.error("E0107", "alignment is a power of two in bytes", item, hint="write `Align[64]`")
        return bytes_

    def _extent(self, node: ast.expr, *, stride: bool) -> Expr:
        node = _unquoted(_unliteral(_unquoted(node)))
        expr = self._expr(node, stride=stride)
        self.extents.append(expr)
        if expr.constant is not None and not (0 if stride else 1) <= expr.constant <= MAX_EXTENT:
            raise self.source.error("E0213", f"the {'stride' if stride else 'extent'} is {expr.constant}", node,
                             hint="extents are positive" if not stride else "strides are not negative")  # fmt: skip
        return expr

    def _expr(self, node: ast.expr, *, stride: bool) -> Expr:
        number = _integer(node)
        if number is not None:
            return const(number)
        if isinstance(node, ast.Name):
            return self._symbol(node, stride=stride)
        if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            left, right = self._expr(node.left, stride=stride), self._expr(node.right, stride=stride)
            symbol = _ARITHMETIC[type(node.op)]
            if symbol in ("//", "%") and right.constant == 0:
                raise self.source.error("E0205", "division by zero in a dim", node, hint="the divisor is 0 for these constants")
            expr = binary(symbol, left, right)
            if expr.depth > MAX_HOST_DEPTH:
                raise self.source.error("E0512", f"the dim is nested more than {MAX_HOST_DEPTH} deep", node, hint="shorten it")
            return expr
        raise self.source.error("E0107", "a dim is a `Dim` class, a constant, or integer arithmetic on them", node,
                         hint="declare `class N(Dim)` and write `N`")  # fmt: skip

    def _dims(self) -> set[str]:
        return {known for known, entry in self.module.names.items() if isinstance(entry, DimName)}

    def _symbol(self, node: ast.Name, *, stride: bool) -> Expr:
        entry = self.module.names.get(node.id)
        name = entry.name if isinstance(entry, DimName) else node.id
        if name in self.signature.constants:
            return self._number(self.signature.constants[name], node)
        if isinstance(entry, ModuleConstant):
            return self._number(module_integer(entry), node)
        if not isinstance(entry, DimName):
            near = nearest(node.id, self._dims())
            fixes = self.source.instead(node, near) if near else ()
            hint = ask_first(node.id, self._dims(), f"declare `class {node.id}(Dim)`, or add the constant `{node.id}: Const`")
            raise self.source.error("E0107", f"`{node.id}` is neither a dim nor a constant", node, hint=hint, fixes=fixes)
        if name in self.integers:
            return sym(name)
        if name not in self.signature.dims:
            self.signature.dims.append(name)
            if stride:
                self.signature.strides.append(name)
        elif stride != (name in self.signature.strides):
            raise self.source.error("E0214", f"`{name}` is used both as an extent and as a stride", node,
                             hint="declare two `Dim` classes")  # fmt: skip
        return sym(name)

    def _number(self, value: Constant | None, node: ast.Name) -> Expr:
        """A constant in an extent."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.source.error("E0107", f"`{node.id}` is no integer, so it cannot be in an extent", node,
                             hint="give it an integer, or use another name")  # fmt: skip
        return const(value)


class _Declaration(_Reader):
    """Reads a signature without values of constants, of which one may be the number of ranks: then one tensor stands for those
    of all."""

    def _are_ranks(self, ranks: Expr) -> bool:
        return ranks.constant is None or super()._are_ranks(ranks)

    def _dtype(self, node: ast.expr) -> DType:
        entry = self.module.names.get(node.id) if isinstance(node, ast.Name) else None
        return DType(entry.name, "f", 16) if isinstance(entry, ElementName) else super()._dtype(node)

    def _symbol(self, node: ast.Name, *, stride: bool) -> Expr:
        plain = isinstance(self.module.names.get(node.id), DimName) or node.id not in constant_names(self.routine)
        return super()._symbol(node, stride=stride) if plain else sym(node.id)


def _meant_type(note: ast.expr) -> str:
    """A hint for an annotation that is not a kernel type, based on its name or the name it subscripts."""
    base = note.value if isinstance(note, ast.Subscript) else note
    name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else ""
    known = {**_ACCESS, **_OF_RANKS} if isinstance(note, ast.Subscript) else DTYPES
    return ask_first(name, known, "use `In/Out/InOut/Scratch/Atomic[dtype, dims...]`, or a dtype for a scalar")


def _meant_dtype(node: ast.expr, module: Module) -> str:
    name = node.id if isinstance(node, ast.Name) else ""
    elements = {known for known, entry in module.names.items() if isinstance(entry, ElementName)}
    return ask_first(name, {*DTYPES, *elements}, "use a dtype such as `bf16`, or a class that derives from `Element`")


def _word(module: Module, node: ast.expr | None) -> str | None:
    return None if node is None else word_of(module, _unquoted(node))


def _unquoted(node: ast.expr) -> ast.expr:
    """A quoted annotation or extent as the expression it quotes; the location stays that of the string."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return node
    try:
        parsed = ast.parse(node.value, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return node
    for child in ast.walk(parsed):
        ast.copy_location(child, node)
    return parsed


def _unliteral(node: ast.expr) -> ast.expr:
    """`Literal[4]` as `4`, `Literal["2 * N"]` as its string: the form in which type checkers accept an extent that is not a
    class."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Literal":
        return node.slice
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "Literal":
        return node.slice
    return node


def _integer(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
        return node.value
    return None
