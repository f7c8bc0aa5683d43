"""The `compare` phase of `emulator_gpu.py`: outputs of the GPU in, the emulator's beside them, a table out.

A kernel whose PTX has only operations that IEEE 754 or the integers define exactly must agree bit for bit; where approximations
of the chip or tensor cores take part, both are held against the float64 reference, and their distance is given in units of the
last place of the stored type.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

import emulator_run
import numpy as np
from emulator_cases import STORAGE, Array, Case, cases, make_arrays

ROOT: Final = Path(__file__).resolve().parent.parent.parent
RESULTS: Final = ROOT / "ci" / "bench" / "results"
INEXACT: Final = re.compile(r"\b(?:\w+\.approx|div\.full|wgmma|mma\.sync|tanh|red\.\S*add\S*f|atom\.\S*add\S*f)")
"""Instructions whose last bits the PTX ISA leaves to the chip, or whose order of summation it does."""
ALLOWED_FACTOR: Final = 1.5
"""The emulator's error against float64, over the GPU's; and the other way round."""
SLACK: Final = 2.0**-20
"""Relative error below which the factor does not matter: a few units of an f32's last place."""


def compare(folder: Path, work: Path, gpu: Path, only: str, workers: int) -> int:
    """Emulate everything that the GPU ran, write `emulator_gpu.{md,json}`; 1 if something disagrees."""
    began = time.monotonic()
    outputs: dict[str, Array] = {}
    for path in sorted(gpu.glob("outputs-*.npz")):
        with np.load(path) as data:
            outputs |= {name: data[name] for name in data.files}
    device = json.loads((gpu / "device.json").read_text(encoding="utf-8"))
    listed = json.loads((work / "prepared.json").read_text(encoding="utf-8"))
    seeds = {row["case"]: row["seed"] for row in listed}
    todo = [(folder, case.stem, case.number) for case in cases(folder, only) if case.name in seeds]
    rows: list[dict[str, Any]] = []
    with ProcessPoolExecutor(workers) as pool:
        jobs = (
            pool.submit(_one, folder, stem, number, {k: v for k, v in outputs.items() if k.startswith(f"{stem}#{number}|")})
            for folder, stem, number in todo
        )
        for job in list(jobs):
            rows += job.result()
    return write(rows, device, time.monotonic() - began)


def _one(folder: Path, stem: str, number: int, outputs: dict[str, Array]) -> list[dict[str, Any]]:
    case = next(c for c in cases(folder, stem) if c.stem == stem and c.number == number)
    return list(judge(case, (folder / f"{stem}.ptx").read_text(encoding="utf-8"), outputs))


def judge(case: Case, ptx: str, outputs: dict[str, Array]) -> Iterator[dict[str, Any]]:
    """One row a tensor that the launch writes. `outputs` has bytes by `case|seed|tensor`."""
    arrays = make_arrays(case)
    began = time.perf_counter()
    report = emulator_run.run(case, ptx, arrays)
    seconds = time.perf_counter() - began
    exact = emulator_run.expected(case, arrays)
    bitwise = INEXACT.search(ptx) is None
    faults = [str(fault) for fault in report.faults]
    for spec in case.manifest.tensors:
        if spec.access in ("in", "scratch"):
            continue
        key = f"{case.name}|0|{spec.name}"
        row: dict[str, Any] = {"case": case.name, "tensor": spec.name, "bitwise": bitwise, "faults": faults, "seconds": seconds}
        if key not in outputs:
            yield row | {"agrees": False, "why": "the GPU did not run it"}
            continue
        mine = np.ascontiguousarray(report.tensors[spec.name])
        theirs = outputs[key].view(np.dtype(STORAGE[spec.dtype])).reshape(mine.shape)
        mine = mine.view(theirs.dtype)
        same = mine.tobytes() == theirs.tobytes()
        truth = exact[spec.name]
        ours = emulator_run.error(emulator_run.typed(mine, spec.dtype), truth).norm
        chips = emulator_run.error(emulator_run.typed(theirs, spec.dtype), truth).norm
        near = ours <= ALLOWED_FACTOR * chips + SLACK and chips <= ALLOWED_FACTOR * ours + SLACK
        row |= {"identical": same, "units": units_apart(mine, theirs, spec.dtype), "emulator": ours, "gpu": chips}
        yield row | {"agrees": (same if bitwise else same or near) and not faults, "elements": int(mine.size)}


def units_apart(first: Array, second: Array, dtype: str) -> int:
    """The largest distance in units of the last place; for integers, how many elements differ."""
    if dtype[0] not in "fb" or dtype == "bool":
        return int((first != second).sum())
    bits = {2: np.int16, 4: np.int32}[first.dtype.itemsize]
    low = np.iinfo(bits).min

    def ordered(values: Array) -> Any:
        raw = values.view(bits).astype(np.int64)
        return np.where(raw < 0, low - raw, raw)

    return int(np.abs(ordered(first) - ordered(second)).max(initial=0))


def write(rows: list[dict[str, Any]], device: dict[str, Any], seconds: float) -> int:
    """The JSON, the table, the verdict."""
    wrong = [row for row in rows if not row["agrees"]]
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(re.split(r"[-#]", row["case"])[0], []).append(row)
    lines = [
        "# The emulator and a GPU", "",
        f"Every artifact for {device['arch']} on one {device['gpu']} and in the emulator, the same launches and inputs: "
        f"{device['launched']} launches, {len(rows)} tensors; {len(wrong)} disagree. Emulated in {seconds:.0f} s.", "",
        "*Exact* kernels have no approximate and no tensor core instruction and must agree in every bit. For the others the "
        "errors are norms against float64, the largest of each kernel, and units are of the last place of the stored type.", "",
        "| kernel | tensors | exact | identical | most units apart | emulator's error | GPU's error |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]  # fmt: skip
    for kernel, mine in groups.items():
        ran = [row for row in mine if "units" in row]
        worst = [max((row[name] for row in ran), default=0) for name in ("units", "emulator", "gpu")]
        bits, identical = sum(row["bitwise"] for row in mine), sum(row["identical"] for row in ran)
        errors = f"{worst[1]:.1e} | {worst[2]:.1e}"
        lines.append(f"| `{kernel}` | {len(mine)} | {bits} | {identical} | {worst[0]} | {errors} |")
    lines += ["", *(f"- disagrees: {row['case']} `{row['tensor']}` {row.get('why', '')} {row['faults'][:1]}" for row in wrong)]
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "emulator_gpu.json").write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    (RESULTS / "emulator_gpu.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")
    print("\n".join(lines))
    return int(bool(wrong))
