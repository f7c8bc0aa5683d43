"""Generates the reference of the kernel language from the stubs that authors import: signature, docstring, refusals of each
word."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from pathlib import Path
from typing import Final

from ci.docs.errors import GROUPS
from ci.docs.refusals import Refusal, refusals
from ci.docs.signatures import laid_out, spaced
from tilec import language
from tilec.ir.types import DTYPES, PACKED

ROOT: Final = Path(__file__).resolve().parents[2]
SECTIONS: Final = {
    "A kernel and its contract": ("kernel", "function", "grid", "requires", "values", "ensures", "resident", "unsafe"),
    "Where a block is": ("bid", "num_blocks", "cdiv"),
    "Memory": (
        "load", "store", "gather", "scatter", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
        "atomic_exchange", "atomic_cas", "meet",
    ),
    "Making tiles": ("arange", "full", "zeros", "inf", "nan"),
    "Shapes and dtypes": ("astype", "bitcast", "reshape", "permute", "broadcast_to", "join", "split"),
    "Element by element": (
        "where", "maximum", "minimum", "clamp", "abs", "exp", "exp2", "log", "log2", "pow", "sqrt", "rsqrt", "sigmoid", "tanh",
        "sin", "cos", "floor", "ceil", "round", "erf", "mulhi", "isnan", "isinf", "isfinite",
    ),
    "Reductions": ("sum", "max", "min", "any", "all", "argmax", "argmin"),
    "Along an axis": ("cumsum", "cumprod", "cummax", "cummin", "scan", "sort", "argsort", "topk", "flip", "butterfly", "take"),
    "Matrix products": ("mma",),
    "Loops": ("static_range", "invariant", "decreases"),
    "Looking into a kernel": ("print",),
}  # fmt: skip
"""Order of the page; words in no section are at its end."""
PARAMETERS: Final = ("Dim", "Element", "Const", "In", "Out", "InOut", "Scratch", "Atomic", "Peer", "Signal", "Align", "Strides")


def words() -> str:
    """The page of all words."""
    stubs = {node.name: node for node in _stubs() if isinstance(node, ast.FunctionDef)}
    every = [name for name in language.words.__all__ if name not in {word for some in SECTIONS.values() for word in some}]
    refused = refusals(ROOT)
    parts = ["# All words\n", _ABOUT]
    for title, names in {**SECTIONS, "More": tuple(every)}.items():
        present = [name for name in names if name in language.words.__all__]
        if present:
            parts.append(f"## {title}\n")
            parts += [_word(name, stubs.get(name), refused.get(name, [])) for name in present]
    return "\n".join(parts)


_ABOUT: Final = (
    "Made from the stubs that a kernel file imports (`memory_words.py` and `tile_words.py` of `tilec/language`), and, for "
    "what is refused, from the compiler's source and its tests. `...` in a message stands for what the call decides. A "
    "*scalar* is an integer: a literal, a constant, a dim, or a tile of shape `()`; an *operand* is a tile or a number; an "
    "*index* is one scalar per axis of the tensor, a lone one where there is one axis; a *shape* is made of constants. A "
    "call with arguments that its word does not have, or without one that it needs, is [E0113](../errors/text.md#e0113); "
    "operands that no operator would take together are refused as the operator does: [Tiles](tiles.md#operators).\n"
)


def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / f"tilec/language/{module}.py").read_text(encoding="utf-8"))


def _stubs() -> list[ast.stmt]:
    return [node for module in ("memory_words", "tile_words") for node in _tree(module).body]


def _word(name: str, stub: ast.FunctionDef | None, refused: list[Refusal]) -> str:
    heading = f"### {name} {{: #{name} }}\n"
    if stub is None:
        return f"{heading}\n`{name}` is a number. {_documented(name)}\n"
    returned = ast.unparse(stub.returns) if stub.returns else "None"
    signature = laid_out(name, spaced(ast.unparse(stub.args)), f" -> {returned}" if returned != "None" else "")
    if name in ("kernel", "function"):
        signature = f"```python\n@tilec.{name}\n```\n"
    doc = inspect.cleandoc(ast.get_docstring(stub) or "")
    parts = [heading, signature, f"{doc}\n"]
    if refused:
        rows = [f"| [{code}]({_page(code)}) | {_cell(message)} |" for code, message in refused]
        table = "\n".join(["| code | message |", "|---|---|", *rows])
        parts.append(f'??? quote "What is refused"\n\n{textwrap.indent(table, "    ")}\n')
    return "\n".join(parts)


def _documented(name: str) -> str:
    """The string under an assignment of a stub."""
    for node, after in itertools.pairwise(_stubs()):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name and isinstance(after, ast.Expr):
            return inspect.cleandoc(str(ast.literal_eval(after.value)))
    return ""


def _page(code: str) -> str:
    return f"../errors/{GROUPS[code[:3]][0]}.md#{code.lower()}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def types() -> str:
    """The page of parameter types, dtypes, and the attributes of tiles."""
    parameters = {node.name: node for node in _tree("parameters").body if isinstance(node, ast.ClassDef)}
    tiles = {node.name: node for node in _tree("tiles").body if isinstance(node, ast.ClassDef)}
    parts = ["# Types\n", "Made from the stubs `tilec/language/parameters.py` and `tiles.py`.\n", "## In a signature\n"]
    parts += [f"### {name} {{: #{name.lower()} }}\n\n{_doc(parameters[name])}\n" for name in PARAMETERS]
    parts += ["## What a tensor parameter has\n", _members(parameters["Tensor"])]
    parts += ["## What a tile has\n", f"{_doc(tiles['Tile'])}\n", _members(tiles["Tile"])]
    parts += ["## Dtypes\n", "| name | bytes | what |\n|---|--:|---|"]
    parts += [
        f"| `{name}` | {_bytes(name)} | {_cell(_doc(node))} |"
        for name, node in tiles.items() if name in language.__all__ and name not in ("Tile", "DTypeBase", "NotCompiled")
    ]  # fmt: skip
    parts += ["", f"{_doc(tiles['DTypeBase'])}\n"]
    return "\n".join(parts)


def _bytes(name: str) -> str:
    return "½" if name in PACKED else str(DTYPES["bool" if name == "boolean" else name].bytes)


def _doc(node: ast.ClassDef | ast.FunctionDef) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def _members(owner: ast.ClassDef) -> str:
    """A table of the public methods and properties."""
    rows: list[str] = []
    for node in ast.walk(owner):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
            continue
        is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
        given = "" if is_property else f"({ast.unparse(node.args).removeprefix('self, ').removesuffix(', /')})"
        shown = node.name + given
        rows.append(f"| `{_cell(shown)}` | {_cell(_doc(node))} |")
    return "\n".join(["| | |", "|---|---|", *rows]) + "\n"
