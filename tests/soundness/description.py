"""A random kernel as data: index expressions, statements, tensors; and its source text.

An expression is an int, a name (a dim, a variable, or a call such as `num_blocks(0)`), or `(operator, left, right)`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

Expr = int | str | tuple[str, "Expr", "Expr"]
CALLS = ("min", "max", "cdiv")
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(slots=True)
class Tensor:
    """A tensor parameter; float unless `integer`."""

    name: str
    access: str  # In, Out, InOut, Scratch
    dims: list[Expr]
    integer: bool = False
    low: Expr | None = None  # values(name, low, high, distinct)
    high: Expr | None = None
    distinct: bool = False
    sorted: bool = False
    ends: bool = False

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return "i32" if self.integer else "f32"


@dataclass(slots=True)
class Assign:
    """`name = value`."""

    name: str
    value: Expr


@dataclass(slots=True)
class LoadIndex:
    """`name = load(tensor, index)`: one integer."""

    name: str
    tensor: str
    index: list[Expr]


@dataclass(slots=True)
class Move:
    """A load or store of a box; `tiled` indices count tiles, others count elements; `loose` means pad or mask."""

    kind: str  # load, store
    tensor: str
    index: list[Expr]
    shape: list[int]
    tiled: bool = True
    loose: bool = False


@dataclass(slots=True)
class Pick:
    """A gather or scatter over `arange(extent)`; in `index` the name `lane` is that tile."""

    kind: str  # gather, scatter
    tensor: str
    index: list[Expr]
    extent: int
    loose: bool = False


@dataclass(slots=True)
class Loop:
    """`for name in range(lower, upper, step)`."""

    name: str
    lower: Expr
    upper: Expr
    step: Expr
    body: list[Statement]


@dataclass(slots=True)
class Branch:
    """`if condition: ... else: ...`."""

    condition: Expr
    then: list[Statement]
    otherwise: list[Statement] = field(default_factory=lambda: list[Statement]())


Statement = Assign | LoadIndex | Move | Pick | Loop | Branch


@dataclass(slots=True)
class Description:
    """One kernel. `constants` are `Const` dims with their value; `scalars` are i32 parameters; every other
    upper-case name is a symbolic dim."""

    schedule: str
    grid: list[Expr]
    tensors: list[Tensor]
    body: list[Statement]
    requires: list[Expr] = field(default_factory=lambda: list[Expr]())
    constants: dict[str, int] = field(default_factory=dict[str, int])
    scalars: list[str] = field(default_factory=list[str])

    def tensor(self, name: str) -> Tensor:
        """A tensor by name."""
        return next(tensor for tensor in self.tensors if tensor.name == name)

    def expressions(self) -> Iterator[Expr]:
        """Every expression of the kernel."""
        yield from self.grid
        yield from self.requires
        for tensor in self.tensors:
            yield from tensor.dims
            yield from (e for e in (tensor.low, tensor.high) if e is not None)
        for statement in walk(self.body):
            for item in fields(statement):
                value = getattr(statement, item.name)
                if item.name in ("value", "lower", "upper", "step", "condition"):
                    yield value
                elif item.name == "index":
                    yield from value

    def dims(self) -> list[str]:
        """Names of dims, symbolic and constant, sorted."""
        return sorted({name for expr in self.expressions() for name in names(expr) if name.isupper()} - {*self.scalars})


def walk(body: list[Statement]) -> Iterator[Statement]:
    """All statements, outer before inner."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from walk(statement.body)
        elif isinstance(statement, Branch):
            yield from walk(statement.then)
            yield from walk(statement.otherwise)


def names(expr: Expr) -> Iterator[str]:
    """Names an expression uses."""
    if isinstance(expr, str):
        yield expr
    elif isinstance(expr, tuple):
        yield from names(expr[1])
        yield from names(expr[2])


def text(expr: Expr, outer: bool = True) -> str:
    """Source text of an expression."""
    if not isinstance(expr, tuple):
        return str(expr) if not (isinstance(expr, int) and expr < 0) or outer else f"({expr})"
    op, left, right = expr
    if op in CALLS:
        return f"{op}({text(left)}, {text(right)})"
    inner = f"{text(left, False)} {op} {text(right, False)}"
    return inner if outer else f"({inner})"


