"""Fixes a kernel that `tilec check` refuses, from its JSON alone.

    python examples/mender.py add.py -c E=bf16 -c BLOCK=1024 [--write]

Write, check, read the counterexample, fix, check again: docs/programs.md describes the interface. Fixes that the JSON calls
certain are applied first. Where none is left, single changes are tried of what the refused access is computed from, in the
order that the counterexample makes likely, until one is accepted. The mender knows what errors say and what the text is; it
knows no reference: a kernel that it fixes is safe, and may compute something else than was meant. Run `tilec test`.
Exit status: 0 accepted, 1 not fixed, 2 usage.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Check = Callable[[str], list[Json]]
"""Takes a kernel's text, gives the errors that `tilec check --json` tells of it."""

ROUNDS = 12
"""Rounds of certain fixes; each ends at least one error, or the rounds end."""
MOST_TRIED = 150
"""Changes that are tried where nothing is certain."""

ACCESSES = ("In", "Out", "InOut", "Scratch", "Atomic")


@dataclass(frozen=True)
class Outcome:
    """What became of a kernel: the last text, whether it is accepted, how (a line for each change), and the checks it took."""

    text: str
    accepted: bool
    changes: tuple[str, ...]
    checks: int


def fixed(text: str, check: Check) -> Outcome:
    """Certain fixes until none is left, then one change that makes the rest fall away."""
    checks = 0

    def counted(source: str) -> list[Json]:
        nonlocal checks
        checks += 1
        return check(source)

    text, errors, changes = certain(text, counted(text), counted)
    if not errors:
        return Outcome(text, True, tuple(changes), checks)
    tried = {text}
    for title, candidate in candidates(text, errors):
        if candidate in tried or len(tried) > MOST_TRIED:
            continue
        tried.add(candidate)
        after, left, more = certain(candidate, counted(candidate), counted, narrow=False)
        if not left:
            return Outcome(after, True, (*changes, title, *more), checks)
    return Outcome(text, False, tuple(changes), checks)


def certain(text: str, errors: list[Json], check: Check, *, narrow: bool = True) -> tuple[str, list[Json], list[str]]:
    """Apply the first certain fix of each error, and again of what is refused then; the text, its errors, what was done. Where
    not `narrow`, clauses that a contract has not yet are left out: after a change that is a guess they would make it pass."""
    changes: list[str] = []
    for _ in range(ROUNDS):
        good = [[fix for fix in error["fixes"] if fix["certain"] and (narrow or not _clause(fix))] for error in errors]
        fixes = [some[0] if some else None for some in good]
        chosen = {json.dumps(fix["edits"]): fix for fix in fixes if fix is not None}
        if not chosen:
            break
        for fix in _apart(list(chosen.values())):
            changes.append(fix["title"])
        text = edited(text, [edit for fix in _apart(list(chosen.values())) for edit in fix["edits"]])
        errors = check(text)
    return text, errors, changes


def _clause(fix: Json) -> bool:
    return any("requires(" in edit["text"] for edit in fix["edits"])


def _apart(fixes: list[Json]) -> list[Json]:
    """Fixes whose edits do not meet those of fixes before; the others have their turn in the next round."""
    used_spans: list[tuple[tuple[int, int], tuple[int, int]]] = []
    found: list[Json] = []
    for fix in fixes:
        spans = [_extent(edit) for edit in fix["edits"]]
        if all(end < begin or stop < start for begin, end in used_spans for start, stop in spans):
            used_spans += spans
            found.append(fix)
    return found


def _extent(edit: Json) -> tuple[tuple[int, int], tuple[int, int]]:
    return (edit["line"], edit["column"]), (edit["end_line"], edit["end_column"])


def edited(text: str, edits: list[Json]) -> str:
    """Put edits in place, from the last to the first, so that the places of the others stay what they are."""
    lines = text.split("\n")
    for edit in sorted(edits, key=_extent, reverse=True):
        (line, column), (end_line, end_column) = _extent(edit)
        joined = lines[line - 1][: column - 1] + edit["text"] + lines[end_line - 1][end_column - 1 :]
        lines[line - 1 : end_line] = joined.split("\n")
    return "\n".join(lines)


