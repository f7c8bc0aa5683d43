"""Checks every mutant of every shipped kernel: refused, or verified to be in bounds and race-free over all blocks.

Writes `mutations.json` and `mutations.md`, prints the table; exit code 1 if the interpreter refutes an accepted mutant.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any, Final

from ci.bench.front import Outcome, Unfinished, names
from ci.bench.markdown import grid, page
from ci.evidence import ROOT, read_registry
from ci.evidence.digests import Digests
from ci.evidence.verdicts import Budget, Verdict, Verdicts, key
from tests import shipped
from tests.mutation.generate import Mutant, mutants
from tests.mutation.shipped_kernels import ShippedKernels
from tests.mutation.verdict import Kernels, examine

OUTCOMES: Final = ("equivalent", "refused", "right", "safe", "unjudged", "false accept")


def checked(mutant: Mutant, kernels: Kernels, budget: Budget) -> dict[str, Any] | None:
    """The verdict as data; None if the budget is spent."""
    if budget.is_spent():
        return None
    verdict = examine(mutant, kernels)
    return {
        "kernel": mutant.kernel, "kind": mutant.kind, "what": mutant.what, "outcome": verdict.outcome,
        "codes": list(verdict.codes), "counterexample": verdict.counterexample, "problems": verdict.problems[:3],
    }  # fmt: skip


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--only", type=names, default=None, metavar="KERNELS", help="only these; no files are written")


def measure(options: argparse.Namespace) -> Outcome:
    """Check all mutants; status 1 if the interpreter refutes an accepted one."""
    return examined("mutations.md", "Mutants of the shipped kernels", shipped.NAMES, ShippedKernels(), options)


def examined(
    name: str, title: str, every: Sequence[str], kernels: Kernels, options: argparse.Namespace, one_in: int = 1
) -> Outcome:
    """The verdicts on mutants of kernels, of each kernel the first and every `one_in`-th after it, with the page `name`. Those
    that are stored are not checked again."""
    chosen = [kernel for kernel in every if options.only is None or kernel in options.only]
    todo = [mutant for kernel in chosen for mutant in list(mutants(kernels.folder / f"{kernel}.py"))[::one_in]]
    case = name.removesuffix(".md")
    entry = read_registry().get(case)
    basis = key(*sorted(Digests(ROOT).all_of(entry.rests_on).items())) if entry else ""  # of a result alone they are stored
    verdicts, budget = Verdicts(case, options.out / "verdicts"), Budget(options.budget)
    records = {mutant: found.detail for mutant in todo if (found := verdicts.find(_case(mutant), basis))}
    new = [mutant for mutant in todo if mutant not in records]
    with ProcessPoolExecutor(options.jobs) as pool:
        waiting = {pool.submit(checked, mutant, kernels, budget): mutant for mutant in new}
        for future in as_completed(waiting):
            if (record := future.result()) is not None:
                records[waiting[future]] = record
                if basis:
                    verdicts.add(_case(waiting[future]), [basis], Verdict(record["outcome"].replace(" ", "_"), record))
    if len(records) < len(todo):
        raise Unfinished(f"{len(records)} of {len(todo)} mutants checked")
    ordered = [records[mutant] for mutant in todo]
    wrong = [record for record in ordered if record["outcome"] == "false accept"]
    for record in wrong:
        print("FALSE ACCEPT", record)
    if basis and options.only is None:
        verdicts.close([_case(mutant) for mutant in todo])
    return Outcome(ordered if options.only is None else None, {name: table(title, ordered)}, int(bool(wrong)))


def _case(mutant: Mutant) -> str:
    return f"{mutant.kernel}:{mutant.number}"


def table(title: str, records: list[dict[str, Any]]) -> str:
    """The table of results."""
    lines = [
        f"# {title}", "",
        f"{len(records)} mutants. Equivalent: the same tile IR. Right and safe: accepted, and run over all blocks of launches",
        "that reach past edges, in bounds and race-free; right ones compute the reference.",
    ]  # fmt: skip
    for heading, column in (("kernel", "kernel"), ("mistake", "kind")):
        outcomes = Counter((record[column], record["outcome"]) for record in records)
        values = Counter(record[column] for record in records)
        rows = [(value, count, *(outcomes[value, name] for name in OUTCOMES)) for value, count in values.items()]
        lines += ["", *grid([heading, "mutants", *OUTCOMES], rows)]
    refused = [record for record in records if record["outcome"] == "refused"]
    shown = sum(record["counterexample"] for record in refused)
    codes = Counter(" ".join(record["codes"]) for record in refused)
    without = Counter(" ".join(record["codes"]) for record in refused if not record["counterexample"])
    lines += ["", f"Of {len(refused)} refused, {shown} come with a counterexample. The others, by code:", ""]
    lines += [*grid(["codes", "mutants"], without.most_common()), ""]
    lines += grid(["codes of all refused", "mutants"], codes.most_common(12))
    return page(lines)
