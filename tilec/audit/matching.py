"""Compares the obligations that the audit derived with those of a manifest: confirmed, unknown, refuted, missing.

The tile IR has no source locations, so obligations are paired by property and subject, in order: both sides list them in the
order of the text. If their numbers differ, every pair of that name gets the worst verdict of the name, and obligations that
the manifest lacks are missing. A divisor need not be positive unless the manifest claims it, because division is total; the
step of a loop must be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tilec.artifact.records import Obligation
from tilec.audit.findings import CONFIRMED, REFUTED, TRUSTED, UNKNOWN, Finding

_RANK = (CONFIRMED, TRUSTED, UNKNOWN, REFUTED)


@dataclass(frozen=True, slots=True)
class CheckedObligation:
    """One obligation of a manifest with the audit's verdict; without `location` and `rung`, one that the manifest lacks."""

    property: str
    subject: str
    location: str
    rung: str
    verdict: str
    reason: str = ""
    model: dict[str, int] = field(default_factory=dict[str, int])


def match(
    obligations: Iterable[Obligation], findings: Iterable[Finding]
) -> tuple[list[CheckedObligation], list[CheckedObligation]]:
    """The manifest's obligations in order, with verdicts, and the derived obligations that the manifest lacks."""
    derived: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        derived.setdefault((finding.property, finding.subject), []).append(finding)
    listed: dict[tuple[str, str], list[Obligation]] = {}
    in_order = list(obligations)
    for obligation in in_order:
        listed.setdefault((obligation.property, obligation.subject), []).append(obligation)
    verdicts = {key: _paired(len(of_name), derived.get(key, [])) for key, of_name in listed.items()}
    checked: list[CheckedObligation] = []
    for obligation in in_order:
        finding = verdicts[obligation.property, obligation.subject].pop(0)
        verdict, reason = finding.verdict, finding.reason
        if verdict == TRUSTED and obligation.rung != "unsafe":
            verdict, reason = UNKNOWN, "the manifest calls it proven, but it is inside an `unsafe` block"
        checked.append(
            CheckedObligation(
                obligation.property, obligation.subject, obligation.location, obligation.rung, verdict, reason, finding.model
            )
        )
    missing = [
        CheckedObligation(property, subject, "", "", finding.verdict, finding.reason, finding.model)
        for (property, subject), found in derived.items()
        for finding in found[len(listed.get((property, subject), ())) :]
        if property != "divisor" or not subject.startswith("divisor of")
    ]
    return checked, missing


def _paired(count: int, findings: list[Finding]) -> list[Finding]:
    if count == len(findings):
        return list(findings)
    if not findings:
        return [Finding("", "", UNKNOWN, "the audit derives no such obligation from the tile IR")] * count
    worst = max(findings, key=lambda finding: _RANK.index(finding.verdict))
    if count > len(findings) and worst.verdict == CONFIRMED:
        worst = Finding("", "", UNKNOWN, f"the audit derives {len(findings)} such obligations, the manifest has {count}")
    return [worst] * count
