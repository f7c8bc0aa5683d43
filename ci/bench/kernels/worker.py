"""The child of `kernels_gpu.py`: checks and times kernels sequentially, with one JSON record per result on stdout."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from gpu_cases import (
    MEANING,
    Entry,
    arguments,
    bytes_moved,
    checked_sizes,
    compare,
    find_artifacts,
    fits,
    guards_intact,
    make_tensors,
    make_written,
    values_option,
)
from gpu_clock import measure
from gpu_problems import Problem, library_run, problems

from ci.evidence import ROOT, Digests
from ci.evidence.digests import short
from ci.evidence.verdicts import Verdicts, key
from tilec.runtime import Device, Kernel, TensorView

torch: Any = importlib.import_module("torch")

ORDER: Final = ("add", "matvec", "rms_norm", "add_rms_norm", "silu_mul", "embedding", "gather_row", "matmul")
MOST_ALLOCATED: Final = 40_000_000_000
"""Maximum bytes of all argument sets of one problem."""
ROTATED_BYTES: Final = 600_000_000
"""Minimum bytes of all argument sets together: ten times the L2 cache of the largest chip used."""
EXPECTED_BYTES_PER_US: Final = 3.5e6
EXPECTED_FLOPS_PER_US: Final = 3e8
BASIS: Final = (
    "ci/bench/gpu_worker.py", "ci/bench/gpu_cases.py", "ci/bench/gpu_attention.py", "ci/bench/gpu_decode.py", "tilec/runtime",
)  # fmt: skip
"""Sources that a verdict on a CUBIN depends on."""
OVERLAPPED: Final = ", overlapped"
"""Marks launches that may begin while the previous one still runs."""


def emit(kind: str, **fields: Any) -> None:
    """Send a record to the parent."""
    print("@" + json.dumps({"kind": kind, **fields}), flush=True)


class Bench:
    """The device, with each kernel loaded once."""

    def __init__(self, dry: bool) -> None:
        self.dry = dry
        self.device_name = "cpu" if dry else "cuda"
        if dry:
            import sys

            sys.path.append(str(Path(__file__).resolve().parents[2] / "tests" / "runtime"))
            self.device = Device(importlib.import_module("fake_driver").FakeDriver())
        else:
            torch.zeros(1, device="cuda")  # makes torch's context current before `Device` looks for one
            self.device = Device()
        self.kept = None if dry else Verdicts("kernels_gpu")
        self.basis = Digests(ROOT).sources(BASIS)
        self._loaded: dict[int, tuple[Entry, Kernel]] = {}  # keeps the entry alive, because `id`s of deleted objects are reused

    def kernel(self, entry: Entry) -> Kernel:
        """The entry's kernel on the device."""
        if id(entry) not in self._loaded:
            self._loaded[id(entry)] = entry, Kernel(entry.manifest, entry.cubin, self.device)
        return self._loaded[id(entry)][1]

    def plan(self, entry: Entry, tensors: dict[str, Any]) -> Any:
        """A checked launch on torch tensors."""
        given = arguments(entry.manifest, tensors)
        if self.dry:
            types = {spec.name: spec.dtype for spec in entry.manifest.tensors}
            given |= {
                name: TensorView(t.data_ptr() // 256 * 256, types[name], tuple(t.shape), t.stride())
                for name, t in tensors.items()
            }
        return self.kernel(entry).plan(given, values=values_option(entry.manifest))

    def stream(self) -> int:
        """Torch's current stream, which is the capturing one inside a capture."""
        return 0 if self.dry else int(torch.cuda.current_stream().cuda_stream)

    def synchronize(self) -> None:
        """Wait for the device."""
        if not self.dry:
            torch.cuda.synchronize()


def work(folders: list[Path], only: Sequence[str] | None, dry: bool, skip_checks: bool, skip_times: bool) -> None:
    """Check and time everything, kernel by kernel."""
    torch.manual_seed(time.time_ns() % 2**31)
    bench = Bench(dry)
    entries, broken = find_artifacts(folders, bench.device.architecture)
    for line in broken:
        emit("problem", kernel="", text=line)
    present = {entry.manifest.kernel for entry in entries}
    ordered = [name for name in ORDER if name in present] + sorted(present - set(ORDER))
    todo = [name for name in ordered if only is None or name in only]
    emit("todo", kernels=todo)
    emit("machine", gpu=bench.device.name, arch=bench.device.architecture, torch=torch.__version__, artifacts=len(entries))
    for name in [*(only or ()), *(() if entries else ("every kernel",))]:
        if name not in present:
            emit("problem", kernel=name, text=f"no artifact for {bench.device.architecture} in {', '.join(map(str, folders))}")
    for name in todo:
        own = [entry for entry in entries if entry.manifest.kernel == name]
        emit("begin", kernel=name, artifacts=len(own))
        if name not in MEANING:
            emit("problem", kernel=name, text="ci/bench/gpu_cases.py does not say what this kernel computes")
        else:
            right = own if skip_checks else [entry for entry in own if _check(bench, entry)]
            if not skip_times:
                _time_kernel(bench, name, right)
        emit("end", kernel=name)
    if not skip_times and "add" in todo:
        _host_costs(bench, [entry for entry in entries if entry.manifest.kernel == "add"])


def case_of(entry: Entry) -> str:
    """An artifact's name in the verdicts file."""
    return f"{entry.manifest.kernel}:{entry.variant}".replace(" ", "-")


def _check(bench: Bench, entry: Entry) -> bool:
    """Check an artifact at every size, unless this CUBIN has a valid verdict; returns False if it is wrong."""
    manifest, right, count = entry.manifest, True, 0
    now = key(bench.basis, short(entry.cubin), bench.device.name)
    known = bench.kept.find(case_of(entry), now) if bench.kept is not None else None
    if known is not None and known.word == "right":
        emit("checked", kernel=manifest.kernel, variant=entry.variant, dtype=entry.dtype, right=True, kept=now, **known.detail)
        return True
    worst = {"ours": 0.0, "torch": 0.0, "ratio": 0.0}
    for dims in checked_sizes(manifest):
        count += 1
        try:
            tensors = make_tensors(manifest, dims, bench.device_name)
            before = {name: tensor.clone() for name, tensor in tensors.items()}
            plan = bench.plan(entry, tensors)
            plan.launch(bench.stream())
            bench.synchronize()
            if bench.dry:
                for name, value in MEANING[manifest.kernel](manifest, before).items():
                    tensors[name].copy_(value)
            results = compare(before, tensors, manifest)
            intact = guards_intact(tensors)
        except Exception as error:
            emit(
                "wrong", kernel=manifest.kernel, variant=entry.variant, dims=dims, text=f"{type(error).__name__}: {error}"[:500]
            )
            if "CUDA error" in str(error) or "CUDA_ERROR" in str(error):
                raise SystemExit(70) from None  # the context is lost: a new process continues with the next kernel
            return False
        for result in results:
            ratio = result.ours[0] / result.torch[0] if result.torch[0] else 0.0
            if ratio >= worst["ratio"]:
                worst = {"ours": result.ours[0], "torch": result.torch[0], "ratio": ratio}
            if not result.ok or not intact:
                right = False
                text = "" if intact else "bytes beside the tensor were written"
                emit(
                    "wrong", kernel=manifest.kernel, variant=entry.variant, dims=dims, output=result.output, text=text,
                    ours=[repr(e) for e in result.ours], torch=[repr(e) for e in result.torch],
                )  # fmt: skip
    emit(
        "checked", kernel=manifest.kernel, variant=entry.variant, dtype=entry.dtype, right=right, case=case_of(entry), key=now,
        sizes=count, **worst,
    )  # fmt: skip
    return right and count > 0


def _time_kernel(bench: Bench, name: str, entries: list[Entry]) -> None:
    for problem in problems(name):
        for dtype in dict.fromkeys(entry.dtype for entry in entries):
            chosen = [entry for entry in entries if entry.dtype == dtype and fits(entry.manifest, problem.dims)]
            if not chosen or (dtype != "bf16" and problem != problems(name)[0]):
                continue
            for variants in _of_same_tensors(chosen):
                try:
                    _time_problem(bench, problem, dtype, variants)
                except Exception as error:
                    emit("problem", kernel=name, text=f"{problem.label} {dtype}: {type(error).__name__}: {error}"[:500])
                    if "CUDA error" in str(error) or "CUDA_ERROR" in str(error):
                        raise SystemExit(70) from None
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
    manifest = entries[0].manifest
    dims = problem.dims
    if bench.dry:
        dims = {
            key: value if any(key in e.manifest.constants for e in entries) else min(value, 64) for key, value in dims.items()
        }
    sets = [make_tensors(manifest, dims, bench.device_name)]
    total = bytes_moved(manifest, sets[0])
    allocated = sum(tensor.numel() * tensor.element_size() for tensor in sets[0].values())
    rotations = 2 if bench.dry else min(400, ROTATED_BYTES // total + 1, MOST_ALLOCATED // allocated + 1)
    sets += [make_tensors(manifest, dims, bench.device_name) for _ in range(rotations - 1)]
    entries = [entry for entry in entries if _right_at(bench, entry, dims, sets[0])]
    if not entries:
        return
    alternatives: dict[str, list[Any]] = {}
    for entry in entries:
        plans = [bench.plan(entry, tensors) for tensors in sets]
        alternatives[entry.variant] = [lambda plan=plan: plan.launch(bench.stream()) for plan in plans]
        if entry.manifest.dependent_launch:
            overlapping = [lambda plan=plan: plan.launch(bench.stream(), overlap=True) for plan in plans]
            alternatives[f"{entry.variant}{OVERLAPPED}"] = overlapping
    library = ""
    runs: list[Any] = []
    for tensors in sets:
        library, run = library_run(problem, manifest, tensors, total)
        runs.append(run)
    alternatives[library] = runs
    expected = max(total / EXPECTED_BYTES_PER_US, problem.flops / EXPECTED_FLOPS_PER_US)
    timings = measure(alternatives, expected, dry=bench.dry)
    reference = timings[library]
    for name, ours in timings.items():
        if name == library:
            continue
        overlapped = name.endswith(OVERLAPPED)
        emit(
            "timed", kernel=problem.kernel + OVERLAPPED * overlapped, label=problem.label, dtype=dtype,
            variant=name.removesuffix(OVERLAPPED), library=library, us=ours.median, us_low=ours.low, us_high=ours.high,
            library_us=reference.median, library_low=reference.low, library_high=reference.high, bytes=total,
            flops=problem.flops, ratio=reference.median / ours.median, floor=None if overlapped else problem.floor,
            sets=rotations, launches=ours.launches,
        )  # fmt: skip


def _right_at(bench: Bench, entry: Entry, dims: dict[str, int], tensors: dict[str, Any]) -> bool:
    """Check one artifact at a timed size, on a copy of the written tensors."""
    manifest = entry.manifest
    written = {spec.name for spec in manifest.tensors if spec.access != "in"}
    fresh = make_written(manifest, tensors)
    before = {name: tensor.clone() if name in written else tensor for name, tensor in fresh.items()}
    bench.plan(entry, fresh).launch(bench.stream())
    bench.synchronize()
    if bench.dry:
        for name, value in MEANING[manifest.kernel](manifest, before).items():
            fresh[name].copy_(value)
    results = compare(before, fresh, manifest)
    for result in results:
        if not result.ok:
            emit(
                "wrong", kernel=manifest.kernel, variant=entry.variant, dims=dims, output=result.output, text="",
                ours=[repr(e) for e in result.ours], torch=[repr(e) for e in result.torch],
            )  # fmt: skip
    return all(result.ok for result in results)


def _host_costs(bench: Bench, entries: list[Entry]) -> None:
    """Microseconds of host time for a plan and for a launch, and for torch's call of the same kernel."""
    entry = next((e for e in entries if e.dtype == "bf16" and fits(e.manifest, {"N": 1024})), None)
    if entry is None:
        return
    try:
        tensors = make_tensors(entry.manifest, {"N": 1024}, bench.device_name)
        x = torch.randn(1024, device=bench.device_name)
        plan = bench.plan(entry, tensors)
        stream = bench.stream()
        costs = {
            "plan": _host_us(lambda: bench.plan(entry, tensors), 200, bench),
            "launch": _host_us(lambda: plan.launch(stream), 500, bench),
            "torch_add": _host_us(lambda: torch.add(x, x, out=x), 500, bench),
        }
        emit("host", **costs)
    except Exception as error:
        emit("problem", kernel="add", text=f"host costs: {type(error).__name__}: {error}"[:300])


def _host_us(call: Any, count: int, bench: Bench) -> float:
    best = math.inf
    for _ in range(7):
        bench.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        best = min(best, (time.perf_counter() - begin) / count * 1e6)
    bench.synchronize()
    return best
