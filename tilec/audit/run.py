"""Audit a bundle: a file goes in, a report comes out.

Every text is compared with the digest that its manifest gives. Proofs and emulations are run once for equal inputs, over
several processes, within one time limit, and may be remembered across bundles. `rebuild` assembles PTX to a CUBIN.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from tilec.artifact import Manifest, Obligation, to_json
from tilec.audit.findings import Finding
from tilec.audit.matching import Judged, match
from tilec.audit.report import FORMAT, TRUSTS, Record, summary, tools
from tilec.audit.tasks import EMULATION, PROOF, Task, Unit, emulation_key, proof_key, run_unit, unanswered
from tilec.runtime import Bundle, BundledKernel
from tilec.workers.scheduler import Crashed, Report, run

TIME_LIMIT: Final = 600.0
GRACE: Final = 30.0
"""Seconds past the time limit that a task has to notice it."""
LAUNCHES: Final = 5
SEEDS: Final = 2

Memo = dict[str, Any]
Rebuild = Callable[[str, str], bytes]
"""PTX and architecture to the CUBIN that they give."""
Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`time_limit` seconds in all, `jobs` processes, `kernels` by name (all where empty), `launches` per artifact and `seeds`
    per launch in the emulator (no emulation where 0)."""

    time_limit: float = TIME_LIMIT
    jobs: int = 1
    kernels: tuple[str, ...] = ()
    launches: int = LAUNCHES
    seeds: int = SEEDS


def audit(
    bundle: Bundle, options: Options, memo: Memo | None = None, rebuild: Rebuild | None = None, show: Show | None = None
) -> Record:  # fmt: skip
    """The report on a bundle that is open. BundleError where its texts are damaged."""
    texts = bundle.texts()
    chosen = [one for one in bundle.kernels if not options.kernels or {one.name, one.manifest.kernel} & set(options.kernels)]
    known: Memo = memo if memo is not None else {}
    _work(chosen, texts, options, known, show)
    artifacts = [_artifact(bundle, one, texts, options, known, rebuild) for one in chosen]
    return {
        "format": FORMAT,
        "bundle": {"sha256": bundle.digest, "model": bundle.model, "arch": bundle.arch, "bytes": bundle.size},
        "tools": tools(),
        "trusts": list(TRUSTS),
        "limits": {"launches": options.launches, "seeds": options.seeds, "kernels": list(options.kernels)},
        "artifacts": artifacts,
        "summary": summary(artifacts),
    }


def _texts_of(manifest: Manifest, texts: dict[str, bytes]) -> tuple[bytes, bytes]:
    found = [texts.get(manifest.digests.get(name, ""), b"") for name in ("tir", "ptx")]
    return found[0], found[1]


def _work(
    kernels: Sequence[BundledKernel], texts: dict[str, bytes], options: Options, known: Memo, show: Show | None
) -> None:  # fmt: skip
    """Fill `known` with every proof and emulation that is not there yet, longest-running kinds first."""
    deadline = time.monotonic() + options.time_limit
    waiting: dict[str, tuple[str, Task, str]] = {}
    for one in kernels:
        tir, ptx = _texts_of(one.manifest, texts)
        if not tir:
            continue
        task = Task(
            tir.decode(errors="replace"),
            ptx.decode(errors="replace"),
            to_json(one.manifest),
            deadline,
            options.launches,
            options.seeds,
        )
        waiting.setdefault(proof_key(tir, one.manifest), (PROOF, task, one.name))
        if ptx and options.launches and options.seeds:
            key = emulation_key(tir, ptx, one.manifest, options.launches, options.seeds)
            waiting.setdefault(key, (EMULATION, task, one.name))
    todo = {key: item for key, item in waiting.items() if key not in known}
    keys = list(todo)
    units = [Unit(kind, task, label) for kind, task, label in todo.values()]
    jobs = min(options.jobs, os.cpu_count() or 1)
    # Tasks end themselves at the deadline; what does not look at the clock any more is killed a little later.
    with closing(run(units, run_unit, jobs, ("tilec.audit.tasks",), deadline=deadline + GRACE)) as events:
        for event in events:
            unit = units[event.index]
            if isinstance(event, Report):
                known[keys[event.index]] = event.message
                if show is not None:
                    show(("proved " if unit.kind == PROOF else "emulated ") + unit.name)
            elif isinstance(event, Crashed):
                known[keys[event.index]] = unanswered(unit.kind, f"the process that looked at it was {_end(event)}")
    for key, unit in zip(keys, units, strict=True):
        if key not in known:
            known[key] = unanswered(unit.kind, "the time limit was reached")


def _end(event: Crashed) -> str:
    death = event.death
    if death is not None and death.over:
        return f"ended by its budget of {'memory' if death.over == 'memory' else 'time'}"
    return event.text if death is not None else f"at fault: {event.text.strip().splitlines()[-1][:200]}"


def _artifact(
    bundle: Bundle, one: BundledKernel, texts: dict[str, bytes], options: Options, known: Memo, rebuild: Rebuild | None
) -> Record:  # fmt: skip
    manifest = one.manifest
    tir, ptx = _texts_of(manifest, texts)
    cubin = bundle.cubin(one)
    findings = [Finding(**data) for data in known.get(proof_key(tir, manifest), ())]
    contract = [finding for finding in findings if finding.property == "contract"]
    judged, missing = match(manifest.obligations, [finding for finding in findings if finding.property != "contract"])
    emulation = {"status": "skipped", "reason": "", "launches": list[Any]()}
    if options.launches and options.seeds:
        key = emulation_key(tir, ptx, manifest, options.launches, options.seeds)
        emulation = known.get(key, {"status": "unknown", "reason": "the bundle does not hold its PTX", "launches": []})
    rebuilt = "not assembled again"
    if rebuild is not None:
        rebuilt = "the same CUBIN" if rebuild(ptx.decode(errors="replace"), manifest.arch) == cubin else "another CUBIN"
    return {
        "name": one.name,
        "digests": {name: manifest.digests.get(name, "") for name in ("tir", "ptx", "cubin")},
        "digests_differ": _differing(manifest, tir, ptx, cubin),
        "contract": [_plain(Obligation("contract", f.subject, "", ""), f) for f in contract],
        "obligations": [_judged(item) for item in judged],
        "missing": [_judged(item) for item in missing],
        "emulation": emulation,
        "rebuilt": rebuilt,
    }


def _differing(manifest: Manifest, tir: bytes, ptx: bytes, cubin: bytes) -> list[str]:
    found: list[str] = []
    for name, data in (("tir", tir), ("ptx", ptx), ("cubin", cubin)):
        if not data:
            found.append(f"the bundle does not hold its {name}")
        elif hashlib.sha256(data).hexdigest() != manifest.digests.get(name):
            found.append(f"its {name} is not the one of its manifest")
    return found


def _plain(obligation: Obligation, finding: Finding) -> Record:
    return {
        "property": obligation.property,
        "subject": obligation.subject,
        "verdict": finding.verdict,
        "reason": finding.reason,
        "model": finding.model,
    }


def _judged(item: Judged) -> Record:
    return {
        "property": item.property,
        "subject": item.subject,
        "location": item.location,
        "rung": item.rung,
        "verdict": item.verdict,
        "reason": item.reason,
        "model": item.model,
    }
