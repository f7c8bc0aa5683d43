"""Off-by-one errors in the shipped kernels: a third of the loop bounds, grid extents and unmasked indices.

The default run includes one of each kind and of each form of kernel. `ci/bench/judges.py mutations` checks all of them, and
more, with the prover and the interpreter.

A mutant that accesses memory it should not, or leaves part of an `Out` unwritten, must be refused, with a counterexample.
Reading one tile fewer is not a question of safety (the references of `tests/kernels` detect it), nor is a step past the end in
which every access is padded or masked; those mutants may be accepted. Of any other mutant that is accepted, the interpreter
must find that no block of its launches does harm: an index that is one further may still be inside, such as that of the next
head of a row.
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests import campaign, rank_launches, shipped
from tests.mutation.generate import is_kernel, text_with, word
from tests.mutation.shipped_kernels import AtEnds
from tests.mutation.verdict import Verdict, examine, problems_of
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.frontend import load_kernel
from tilec.interpreter import InterpreterError, run_ranks
from tilec.ir import ops
from tilec.ir.core import Access, Block, Function
from tilec.passes.prover import prove

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "kernels_src"
SAFETY = {"E0301", "E0302", "E0303", "E0304", "E0305", "E0306", "E0401", "E0402", "E0403", "E0404", "E0405", "E0406"}

ONE_IN = 3
"""One of this many mutants is examined. Its own name decides, so that no other kernel changes the choice."""

UNDECIDED = {
    "all_gather-loop0-start-1",  # a tile that two iterations write, with the same elements
    "all_reduce-loop0-start-1",
    "paged_decode_attention-loop0-stop+1",  # of items that are read, a number that may be the largest i32
    "paged_decode_attention-load13-axis0+1",  # the row after one that a search in the items found, which may be the last
    "paged_decode_attention_wide-load13-axis0+1",
    "paged_decode_attention-load42-axis2+1",  # the slots after those of a tile, in a page that the table names
    "paged_decode_attention_c8-loop0-start+1",
    "paged_decode_attention_wide-loop0-start+1",
    "paged_decode_attention_wide-load41-axis0+1",  # the page after one that the table names, which may be the last
}
"""Drawn mutants that may be refused without a counterexample: the prover finds neither a proof nor a violation."""


@dataclass(frozen=True)
class Mutant:
    """A shipped kernel with `made` in place of `target`, a number. `must`: it is likely to be unsafe, so it must be refused, or
    be shown to do no harm."""

    kernel: str
    what: str
    tree: ast.Module
    target: ast.expr
    made: ast.expr
    must: bool

    @property
    def path(self) -> Path:
        """The file of the unchanged kernel."""
        return SHIPPED / f"{self.kernel}.py"

    @property
    def is_drawn(self) -> bool:
        """Whether it is examined."""
        return int.from_bytes(hashlib.sha256(str(self).encode()).digest()[:8], "big") % ONE_IN == 0

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


SAMPLE = sorted((mutant for mutant in ALL if mutant.is_drawn), key=lambda mutant: mutant.kernel in shipped.LIKE)


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


def _examined(mutant: Mutant, folder: Path) -> Verdict:
    """Of a mutant that every specialisation of the build file accepts: what the interpreter finds in its launches."""
    return _met(mutant, folder) if mutant.kernel in rank_launches.COLLECTIVES else examine(mutant, AtEnds())


def _met(mutant: Mutant, folder: Path) -> Verdict:
    """The same of a collective, in two ranks and in three: `right` if it leaves in each what the collective does."""
    for ranks in (2, 3):
        constants = rank_launches.constants(mutant.kernel, ranks)
        function = load_kernel(folder / f"{mutant.kernel}.py", constants)
        prove(function)
        given = rank_launches.arguments(function, ranks)
        truth = [rank_launches.expected(function, given, rank) for rank in range(ranks)]
        try:
            run_ranks(function, given.arrays, [{"rank": rank} for rank in range(ranks)])
        except InterpreterError as error:
            return Verdict("false accept", problems=[str(error)])
        for rank, name in itertools.product(range(ranks), truth[0]):
            found, wanted = (arrays[rank][name].astype(np.float64) for arrays in (given.arrays, truth))
            if not name.startswith("signals_") and not np.allclose(found, wanted, rtol=1e-6):
                return Verdict("unjudged", problems=[f"`{name}` of rank {rank} is not what the collective leaves"])
    return Verdict("right")


def _has_accesses(function: Function) -> bool:
    written = {p.name for p in function.parameters if p.access not in (None, Access.IN)}
    return bool(written) and any(isinstance(op, ops.WriteOp) for op in _walk(function.body))


def _walk(block: Block) -> Iterator[object]:
    yield from block.walk()


def test_there_are_mutants() -> None:
    assert len(ALL) >= 20 and len(SAMPLE) >= len(ALL) / (ONE_IN + 1)
    assert {str(mutant) for mutant in SAMPLE} >= UNDECIDED


def test_a_kernel_that_is_added_changes_no_choice() -> None:
    """The number of an access is in a mutant's name, so a changed kernel has other ones, but no other kernel has."""
    path = SHIPPED / "add.py"
    assert {mutant.what for mutant in mutants(path) if mutant.is_drawn} == {m.what for m in SAMPLE if m.kernel == "add"}
    assert {mutant.is_drawn for mutant in mutants(SHIPPED / "matvec.py")} == {True, False}


