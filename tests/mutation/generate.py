"""Every index expression of a kernel, with one small mistake at a time."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ATOMICS = ("add", "max", "min", "and", "or", "xor", "exchange", "cas")
ACCESSES = {"load": 1, "store": 1, "gather": 1, "scatter": 1, **{f"atomic_{kind}": 1 for kind in ATOMICS}}
"""Functions with an index argument, and its position."""


@dataclass(frozen=True)
class Mutant:
    """A kernel file with one mistake. `kind` groups mistakes, `what` names the location; it is change `number` of the file."""

    path: Path
    kind: str
    what: str
    number: int

    @property
    def kernel(self) -> str:
        return self.path.stem

    @property
    def text(self) -> str:
        """The whole file with the mistake; computed on demand, since most of thousands are only listed for sampling."""
        tree = ast.parse(self.path.read_text(encoding="utf-8"))
        _, _, (target, make) = next(itertools.islice(_changes(tree), self.number, None))
        return text_with(tree, target, make(target))

    def __str__(self) -> str:
        return f"{self.kernel}-{self.what}"


def mutants(path: Path) -> list[Mutant]:
    """All mutants of a kernel file, without duplicates and without unchanged texts."""
    found: dict[tuple[int, str], Mutant] = {}
    for number, (kind, what, (target, make)) in enumerate(_changes(ast.parse(path.read_text(encoding="utf-8")))):
        replacement = ast.dump(make(target))
        if replacement != ast.dump(target):
            found.setdefault((id(target), replacement), Mutant(path, kind, what, number))
    return list(found.values())


Change = tuple[ast.AST, Callable[[ast.AST], ast.AST]]  # the node to replace, and its replacement


def word(node: ast.expr) -> str:
    """The name in `name`, `tl.name` or `tilec.name`; empty for any other expression, such as a method."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("tl", "tilec"):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_kernel(node: ast.stmt) -> bool:
    """Whether a statement of a kernel file defines its kernel."""
    return isinstance(node, ast.FunctionDef) and any(word(decorator) == "kernel" for decorator in node.decorator_list)


def _sizes(kernel: ast.FunctionDef) -> list[str]:
    """Names of dims and integer constants in the parameters."""
    found: list[str] = []
    for parameter in [*kernel.args.args, *kernel.args.kwonlyargs]:
        for node in ast.walk(parameter.annotation) if parameter.annotation else ():
            if isinstance(node, ast.Name) and node.id.isupper() and node.id != "E" and node.id not in found:
                found.append(node.id)
    return [*found, *(p.arg for p in kernel.args.kwonlyargs if p.arg not in (*found, "E"))]


def _changes(tree: ast.Module) -> Iterator[tuple[str, str, Change]]:
    kernel = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and is_kernel(node))
    names = _sizes(kernel)
    number = 0
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and (function := word(node.func)):
            if function in ACCESSES:
                number += 1
                yield from _access_changes(node, f"{function}{number}", names)
            elif function == "bid" and isinstance(node.args[0], ast.Constant):
                axis = int(str(node.args[0].value))
                for other in {0, 1, 2} - {axis}:
                    yield "swapped block ids", f"bid{axis}-line{node.lineno}-to{other}", (node.args[0], _text(f"{other}"))
            elif function == "grid":
                for axis, extent in enumerate(node.args):
                    for sign in "+-":
                        yield "grid", f"grid{axis}{sign}1", (extent, _moved(sign))
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            step = ast.unparse(node.iter.args[2]) if len(node.iter.args) == 3 else "1"
            for index, bound in enumerate(node.iter.args[:2]):
                for sign in "+-":
                    yield "loop bound", f"range-line{node.lineno}-arg{index}{sign}", (bound, _moved(sign, step))
        elif isinstance(node, ast.Assign) and _is_index(node.value):
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for index, value in enumerate(values):
                for sign in "+-":
                    yield "index variable", f"line{node.lineno}-{index}{sign}1", (value, _moved(sign))
                yield from _inside(value, f"line{node.lineno}-{index}", names)


def _access_changes(call: ast.Call, location: str, names: list[str]) -> Iterator[tuple[str, str, Change]]:
    index_arguments = [keyword.value for keyword in call.keywords if keyword.arg in ("offset", "at")]
    if not index_arguments and len(call.args) > ACCESSES[word(call.func)]:
        index_arguments = [call.args[1]]
    for index in index_arguments:
        parts = index.elts if isinstance(index, ast.Tuple) else [index]
        for axis, part in enumerate(parts):
            for sign in "+-":
                yield "index", f"{location}-axis{axis}{sign}1", (part, _moved(sign))
            yield from _inside(part, f"{location}-axis{axis}", names)
        for axis in range(len(parts) - 1):
            yield "swapped indices", f"{location}-swap{axis}", (index, _swapped(axis))
    for keyword in call.keywords:
        if keyword.arg in ("pad", "mask"):
            yield "dropped mask", f"{location}-no-{keyword.arg}", (call, _without(keyword.arg))


def _inside(part: ast.expr, location: str, names: list[str]) -> Iterator[tuple[str, str, Change]]:
    """Replaces a size by another size, or a factor by another factor."""
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and node.id in names and len(names) > 1:
            other = names[(names.index(node.id) + 1) % len(names)]
            yield "wrong dim", f"{location}-{node.id}-to-{other}", (node, _text(other))
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.FloorDiv | ast.Mod):
            yield "wrong stride", f"{location}-col{node.col_offset}", (node.right, _moved("+"))


def _is_index(value: ast.expr) -> bool:
    """Arithmetic on block ids, sizes and other scalars, without accesses or tile operations."""
    parts = [node for node in ast.walk(value) if isinstance(node, ast.Call)]
    is_scalar = all(word(part.func) in ("bid", "num_blocks", "cdiv", "min", "max") for part in parts)
    return is_scalar and not any(
        isinstance(node, ast.Compare | ast.Subscript)
        or (isinstance(node, ast.Attribute) and not word(node))
        or (isinstance(node, ast.Constant) and isinstance(node.value, float))
        for node in ast.walk(value)
    )


def _text(source: str) -> Callable[[ast.AST], ast.AST]:
    return lambda _: ast.parse(source, mode="eval").body


def _moved(sign: str, by: str = "1") -> Callable[[ast.AST], ast.AST]:
    op = ast.Add() if sign == "+" else ast.Sub()

    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.expr)
        return ast.BinOp(node, op, ast.parse(by, mode="eval").body)

    return change


def _swapped(axis: int) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Tuple)
        parts = list(node.elts)
        parts[axis], parts[axis + 1] = parts[axis + 1], parts[axis]
        return ast.Tuple(parts, ast.Load())

    return change


def _without(keyword: str) -> Callable[[ast.AST], ast.AST]:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        return ast.Call(node.func, node.args, [argument for argument in node.keywords if argument.arg != keyword])

    return change


def text_with(tree: ast.Module, target: ast.AST, replacement: ast.AST) -> str:
    """The text of `tree` with `replacement` in place of `target`; restores `tree` afterwards. `replacement` may contain
    `target`."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is target:
                changed: object = replacement
            elif isinstance(value, list) and any(item is target for item in value):
                changed = [replacement if item is target else item for item in value]
            else:
                continue
            setattr(parent, name, changed)
            text = ast.unparse(tree) + "\n"
            setattr(parent, name, value)
            return text
    raise LookupError("the tree does not hold what is to be replaced")
