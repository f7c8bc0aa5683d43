"""The units of work of an audit, as functions of plain data, so that processes can share them and results can be remembered.

`prove_task` depends on the tile IR and on the contract part of the manifest alone, `emulate_task` on those and the PTX. Both
name what they depend on by a digest (`proof_key`, `emulation_key`), so that the three architectures share their proofs.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

from tilec import progress
from tilec.artifact import Manifest, to_json
from tilec.audit.contract import contract_of, disagreements
from tilec.audit.emulation import emulated
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN, Finding
from tilec.audit.prove import prove_function, satisfiable
from tilec.audit.smt import Budget
from tilec.bundle_format import canonical
from tilec.ir.core import VerifyError
from tilec.ir.parser import ParseError, parse_function
from tilec.manifest_reader import manifest_from_json
from tilec.progress import Limits

CONTRACT_FIELDS: Final = (
    "kernel", "constants", "tensors", "scalars", "grid", "launch_checks", "value_checks", "no_alias", "abi",
)  # fmt: skip
LAUNCH_FIELDS: Final = (*CONTRACT_FIELDS, "entry", "block", "cluster", "dependent_launch", "resources")


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel to look at: `tir` and `ptx` texts, the manifest as JSON data, `deadline` in seconds of `time.monotonic`."""

    tir: str
    ptx: str
    manifest: Any
    deadline: float
    launches: int = 0
    seeds: int = 0


PROOF: Final = "proof"
EMULATION: Final = "emulation"
MEMORY_MB: Final = 8192
"""What one task may take more than its process did before."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A task with its kind, PROOF or EMULATION, and the name of the artifact it is for."""

    kind: str
    task: Task
    name: str


def run_unit(unit: Unit, emit: Callable[[Any], None]) -> None:
    """What a worker does with a unit: emit the result of `prove_task` or `emulate_task`."""
    left = max(unit.task.deadline - time.monotonic(), 1.0)
    with progress.stage(f"the {unit.kind} of {unit.name}", Limits(2 * left, MEMORY_MB)):
        found = prove_task(unit.task) if unit.kind == PROOF else emulate_task(unit.task)
    emit(found)


def unanswered(kind: str, reason: str) -> Any:
    """The result of a task that gave none."""
    if kind == PROOF:
        return [asdict(Finding("contract", "it can be proven", UNKNOWN, reason))]
    return {"status": "unknown", "reason": reason, "launches": []}


def proof_key(tir: bytes, manifest: Manifest) -> str:
    """The digest of all that a proof depends on."""
    data = [to_json(getattr(manifest, name)) for name in CONTRACT_FIELDS]
    return hashlib.sha256(b"proof" + hashlib.sha256(tir).digest() + canonical(_finite(data))).hexdigest()


def emulation_key(tir: bytes, ptx: bytes, manifest: Manifest, launches: int, seeds: int) -> str:
    """The digest of all that an emulation depends on."""
    data = [to_json(getattr(manifest, name)) for name in LAUNCH_FIELDS]
    texts = hashlib.sha256(tir).digest() + hashlib.sha256(ptx).digest()
    return hashlib.sha256(b"emulation" + texts + canonical([_finite(data), launches, seeds])).hexdigest()


def _finite(data: Any) -> Any:
    """The data with floats as text, so that infinities have a canonical form too."""
    if isinstance(data, float):
        return data.hex()
    if isinstance(data, dict):
        items: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
        return {key: _finite(value) for key, value in items.items()}
    if isinstance(data, list):
        return [_finite(item) for item in data]  # pyright: ignore[reportUnknownVariableType]
    return data


def prove_task(task: Task) -> list[dict[str, Any]]:
    """Findings as data: first those about the contract (`property` is contract), then the obligations."""
    manifest = manifest_from_json(task.manifest)
    budget = Budget(task.deadline)
    try:
        function = parse_function(task.tir)
        wrong = [Finding("contract", "it describes the kernel", REFUTED, text) for text in disagreements(manifest, function)]
        found = wrong or [Finding("contract", "it describes the kernel", CONFIRMED)]
        contract = contract_of(manifest, function)
        if not wrong:
            found += [*satisfiable(function, contract, budget), *prove_function(function, contract, budget)]
    except (ParseError, VerifyError) as error:
        found = [Finding("contract", "its tile IR is well-formed", REFUTED, str(error)[:300])]
    except RecursionError:
        found = [Finding("contract", "it can be proven", UNKNOWN, "the kernel is nested too deep for the audit")]
    return [asdict(finding) for finding in found]


def emulate_task(task: Task) -> dict[str, Any]:
    """The result of `emulated` as data."""
    manifest = manifest_from_json(task.manifest)
    try:
        function = parse_function(task.tir)
    except ParseError as error:
        return {"status": "unknown", "reason": str(error)[:300], "launches": []}
    return emulated(manifest, function, task.ptx, Budget(task.deadline), launches=task.launches, seeds=task.seeds)
