"""The verdicts that a report needs, each computed once: artifacts go in, verdicts by kind come out.

Cached verdicts come from `verdicts`; the others are computed in several processes and cached as they arrive. Budgets are
counted in steps of the checkers, so verdicts do not depend on the load of the machine. An optional time limit ends the work
early; verdicts that are missing then state it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

from tilec.artifact.records import Manifest, to_json
from tilec.audit.cubins import Assembler
from tilec.audit.sources import ARGUMENTS, ASSEMBLY, EMULATION, KINDS, PROOF
from tilec.audit.tasks import CPU_SECONDS, MEMORY_MB, Task, Unit, key, run_unit, unfinished_result
from tilec.audit.verdicts import Verdicts
from tilec.runtime import BundledKernel
from tilec.workers.scheduler import Crashed, Report, run

LAUNCHES: Final = 5
SEEDS: Final = 2
DONE: Final = {PROOF: "proved", EMULATION: "emulated", ASSEMBLY: "assembled", ARGUMENTS: "looked at the arguments of"}

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """`jobs` processes, `kernels` by name (all if empty), `launches` per artifact and `seeds` per launch in the emulator (no
    emulation if 0). `time_limit`: seconds after which remaining verdicts are left open; None for no limit."""

    jobs: int = 1
    kernels: tuple[str, ...] = ()
    launches: int = LAUNCHES
    seeds: int = SEEDS
    time_limit: float | None = None


def texts_of(manifest: Manifest, texts: dict[str, bytes]) -> dict[str, bytes]:
    """The tile IR and the PTX of a manifest; empty if the bundle does not contain them."""
    return {name: texts.get(manifest.digests.get(name, ""), b"") for name in ("tir", "ptx")}


@dataclass(slots=True)
class Work:
    """`found` are verdicts by key, `keys` the key by artifact name and kind, `waiting` the units to run by key. `reused`
    and `checked` count by kind the cached and the new verdicts; `left` names the artifacts whose verdicts a time limit
    left open."""

    options: Options
    verdicts: Verdicts | None
    assembler: Assembler | None
    show: Show | None
    found: dict[str, Any] = field(default_factory=dict[str, Any])
    waiting: dict[str, Unit] = field(default_factory=dict[str, Unit])
    keys: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    reused: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    checked: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    left: dict[str, list[str]] = field(default_factory=lambda: {kind: [] for kind in KINDS})

    def add(self, kernel: BundledKernel, texts: dict[str, bytes]) -> None:
        """Adds all checks of an artifact."""
        own_texts, manifest, options = texts_of(kernel.manifest, texts), kernel.manifest, self.options
        assemble = self.assembler.assemble if self.assembler is not None else None
        tir, ptx = (own_texts[name].decode(errors="replace") for name in ("tir", "ptx"))
        task = Task(tir, ptx, to_json(manifest), options.launches, options.seeds, assemble)
        wanted: dict[str, dict[str, Any]] = {PROOF: {}, ARGUMENTS: {}} if tir else {}
        if tir and ptx and options.launches and options.seeds:
            wanted[EMULATION] = {"launches": options.launches, "seeds": options.seeds}
        if ptx and self.assembler is not None and assemble is not None:
            wanted[ASSEMBLY] = {"versions": self.assembler.versions}
        for kind, inputs in wanted.items():
            digest = key(kind, own_texts, manifest, **inputs)
            self.keys[kernel.name, kind] = digest
            if digest in self.found or digest in self.waiting:
                continue
            cached = self.verdicts.get(kind, digest) if self.verdicts is not None else None
            if cached is not None:
                self.found[digest] = cached
                self.reused[kind] += 1
            else:
                self.waiting[digest] = Unit(kind, task, kernel.name)

    def do(self, begin: float) -> None:
        """Computes every missing verdict, slowest kinds first."""
        order = sorted(self.waiting, key=lambda digest: KINDS.index(self.waiting[digest].kind))
        units = [self.waiting[digest] for digest in order]
        limit = self.options.time_limit
        deadline = math.inf if limit is None else begin + limit
        jobs = min(self.options.jobs, os.cpu_count() or 1)
        with closing(run(units, run_unit, jobs, ("tilec.audit.tasks",), deadline=deadline)) as events:
            for event in events:
                unit, digest = units[event.index], order[event.index]
                if isinstance(event, Report):
                    self._keep(unit, digest, event.message)
                elif isinstance(event, Crashed):
                    self.found[digest] = unfinished_result(unit.kind, _end(event))
        for unit, digest in zip(units, order, strict=True):
            if digest not in self.found:
                self.found[digest] = unfinished_result(unit.kind, f"stopped by --time-limit after {limit:g} s")
                self.left[unit.kind].append(unit.name)

    def _keep(self, unit: Unit, digest: str, verdict: Any) -> None:
        self.found[digest] = verdict
        self.checked[unit.kind] += 1
        if self.verdicts is not None:
            self.verdicts.keep(unit.kind, digest, verdict, unit.name)
        if self.show is not None:
            self.show(f"{DONE[unit.kind]} {unit.name}")

    def verdict_of(self, kernel: BundledKernel, kind: str) -> Any | None:
        """The verdict on an artifact; None if it was not requested."""
        return self.found.get(self.keys.get((kernel.name, kind), ""))


def _end(event: Crashed) -> str:
    """The reason why a unit has no verdict; exceeding a resource limit is not one."""
    death = event.death
    if death is None:
        return f"not checked: the checking process failed: {event.text.strip().splitlines()[-1][:200]}"
    if death.over == "memory":
        return f"not checked: it needs more than {MEMORY_MB} MiB of memory"
    if death.over:
        return f"not checked: it was not finished after {CPU_SECONDS:g} s of CPU time"
    return f"not checked: the checking process was {event.text}"
