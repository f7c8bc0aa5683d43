"""Runs the PTX of an artifact in the emulator on edge launches, in several schedules, and compares results with the
interpreter.

A fault in the emulator is a fault of the artifact. A note of it, a departure from the text of the PTX ISA, leaves the artifact
unconfirmed. The comparison with the tile interpreter is only indicative: sums round
differently, and a kernel may read values that it does not need. A difference is reported but is not a fault.

A kernel in which ranks meet is launched in all of them, on a device each, whole if the launch is small; else some of its blocks
run in each. The results of each rank are compared with those of the interpreter's ranks, which run the same blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from tilec.artifact.records import OF_RANKS, Manifest
from tilec.audit.contract import contract_of
from tilec.audit.launches import Array, Case, contents, edge_launches, elements, stored
from tilec.ir.core import Function
from tilec.ir.facts.order import order_dependent
from tilec.ir.printed_text import difference

Result = dict[str, Any]
INSTRUCTIONS: Final = 5_000_000
"""Emulator steps for one launch, each one instruction of many lanes: hundreds of times the need of any kernel here."""
SIGNAL: Final = "signal"
RESIDENT: Final = 16384
"""Threads of all ranks together: all wait for each other, so all are resident."""
WHOLE_ELEMENTS: Final = 1 << 16
"""Elements of all tensors of a rank up to which a launch of ranks is run whole, if its threads are not too many."""
FIRST_BLOCKS: Final = 2
"""Blocks of a larger one."""
CLOSE = 0.05
"""Maximum difference due to rounding, relative to the largest value of the tensor."""


def emulated(
    manifest: Manifest, function: Function, ptx: str, *, launches: int, seeds: int, compare: bool = True
) -> Result:  # fmt: skip
    """Launches, faults, instructions and coverage as plain data; `status` is clean, faulty, unknown or none."""
    try:
        emulator: Any = import_module("tilec.emulator")
    except ModuleNotFoundError as error:
        return {"status": "none", "reason": f"no emulator: {error.name} is not installed", "launches": []}
    refusals: list[str] = []
    cases = edge_launches(manifest, function, contract_of(manifest, function), launches, refusals)
    rows: list[Result] = []
    counts: dict[int, int] = {}
    try:
        module = emulator.parse(ptx)
        for number, case in enumerate(cases):
            for repeat in range(seeds):
                seed = number * seeds + repeat  # a new seed for each run varies schedules and persistent grid sizes
                rows.append(_launch(emulator, module, manifest, function, case, seed, counts, compare and repeat == 0))
    except emulator.UnsupportedPtx as error:
        return {"status": "unknown", "reason": f"the emulator does not know this PTX: {error}", "launches": rows}
    completed = [row for row in rows if "faults" in row]
    stopped = [row for row in rows if "stopped" in row]
    covered = sum(count > 0 for count in counts.values())
    result: Result = {
        "launches": rows,
        "instructions": sum(row["instructions"] for row in completed),
        "coverage": round(covered / len(counts), 4) if counts else 0.0,
        "never_executed": sorted(line for line, count in counts.items() if not count),
    }
    if any(row["faults"] for row in completed):
        return {"status": "faulty", "reason": "a launch has a fault", **result}
    if stopped:
        return {"status": "unknown", "reason": f"{stopped[0]['case']}: {stopped[0]['stopped']}", **result}
    noted = [row for row in completed if row.get("notes")]
    if noted:
        return {"status": "unknown", "reason": f"{noted[0]['case']}: {noted[0]['notes'][0]}", **result}
    if not completed:
        reasons = refusals or [f"{row['case']}: {row['skipped']}" for row in rows if "skipped" in row]
        return {"status": "unknown", "reason": "no launch was emulated: " + "; ".join(dict.fromkeys(reasons)), **result}
    return {"status": "clean", "reason": "", **result}


def _launch(
    emulator: Any, module: Any, manifest: Manifest, function: Function, case: Case, seed: int, counts: dict[int, int],
    compare: bool,
) -> Result:  # fmt: skip
    row: Result = {"case": case.name, "values": case.values, "seed": seed}
    arrays = contents(manifest, case.values, 0)
    if arrays is None:
        return {**row, "skipped": "no contents satisfy the value checks"}
    scalars: dict[str, int | float] = {spec.name: case.values.get(spec.name, 0.5) for spec in manifest.scalars}
    limits = emulator.Limits(instructions=INSTRUCTIONS)
    tensors = {spec.name: stored(spec, arrays[spec.name], case.values) for spec in manifest.tensors}
    ranks = _ranks(manifest)
    given = _of_ranks(manifest, tensors, {**case.values, **scalars}, ranks)
    blocks = _blocks_of_ranks(manifest, tensors, ranks)
    try:
        if ranks:
            emulate_ranks: Any = import_module("tilec.emulator.ranks").emulate_ranks
            arrays_of, values_of = zip(*given, strict=True)
            report = emulate_ranks(module, manifest, arrays_of, values_of, seed=seed, blocks=blocks, limits=limits)
        else:
            report = emulator.emulate(module, manifest, tensors, {**case.values, **scalars}, seed=seed, limits=limits)
    except MemoryError as error:
        return {**row, "stopped": str(error) or "it needs more memory than is available"}
    for line, count in report.statistics["lane_counts"].items():
        counts[line] = counts.get(line, 0) + count
    stopped = any(fault.kind == "limit" for fault in report.faults)
    # A stopped launch may not have reached those writes, and one of which some blocks run leaves those of the others.
    no_faults = ("limit", *(("unwritten",) if stopped or blocks is not None else ()))
    faults = [str(fault) for fault in report.faults if fault.kind not in no_faults]
    row |= {"faults": faults, "instructions": report.statistics["instruction_lanes"]}
    if report.notes:
        row["notes"] = [str(note) for note in report.notes]
    if stopped:
        return row | {"stopped": f"it takes more than {INSTRUCTIONS} steps of the emulator"}
    if blocks is not None:
        row["blocks"] = len(blocks)
    if compare and ranks:
        row["differs"] = _differences_of_ranks(function, given, blocks, report.tensors)
    elif compare:
        if unordered := order_dependent(function):
            row["not_compared"] = sorted(unordered)
        launched, found = (
            {spec.name: elements(spec, given[spec.name], case.values) for spec in manifest.tensors}
            for given in ({name: array.copy() for name, array in tensors.items()}, report.tensors)
        )
        row["differs"] = _differences(function, launched, scalars, case, found, report.printed)
    return row


def _ranks(manifest: Manifest) -> int:
    """The number of ranks that a kernel is for; 0 if it does not meet others."""
    return next((spec.dims[-1].evaluate({}) for spec in manifest.tensors if spec.access == SIGNAL), 0)


def _running(blocks: list[Block] | None) -> Callable[[int, Sequence[tuple[int, ...]]], Sequence[tuple[int, ...]]] | None:
    """The order of the interpreter's blocks: those that run, in the axes that the grid has."""
    if blocks is None:
        return None
    running = {block[0] for block in blocks}

    def order(_: int, every: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        return [block for block in every if block[0] in running]

    return order


Block = tuple[int, int, int]
OfRanks = list[tuple[dict[str, Array], dict[str, int | float]]]
"""Tensors and launch values of each rank."""


def _of_ranks(manifest: Manifest, tensors: dict[str, Array], values: dict[str, int | float], ranks: int) -> OfRanks:
    """All ranks have the same contents, and have not met before; the scalar that the meet takes is a rank's number."""
    unmet = {spec.name: np.zeros_like(tensors[spec.name]) for spec in manifest.tensors if spec.access == SIGNAL}
    numbers = [spec.name for spec in manifest.scalars if spec.dtype == "i32"]
    return [(tensors | unmet, {**values, **dict.fromkeys(numbers, rank)}) for rank in range(ranks)]


def _blocks_of_ranks(manifest: Manifest, tensors: dict[str, Array], ranks: int) -> list[Block] | None:
    """The blocks that run in each of several ranks: None for all, otherwise the first ones and the last."""
    if not ranks:
        return None
    grid = int(manifest.grid[0].evaluate({}))
    fitting = RESIDENT // (ranks * manifest.block)
    small = sum(array.size for array in tensors.values()) <= WHOLE_ELEMENTS
    if small and grid <= fitting:
        return None
    first = fitting - 1 if small else min(FIRST_BLOCKS, fitting - 1)
    return [(block, 0, 0) for block in sorted({*range(min(first, grid)), grid - 1})]


def _differences_of_ranks(
    function: Function, given: OfRanks, blocks: list[Block] | None, found: dict[str, Array]
) -> list[str]:  # fmt: skip
    """As `_differences`, of each rank, whose tensors are called `NAME@RANK`. How often blocks have met must be the same."""
    interpreter: Any = import_module("tilec.interpreter")
    access = {p.name: p.access.value for p in function.parameters if p.access is not None}
    of_all = {name: array.copy() for name, array in given[0][0].items() if access[name] in OF_RANKS}
    own = [{name: array.copy() for name, array in arrays.items() if name not in of_all} for arrays, _ in given]
    scalars = [{p.name: values[p.name] for p in function.parameters if p.access is None} for _, values in given]
    try:
        interpreter.run_ranks(function, [of_all | arrays for arrays in own], scalars, block_order=_running(blocks))
    except interpreter.InterpreterError as error:
        return [f"the interpreter refuses the launch: {error}"[:200]]
    differ = [name for name, array in of_all.items() if access[name] == SIGNAL and not np.array_equal(array, found[name])]
    for rank, arrays in enumerate(own):
        differ += [f"{name}@{rank}" for name, array in arrays.items() if not _close(array, found[f"{name}@{rank}"])]
    return differ


def _differences(
    function: Function, expected: dict[str, Array], scalars: dict[str, int | float], case: Case, found: dict[str, Array],
    printed: list[str],
) -> list[str]:  # fmt: skip
    """Tensors whose contents differ from the interpreter's by more than rounding, and not by the order of atomics, and the
    first printed line that does. `expected` has the contents at the launch; the interpreter changes them."""
    interpreter: Any = import_module("tilec.interpreter")
    dims, lines = {name: case.values[name] for name in function.dims}, list[str]()
    try:
        interpreter.run(function, expected, scalars, dims=dims, printed=lines.append)
    except interpreter.InterpreterError as error:
        return [f"the interpreter refuses the launch: {error}"[:200]]
    written = [p.name for p in function.parameters if p.access is not None and p.access.value in ("out", "inout", "atomic")]
    unordered = order_dependent(function)
    differ = [name for name in written if name not in unordered and not _close(expected[name], found[name])]
    other_lines = "" if unordered else difference(lines, printed, CLOSE)
    return [*differ, *([f"it prints {other_lines}"] if other_lines else [])]


def _close(left: Array, right: Array) -> bool:
    a, b = (np.asarray(side, np.float64).reshape(-1) for side in (left, right))
    usual = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(np.nan_to_num(a[~usual], nan=7.5), np.nan_to_num(b[~usual], nan=7.5)):
        return False
    scale = float(np.abs(a[usual]).max(initial=0.0)) or 1.0
    return bool(np.all(np.abs(a[usual] - b[usual]) <= CLOSE * scale))