def candidates(text: str, errors: list[Json]) -> list[tuple[str, str]]:
    """Changes to try, the likeliest first: fixes that are not certain, then changes of what decides the refused access."""
    fixes = [fix for error in errors for fix in error["fixes"]]
    clauses = [fix for fix in fixes if _clause(fix) and all("%" not in edit["text"] for edit in fix["edits"])]
    first, last = ([(f"{fix['title']} (tried)", edited(text, fix["edits"])) for fix in some]
                   for some in (clauses, [fix for fix in fixes if fix not in clauses]))  # fmt: skip
    scored: list[tuple[float, int, str, str]] = []
    kernel = Kernel.of(text)
    for error in errors if kernel is not None else ():
        assert kernel is not None
        for weight, node in kernel.suspects(error):
            for cost, new in kernel.instead(node, error):
                old = kernel.source(node)
                scored.append((weight + cost, len(scored), f"`{old}` becomes `{new}`", kernel.with_text(node, new)))
    return first + [(title, candidate) for _, _, title, candidate in sorted(scored)] + last


@dataclass(frozen=True)
class Kernel:
    """The function of a file that stands under `@tilec.kernel`: its text, names that hold sizes, and block ids by name."""

    text: str
    node: ast.FunctionDef
    sizes: tuple[str, ...]
    ids: dict[str, int]
    assigned: dict[str, ast.expr]

    @staticmethod
    def of(text: str) -> Kernel | None:
        """None where the text is no Python, or has no kernel."""
        try:
            tree = ast.parse(text)
        except SyntaxError:
            return None
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
        node = next((one for one in functions if any(_word(decorator) == "kernel" for decorator in one.decorator_list)), None)
        if node is None:
            return None
        dims, elements = _declared(tree)
        constants = [arg.arg for arg in node.args.kwonlyargs if arg.arg not in elements]
        assigned, ids = dict[str, ast.expr](), dict[str, int]()
        for one in ast.walk(node):
            if isinstance(one, ast.Assign):
                for name, value in _pairs(one.targets[0], one.value):
                    assigned.setdefault(name, value)
                    if isinstance(value, ast.Call) and _word(value.func) == "bid" and value.args:
                        ids[name] = ast.literal_eval(value.args[0])
        return Kernel(text, node, tuple(dict.fromkeys([*dims, *constants])), ids, assigned)

    def source(self, node: ast.AST) -> str:
        """The text of a node."""
        return ast.get_source_segment(self.text, node) or ""

    def with_text(self, node: ast.AST, new: str) -> str:
        """The file with other text for a node."""
        lines = self.text.split("\n")
        begin, end = getattr(node, "lineno", 1) - 1, getattr(node, "end_lineno", 1) - 1
        front = lines[begin].encode()[: getattr(node, "col_offset", 0)].decode()
        back = lines[end].encode()[getattr(node, "end_col_offset", 0) :].decode()
        return "\n".join([*lines[:begin], *(front + new + back).split("\n"), *lines[end + 1 :]])

    def suspects(self, error: Json) -> Iterator[tuple[float, ast.expr]]:
        """Expressions that may be at fault, with how unlikely they are: index and shape of the refused access, what these names
        were set to, the grid, loop bounds. Elements that no block writes tell whether the grid or the index comes first."""
        at, shown = error["at"], error["counterexample"]
        grid_first = error["code"] == "E0403" and shown is not None and any(shown["element"])
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        here = [node for node in calls if at and (node.lineno, node.col_offset + 1) == (at["line"], at["column"])]
        names: list[str] = []
        for call in here:
            for part in [*call.args[1:2], *(one.value for one in call.keywords if one.arg in ("offset", "shape"))]:
                yield 0.0, part
                names += [node.id for node in ast.walk(part) if isinstance(node, ast.Name)]
        for one in ast.walk(self.node):
            if isinstance(one, ast.Assign) and {name for name, _ in _pairs(one.targets[0], one.value)} & {*names}:
                yield 1.0, one.value
        for call in calls:
            if _word(call.func) == "grid":
                yield (-0.5 if grid_first else 1.5), call
            elif ast.unparse(call.func) == "range":
                for part in call.args:
                    yield (-0.5 if self._last_iteration(error) else 2.0), part
        for call in calls if not here else ():
            if at and call.lineno == at["line"]:
                yield 0.5, call

    def _last_iteration(self, error: Json) -> bool:
        """Whether it goes wrong in the last iteration of a loop that begins right: labels tell the range of its variable."""
        loops: list[dict[str, int]] = error["counterexample"]["iterations"] if error["counterexample"] else []
        return any(
            f"< {value + 1}" in label["text"] and value and f"`{name}`" in label["text"]
            for loop in loops for name, value in loop.items() for label in error["labels"]
        )  # fmt: skip

    def instead(self, node: ast.expr, error: Json) -> Iterator[tuple[float, str]]:
        """Other texts for an expression, each with a cost: one change anywhere in it."""
        text, start = self.source(node), (node.lineno, node.col_offset)
        for inner in ast.walk(node):
            if not isinstance(inner, ast.expr) or inner.lineno != node.lineno or inner.end_lineno != node.lineno:
                continue
            at = len(text.encode()[: inner.col_offset - start[1]].decode())
            old = self.source(inner)
            for cost, new in self._changed(inner, error):
                if new != old:
                    yield cost, text[:at] + new + text[at + len(old) :]

    def _changed(self, node: ast.expr, error: Json) -> Iterator[tuple[float, str]]:
        if isinstance(node, ast.Tuple) and len(node.elts) > 1:
            parts = [self.source(one) for one in node.elts]
            for index in range(len(parts) - 1):
                swapped = [*parts[:index], parts[index + 1], parts[index], *parts[index + 2 :]]
                yield 0.3, f"({', '.join(swapped)})" if self.source(node).startswith("(") else ", ".join(swapped)
        elif isinstance(node, ast.BinOp):
            yield from self._of_arithmetic(node)
        elif isinstance(node, ast.Name):
            yield from self._of_name(node.id, error)
        elif isinstance(node, ast.Constant) and type(node.value) is int:
            yield 0.6, str(node.value + 1)
            if node.value:
                yield 0.6, str(node.value - 1)
            for name in self.ids:
                yield 0.9, name
        elif isinstance(node, ast.Call) and _word(node.func) == "cdiv" and len(node.args) == 2:
            left, right = map(self.source, node.args)
            yield 0.9, f"{self.source(node.func)}({right}, {left})"
        elif isinstance(node, ast.Call) and _word(node.func) == "bid" and node.args:
            for axis in range(3):
                yield 0.5, f"{self.source(node.func)}({axis})"
        elif isinstance(node, ast.Call) and _word(node.func) == "grid" and len(node.args) > 1:
            parts = [self.source(one) for one in node.args]
            yield 0.3, f"{self.source(node.func)}({', '.join([parts[1], parts[0], *parts[2:]])})"
        if isinstance(node, ast.Name | ast.BinOp) or (isinstance(node, ast.Call) and _word(node.func) == "cdiv"):
            yield 1.2, f"{self.source(node)} + 1"
            yield 1.2, f"{self.source(node)} - 1"

    def _of_arithmetic(self, node: ast.BinOp) -> Iterator[tuple[float, str]]:
        left, right = self.source(node.left), self.source(node.right)
        one = isinstance(node.right, ast.Constant)
        yield (0.1 if one else 0.7), left
        yield (0.6 if isinstance(node.left, ast.Constant) else 0.8), right
        if isinstance(node.op, ast.FloorDiv):
            cdiv = "tl.cdiv" if "import tilec as tl" in self.text else "cdiv"
            yield 0.2, f"{cdiv}({left}, {right})"
        if isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.left, ast.BinOp) and isinstance(node.right, ast.Name):
            factors, addend = node.left, right
            if isinstance(factors.op, ast.Mult):  # `m * M + h` becomes `h * M + m`
                a, b = self.source(factors.left), self.source(factors.right)
                yield 0.2, f"{addend} * {b} + {a}"
                yield 0.3, f"{addend} * {a} + {b}"
                for size in self.sizes:
                    yield 0.4, f"{addend} * {size} + {a}"

    def _of_name(self, name: str, error: Json) -> Iterator[tuple[float, str]]:
        """Another block id for one, first those in which two blocks of a race differ; another size for a size."""
        blocks: list[list[int]] = error["counterexample"]["blocks"] if error["counterexample"] else []
        differ = {axis for axis in range(3) if len({block[axis] for block in blocks if axis < len(block)}) > 1}
        if name in self.sizes:
            for other in self.sizes:
                yield 0.5, other
            return
        for other, axis in self.ids.items():
            yield (0.25 if axis in differ else 0.5), other
        if name in self.ids:
            for size in self.sizes:
                yield 0.9, f"{name} * {size}"
                yield 1.0, f"{name} // {size}"
            for other in self.ids:
                for size in self.sizes:
                    yield 1.1, f"{name} * {size} + {other}"


