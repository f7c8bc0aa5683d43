"""Proves one kernel: the `ladder` discharges each obligation; one that it cannot discharge is an error with a counterexample.

Order of work: translate index values (`index_terms`), check that some launch satisfies the contract (`contract`), describe
every access as statement instances (`accesses`), then prove arithmetic, claims of loops, bounds, races, coverage, order and
promises, each in its own file. All use one `Ladder` and report to one `Findings`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilec.artifact.records import LaunchCheck, Obligation, ValueCheck, ValuePromise, value_promise
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.ir.core import Function
from tilec.passes.prover.accesses import AccessSite, access_sites
from tilec.passes.prover.aliasing import launch_checks, no_alias_pairs, value_checks
from tilec.passes.prover.bounds import prove_bounds
from tilec.passes.prover.contract import prove_contract
from tilec.passes.prover.coverage import prove_coverage
from tilec.passes.prover.findings import Findings, NotProven
from tilec.passes.prover.index_terms import IndexTerms
from tilec.passes.prover.integer_sets import Solver
from tilec.passes.prover.ladder import Ladder
from tilec.passes.prover.loop_claims import prove_loop_claims
from tilec.passes.prover.order import prove_order
from tilec.passes.prover.promises import prove_promises
from tilec.passes.prover.races import prove_races, prove_written_once
from tilec.passes.prover.ranks import prove_meets
from tilec.passes.prover.takes import prove_takes
from tilec.passes.prover.terms import OutOfWork
from tilec.passes.prover.work import Work, out_of_work, too_deep
from tilec.passes.prover.wrap import prove_arithmetic

if TYPE_CHECKING:
    from tilec.passes.prover.index_graph import Graph


@dataclass(frozen=True, slots=True)
class Proofs:
    """A proven kernel: its obligations, and the launch checks that they depend on."""

    obligations: tuple[Obligation, ...]
    launch_checks: tuple[LaunchCheck, ...]
    value_checks: tuple[ValueCheck, ...]
    no_alias: tuple[tuple[str, str], ...]
    promises: tuple[ValuePromise, ...]
    _findings: Findings = field(repr=False)
    _sites: tuple[AccessSite, ...] = field(repr=False)

    def graph(self) -> Graph:
        """The dataflow graph."""
        from tilec.passes.prover.index_graph import index_graph  # imports networkx, which nothing else here needs

        return index_graph(self._findings, self._sites)


def prove(function: Function) -> Proofs:
    """Proofs of `function`. CompileError with every obligation that is not discharged, in source order; E0510 if the proofs
    exceed their budget, next to the launches that were found to go wrong until then; E0512 if the kernel is nested too
    deeply."""
    return _within_budget(function, only_proofs=False)


def prove_claims(claims: Function, kernel: Callable[[], Function]) -> Proofs:
    """Proofs of what a kernel claims (`tilec.ir.claims`), which hold for each of its dtypes. Raises CompileError as `prove`
    does, in the kernel's own dtypes if `kernel()` is refused too."""
    try:
        return _within_budget(claims, only_proofs=True)
    except (NotProven, CompileError):
        prove(kernel())
        return prove(claims)


def _within_budget(function: Function, *, only_proofs: bool) -> Proofs:
    """As `prove`; with `only_proofs`, NotProven instead of diagnostics of obligations."""
    work, reported = Work(), list[Diagnostic]()
    work.begin("what indices are computed from", None)
    try:
        return _prove(function, work, reported, only_proofs=only_proofs)
    except OutOfWork:
        go_wrong = [diagnostic for diagnostic in reported if diagnostic.counterexample is not None]
        raise CompileError(sorted((*go_wrong, out_of_work(function, work)), key=_source_order)) from None
    except (RecursionError, MemoryError):
        raise CompileError(too_deep(function, work)) from None


def _prove(function: Function, work: Work, reported: list[Diagnostic], *, only_proofs: bool) -> Proofs:
    index = IndexTerms(function)
    findings = Findings(index, Ladder(index, Solver(work=work)), diagnostics=reported, only_proofs=only_proofs)
    contradiction = prove_contract(index, findings.ladder.solver)
    if contradiction is not None:
        raise CompileError(contradiction)  # otherwise every property would be vacuously true
    sites = access_sites(index)
    prove_arithmetic(findings, sites)
    if any(diagnostic.code == "E0305" for diagnostic in findings.diagnostics):
        # All other proofs assume that divisors and steps are positive.
        raise CompileError(sorted(findings.diagnostics, key=_source_order))
    prove_loop_claims(findings)
    prove_bounds(findings, sites)
    prove_takes(findings)
    prove_races(findings, sites)
    prove_written_once(findings, sites)
    prove_coverage(findings, sites)
    prove_order(findings, sites)
    prove_meets(findings, sites)
    prove_promises(findings, sites)
    if findings.diagnostics:
        raise CompileError(sorted(findings.diagnostics, key=_source_order))
    return Proofs(
        tuple(findings.obligations),
        launch_checks(function),
        value_checks(function),
        no_alias_pairs(function),
        tuple(map(value_promise, function.promises)),
        findings,
        tuple(sites),
    )


def _source_order(diagnostic: Diagnostic) -> tuple[str, int, int]:
    if diagnostic.primary is None:
        return "", 0, 0
    span = diagnostic.primary.span
    return span.file, span.line, span.column
