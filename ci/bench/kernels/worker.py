"""The child of `kernels_gpu`: checks and times kernels one after the other, with one record per result."""

from __future__ import annotations

import importlib
import itertools
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ci.bench.kernels.cases import (
    MEANING,
    Comparison,
    bytes_moved,
    checked_sizes,
    fits,
    guards_intact,
    launched,
    make_tensors,
    make_written,
)
from ci.bench.kernels.children import emit, end_if_lost
from ci.bench.kernels.clock import measure
from ci.bench.kernels.launch import Bench, Entry, Tensors, find_artifacts
from ci.bench.kernels.problems import Problem, library_run, problems
from ci.evidence import ROOT, Digests
from ci.evidence.digests import short
from ci.evidence.verdicts import Verdicts, key

torch: Any = importlib.import_module("torch")

ORDER: Final = ("add", "matvec", "rms_norm", "add_rms_norm", "embedding", "gather_row", "matmul")
MOST_ALLOCATED: Final = 40_000_000_000
"""Maximum bytes of all argument sets of one problem."""
ROTATED_BYTES: Final = 600_000_000
"""Minimum bytes of all argument sets together: ten times the L2 cache of the largest chip used."""
EXPECTED_BYTES_PER_US: Final = 3.5e6
EXPECTED_FLOPS_PER_US: Final = 3e8
BASIS: Final = (
    "ci/bench/kernels/worker.py", "ci/bench/kernels/launch.py", "ci/bench/kernels/cases.py",
    "ci/bench/kernels/plain_cases.py", "ci/bench/kernels/attention_cases.py", "ci/bench/kernels/decode_cases.py",
    "ci/bench/kernels/few_cases.py", "ci/bench/kernels/experts_cases.py", "ci/bench/kernels/experts_tile_cases.py",
    "ci/bench/kernels/experts_fp8_cases.py",
    "ci/bench/kernels/pages_cases.py",
    "ci/bench/kernels/stored_rows.py", "ci/bench/kernels/rounded.py", "ci/bench/kernels/rounded_kernels.py",
    "ci/bench/kernels/rounded_attention.py", "tilec/runtime",
)  # fmt: skip
"""Sources that a verdict on a CUBIN depends on."""
OVERLAPPED: Final = ", overlapped"
"""Marks launches that may begin while the previous one still runs."""


def work(folders: list[Path], only: Sequence[str], dry: bool) -> int:
    """Check and time these kernels, or all."""
    torch.manual_seed(time.time_ns() % 2**31)
    bench = Bench(dry)
    kept, basis = None if dry else Verdicts("kernels_gpu"), Digests(ROOT).sources(BASIS)
    found, broken = find_artifacts(folders, bench.device.architecture)
    # A kernel with signals waits for launches on other GPUs.
    entries = [entry for entry in found if all(spec.access != "signal" for spec in entry.manifest.tensors)]
    present = {entry.manifest.kernel for entry in entries}
    ordered = [name for name in ORDER if name in present] + sorted(present - {*ORDER})
    todo = [name for name in ordered if not only or name in only]
    emit("todo", kernels=todo)
    emit("machine", gpu=bench.device.name, arch=bench.device.architecture, torch=torch.__version__, artifacts=len(entries))
    for line in broken:
        emit("problem", kernel="", text=line)
    for name in sorted({*only, *(() if entries else ("every kernel",))} - present):
        emit("problem", kernel=name, text=f"no artifact for {bench.device.architecture} in {', '.join(map(str, folders))}")
    for name in todo:
        emit("begin", kernel=name)
        if name in MEANING:
            own = [entry for entry in entries if entry.manifest.kernel == name]
            _time_kernel(bench, name, [entry for entry in own if _check(bench, entry, kept, basis)])
        else:
            emit("problem", kernel=name, text="ci/bench/kernels/cases.py does not say what this kernel computes")
        emit("end", kernel=name)
    if "add" in todo:
        _host_costs(bench, [entry for entry in entries if entry.manifest.kernel == "add"])
    return 0


def case_of(entry: Entry) -> str:
    """An artifact's name in the verdicts file."""
    return f"{entry.manifest.kernel}:{entry.variant}".replace(" ", "-")


def _check(bench: Bench, entry: Entry, kept: Verdicts | None, basis: str) -> bool:
    """Check an artifact at every size, unless this CUBIN has a valid verdict; returns False if it is wrong."""
    now, about = key(basis, short(entry.cubin), bench.device.name), {"kernel": entry.manifest.kernel, "variant": entry.variant}
    known = kept.find(case_of(entry), now) if kept is not None else None
    if known is not None and known.word == "right":
        emit("checked", **about, dtype=entry.dtype, right=True, kept=now, **known.detail)
        return True
    worst, right, count = {"ours": 0.0, "torch": 0.0, "ratio": 0.0}, True, 0
    for dims in checked_sizes(entry.manifest):
        count += 1
        try:
            tensors = make_tensors(entry.manifest, dims, bench.device_name)
            results = launched(bench, entry, tensors)
            text = "" if guards_intact(tensors) else "bytes next to the tensor were written"
        except Exception as error:
            emit("wrong", **about, dims=dims, text=f"{type(error).__name__}: {error}"[:500])
            end_if_lost(error)
            return False
        for result in results:
            ratio = result.ours[0] / result.torch[0] if result.torch[0] else 0.0
            if ratio >= worst["ratio"]:
                worst = {"ours": result.ours[0], "torch": result.torch[0], "ratio": ratio}
        right = _all_right(entry, dims, results, text) and right
    emit("checked", **about, dtype=entry.dtype, right=right, case=case_of(entry), key=now, sizes=count, **worst)
    return right and count > 0


