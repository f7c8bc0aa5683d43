"""The `compare` phase of `emulator_gpu`: compares the emulator's outputs with the GPU's and writes a table.

A kernel whose PTX only has operations defined exactly by IEEE 754 or integer arithmetic must agree bitwise. If approximations
of the chip or tensor cores are involved, both are compared with the float64 reference, and their distance is given in units in
the last place of the stored type. Of outputs from earlier runs only the digest and the distance from the reference are
recorded: enough for a verdict, but not for the units.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ci.bench.front import Outcome, Unfinished
from ci.bench.judges import emulator_run
from ci.bench.judges.emulator_cases import OUTPUTS, Array, Case, cases, digest, launch_key, make_arrays
from ci.bench.markdown import grid, page
from ci.evidence import ROOT, Digests
from ci.evidence.digests import short
from ci.evidence.verdicts import Budget, Line, Verdict, Verdicts, key
from tilec.target.dtypes import DTYPES

INEXACT: Final = re.compile(r"\b(?:\w+\.approx|div\.full|wgmma|mma\.sync|tanh|red\.\S*add\S*f|atom\.\S*add\S*f)")
"""Instructions whose last bits, or whose order of summation, the PTX ISA leaves implementation-defined."""
BASIS: Final = (
    "tilec/emulator", "tilec/ir", "tilec/target/dtypes.py", "tilec/artifact/records.py",
    "kernels_src/reference.py", "kernels_src/reference_attention.py", "kernels_src/reference_experts_tiles.py",
    "kernels_src/reference_pages.py",
    "ci/bench/judges/emulator_run.py", "ci/bench/judges/emulator_gpu_report.py",
)  # fmt: skip
"""Sources that a verdict depends on, in addition to the PTX and the GPU's outputs."""
BATCH: Final = 32
Row = dict[str, Any]
ALLOWED_FACTOR: Final = 1.5
"""Maximum of the emulator's error against float64 over the GPU's, and of the inverse ratio."""
SLACK: Final = 2.0**-20
"""Relative error below which the factor is ignored: a few units in the last place of f32."""
FROM_STORED: Final = {
    "matvec_add_scaled": "squares", "matvec_add_scaled_rows": "squares", "matvec_argmax": "maxima",
    "scaled_matvec_argmax_rows": "maxima",
}  # fmt: skip
"""Kernels with an f32 tensor computed from values stored in 16 bits: sums of squares of a stored row, maxima of rounded logits.
A value halfway between two numbers may be rounded either way, so the `SLACK` of that tensor is one rounding of the dtype."""


@dataclass(frozen=True, slots=True)
class Task:
    """A launch to check: its folder, artifact and number; the GPU's outputs by tensor and its name, if this run has them; the
    recorded outputs (the GPU's name; digest and distance by tensor) and verdict; and the digest of the checkers."""

    folder: Path
    stem: str
    number: int
    outputs: dict[str, Array]
    gpu: str
    seen: Line | None
    kept: Line | None
    basis: str


@dataclass(frozen=True, slots=True)
class Checked:
    """Rows of a launch, what to record of the GPU's outputs and of the verdict, and whether it was emulated in this run."""

    case: str
    rows: list[Row]
    seen: Line | None
    kept: Line
    emulated: bool


