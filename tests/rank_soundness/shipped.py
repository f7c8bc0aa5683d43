"""The kernels in which ranks meet that the project ships, as text of their own, and each with one mistake at a time."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.files import ROOT
from tests.rank_soundness.drafts import with_imports
from tests.rank_soundness.ir_edits import EDITS
from tests.rank_soundness.mistakes import MISTAKES, made
from tests.rank_soundness.verdict import RankKernel
from tests.soundness.source_edits import mutate_source

SHIPPED = ("all_gather", "all_reduce", "all_reduce_add", "all_reduce_add_scaled", "rank_meet")
FOLDER = ROOT / "kernels_src"
SHARED_FILES = ("rank_dims", "dims")
NUMBERS = {"RANKS": 2, "BLOCKS": 2, "TOKENS": 2, "BLOCK": 4, "ROWS": 2, "PARTS": 2}
"""Of constants, so small that a launch of a few elements has several tiles for each block."""
DRAWS = 24
"""How often each kind of mistake is drawn for a kernel."""
GENERAL_DRAWS = 240
"""How often an edit of anything that a kernel says is drawn."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A shipped kernel with one mistake: its kind, and the kernel."""

    shipped: str
    mistake: str
    kernel: RankKernel


class _Plain(ast.NodeTransformer):
    """Without the name of the module, without constants, of one dtype."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "tl":
            is_python = node.attr == "sum"  # which is a word of Python, too
            return ast.Attribute(ast.Name("tilec"), node.attr, node.ctx) if is_python else ast.Name(node.attr, node.ctx)
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if isinstance(node.ctx, ast.Load) and node.id in NUMBERS:
            return ast.Constant(NUMBERS[node.id])
        return ast.Name("f32", node.ctx) if node.id == "E" else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "Literal" and isinstance(node.slice, ast.Constant):
            text = str(node.slice.value)
            for name, number in NUMBERS.items():
                text = text.replace(name, str(number))
            return ast.Constant(text)
        self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.stmt:
        if node.name not in SHIPPED:  # a tile function: its types say nothing to the compiler
            for argument in node.args.args:
                argument.annotation = None
            node.returns = None
            numbers = {argument.arg for argument in node.args.args} & {*NUMBERS}
            assert len(node.args.args) - len(numbers) >= 1, node.name
            node.args.args = [argument for argument in node.args.args if argument.arg not in NUMBERS]
        else:
            node.name, node.args.kwonlyargs, node.args.kw_defaults = "random_kernel", [], []
        self.generic_visit(node)
        node.decorator_list = [
            ast.Attribute(ast.Name("tilec"), one.id) for one in node.decorator_list if isinstance(one, ast.Name)
        ]
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id.endswith("of_ranks"):  # constants are not among its arguments
            node.args = [one for one in node.args if not (isinstance(one, ast.Name) and one.id in NUMBERS)]
        self.generic_visit(node)
        return node


def text_of(name: str) -> str:
    """A shipped kernel as one file, with small constants."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    known: dict[str, ast.stmt] = {}
    for file in SHARED_FILES:
        for statement in ast.parse((FOLDER / f"{file}.py").read_text(encoding="utf-8")).body:
            for defined in _defined(statement):
                known.setdefault(defined, statement)
    body = [s for s in tree.body if not isinstance(s, ast.Import | ast.ImportFrom) and not _is_text(s)]
    own = {defined for statement in body for defined in _defined(statement)}
    needed: list[ast.stmt] = []
    wanted = [*body]
    while wanted:
        for used in [node.id for node in ast.walk(wanted.pop()) if isinstance(node, ast.Name)]:
            statement = known.get(used)
            if statement is not None and statement not in needed and used not in (*NUMBERS, *own, "E"):
                needed.append(statement)
                wanted.append(statement)
    body = [s for s in [*needed, *body] if not (isinstance(s, ast.ClassDef) and s.name in (*NUMBERS, "E"))]
    module = _Plain().visit(ast.Module(body, []))
    return with_imports(f'"""Shipped kernel {name}."""\n' + ast.unparse(ast.fix_missing_locations(module)) + "\n")


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def mutants(name: str, draws: int = DRAWS, general: int = GENERAL_DRAWS) -> Iterator[Mutant]:
    """A shipped kernel with each mistake that was drawn of each kind: texts that all differ, and edits of its IR by seed."""
    text = text_of(name)
    seen = {text}
    for mistake in sorted(MISTAKES):
        for draw in range(draws):
            changed = made(mistake, random.Random(f"{name} {mistake} {draw}"), text)
            if changed is not None and changed not in seen:
                seen.add(changed)
                yield Mutant(name, mistake, RankKernel(changed, name, (mistake,)))
    for draw in range(general):
        changed = with_imports(mutate_source(random.Random(f"{name} edit {draw}"), text))
        if changed not in seen:
            seen.add(changed)
            yield Mutant(name, "edit", RankKernel(changed, name, ("edit",)))
    for edit in sorted(EDITS):
        for draw in range(max(1, draws // 4)):
            yield Mutant(name, f"IR: {edit}", RankKernel(text, name, (edit,), draw))
