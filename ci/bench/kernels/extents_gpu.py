"""Measures `add` and `rms_norm` at extents that are not powers of two, against neighbours with whole vectors per thread.

    python ci/bench/kernels.py extents_gpu FOLDER --build   anywhere, needs the compiler: a project with all variants, built
    python ci/bench/kernels.py extents_gpu FOLDER           on a GPU, needs torch: checks and times them

Each variant is first compared with float64 at many sizes (`cases`), then timed on 2^26 elements of bf16 in CUDA graphs,
alternating between all variants of a kernel. The criterion is bytes per second relative to the nearest neighbour: status 1 if
it is less than `LEAST_SHARE`, or if a result is wrong.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ci.bench.front import Outcome
from ci.bench.kernels.candidates import ELEMENT, build
from ci.bench.kernels.projects import Part

if TYPE_CHECKING:
    from ci.bench.kernels.launch import Bench, Entry

VARIANTS: Final = {
    "add": ("BLOCK", {1000: 1024, 1023: 1024, 2880: 2816}),
    "rms_norm": ("H", {2880: 2816, 3000: 3072, 1000: 1024}),
}
"""By kernel: its constant, and for each extent the neighbour that it is compared with."""

ELEMENTS: Final = 1 << 26
LEAST_SHARE: Final = {"aligned": 0.9, "odd": 0.0}
"""Required share of the neighbour's bytes per second. An extent not divisible by the vector width is read element by element
and only reported."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", action="store_true", help="write the project into the folder and build it")


def measure(options: argparse.Namespace) -> Outcome | int:
    """Build, or check and time."""
    if options.build:
        return build([_part(kernel) for kernel in VARIANTS], options.folder)
    found = measured(options.folder)
    print(json.dumps(found, indent=1))
    return Outcome(found, status=int(bool(found["wrong"] or found["slow"])))


def _part(kernel: str) -> Part:
    constant, pairs = VARIANTS[kernel]
    extents = sorted({*pairs, *pairs.values()})
    return Part(kernel, f'E = "{ELEMENT}", {constant} = {extents}', "budget = { spill_bytes = 0 }")


def measured(folder: Path) -> dict[str, Any]:
    """All results: times and the share of the neighbour's speed per kernel and extent; `wrong` and `slow` as messages."""
    from ci.bench.kernels.launch import Bench, find_artifacts

    bench, slow = Bench(), list[str]()
    entries, wrong = find_artifacts([folder / "artifacts" / "build"], bench.device.architecture)
    times: dict[str, dict[str, dict[str, float]]] = {}
    for kernel, (_, pairs) in VARIANTS.items():
        own = [entry for entry in entries if entry.manifest.kernel == kernel]
        if not own:
            wrong.append(f"no artifact of {kernel}")
            continue
        wrong += [line for entry in own for line in _check(bench, entry)]
        found = _timed(bench, own)
        for extent, neighbour in pairs.items():
            share = found[extent]["gigabytes_per_second"] / max(found[neighbour]["gigabytes_per_second"], 1e-9)
            found[extent] |= {"neighbour": neighbour, "share": round(share, 3)}
            if share < LEAST_SHARE["odd" if extent % 8 else "aligned"]:
                slow.append(f"{kernel} at {extent} has {share:.2f} of the speed at {neighbour}")
        times[kernel] = {str(extent): found[extent] for extent in sorted(found)}
    return {"gpu": bench.device.name, "times": times, "wrong": wrong, "slow": slow}


def _check(bench: Bench, entry: Entry) -> list[str]:
    """The errors of an artifact, at every checked size."""
    from ci.bench.kernels.cases import checked_sizes, guards_intact, launched, make_tensors

    wrong: list[str] = []
    for dims in checked_sizes(entry.manifest):
        tensors = make_tensors(entry.manifest, dims, bench.device_name)
        wrong += [f"{entry.variant} {dims}: {result}" for result in launched(bench, entry, tensors) if not result.ok]
        wrong += [] if guards_intact(tensors) else [f"{entry.variant} {dims}: wrote outside"]
    return wrong


def _timed(bench: Bench, entries: list[Entry]) -> dict[int, dict[str, float]]:
    """Microseconds and gigabytes per second of variants of one kernel, by extent."""
    from ci.bench.kernels import clock
    from ci.bench.kernels.cases import bytes_moved, make_tensors

    runs: dict[int, list[Any]] = {}
    moved: dict[int, int] = {}
    for entry in entries:
        constant = VARIANTS[entry.manifest.kernel][0]
        extent = int(entry.manifest.constants[constant])
        dims = {"N": ELEMENTS} if constant == "BLOCK" else {"T": ELEMENTS // extent}
        sets = [make_tensors(entry.manifest, dims, bench.device_name) for _ in range(2)]
        plans = [bench.plan(entry, tensors) for tensors in sets]
        runs[extent] = [lambda plan=plan: plan.launch(bench.stream()) for plan in plans]
        moved[extent] = bytes_moved(entry.manifest, sets[0])
    timings = clock.measure({str(extent): one for extent, one in runs.items()}, max(moved.values()) / 3.5e6)
    us = {extent: timings[str(extent)].median for extent in runs}
    return {
        extent: {"microseconds": round(us[extent], 2), "gigabytes_per_second": round(moved[extent] / us[extent] / 1e3, 1)}
        for extent in runs
    }
