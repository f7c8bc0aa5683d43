"""Off-by-one errors in the shipped kernels: every third of the loop bounds, grid extents and unmasked indices.

The default run includes one of each kind and of each form of kernel. `ci/bench/judges.py mutations` checks all of them, and
more, with the prover and the interpreter.

A mutant that accesses memory it should not, or leaves part of an `Out` unwritten, must be refused, with a counterexample.
Reading one tile fewer is not a question of safety (the references of `tests/kernels` detect it), nor is a step past the end in
which every access is padded or masked; those mutants may be accepted.
"""

from __future__ import annotations

import ast
import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import campaign, shipped
from tests.mutation.generate import is_kernel, text_with, word
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function
from tilec.passes.prover import prove

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "kernels_src"
SAFETY = {"E0301", "E0302", "E0303", "E0304", "E0305", "E0306", "E0401", "E0402", "E0403", "E0404", "E0405", "E0406"}

INSIDE = {
    ("qk_norm_rope_kv", change)
    for change in (
        "load18-axis1+1",  # the next heads of the row, which are values at the last key
        "load19-axis1+1",
        "load18-axis2+1",  # the other half of the head
        "load9-axis1+1",  # the sines
        "load28-axis0+1",  # the other half of the weight
        "load30-axis0+1",
        "store15-axis2+1",  # both halves of a key to one index, of a tensor that may be written twice
        "grid1-1",  # values are not stored to the cache
    )
} | {
    ("scaled_matvec_silu_mul", "load11-axis0+1"),  # the first rows of up after the last ones of gate
    ("scaled_matvec_silu_mul_rows", "load16-axis0+1"),
    ("scaled_matvec_silu_mul_fp8", "load16-axis0+1"),
    ("scaled_matvec_silu_mul_rows_fp8", "load11-axis0+1"),  # the scales of the first rows of up after those of gate
    ("scaled_matvec_silu_mul_int4", "load17-axis1+1"),  # their scales
    ("scaled_matvec_silu_mul_int4", "load18-axis1+1"),  # their zero points
    ("scaled_matvec_silu_mul_int4", "load19-axis0+1"),
    ("decode_merge_kv_c8", "load10-axis1+1"),  # the sines
    ("decode_merge_kv_c8", "load12-axis0+1"),  # the other half of a weight
    ("decode_merge_kv_c8", "store20-axis3+1"),  # both halves of a key to one index
    ("decode_merge_kv_c8", "grid0-1"),  # keys and values are not stored to the cache
    *(
        ("qk_norm_rope_kv_c8", change)
        for change in (
            "load11-axis1+1",
            "load23-axis1+1",
            "load23-axis2+1",
            "load24-axis1+1",
            "load37-axis0+1",
            "load39-axis0+1",
            "store18-axis2+1",
            "grid1-1",
        )
    ),
    ("rotary_decode_attention_c8", "load10-axis1+1"),
    ("rotary_decode_attention_c8", "load12-axis0+1"),
    ("rotary_decode_attention_c8", "load14-axis0+1"),
    *(
        ("rotary_decode_attention_kv_c8", change)
        for change in ("load9-axis1+1", "load11-axis0+1", "load13-axis0+1", "store45-axis3+1")
    ),
    ("rope_merge_kv_c8", "grid0-1"),
    ("rope_merge_kv", "grid0-1"),
    ("scaled_matvec_silu_mul_int4", "load18-axis1+1"),  # numbers of up after the last ones of gate
    ("scaled_matvec_silu_mul_rows_fp8", "load13-axis0+1"),
    ("rope_decode_attention_c8", "load10-axis1+1"),
    ("rope_decode_attention_kv_c8", "load9-axis1+1"),
    ("rope_decode_attention_kv_c8", "store39-axis3+1"),
    *(
        ("rope_kv_c8", change)
        for change in ("load11-axis1+1", "load23-axis1+1", "load23-axis2+1", "load24-axis1+1", "store18-axis2+1", "grid1-1")
    ),
    ("rope_merge_kv_c8", "load10-axis1+1"),
    ("rope_merge_kv_c8", "store17-axis3+1"),
    ("matmul_silu_mul_few_fp8", "load17-axis0+1"),  # the scales of the first rows of up after those of gate
    ("matmul_silu_mul_few_int4", "load19-axis1+1"),  # zero points of up after the last ones of gate
    ("scaled_matvec_silu_mul_rows_int4", "load17-axis1+1"),
    ("scaled_matvec_silu_mul_rows_int4", "load18-axis1+1"),
    ("scaled_matvec_silu_mul_rows_int4", "load19-axis0+1"),
    ("rotary_decode_attention", "load12-axis0+1"),  # the other half of a weight
    ("rotary_decode_attention", "load14-axis0+1"),
    ("rotary_decode_attention_kv", "load9-axis1+1"),  # the sines
    ("rotary_decode_attention_kv", "store62-axis3+1"),  # both halves of a key to one index
    ("rotary_decode_attention_kv", "load11-axis0+1"),
    ("rotary_decode_attention_kv", "load13-axis0+1"),
    ("decode_merge_kv", "load12-axis0+1"),
    ("rotary_decode_attention", "load10-axis1+1"),  # the sines
    ("decode_merge_kv", "load10-axis1+1"),
    ("decode_merge_kv", "store20-axis3+1"),  # both halves of a key to one index
    ("decode_merge_kv", "grid0-1"),  # keys and values are not stored to the cache
    ("rope_kv", "load18-axis1+1"),  # the next heads of the row, which are values at the last key
    ("rope_kv", "load19-axis1+1"),
    ("rope_kv", "load18-axis2+1"),  # the other half of the head
    ("rope_kv", "store15-axis2+1"),  # both halves of a key to one index
    ("rope_kv", "grid1-1"),  # values are not stored to the cache
    ("rope_decode_attention_kv", "store39-axis3+1"),  # both halves of a key to one index
    ("rope_merge_kv", "store17-axis3+1"),
    ("rope_decode_attention", "load10-axis1+1"),  # the sines
    ("rope_decode_attention_kv", "load9-axis1+1"),
    ("rope_merge_kv", "load10-axis1+1"),
    ("add_rms_norm_splits", "load2-axis0+1"),  # another split than the first
    ("add_rms_norm_splits", "loop0-start-1"),  # the first split twice
    ("matvec_argmax", "loop0-start-1"),  # rows before the weight and after it are read as zeros
    ("matvec_argmax", "loop0-stop+1"),
    ("paged_decode_attention_c8", "loop1-stop+1"),  # a page after those of the chunk, which no tile takes
}
"""Mutants that compute something else, but access only what their block may access, so they are safe."""