@pytest.mark.parametrize("kernel", ["add_rms_norm", "embedding", "add_rms_norm_splits", "decode_merge_kv"])
def test_the_interpreter_finds_harm_where_the_prover_does(kernel: str, tmp_path: Path) -> None:
    """What an accepted mutant must pass, no refused one would."""
    drawn = [mutant for mutant in SAMPLE if mutant.kernel == kernel and mutant.must]
    refused = [mutant for mutant in drawn if _refusals(mutant, tmp_path)]
    assert refused
    kernels = AtEnds()
    for mutant in refused:
        (tmp_path / f"{kernel}.py").write_text(mutant.text, encoding="utf-8")
        found: list[str] = []
        for number, constants in enumerate(kernels.specialisations(kernel)):
            unchanged = prove(load_kernel(mutant.path, constants, root=SHIPPED))
            function = load_kernel(tmp_path / f"{kernel}.py", constants, root=tmp_path)
            for launch in kernels.launches(function, unchanged, number):
                found += problems_of(function, launch) or []
        assert found, mutant.text


OF_TEXT = {"E0203", "E0205", "E0116"}
"""Refusals that need no proof: an item that a tuple lacks, a dtype, and a grid of more blocks than have signals."""


HARMLESS = {"equivalent", "right", "safe"}
"""Verdicts on accepted mutants that do no harm: the tile IR is unchanged, or every access of the launches is allowed."""


def kind(mutant: Mutant) -> tuple[str, bool]:
    """The change without its numbers, and whether it must be refused."""
    return re.sub(r"\d+", "", mutant.what), mutant.must


@pytest.mark.parametrize("mutant", campaign.one_of_each(SAMPLE, kind, lambda one: shipped.form(one.kernel)), ids=str)
def test_off_by_one(mutant: Mutant, tmp_path: Path) -> None:
    refusals = _refusals(mutant, tmp_path)
    codes = {diagnostic.code for diagnostic in refusals}
    if not refusals and mutant.must:
        verdict = _examined(mutant, tmp_path)
        assert verdict.outcome in HARMLESS, (verdict, mutant.text)
    elif str(mutant) in UNDECIDED:
        assert refusals and codes <= SAFETY, codes
    else:
        assert codes <= SAFETY | OF_TEXT, codes
        known = [d for d in refusals if d.code in SAFETY and d.code != "E0306"]
        assert not refusals or OF_TEXT & codes or any(d.counterexample is not None for d in known), codes
