"""The parts of a PTX module after parsing: pure data.

A register operand is an index into its function's register list. `Function.labels` maps label names, distinct across nested
scopes, to indices into the list of instructions.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    """Register `index` of the function; `type` as declared (pred, b16, u32, f32 ...)."""

    name: str
    index: int
    type: str


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as %tid.x."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """An integer (`is_float` False) or the value of a float literal; `bits` and `width` are set if the literal gives its
    bits."""

    value: int | float
    is_float: bool = False
    bits: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, parameter, function or label by name, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Negated:
    """`!%p`."""

    register: Register


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: a discarded result."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`, with the coordinates of a tensor access in `extra` (`[map, {x, y}]`)."""

    base: Operand
    offset: int = 0
    extra: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`: arguments or results of a call."""

    items: tuple[Operand, ...]


Operand = Register | Special | Immediate | Symbol | Negated | Sink | Vector | Pair | Address | Group


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `modifiers` are the dotted words after the opcode, in order; `guard` and `guard_negated` the
    predicate; `location` the (file, line, column) of the last `.loc`; `text` the source text for messages. `used_bytes` is
    the mask of a `.pragma "used_bytes_mask"` before a load (PTX ISA, pragma strings): bytes whose bit is 0 are unused."""

    opcode: str
    modifiers: tuple[str, ...]
    operands: tuple[Operand, ...]
    guard: Register | None
    guard_negated: bool
    line: int
    text: str
    location: tuple[int, int, int] = (0, 0, 0)
    used_bytes: int = -1


@dataclass(slots=True)
class Variable:
    """A module or function variable. `initial` holds the initial contents of a global or const one."""

    name: str
    space: str
    size: int
    align: int
    external: bool = False
    initial: bytes | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter at byte `offset` of the parameter block."""

    name: str
    type: str
    size: int
    align: int
    offset: int


@dataclass(slots=True)
class Function:
    """An entry (or device function): registers in index order, instructions, labels as instruction indices."""

    name: str
    is_entry: bool
    parameters: list[Parameter] = field(default_factory=list[Parameter])
    registers: list[Register] = field(default_factory=list[Register])
    instructions: list[Instruction] = field(default_factory=list[Instruction])
    labels: dict[str, int] = field(default_factory=dict[str, int])
    tables: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    line: int = 0


@dataclass(slots=True)
class Module:
    """A parsed file: functions and variables by name; `files` maps `.file` numbers to names."""

    version: tuple[int, int] = (0, 0)
    target: str = ""
    functions: dict[str, Function] = field(default_factory=dict[str, Function])
    variables: dict[str, Variable] = field(default_factory=dict[str, Variable])
    files: dict[int, str] = field(default_factory=dict[int, str])
