"""The units of work of an audit, as functions of plain data, for worker processes and caching.

Each kind of verdict (`tilec.audit.sources`) depends on a part of an artifact only: a proof on the tile IR and the contract
part of the manifest, an emulation on those and the PTX, and so on. `key` is the digest of all of it, checkers included, so
artifacts for several architectures share their proofs. No unit reads a clock; budgets are counted in steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from tilec import progress
from tilec.artifact.bundle_format import canonical
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, to_json
from tilec.audit import cubins
from tilec.audit.contract import contract_of, disagreements
from tilec.audit.emulation import emulated
from tilec.audit.findings import CONFIRMED, REFUTED, UNKNOWN, Finding
from tilec.audit.maps import checked
from tilec.audit.prove import prove_function, satisfiable
from tilec.audit.smt import Budget
from tilec.audit.sources import ARGUMENTS, ASSEMBLY, EMULATION, PROOF, rests_on
from tilec.ir.core import Function, VerifyError
from tilec.ir.text.parser import ParseError, parse_function
from tilec.progress import Limits

_CONTRACT: Final = (
    "kernel", "constants", "tensors", "scalars", "grid", "launch_checks", "value_checks", "no_alias",
)  # fmt: skip
FIELDS: Final = {
    PROOF: (*_CONTRACT, "promises"),
    EMULATION: (
        *_CONTRACT, "abi", "tensor_maps", "entry", "block", "cluster", "dependent_launch", "resources", "schedule",
    ),
    ARGUMENTS: ("tensors", "abi", "tensor_maps", "entry", "cluster"),
    ASSEMBLY: ("arch",),
}  # fmt: skip
"""Fields of a manifest that a verdict of a kind depends on; its task cannot read any other (`Reduced`)."""
TEXTS: Final = {PROOF: ("tir",), EMULATION: ("tir", "ptx"), ARGUMENTS: ("tir", "ptx"), ASSEMBLY: ("ptx",)}
"""Texts that a verdict of a kind depends on."""


@dataclass(frozen=True, slots=True)
class Task:
    """One artifact to check: `tir` and `ptx` texts, the manifest as JSON data, `launches` with `seeds` schedules each, and
    the assembler function, if requested."""

    tir: str
    ptx: str
    manifest: Any
    launches: int = 0
    seeds: int = 0
    assemble: cubins.Assemble | None = None


CPU_SECONDS: Final = 3600.0
"""CPU time after which a unit counts as hanging: a multiple of the maximum for its step budgets. Exceeding it is not a
verdict."""
MEMORY_MB: Final = 8192
"""Memory that one task may use in addition to what its process used before."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A task with its kind and the name of its artifact."""

    kind: str
    task: Task
    name: str


def run_unit(unit: Unit, emit: Callable[[Any], None]) -> None:
    """Runs a unit in a worker and emits its result."""
    with progress.stage(f"the {unit.kind} of {unit.name}", Limits(CPU_SECONDS, MEMORY_MB)):
        found = _RUN[unit.kind](unit.task)
    emit(found)


def unfinished_result(kind: str, reason: str) -> Any:
    """The result of a task that did not finish."""
    if kind == PROOF:
        return [asdict(Finding("contract", "it can be proven", UNKNOWN, reason))]
    if kind == ASSEMBLY:
        return {"unanswered": reason}
    result: dict[str, Any] = {"status": UNKNOWN, "reason": reason}
    return result | {"launches": list[Any]()} if kind == EMULATION else result


def key(kind: str, texts: dict[str, bytes], manifest: Manifest, **more: Any) -> str:
    """The digest of everything that a verdict depends on: texts, fields of the manifest, checkers, and `more` from the
    caller."""
    data = {name: _unambiguous(to_json(getattr(manifest, name))) for name in FIELDS[kind]}
    digests = {name: hashlib.sha256(texts[name]).hexdigest() for name in TEXTS[kind]}
    return hashlib.sha256(canonical([kind, digests, data, rests_on(kind), more])).hexdigest()


def _unambiguous(data: Any) -> Any:
    """The data with floats as text, which gives infinities a canonical form, and with a type letter before each text and
    float, so that they stay distinct."""
    if isinstance(data, float):
        return f"f{data.hex()}"
    if isinstance(data, str):
        return f"t{data}"
    if isinstance(data, dict):
        items: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
        return {key: _unambiguous(value) for key, value in items.items()}
    if isinstance(data, list):
        return [_unambiguous(item) for item in data]  # pyright: ignore[reportUnknownVariableType]
    return data


class Reduced:
    """A manifest of which only the fields that enter the key of a kind can be read. Any other is an internal error, because a
    cached verdict would hold for every value of it."""

    def __init__(self, kind: str, manifest: Manifest) -> None:
        self._kind, self._manifest = kind, manifest

    def __getattr__(self, name: str) -> Any:
        if name not in FIELDS[self._kind]:
            raise RuntimeError(f"the {self._kind} of an artifact reads `{name}` of its manifest, which its key leaves out")
        return getattr(self._manifest, name)


def manifest_for(kind: str, task: Task) -> Manifest:
    """The manifest of a task, reduced to what the key of the kind contains."""
    return cast("Manifest", Reduced(kind, manifest_from_json(task.manifest)))


def prove_task(task: Task) -> list[dict[str, Any]]:
    """Findings as data: first those about the contract (`property` is contract), then the obligations."""
    manifest = manifest_for(PROOF, task)
    budget = Budget()
    try:
        function = parse_function(task.tir)
        contradictions = [
            Finding("contract", "it describes the kernel", REFUTED, text) for text in disagreements(manifest, function)
        ]
        findings = contradictions or [Finding("contract", "it describes the kernel", CONFIRMED)]
        contract = contract_of(manifest, function)
        if not contradictions:
            findings += [*satisfiable(function, contract, budget), *prove_function(function, contract, budget)]
    except (ParseError, VerifyError) as error:
        findings = [Finding("contract", "its tile IR is well-formed", REFUTED, str(error)[:300])]
    except RecursionError:
        findings = [Finding("contract", "it can be proven", UNKNOWN, "the kernel is nested too deep for the audit")]
    return [asdict(finding) for finding in findings]


def emulate_task(task: Task) -> dict[str, Any]:
    """The result of `emulated` as data."""
    function = _function(task)
    if isinstance(function, str):
        return unfinished_result(EMULATION, function)
    return emulated(manifest_for(EMULATION, task), function, task.ptx, launches=task.launches, seeds=task.seeds)


def arguments_task(task: Task) -> dict[str, Any]:
    """The result of `maps.checked`."""
    function = _function(task)
    return (
        unfinished_result(ARGUMENTS, function)
        if isinstance(function, str)
        else checked(manifest_for(ARGUMENTS, task), function, task.ptx)
    )


def assemble_task(task: Task) -> dict[str, Any]:
    """The result of `cubins.made`."""
    assert task.assemble is not None
    return cubins.made(task.assemble, task.ptx, str(task.manifest["arch"]))


def _function(task: Task) -> Function | str:
    """The kernel of a task, or the reason why it cannot be read."""
    try:
        return parse_function(task.tir)
    except ParseError as error:
        return f"its tile IR cannot be read: {error}"[:300]


_RUN: Final[dict[str, Callable[[Task], Any]]] = {
    PROOF: prove_task, EMULATION: emulate_task, ARGUMENTS: arguments_task, ASSEMBLY: assemble_task,
}  # fmt: skip
