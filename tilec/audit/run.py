"""Audits a bundle: a file goes in, a report comes out. Every text is compared with the digest in its manifest."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from tilec.artifact.records import Manifest, Obligation
from tilec.audit import cubins
from tilec.audit.cubins import Assembler
from tilec.audit.findings import CONFIRMED, Finding
from tilec.audit.matching import CheckedObligation, match
from tilec.audit.report import FORMAT, TRUSTS, Record, summary, tools
from tilec.audit.sources import ARGUMENTS, ASSEMBLY, EMULATION, PROOF
from tilec.audit.verdicts import Verdicts
from tilec.audit.work import Options, Show, Work, texts_of
from tilec.runtime import Bundle, BundledKernel


def audit(
    bundle: Bundle, options: Options, verdicts: Verdicts | None = None, assembler: Assembler | None = None,
    show: Show | None = None,
) -> Record:  # fmt: skip
    """The report on an open bundle. `verdicts` are cached ones, if any; without an `assembler` CUBINs are not checked. Raises
    BundleError if texts of the bundle are damaged."""
    begin = time.monotonic()
    texts = bundle.texts()
    chosen = [
        kernel
        for kernel in bundle.kernels
        if not options.kernels or {kernel.name, kernel.manifest.kernel} & set(options.kernels)
    ]
    work = Work(options, verdicts, assembler, show)
    for kernel in chosen:
        work.add(kernel, texts)
    work.do(begin)
    artifacts = [_artifact(bundle, kernel, texts, options, work) for kernel in chosen]
    limits = {"launches": options.launches, "seeds": options.seeds, "kernels": list(options.kernels)}
    return {
        "format": FORMAT,
        "bundle": {"sha256": bundle.digest, "model": bundle.model, "arch": bundle.arch, "bytes": bundle.size},
        "tools": tools(assembler),
        "trusts": list(TRUSTS),
        "limits": limits | {"cubins": assembler is not None},
        "artifacts": artifacts,
        "summary": summary(artifacts),
        "run": {
            "milliseconds": round(1000 * (time.monotonic() - begin)),
            "reused": work.reused,
            "judged": work.checked,
            "not_judged": work.left,
        },
    }


def _artifact(bundle: Bundle, kernel: BundledKernel, texts: dict[str, bytes], options: Options, work: Work) -> Record:
    manifest = kernel.manifest
    mine, cubin = texts_of(manifest, texts), bundle.cubin(kernel)
    findings = [Finding(**data) for data in work.verdict_of(kernel, PROOF) or ()]
    contract = [finding for finding in findings if finding.property == "contract"]
    arguments = work.verdict_of(kernel, ARGUMENTS)
    if arguments is not None:
        subject = "its arguments and tensor maps are those of the tile IR and the PTX"
        contract.append(Finding("contract", subject, arguments["status"], arguments["reason"]))
    proofs = [finding for finding in findings if finding.property != "contract"]
    checked, missing = match(manifest.obligations, proofs)
    untried = next((f.reason for f in contract if f.verdict != CONFIRMED), "" if mine["tir"] else "the bundle lacks its tir")
    untried = "" if proofs else untried
    emulation = {"status": "skipped", "reason": "", "launches": list[Any]()}
    if options.launches and options.seeds:
        none = {"status": "unknown", "reason": "the bundle lacks its texts", "launches": list[Any]()}
        emulation = work.verdict_of(kernel, EMULATION) or none
    return {
        "name": kernel.name,
        "digests": {name: manifest.digests.get(name, "") for name in ("tir", "ptx", "cubin")},
        "digests_differ": _differing(manifest, mine["tir"], mine["ptx"], cubin),
        "contract": [_contract_record(Obligation("contract", f.subject, "", ""), f) for f in contract],
        "obligations": [_obligation_record(item, untried) for item in checked],
        "missing": [_obligation_record(item) for item in missing],
        "tensor_maps": len(manifest.tensor_maps),
        "emulation": emulation,
        "cubin": _cubin(kernel, work),
    }


def _cubin(kernel: BundledKernel, work: Work) -> dict[str, str]:
    """Whether the CUBIN is the assembler's output for its PTX."""
    if work.assembler is None:
        return {"status": cubins.SKIPPED, "reason": ""}
    found = work.verdict_of(kernel, ASSEMBLY)
    if found is None:
        reason = work.assembler.missing or "the bundle lacks its PTX"
        return {"status": cubins.NOT_CHECKED, "reason": reason}
    return cubins.checked(found, kernel.manifest.digests, kernel.manifest.toolchain, work.assembler)


def _differing(manifest: Manifest, tir: bytes, ptx: bytes, cubin: bytes) -> list[str]:
    differences: list[str] = []
    for name, data in (("tir", tir), ("ptx", ptx), ("cubin", cubin)):
        if not data:
            differences.append(f"the bundle lacks its {name}")
        elif hashlib.sha256(data).hexdigest() != manifest.digests.get(name):
            differences.append(f"its {name} differs from its manifest")
    return differences


def _contract_record(obligation: Obligation, finding: Finding) -> Record:
    return {
        "property": obligation.property,
        "subject": obligation.subject,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "model": finding.model,
    }


def _obligation_record(item: CheckedObligation, untried: str = "") -> Record:
    """`untried`: the reason why no obligation of the kernel was tried."""
    return {
        "property": item.property,
        "subject": item.subject,
        "location": item.location,
        "rung": item.rung,
        "verdict": item.verdict,
        "reason": untried or item.reason,
        "model": item.model,
    }
