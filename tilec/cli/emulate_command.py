"""`tilec emulate`: one specialisation of a kernel to PTX, and its PTX emulated on random inputs within the contract."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tilec.cli.inspect_commands import specialisation
from tilec.cli.project import (
    UsageError,
    chosen_entries,
    chosen_targets,
    open_project,
    open_store,
    print_diagnostics,
    say,
    status_of,
    toolchain,
)  # fmt: skip
from tilec.diagnostics import CompileError

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tilec.artifact import Manifest, TensorSpec
    from tilec.emulator import Report
    from tilec.project.buildfile import BuildFile, KernelEntry
    from tilec.target import Target

_SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 32, 33, 40, 64, 100, 128, 136, 256)
_TRIALS = 5000
_ENOUGH = 300
_MOST_ELEMENTS = 1 << 18
_LEAST_TILE = 16


def emulate_command(
    project: str, kernel: str, arch: str | None, constants: tuple[str, ...], dims: str | None, seed: int, *, as_json: bool
) -> int:  # fmt: skip
    """Print the report of one launch on each target; 1 where a fault was found or the kernel is refused."""
    from tilec.workers.call import call

    build = open_project(project)
    entry = chosen_entries(build, [kernel])[0]
    found = 0
    results: list[dict[str, Any]] = []
    for target in chosen_targets(arch) or entry.targets[:1]:
        what = f"the emulation of kernel `{entry.name}`"
        try:
            ptx, manifest, spans = _built(build, entry, constants, target)
            answer: Answer = call(
                _emulated, ptx, manifest, spans, build.root, dims, seed, what=what, limits=entry.limits, span=entry.span
            )
        except CompileError as error:
            print_diagnostics(error.diagnostics, build.root)
            return status_of(error.diagnostics)
        if answer.usage:
            raise UsageError(answer.usage)
        found += not answer.clean
        results.append(answer.data)
        if not as_json:
            print("\n".join(answer.lines))
    if as_json:
        print(json.dumps(results, indent=1))
    return int(found > 0)


@dataclass(frozen=True, slots=True)
class Answer:
    """What one launch gave: as plain data and as lines for a person; or in `usage` what was wrong with the question."""

    clean: bool = True
    data: dict[str, Any] = field(default_factory=dict[str, Any])
    lines: tuple[str, ...] = ()
    usage: str = ""


def _emulated(ptx: str, manifest: Manifest, spans: bytes, root: Path, dims: str | None, seed: int) -> Answer:
    """What the worker does."""
    from tilec.emulator import UnsupportedPtx, emulate

    try:
        values = launch_values(manifest, _given(dims))
        report = emulate(ptx, manifest, random_tensors(manifest, values, seed), values, seed=seed)
    except UsageError as error:
        return Answer(usage=str(error))
    except UnsupportedPtx as error:
        return Answer(usage=f"the emulator does not know this PTX: {error}")
    lines = _lines(manifest, values, seed, report, Sources(root, spans))
    return Answer(report.clean, _as_json(manifest, values, seed, report, spans), tuple(lines))


def _built(
    build: BuildFile, entry: KernelEntry, constants: tuple[str, ...], target: Target
) -> tuple[str, Manifest, bytes]:  # fmt: skip
    """PTX, manifest and the table of lines of a specialisation, made in a worker; CompileError where the kernel is refused."""
    from tilec.project.worker import BUILD_PRELOAD
    from tilec.workers.call import call

    one = replace(entry, constants={name: (value,) for name, value in specialisation(entry, constants).items()})
    what = f"compiling `{entry.name}` for {target}"
    return call(_stages, build, one, target, what=what, span=entry.span, preload=BUILD_PRELOAD, say=say)


def _stages(build: BuildFile, entry: KernelEntry, target: Target) -> tuple[str, Manifest, bytes]:
    """What the worker does, through the store, each stage under its budget."""
    from tilec import pipeline
    from tilec.artifact import manifest_from_json
    from tilec.cache import FileDigests
    from tilec.project.plan import plan

    with contextlib.closing(open_store()) as store:
        planned, refusals = plan(build, (entry,), (target,), store, FileDigests(), toolchain(store))
        if refusals:
            raise CompileError(item for refusal in refusals for item in refusal.diagnostics)
        work = pipeline.Work(planned[0].request, target)
        for stage in pipeline.STAGES:
            pipeline.run_stage(stage, work, store)
        pipeline.link(work)
    return work.products["ptx"].decode(), manifest_from_json(json.loads(work.products["json"])), work.products["spans"]


def _given(text: str | None) -> dict[str, float]:
    values: dict[str, float] = {}
    for item in (text or "").split(","):
        name, equals, value = item.partition("=")
        if not item:
            continue
        try:
            values[name] = float(value) if "." in value or "e" in value else int(value)
        except ValueError:
            raise UsageError(f"`{item}` is not NAME=NUMBER") from None
        if not equals or not name.isidentifier():
            raise UsageError(f"`{item}` is not NAME=NUMBER")
    return values


def launch_values(manifest: Manifest, given: dict[str, float]) -> dict[str, float]:
    """Dims, strides and scalars: those given, and small ones that the launch checks allow. UsageError where none are found."""
    import numpy as np

    floats = {spec.name for spec in manifest.scalars if spec.dtype.startswith(("f", "bf"))}
    names = {slot.name for slot in manifest.abi if slot.kind != "pointer"} | {
        name for spec in manifest.tensors for expr in (*spec.dims, *(spec.strides or ())) for name in expr.symbols()
    }
    for name in given:
        if name not in names:
            raise UsageError(f"no launch value `{name}`; they are {', '.join(sorted(names))}")
    tiles = sorted({int(c) for c in manifest.constants.values() if isinstance(c, int) and c >= _LEAST_TILE})
    sizes = (*_SIZES, *(tile + more for tile in tiles for more in (-1, 1, 8) if tile + more not in _SIZES))
    random = np.random.default_rng(0)
    allowed: list[dict[str, int]] = []
    for _ in range(_TRIALS):
        env = {name: int(random.choice(sizes)) for name in sorted(names - floats)}
        env |= {name: int(value) for name, value in given.items() if name not in floats}
        _contiguous(manifest, env, given)
        _solve(manifest, env, given)
        if _is_allowed(manifest, env):
            allowed.append(env)
            if len(allowed) == _ENOUGH:
                break
    if not allowed:
        raise UsageError("found no small sizes that the launch checks allow; give them with --dims")
    chosen = min(allowed, key=lambda env: _rank(manifest, env, tiles))
    return {**chosen, **{name: given.get(name, 0.5) for name in floats}}


def _is_allowed(manifest: Manifest, env: dict[str, int]) -> bool:
    """Whether the launcher would take these values: its checks hold, and no extent and no grid axis is empty or too long."""
    from tilec.ir.types import MAX_DIM

    if not all(check.condition.evaluate(env) for check in manifest.launch_checks):
        return False
    extents = [dim.evaluate(env) for spec in manifest.tensors for dim in spec.dims]
    return all(1 <= extent <= MAX_DIM for extent in (*extents, *(axis.evaluate(env) for axis in manifest.grid)))


def _rank(manifest: Manifest, env: dict[str, int], tiles: list[int]) -> tuple[bool, bool, int, int]:
    """How little a launch is worth: too large, of one block only, few sizes just past a tile's edge, and its elements."""
    elements = sum(_span(spec, env) for spec in manifest.tensors)
    blocks = 1
    for axis in manifest.grid:
        blocks *= axis.evaluate(env)
    past = sum(any(0 < value - tile <= 8 for tile in tiles) and all(value % tile for tile in tiles) for value in env.values())
    return elements + blocks * manifest.block > _MOST_ELEMENTS, blocks < 2, -past, elements + blocks * manifest.block