def _word(node: ast.expr) -> str:
    """The word of the language in `word` or `tl.word`; empty for any other expression."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("tilec", "tl"):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _declared(tree: ast.Module) -> tuple[list[str], set[str]]:
    """The file's dims in order, and its elements. Names from files next to it are dims, except those of dtypes, such as `E`."""
    bases = {one.name: set(map(_word, one.bases)) for one in tree.body if isinstance(one, ast.ClassDef)}
    local = [one for one in tree.body if isinstance(one, ast.ImportFrom) and one.level]
    shared = [alias.name for one in local for alias in one.names if alias.name.isupper()]
    notes = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript) and _word(node.value) in ACCESSES]
    first = {_word(note.elts[0]) for note in notes if isinstance(note, ast.Tuple) and note.elts}
    elements = {name for name in shared if name in first} | {name for name in bases if "Element" in bases[name]}
    return [name for name in [*bases, *shared] if name not in elements and "Dim" in bases.get(name, {"Dim"})], elements


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for one, part in zip(target.elts, value.elts, strict=False):
            yield from _pairs(one, part)


def errors_of(path: Path, options: list[str], tilec: list[str]) -> Check:
    """A check by the command, of texts that stand in for the file at `path`, next to copies of the files around it."""

    def check(text: str) -> list[Json]:
        with tempfile.TemporaryDirectory() as folder:
            for other in path.resolve().parent.glob("*.py"):
                (Path(folder) / other.name).write_bytes(other.read_bytes())
            (Path(folder) / path.name).write_text(text, encoding="utf-8")
            command = [*tilec, "check", str(Path(folder) / path.name), "--json", *options]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 1) or not done.stdout:
            sys.exit(f"{done.stderr.strip()}\nerror: `tilec check` ended with status {done.returncode}")
        return list(json.loads(done.stdout)["errors"])

    return check


def main() -> int:
    """Fix one file; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("-c", "--constants", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--write", action="store_true", help="write the fixed kernel to the file")
    options = parser.parse_args()
    try:
        text = options.file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"`{options.file}` cannot be read: {error}")
    given = [option for one in options.constants for option in ("-c", one)]
    outcome = fixed(text, errors_of(options.file, [*given, "--arch", options.arch], [sys.executable, "-P", "-m", "tilec"]))
    for change in outcome.changes:
        print(change)
    name = options.file.name
    sys.stdout.writelines(difflib.unified_diff(text.splitlines(True), outcome.text.splitlines(True), name, name))
    print(f"{'accepted' if outcome.accepted else 'not fixed'} after {outcome.checks} checks")
    if outcome.accepted and options.write:
        options.file.write_text(outcome.text, encoding="utf-8")
    return 0 if outcome.accepted else 1


if __name__ == "__main__":
    sys.exit(main())