def compare(folder: Path, gpu: Path | None, only: str, workers: int, seconds: float | None) -> Outcome:
    """Compare the emulator with all GPU outputs; status 1 if something disagrees. Raises Unfinished if the time budget ended
    before the last launch."""
    budget = Budget(seconds)
    outputs, device = _brought(gpu)
    seen, verdicts = Verdicts(OUTPUTS), Verdicts("emulator_gpu")
    basis = Digests(ROOT).sources(BASIS)
    todo = [
        Task(
            folder, case.stem, case.number, outputs.get(case.name, {}), device["gpu"], seen.known(case.name),
            verdicts.known(case.name), basis,
        )
        for case in cases(folder, only)
    ]  # fmt: skip
    rows: list[Row] = []
    emulated = done = 0
    with ProcessPoolExecutor(workers) as pool:
        for start in range(0, len(todo), BATCH):
            if budget.is_spent():
                break
            for found in pool.map(checked, todo[start : start + BATCH]):
                rows += found.rows
                emulated += found.emulated
                done += 1
                if found.seen is not None and found.seen != seen.known(found.case):
                    seen.add(found.case, *found.seen)
                if found.emulated:
                    verdicts.add(found.case, *found.kept)
    names = [f"{task.stem}#{task.number}" for task in todo] if not only else None
    seen.close(names)
    verdicts.close(names)
    if done < len(todo):
        raise Unfinished(f"{done} of {len(todo)} launches checked, {emulated} of them now")
    gpus = sorted({line.verdict.detail[0] for line in seen.lines.values()})
    device_record = {"gpus": gpus, "launches": len(todo), "launched_now": device["launched"], "emulated_now": emulated}
    return outcome(rows, device_record | {"problems": device["problems"]})


def _brought(folder: Path | None) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    """The output of `device`: outputs by launch and tensor, and its record."""
    outputs: dict[str, dict[str, Array]] = {}
    if folder is None:
        return outputs, {"gpu": "", "launched": 0, "problems": []}
    for path in sorted(folder.glob("outputs-*.npz")):
        with np.load(path) as data:
            for name in data.files:
                case, _, tensor = name.split("|")
                outputs.setdefault(case, {})[tensor] = data[name]
    return outputs, json.loads((folder / "device.json").read_text(encoding="utf-8"))


def checked(task: Task) -> Checked:
    """The verdict on a launch: the recorded one if it is still valid, otherwise the emulator's."""
    case = next(c for c in cases(task.folder, task.stem) if c.stem == task.stem and c.number == task.number)
    ptx = (task.folder / f"{task.stem}.ptx").read_text(encoding="utf-8")
    arrays = make_arrays(case)
    launch = launch_key(case, digest(arrays))
    seen = task.seen if task.seen is not None and launch in task.seen.keys else None
    if task.outputs:
        seen = Line((launch,), Verdict("ran", [task.gpu, _kept(case, arrays, task.outputs)]))
    now = key(task.basis, short(ptx.encode()), launch, json.dumps(seen and seen.verdict.detail))
    if task.kept is not None and now in task.kept.keys:
        return Checked(case.name, [{"case": case.name, **row} for row in task.kept.verdict.detail], seen, task.kept, False)
    rows = list(rows_of(case, ptx, arrays, task.outputs, seen.verdict.detail[1] if seen is not None else {}))
    verdict = "agrees" if all(row["agrees"] for row in rows) else "disagrees"
    kept = [{name: value for name, value in row.items() if name != "case"} for row in rows]
    return Checked(case.name, rows, seen, Line((now,), Verdict(verdict, kept)), True)


def _kept(case: Case, arrays: dict[str, Array], theirs: dict[str, Array]) -> dict[str, list[Any]]:
    """What is recorded of a GPU's outputs, by tensor."""
    exact = emulator_run.expected(case, arrays)
    found: dict[str, list[Any]] = {}
    for spec in case.manifest.tensors:
        if spec.name in theirs and spec.name in exact:
            typed = emulator_run.typed(theirs[spec.name].view(np.dtype(DTYPES[spec.dtype].storage)), spec.dtype)
            norm = emulator_run.error(typed.reshape(np.asarray(exact[spec.name]).shape), exact[spec.name]).norm
            found[spec.name] = [short(theirs[spec.name].tobytes()), norm]
    return found


