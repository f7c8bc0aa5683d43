"""Proves that a kernel reads what other ranks wrote only after all ranks have met.

The meet is one operation of the kernel's body, outside of loops and branches (`tilec.ir.ops.rank_ops`), so what comes later in
the text comes later in every block. Nothing in the kernel writes a `Peer` tensor: the front end has no word for it, and the
verifier refuses an operation that would. So within a launch each rank's part is read only; that nobody writes it until all
have read is a rule of the launches around (`engine.ranks.verify.verify_lasting`), as is that each rank has written it before.
"""

from __future__ import annotations

from tilec.diagnostics.diagnostic import Label
from tilec.ir.core import Access
from tilec.ir.ops import Meet
from tilec.passes.prover.accesses import AccessSite
from tilec.passes.prover.discharge import Discharge
from tilec.passes.prover.findings import Complaint, Findings


def prove_meets(findings: Findings, sites: list[AccessSite]) -> None:
    """One obligation per read of a `Peer` tensor: the block has met those of the other ranks before, or never executes it."""
    function, positions = findings.index.function, findings.index.structure.position
    met = next((op for op in function.body.ops if isinstance(op, Meet)), None)
    for site in sites:
        if site.parameter.access is not Access.PEER:
            continue
        findings.begin(f"that ranks have met before {site.subject}", site.location)
        if site.unsafe:
            findings.discharged("order", site.subject, site.op, Discharge("unsafe"))
        elif met is not None and positions[met] < site.position:
            findings.discharged("order", site.subject, site.op, Discharge("static"))
        else:
            found = findings.prove([*site.instance.holds], lambda site=site: _complaint(site, met))
            if found is not None:
                findings.discharged("order", site.subject, site.op, found)


def _complaint(site: AccessSite, met: Meet | None) -> Complaint:
    because = (Label(met.loc, "ranks meet here"),) if met is not None and met.loc is not None else ()
    return Complaint(
        "E0407",
        f"{site.subject} may read what its rank has not written yet",
        site.location,
        "no rank knows here whether another one has come",
        because,
        "call `meet(signals, rank)` before it",
        (site.instance,),
        site.name,
        tuple(axis.start for axis in site.instance.axes),
    )
