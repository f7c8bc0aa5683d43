"""Derives every obligation of a kernel from its tile IR and proves it: a function and a contract go in, findings come out.

Proofs are in the order of their dependencies: arithmetic first, whose confirmed divisors and steps the others use, then claims
of loops, bounds, races, single writes, coverage, reads after writes and promises. A confirmation presupposes the confirmations
of the same kernel's arithmetic, and one of promises also those of its races. Invariants are known to all proofs if each of them
is confirmed, else to none. Two checks concern the contract itself: some launch satisfies it, and it describes the kernel.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilec.audit import smt
from tilec.audit.accesses import bounds, races, takes, written_once
from tilec.audit.arithmetic import arithmetic
from tilec.audit.contract import Contract, HostTerms
from tilec.audit.coverage import coverage, order
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN, Finding
from tilec.audit.loop_claims import INVARIANT, loop_claims
from tilec.audit.program import Program
from tilec.audit.promises import promises
from tilec.audit.smt import Budget
from tilec.ir.core import Function
from tilec.ir.ops import Invariant
from tilec.ir.verifier import verify

PROPERTIES = (arithmetic, loop_claims, bounds, takes, races, written_once, coverage, order, promises)


def prove_function(function: Function, contract: Contract, budget: Budget) -> list[Finding]:
    """Findings about every obligation, in the order of a manifest. Raises VerifyError if the IR is malformed."""
    smt.fresh()
    verify(function)
    claims = tuple(op for op in function.body.walk() if isinstance(op, Invariant))
    found = _findings(Program(function, contract, claims=claims), budget)
    if any(one.property == INVARIANT and one.verdict != CONFIRMED for one in found):
        known = [one for one in found if one.property == INVARIANT]
        others = _findings(Program(function, contract), budget)
        found = [*(one for one in others if one.property != INVARIANT), *known]
    return found


def _findings(program: Program, budget: Budget) -> list[Finding]:
    return [finding for part in PROPERTIES for finding in _each(part(program, budget), budget)]


def _each(findings: Iterator[Finding], budget: Budget) -> Iterator[Finding]:
    """The findings; each has the whole budget."""
    while True:
        budget.begin()
        found = next(findings, None)
        if found is None:
            return
        yield found


def satisfiable(function: Function, contract: Contract, budget: Budget) -> Iterator[Finding]:
    """Whether some launch satisfies the contract, and some contents satisfy the ranges of stored values (all ranges of one
    tensor together, with enough values for distinct ones). Otherwise proofs are vacuous."""
    smt.fresh()
    budget.begin()
    host = HostTerms(contract)
    facts = host.assumptions()
    for name, checks in contract.values.items():
        dims = [host.expression(dim) for dim in function.parameter(name).value.tensor.dims]
        filled, stored = smt.every(dim >= 1 for dim in dims), smt.unknown(f"{name}[0]")
        count = smt.integer(1)
        for dim in dims:
            count = smt.mul(count, dim)
        for check in checks:
            low, high = host.expression(check.low), host.expression(check.high)
            facts += [smt.implies(filled, smt.every([low <= stored, stored < high]))]
            facts += [smt.implies(filled, count <= smt.sub(high, low))] if check.distinct else []
            facts += [smt.implies(filled, dims[-1] <= smt.sub(high, low))] if check.distinct_in_rows else []
            facts += [smt.implies(smt.compare("eq", count, smt.integer(1)), smt.sub(high, low) == 1)] if check.ends else []
    result = smt.check([*facts, *host.facts, *host.definitions.facts], budget)
    subject = "some launch satisfies it"
    if result.verdict == "none":
        yield Finding("contract", subject, REFUTED, "the launch checks contradict each other")
    else:
        verdict = CONFIRMED if result.verdict == "found" else UNKNOWN
        yield Finding("contract", subject, verdict, result.reason)