def _contiguous(manifest: Manifest, env: dict[str, int], given: dict[str, float]) -> None:
    for spec in manifest.tensors:
        step = 1
        for dim, stride in reversed(list(zip(spec.dims, spec.strides or (), strict=False))):
            if stride.op == "sym" and stride.name not in given:
                env[stride.name] = step
            step *= dim.evaluate(env)


def _solve(manifest: Manifest, env: dict[str, int], given: dict[str, float]) -> None:
    """Gives a symbol that an equation defines its value."""
    for check in manifest.launch_checks:
        if check.condition.op != "==":
            continue
        left, right = check.condition.args
        for one, other in ((left, right), (right, left)):
            if one.op == "sym" and one.name not in given:
                env[one.name] = other.evaluate(env)
                break


def random_tensors(manifest: Manifest, values: dict[str, float], seed: int) -> dict[str, NDArray[Any]]:
    """Inputs at random within the value checks, as storage (bf16 and 8-bit floats as unsigned integers)."""
    import numpy as np

    env = {name: int(value) for name, value in values.items() if not isinstance(value, float)}
    random = np.random.default_rng([seed, 1])
    checks = {check.tensor: check for check in manifest.value_checks}
    found: dict[str, NDArray[Any]] = {}
    for spec in manifest.tensors:
        check = checks.get(spec.name)
        bounds = (check.low.evaluate(env), check.high.evaluate(env), check.distinct) if check else (0, 100, False)
        found[spec.name] = _random(random, spec, _span(spec, env), bounds)
    return found