UNDECIDED = {(name, "grid0+1") for name in ("matmul_few", "matmul_silu_mul_few", "matmul_split")} | {
    ("paged_decode_attention", "loop0-start+1"),
    ("paged_decode_attention", "loop0-stop+1"),
    ("all_reduce", "loop0-start-1"),
}
"""Mutants for which the prover finds neither a proof nor a counterexample: an additional block stores nothing, and a loop that
begins or ends one unit later may end at the largest i32; of `all_reduce`, a loop that adds one part more writes the same
elements."""


@dataclass(frozen=True)
class Mutant:
    """A shipped kernel with `made` in place of `target`, a number. `must`: it is unsafe, so it must be refused."""

    kernel: str
    what: str
    tree: ast.Module
    target: ast.expr
    made: ast.expr
    must: bool

    @property
    def text(self) -> str:
        """The whole file; computed on demand, since two of three mutants are only listed for sampling."""
        return text_with(self.tree, self.target, self.made)

    def __str__(self) -> str:
        return f"{self.kernel}-{self.what}"


Constants = dict[str, int | float | bool | str]


def specialisations() -> dict[str, list[Constants]]:
    """Specialisations of each kernel that the build file lists: the first of every entry, and the last value of each constant
    combined with the first ones of the others, so that both sides of a branch on a constant are tested."""
    entries = tomllib.loads((ROOT / "build.toml").read_text(encoding="utf-8"))["kernel"]
    found: dict[str, list[Constants]] = {}
    for entry in entries:
        lists = {name: v if isinstance(v, list) else [v] for name, v in entry.get("constants", {}).items()}
        first: Constants = {name: values[0] for name, values in lists.items()}
        mine = found.setdefault(entry["name"], [])
        for constants in (first, *(first | {name: values[-1]} for name, values in lists.items() if name != "E")):
            if constants not in mine:
                mine.append(constants)
    return found


def mutants(path: Path) -> Iterator[Mutant]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kernel = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and is_kernel(n))
    loops = [(n, n.iter) for n in ast.walk(kernel) if isinstance(n, ast.For) and not isinstance(n.iter, ast.Tuple)]
    for number, (loop, over) in enumerate(loops):
        assert isinstance(over, ast.Call)
        stop = len(over.args) - 1 if len(over.args) < 3 else 1
        for position, change in itertools.product({0, stop} if stop else {stop}, (1, -1)):
            inward = (change < 0) == (position == stop)
            writes = _writes_out(kernel, loop.body)
            must = writes if inward else not _clipped(loop.body)
            end = "stop" if position == stop else "start"
            yield _mutant(path, tree, over.args[position], change, _step(over), f"loop{number}-{end}{change:+d}", must)
    yield from _index_mutants(path, tree, kernel)
    for node in ast.walk(kernel):
        if isinstance(node, ast.Call) and word(node.func) == "grid":
            for axis, extent in enumerate(node.args):
                must = any(_kind(parameter) == "Out" for parameter in kernel.args.args)
                yield _mutant(path, tree, extent, -1, "1", f"grid{axis}-1", must)
                yield _mutant(path, tree, extent, 1, "1", f"grid{axis}+1", not _clipped(kernel.body, ("store", "scatter")))


