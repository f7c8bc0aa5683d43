"""Golden records of proofs and resources, and the check that a build is not worse than they are.

`proofs.json` has the rungs that discharged each obligation, and the launch conditions, per artifact; `resources.json` has
registers, spills, stack and shared memory per artifact and architecture. A change may move a proof to a stronger rung or save
resources. It fails with a weaker rung, a new launch check, trust, spills, stack, or more registers after rounding up to a
multiple of eight: a multiprocessor allocates registers to a warp in units of 256, eight per thread. Shared memory is only
recorded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tilec.artifact.records import Manifest
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.ship.bundle.compare import (
    Change,
    contract_of,
    proof_changes,
    proofs_of,
    resource_changes,
    resources_of,
    text_changes,
)
from tilec.untrusted.output import Output

REGISTER_UNIT: Final = 8
PROOFS, RESOURCES = "proofs.json", "resources.json"
CONTRACT: Final = "launch contract"
MAX_GOLDEN: Final = 64 << 20
"""Maximum bytes of a golden file; ours have less than 100,000."""


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a build: `proofs` and `contract` by artifact, `resources` by artifact and architecture."""

    proofs: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])
    contract: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    resources: dict[str, dict[str, dict[str, int]]] = field(default_factory=dict[str, dict[str, dict[str, int]]])

    def add(self, name: str, manifest: Manifest) -> None:
        """Add one artifact."""
        self.proofs[name] = proofs_of(manifest)
        self.contract[name] = contract_of(manifest)
        self.resources.setdefault(name, {})[manifest.arch] = resources_of(manifest)


def first_specialisations(build: BuildFile) -> tuple[KernelEntry, ...]:
    """Every entry with only the first value of each constant."""
    return tuple(
        replace(entry, constants={name: values[:1] for name, values in entry.constants.items()}) for entry in build.entries
    )


def write(output: Output, record: Record) -> None:
    """Write the golden files; CompileError E0702 if that fails."""
    proofs: dict[str, dict[str, Any]] = {
        name: {key: " ".join(rungs) for key, rungs in found.items()} | {CONTRACT: record.contract[name]}
        for name, found in record.proofs.items()
    }
    for name, data in ((PROOFS, proofs), (RESOURCES, record.resources)):
        output.write(name, _text(data).encode())


def _text(data: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON with one line per fact, so that a diff shows one line per change."""
    blocks: list[str] = []
    for name in sorted(data):
        lines = [f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in data[name].items()]
        blocks.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def read(golden: Output) -> Record:
    """Read the golden files; CompileError E0708 if one is missing or not in the format of `write`."""
    try:
        proofs: dict[str, dict[str, Any]] = json.loads(golden.read(PROOFS, MAX_GOLDEN))
        resources: dict[str, dict[str, dict[str, int]]] = json.loads(golden.read(RESOURCES, MAX_GOLDEN))
        record = Record(resources=resources)
        for name, found in proofs.items():
            record.contract[name] = list(found[CONTRACT])
            record.proofs[name] = {key: rungs.split() for key, rungs in found.items() if key != CONTRACT}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else f"{type(error).__name__} {error}"
        hint = "write them with `tilec ratchet --update`"
        message = f"the golden files in `{golden.folder}` cannot be read: {reason}"
        raise CompileError(Diagnostic("E0708", message, hint=hint)) from None
    return record


def changes(golden: Record, now: Record) -> list[Change]:
    """Differences of the artifacts that both records have; `worse` marks those that the ratchet rejects."""
    found: list[Change] = []
    for name in sorted(golden.proofs.keys() & now.proofs.keys()):
        found.extend(proof_changes(name, golden.proofs[name], now.proofs[name]))
        found.extend(text_changes(name, "condition of launch", golden.contract[name], now.contract[name], worse=True))
        for arch, used in now.resources[name].items():
            before = golden.resources.get(name, {}).get(arch)
            if before is not None:
                found.extend(_resource_changes(f"{name} {arch}", before, used))
    return found


def _resource_changes(name: str, before: Mapping[str, int], used: Mapping[str, int]) -> Iterable[Change]:
    for change in resource_changes(name, before, used):
        key = next(key for key in before if change.text.startswith(f"{key} "))
        if key == "registers":
            worse = -(-used[key] // REGISTER_UNIT) > -(-before[key] // REGISTER_UNIT)
        else:
            worse = change.worse and key != "shared bytes"
        yield replace(change, worse=worse)


def unheld(golden: Record, now: Record) -> list[str]:
    """Kernels without any artifact in the golden files, which the ratchet therefore does not cover."""
    recorded = {name.split("-")[0] for name in golden.proofs.keys() & now.proofs.keys()}
    return sorted({name.split("-")[0] for name in now.proofs} - recorded)


def verdict(golden: Record, now: Record) -> list[Diagnostic]:
    """One diagnostic E0708 per artifact that got worse, and one for kernels that the ratchet does not cover."""
    worse: dict[str, list[str]] = {}
    for change in changes(golden, now):
        if change.worse:
            worse.setdefault(change.name, []).append(change.text)
    hint = "undo the change, or accept it with `tilec ratchet --update` and commit the golden files with it"
    found = [
        Diagnostic("E0708", f"`{name}` is worse than its golden record", notes=tuple(lines), hint=hint)
        for name, lines in worse.items()
    ]
    missing = unheld(golden, now)
    if missing:
        message = f"no artifact of {', '.join(f'`{name}`' for name in missing)} is in the golden files"
        found.append(Diagnostic("E0708", message, hint="run `tilec ratchet --update` and commit the golden files"))
    return found