def _span(spec: TensorSpec, env: dict[str, int]) -> int:
    """Elements from the first to the last of a tensor."""
    dims = [dim.evaluate(env) for dim in spec.dims]
    count = 1
    if spec.strides is None:
        for dim in dims:
            count *= dim
        return count
    return 1 + sum((dim - 1) * stride.evaluate(env) for dim, stride in zip(dims, spec.strides, strict=True))


def _random(random: np.random.Generator, spec: TensorSpec, count: int, bounds: tuple[int, int, bool]) -> NDArray[Any]:
    import numpy as np

    if spec.dtype in ("f32", "f16"):
        return random.normal(size=count).astype(np.float32 if spec.dtype == "f32" else np.float16)
    if spec.dtype == "bf16":
        return (random.normal(size=count).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if spec.dtype.startswith("f8"):
        return random.integers(0, 0x70, count).astype(np.uint8)
    dtype = np.uint8 if spec.dtype in ("bool", "i1") else np.dtype(spec.dtype.replace("i", "int").replace("uint", "uint"))
    if spec.dtype.startswith("u"):
        dtype = np.dtype("uint" + spec.dtype[1:])
    low, high, distinct = (0, 2, False) if spec.dtype in ("bool", "i1") else bounds
    if distinct:
        return random.permutation(np.arange(low, high))[:count].astype(dtype)
    return random.integers(low, min(high, low + 127), count).astype(dtype)


class Sources:
    """Where a kernel's tile IR came from: `at` gives the place of one of its lines, and what stands there."""

    def __init__(self, root: Path, spans: bytes) -> None:
        self.root, self.spans = root, spans

    def at(self, tir_line: int) -> str:
        """`file:line:column` and the source line; nothing where the line of the tile IR stands for no place."""
        from tilec.ir.lines import source_of

        span = source_of(self.spans, tir_line)
        if span is None:
            return ""
        try:
            text = (self.root / span.file).read_text(encoding="utf-8").split("\n")[span.line - 1].strip()
        except (OSError, IndexError):
            return str(span)
        return f"{span}: {text}"


def _as_json(manifest: Manifest, values: dict[str, float], seed: int, report: Report, spans: bytes) -> dict[str, Any]:
    from dataclasses import asdict

    from tilec.ir.lines import source_of

    statistics = {key: report.statistics[key] for key in ("steps", "instruction_lanes", "seconds", "coverage")}
    places = [source_of(spans, fault.tir_line) for fault in report.faults]
    return {
        "kernel": manifest.kernel,
        "arch": manifest.arch,
        "constants": manifest.constants,
        "values": values,
        "seed": seed,
        "faults": [
            {**asdict(fault), "source": None if place is None else str(place)}
            for fault, place in zip(report.faults, places, strict=True)
        ],
        "statistics": statistics,
    }


def _lines(manifest: Manifest, values: dict[str, float], seed: int, report: Report, sources: Sources) -> Iterator[str]:
    named = ", ".join(f"{name}={value}" for name, value in values.items())
    s = report.statistics
    yield f"{manifest.kernel} on {manifest.arch}, {named}, schedule {seed}"
    yield f"  {s['instruction_lanes']} instructions of threads in {s['seconds']:.2f} s, {s['coverage']:.0%} of the PTX executed"
    for fault in report.faults:
        yield f"  {fault}, {fault.count} times"
        place = sources.at(fault.tir_line)
        if place:
            yield f"    {place}"
    yield "  nothing found" if report.clean else "  FAULTS"