def _index_mutants(path: Path, tree: ast.Module, kernel: ast.FunctionDef) -> Iterator[Mutant]:
    """Moves every index of an access by one; must be refused unless masked, and for a store to an `Out` in any case."""
    for number, call in enumerate(_calls(kernel.body)):
        if word(call.func) in ("load", "store") and len(call.args) > 1:
            where = call.args[1]
            must = _writes_out(kernel, [ast.Expr(call)]) or not _clipped([ast.Expr(call)])
            for axis, index in enumerate(where.elts if isinstance(where, ast.Tuple) else [where]):
                yield _mutant(path, tree, index, 1, "1", f"{word(call.func)}{number}-axis{axis}+1", must)


def _step(loop: ast.Call) -> str:
    """One iteration further: a bound that moves by less than the step may leave the iterations unchanged."""
    return ast.unparse(loop.args[2]) if len(loop.args) == 3 else "1"


def _mutant(path: Path, tree: ast.Module, target: ast.expr, change: int, by: str, what: str, must: bool) -> Mutant:
    made = ast.BinOp(target, ast.Add() if change > 0 else ast.Sub(), ast.parse(by, mode="eval").body)
    must = must and (path.stem, what) not in INSIDE
    return Mutant(path.stem, what, tree, target, made, must)


def _kind(parameter: ast.arg) -> str:
    note = parameter.annotation
    return word(note.value) if isinstance(note, ast.Subscript) else ""


def _calls(body: list[ast.stmt]) -> Iterator[ast.Call]:
    for statement in body:
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and word(node.func):
                yield node


def _writes_out(kernel: ast.FunctionDef, body: list[ast.stmt]) -> bool:
    outs = {parameter.arg for parameter in kernel.args.args if _kind(parameter) == "Out"}
    stores = [call for call in _calls(body) if word(call.func) in ("store", "scatter")]
    return any(isinstance(call.args[0], ast.Name) and call.args[0].id in outs for call in stores)


def _clipped(body: list[ast.stmt], words: tuple[str, ...] = ("load", "store", "gather", "scatter")) -> bool:
    accesses = [c for c in _calls(body) if word(c.func) in words]
    return all(any(keyword.arg in ("pad", "mask") for keyword in call.keywords) for call in accesses)


ALL = [mutant for path in sorted(SHIPPED.glob("*.py")) if "@tl.kernel" in path.read_text() for mutant in mutants(path)]


SAMPLE = sorted(ALL[::3], key=lambda mutant: mutant.kernel in shipped.LIKE)


def _refusals(mutant: Mutant, folder: Path) -> tuple[Diagnostic, ...]:
    """The errors of the first specialisation that refuses the mutant; empty if all accept it."""
    for path in SHIPPED.glob("*.py"):
        (folder / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    target = folder / f"{mutant.kernel}.py"
    target.write_text(mutant.text, encoding="utf-8")
    for constants in specialisations().get(mutant.kernel, [{}]):
        try:
            function = load_kernel(target, constants)
            assert _has_accesses(function)
            prove(function)
        except CompileError as error:
            return error.diagnostics
    return ()


def _has_accesses(function: Function) -> bool:
    written = {p.name for p in function.parameters if p.access not in (None, Access.IN)}
    return bool(written) and any(isinstance(op, ops.WriteOp) for op in _walk(function.body))


def _walk(block: Block) -> Iterator[object]:
    yield from block.walk()


def test_there_are_mutants() -> None:
    assert len(ALL) >= 20


OF_TEXT = {"E0203", "E0205", "E0116"}
"""Refusals that need no proof: an item that a tuple lacks, a dtype, and a grid of more blocks than have signals."""


def kind(mutant: Mutant) -> tuple[str, bool]:
    """The change without its numbers, and whether it must be refused."""
    return re.sub(r"\d+", "", mutant.what), mutant.must


@pytest.mark.parametrize("mutant", campaign.one_of_each(SAMPLE, kind, lambda one: shipped.form(one.kernel)), ids=str)
def test_off_by_one(mutant: Mutant, tmp_path: Path) -> None:
    refusals = _refusals(mutant, tmp_path)
    if mutant.must:
        assert refusals, mutant.text
    codes = {diagnostic.code for diagnostic in refusals}
    assert codes <= SAFETY | OF_TEXT, codes
    known = [d for d in refusals if d.code in SAFETY and d.code != "E0306"]
    if (mutant.kernel, mutant.what) in UNDECIDED:
        assert codes == {"E0306"}
    else:
        assert not refusals or OF_TEXT & codes or any(d.counterexample is not None for d in known), codes