def source(kernel: Description) -> str:
    """The kernel as a file."""
    dims = kernel.dims()
    lines = [f'"""Random kernel from the schedule {kernel.schedule}."""', "", "import tilec"]
    lines.append(f"from tilec import {', '.join(sorted(_vocabulary(kernel)))}")
    for name in dims:
        lines += ["", "", f"class {name}(Dim):", f'    """extent {name}"""']
    parameters = [f"{t.name}: {t.access}[{', '.join([t.dtype, *map(text, t.dims)])}]" for t in kernel.tensors]
    parameters += [f"{name}: i32" for name in kernel.scalars]
    if kernel.constants:
        parameters += ["*", *(f"{name}: Const" for name in sorted(kernel.constants))]
    lines += ["", "", "@tilec.kernel", f"def random_kernel({', '.join(parameters)}):"]
    body = [f"grid({', '.join(map(text, kernel.grid))})"]
    body += [f"requires({text(condition)})" for condition in kernel.requires]
    for tensor in kernel.tensors:
        if tensor.low is not None and tensor.high is not None:
            flags = "".join(f", {flag}=True" for flag in ("distinct", "sorted", "ends") if getattr(tensor, flag))
            body.append(f"values({tensor.name}, {text(tensor.low)}, {text(tensor.high)}{flags})")
    body += [f"b{axis} = bid({axis})" for axis in range(len(kernel.grid))]
    lines += [f"    {line}" for line in body]
    lines += _block(kernel, kernel.body, "    ")
    return "\n".join(lines) + "\n"


def _vocabulary(kernel: Description) -> set[str]:
    names = {"Dim", "bid", "f32", "grid", *(tensor.access for tensor in kernel.tensors)}
    statements = list(walk(kernel.body))
    names |= {s.kind for s in statements if isinstance(s, Move | Pick)}
    names |= {"load"} if any(isinstance(s, LoadIndex) for s in statements) else set()
    names |= {"arange"} if any(isinstance(s, Pick) for s in statements) else set()
    names |= {"zeros"} if any(isinstance(s, Move | Pick) and s.kind in ("store", "scatter") for s in statements) else set()
    names |= {"Const"} if kernel.constants else set()
    names |= {"requires"} if kernel.requires else set()
    names |= {"i32"} if kernel.scalars or any(tensor.integer for tensor in kernel.tensors) else set()
    names |= {"values"} if any(tensor.low is not None for tensor in kernel.tensors) else set()
    joined = " ".join(text(expr) for expr in kernel.expressions())
    names |= {name for name in ("cdiv", "num_blocks") if f"{name}(" in joined}
    return names


def _block(kernel: Description, body: list[Statement], indent: str) -> list[str]:
    lines: list[str] = []
    for number, statement in enumerate(body):
        lines += [indent + line if line[:1] != "\0" else line[1:] for line in _statement(kernel, statement, indent, number)]
    return lines or [f"{indent}pass"]


def _tuple(items: list[str]) -> str:
    return items[0] if len(items) == 1 else f"({', '.join(items)})"


def _statement(kernel: Description, statement: Statement, indent: str, number: int) -> list[str]:
    deeper = indent + "    "
    match statement:
        case Assign(name, value):
            return [f"{name} = {text(value)}"]
        case LoadIndex(name, tensor, index):
            return [f"{name} = load({tensor}, {_tuple([text(i) for i in index])})"]
        case Move():
            index_text = _tuple([text(i) for i in statement.index])
            index_text = index_text if statement.tiled else f"offset={index_text}"
            shape = f"({', '.join(map(str, statement.shape))}{',' if len(statement.shape) == 1 else ''})"
            if statement.kind == "load":
                pad = ", pad=0" if statement.loose else ""
                return [f"v{number} = load({statement.tensor}, {index_text}, shape={shape}{pad})"]
            mask = ", mask=True" if statement.loose else ""
            zeros = f"zeros({shape}, {kernel.tensor(statement.tensor).dtype})"
            if statement.tiled:
                return [f"store({statement.tensor}, {index_text}, {zeros}{mask})"]
            return [f"store({statement.tensor}, {zeros}, {index_text}{mask})"]
        case Pick():
            index = ", ".join(_lanes(text(i), statement.extent) for i in statement.index)
            if statement.kind == "gather":
                return [f"v{number} = gather({statement.tensor}, ({index},){', pad=0' if statement.loose else ''})"]
            tile = f"zeros(({statement.extent},), f32)"
            return [f"scatter({statement.tensor}, ({index},), {tile}{', mask=True' if statement.loose else ''})"]
        case Loop():
            head = f"for {statement.name} in range({text(statement.lower)}, {text(statement.upper)}, {text(statement.step)}):"
            return [head, *("\0" + line for line in _block(kernel, statement.body, deeper))]
        case Branch():
            lines = [f"if {text(statement.condition)}:", *("\0" + line for line in _block(kernel, statement.then, deeper))]
            if statement.otherwise:
                lines += ["else:", *("\0" + line for line in _block(kernel, statement.otherwise, deeper))]
            return lines


def _lanes(index: str, extent: int) -> str:
    """`lane` expanded; an index that is the same for all lanes is broadcast over the tile."""
    found = index.replace("lane", f"arange({extent})")
    return found if found != index else f"{found} + arange({extent}) * 0"