def rows_of(
    case: Case, ptx: str, arrays: dict[str, Array], theirs: dict[str, Array], seen: Mapping[str, Any]
) -> Iterator[Row]:  # fmt: skip
    """One row per written tensor. `theirs` has bytes by tensor, `seen` digests and distances."""
    report = emulator_run.run(case, ptx, arrays)
    exact = emulator_run.expected(case, arrays)
    bitwise = INEXACT.search(ptx) is None
    faults = [str(fault) for fault in report.faults]
    for spec in case.manifest.tensors:
        if spec.access in ("in", "scratch"):
            continue
        row: Row = {"case": case.name, "tensor": spec.name, "bitwise": bitwise, "faults": faults}
        if spec.name not in seen:
            yield row | {"agrees": False, "why": "the GPU did not run it"}
            continue
        digest_of_theirs, chips = seen[spec.name]
        own = np.ascontiguousarray(report.tensors[spec.name])
        same = short(own.tobytes()) == digest_of_theirs
        ours = emulator_run.error(
            emulator_run.typed(own.view(np.dtype(DTYPES[spec.dtype].storage)), spec.dtype), exact[spec.name]
        ).norm
        slack = SLACK
        if FROM_STORED.get(case.manifest.kernel) == spec.name:
            slack = 2.0 ** -DTYPES[str(case.manifest.constants["E"])].significand
        close = ours <= ALLOWED_FACTOR * chips + slack and chips <= ALLOWED_FACTOR * ours + slack
        row |= {"identical": same, "emulator": ours, "gpu": chips}
        if spec.name in theirs:
            other = theirs[spec.name].view(np.dtype(DTYPES[spec.dtype].storage)).reshape(own.shape)
            row["units"] = units_apart(own.view(other.dtype), other, spec.dtype)
        yield row | {"agrees": (same if bitwise else same or close) and not faults, "elements": int(own.size)}


def units_apart(first: Array, second: Array, dtype: str) -> int:
    """The largest distance in units in the last place; for integers, the number of differing elements."""
    if dtype[0] not in "fb" or dtype == "bool":
        return int((first != second).sum())
    bits = {2: np.int16, 4: np.int32}[first.dtype.itemsize]
    low = np.iinfo(bits).min

    def ordered(values: Array) -> Any:
        raw = values.view(bits).astype(np.int64)
        return np.where(raw < 0, low - raw, raw)

    return int(np.abs(ordered(first) - ordered(second)).max(initial=0))


def outcome(rows: list[Row], device: dict[str, Any]) -> Outcome:
    """The data and the table."""
    wrong = [row for row in rows if not row["agrees"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(re.split(r"[-#]", row["case"])[0], []).append(row)
    lines = [
        "# The emulator and a GPU", "",
        f"Every artifact for sm_90a on {', '.join(device['gpus'])} and in the emulator, the same launches and inputs: "
        f"{device['launches']} launches, {len(rows)} tensors; {len(wrong)} disagree.", "",
        "*Exact* kernels have no approximate and no tensor core instruction and must agree in every bit. For the others the "
        "errors are norms against float64, the largest of each kernel, and units are of the last place of the stored type, of "
        "launches that were made in the last run.", "",
    ]  # fmt: skip
    table: list[tuple[object, ...]] = []
    for kernel, own in groups.items():
        ran = [row for row in own if "identical" in row]
        worst = [max((row.get(name, 0) for row in ran), default=0) for name in ("units", "emulator", "gpu")]
        bits, identical = sum(row["bitwise"] for row in own), sum(row["identical"] for row in ran)
        table.append((f"`{kernel}`", len(own), bits, identical, worst[0], f"{worst[1]:.1e}", f"{worst[2]:.1e}"))
    lines += grid(["kernel", "tensors", "exact", "identical", "most units apart", "emulator's error", "GPU's error"], table)
    lines += ["", *(f"- disagrees: {row['case']} `{row['tensor']}` {row.get('why', '')} {row['faults'][:1]}" for row in wrong)]
    data = {"run": device, "rows": rows}
    return Outcome(data, {"emulator_gpu.md": page(lines)}, int(bool(wrong)), device=", ".join(device["gpus"]))