def _all_right(entry: Entry, dims: dict[str, int], results: list[Comparison], text: str = "") -> bool:
    """Whether all results are right and there is no message; says which are not."""
    for result in results:
        if not result.ok or text:
            emit(
                "wrong", kernel=entry.manifest.kernel, variant=entry.variant, dims=dims, output=result.output, text=text,
                ours=[repr(error) for error in result.ours], torch=[repr(error) for error in result.torch],
            )  # fmt: skip
    return not text and all(result.ok for result in results)


def _time_kernel(bench: Bench, name: str, entries: list[Entry]) -> None:
    """Time a kernel at every problem; in other dtypes than bf16 only at the first one."""
    listed = problems(name)
    for problem, dtype in itertools.product(listed, dict.fromkeys(entry.dtype for entry in entries)):
        if dtype != "bf16" and problem != listed[0]:
            continue
        fitting = [entry for entry in entries if entry.dtype == dtype and fits(entry.manifest, problem.dims)]
        for variants in _of_same_tensors(fitting):
            try:
                _time_problem(bench, problem, dtype, variants)
            except Exception as error:
                emit("problem", kernel=name, text=f"{problem.label} {dtype}: {type(error).__name__}: {error}"[:500])
                end_if_lost(error)
            finally:
                if not bench.dry:
                    torch.cuda.empty_cache()


def _of_same_tensors(entries: list[Entry]) -> list[list[Entry]]:
    """Groups of artifacts whose tensors have the same shapes; a constant such as a number of parts changes them."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        shapes = tuple(str(dim) for spec in entry.manifest.tensors for dim in spec.dims)
        groups.setdefault(shapes, []).append(entry)
    return list(groups.values())


def _time_problem(bench: Bench, problem: Problem, dtype: str, entries: list[Entry]) -> None:
    manifest, dims = entries[0].manifest, problem.dims
    if bench.dry:
        constants = {name for entry in entries for name in entry.manifest.constants}
        dims = {name: value if name in constants else min(value, 64) for name, value in dims.items()}
        if not fits(manifest, dims):
            return
    sets = [make_tensors(manifest, dims, bench.device_name)]
    total = bytes_moved(manifest, sets[0])
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in sets[0].values())
    rotations = 2 if bench.dry else min(400, ROTATED_BYTES // total + 1, MOST_ALLOCATED // allocated + 1)
    sets += [make_tensors(manifest, dims, bench.device_name) for _ in range(rotations - 1)]
    alternatives: dict[str, Sequence[Any]] = {}
    for entry in entries:
        if _all_right(entry, dims, launched(bench, entry, make_written(entry.manifest, sets[0]))):
            alternatives |= _launches(bench, entry, sets)
    if not alternatives:
        return
    (library, *_), alternatives["library"] = zip(*(library_run(problem, manifest, one, total) for one in sets), strict=True)
    expected = max(total / EXPECTED_BYTES_PER_US, problem.flops / EXPECTED_FLOPS_PER_US)
    timings = measure(alternatives, expected, dry=bench.dry)
    reference = timings.pop("library")
    for name, ours in timings.items():
        overlapped = name.endswith(OVERLAPPED)
        emit(
            "timed", kernel=problem.kernel + OVERLAPPED * overlapped, label=problem.label, dtype=dtype,
            variant=name.removesuffix(OVERLAPPED), library=library, us=ours.median, us_low=ours.low, us_high=ours.high,
            library_us=reference.median, library_low=reference.low, library_high=reference.high, bytes=total,
            flops=problem.flops, ratio=reference.median / ours.median, floor=None if overlapped else problem.floor,
            sets=rotations, launches=ours.launches,
        )  # fmt: skip


def _launches(bench: Bench, entry: Entry, sets: list[Tensors]) -> dict[str, list[Callable[[], object]]]:
    """The launches of an artifact, one per set; also overlapped ones if it allows that."""
    plans = [bench.plan(entry, tensors) for tensors in sets]
    found = {entry.variant: [lambda plan=plan: plan.launch(bench.stream()) for plan in plans]}
    if entry.manifest.dependent_launch:
        found[entry.variant + OVERLAPPED] = [lambda plan=plan: plan.launch(bench.stream(), overlap=True) for plan in plans]
    return found


def _host_costs(bench: Bench, entries: list[Entry]) -> None:
    """Microseconds of host time for a plan and for a launch, and for torch's call of the same kernel."""
    entry = next((e for e in entries if e.dtype == "bf16" and fits(e.manifest, {"N": 1024})), None)
    if entry is None:
        return
    try:
        tensors = make_tensors(entry.manifest, {"N": 1024}, bench.device_name)
        x, plan, stream = torch.randn(1024, device=bench.device_name), bench.plan(entry, tensors), bench.stream()
        emit(
            "host", plan=_host_us(lambda: bench.plan(entry, tensors), 200, bench),
            launch=_host_us(lambda: plan.launch(stream), 500, bench),
            torch_add=_host_us(lambda: torch.add(x, x, out=x), 500, bench),
        )  # fmt: skip
    except Exception as error:
        emit("problem", kernel="add", text=f"host costs: {type(error).__name__}: {error}"[:300])


def _host_us(call: Callable[[], object], count: int, bench: Bench) -> float:
    best = math.inf
    for _ in range(7):
        bench.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - begin) / count * 1e6)
    bench.synchronize()
    return best
