"""`tilec bench`: times a kernel on a GPU and compares it with its baseline and the roofline; without a GPU, prints the
roofline.

Exit status: 0 measured; 1 the kernel is refused, or differs from its reference or its baseline; 2 wrong usage or environment;
3 no GPU: nothing was measured, and the output is computed from the contract and published rates.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilec.artifact.records import Manifest
from tilec.cli.project import UsageError, chosen_targets, named_gpu, notify, open_one, print_line
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.read.buildfile import BuildFile
from tilec.project.read.kernel_entry import KernelEntry
from tilec.project.trial.inputs import OwnInputs, own_inputs
from tilec.project.trial.launches import Contract, LaunchValuesError, given_values, large_launch, values_text
from tilec.project.trial.trial import own_reference
from tilec.runtime import LaunchError, load_artifact
from tilec.target.targets import Target
from tilec.tuning.bench_report import as_json, check_plot, draw, lines
from tilec.tuning.comparison import COMMAND, Compared, Order, compare, greeting
from tilec.tuning.measure import NoDevice, hears
from tilec.tuning.roofline import PUBLISHED, Rates, Work, work
from tilec.untrusted.output import Output, write_named

NOT_MEASURED = 3
BASELINES = "baseline*.py"
COPY_BLOCK = 4096
BUILD_FILE, KERNELS = "build.toml", "kernels_src"


@dataclass(frozen=True, slots=True)
class Subject:
    """The kernel to time: its manifest and the path of it, its tile IR (`function`, None for a built artifact whose source is
    not there), the folder of its reference and baseline (`kernels`), and its build file (None for a built artifact)."""

    manifest: Manifest
    path: Path
    function: Any
    kernels: Path | None
    build: BuildFile | None


def bench_command(
    project: str | None, kernel: str, constants: tuple[str, ...], dims: tuple[str, ...], arch: str | None, gpu: str | None,
    plot: str | None, *, as_json_: bool,
) -> int:  # fmt: skip
    """Build, check, time and print. Returns the exit status."""
    if plot is not None:
        check_plot(Path(plot))
    try:
        device, missing = greeting(COMMAND), ""
    except NoDevice as error:
        device, missing = None, str(error)
    named = _named(gpu, arch) if device is None else None
    if device is not None and gpu is not None:
        raise UsageError(f"this machine has {device['device']}, so the GPU is measured; `--gpu` is for machines without one")
    with tempfile.TemporaryDirectory(prefix="tilec-bench-") as folder:
        target = Target.parse(device["arch"] if device is not None else named.arch if named is not None else "sm_90")
        subject = _subject(project, kernel, constants, target, Path(folder))
        contract = Contract.of_manifest(subject.manifest)
        launches = _launches(contract, dims, subject)
        works = [work(contract, one, subject.function) for one in launches]
        if device is None:
            return _unmeasured(subject, launches, works, named, missing, plot, as_json_=as_json_)
        order = Order(
            subject.path,
            _copy(target, Path(folder), subject),
            _reference(subject, "reference*.py"),
            _reference(subject, BASELINES),
            launches,
            _inputs(subject),
            _given(dims),
        )
        found = _compared(order)
    if order.baseline is None:
        found.notes.append(_no_baseline(subject))
    return _print_result(subject, found, works, plot, as_json_=as_json_)


def _named(gpu: str | None, arch: str | None) -> Rates:
    """The published rates for the bound: those of the GPU `gpu`, or of the first GPU of the architecture."""
    if gpu is not None:
        return named_gpu(gpu, PUBLISHED)
    targets = chosen_targets(arch) or (Target.parse("sm_90"),)
    found = next((one for one in PUBLISHED.values() if one.arch == targets[0].name), None)
    if found is None:
        raise UsageError(f"no rates of a GPU are known for {targets[0]}; name a GPU with `--gpu`: {', '.join(PUBLISHED)}")
    return found


def _subject(project: str | None, kernel: str, constants: tuple[str, ...], target: Target, folder: Path) -> Subject:
    """The built artifact if `kernel` names one, else a kernel that is built now."""
    if kernel.endswith(".json"):
        if constants:
            raise UsageError(f"`{kernel}` is built already, with constants of its own; leave out -c")
        try:
            manifest, _ = load_artifact(kernel)
        except LaunchError as error:
            raise UsageError(f"`{kernel}` cannot be used: {error}") from None
        kernels = _kernels(Path(kernel))
        return Subject(manifest, Path(kernel), _source(manifest, kernels), kernels, None)
    from dataclasses import replace

    from tilec.frontend import load_kernel

    file, colon, name = kernel.rpartition(":")
    if colon and Path(file).stem != name:
        raise UsageError(f"`{file}` holds the kernel `{Path(file).stem}`, not `{name}`")
    build, entry = open_one(project, file if colon else kernel, constants, target.name)
    build = replace(build, entries=(replace(entry, targets=(target,)),), models=(), served=())
    path = _written(build, entry, target, folder)
    (values,) = entry.specialisations()
    function = load_kernel(build.kernels / f"{entry.name}.py", values, root=build.root)
    manifest, _ = load_artifact(path)
    return Subject(manifest, path, function, build.kernels, build)


def _source(manifest: Manifest, kernels: Path | None) -> Any:
    """The tile IR of a built artifact, from the kernel's file in its project; None if the file now gives another, or none."""
    path = None if kernels is None else kernels / f"{manifest.kernel}.py"
    if path is None or kernels is None or not path.is_file():
        return None
    from tilec.frontend import load_kernel
    from tilec.ir.text.printer import print_function

    with contextlib.suppress(CompileError):
        function = load_kernel(path, manifest.constants, root=kernels.parent)
        if sha256(print_function(function).encode()).hexdigest() == manifest.digests.get("tir"):
            return function
    return None


def _kernels(artifact: Path) -> Path | None:
    """The kernels' folder of the project that contains an artifact; None if there is no project."""
    root = next((one for one in artifact.resolve().parents if (one / BUILD_FILE).is_file()), None)
    if root is None:
        return None
    with contextlib.suppress(OSError, ValueError, LookupError, AttributeError, TypeError):  # the build file does not name it
        return root / tomllib.loads((root / BUILD_FILE).read_text(encoding="utf-8"))["build"].get("kernels", KERNELS)
    return root / KERNELS


def _written(build: BuildFile, entry: KernelEntry, target: Target, folder: Path) -> Path:
    """Build the only specialisation and write its files; returns the path of the manifest. CompileError if it is refused."""
    from tilec.project.build.just_in_time import products

    outputs = products(build, target)
    for name in ("json", "cubin"):
        Output(folder, None).write(f"{entry.name}.{name}", outputs[name], durable=False)
    return folder / f"{entry.name}.json"


def _copy(target: Target, folder: Path, subject: Subject) -> Path | None:
    """Build the copy kernel; None for a built artifact, which is timed without a compiler."""
    if subject.build is None:
        return None
    from tilec.project.read.single import project_of
    from tilec.tuning import copy_kernel

    build = project_of(Path(copy_kernel.__file__), "copy_kernel", {"BLOCK": (COPY_BLOCK,)}, (target,))
    return _written(build, build.entries[0], target, folder)


def _launches(contract: Contract, dims: tuple[str, ...], subject: Subject) -> tuple[dict[str, float], ...]:
    """The launches of `dims`, else the shapes of `[[tuning]]`, else one launch; missing values are large."""
    launch_dims: list[dict[str, float]]
    try:
        launch_dims = [given_values(text) for text in dims]
        if not launch_dims and subject.build is not None:
            tuned = [one.tuned for one in subject.build.served if one.tuned.kernel == subject.manifest.kernel]
            launch_dims = [dict(shape) for shape in tuned[0].shapes] if tuned else []
        return tuple(large_launch(contract, one) for one in launch_dims or [{}])
    except LaunchValuesError as error:
        raise UsageError(str(error)) from None


def _reference(subject: Subject, files: str) -> tuple[Path, str] | None:
    return None if subject.kernels is None else own_reference(subject.kernels, subject.manifest.kernel, files)


def _inputs(subject: Subject) -> OwnInputs | None:
    """The author's function that makes inputs of the kernel."""
    if subject.kernels is None:
        return None
    root = subject.build.root if subject.build is not None else subject.kernels.parent
    return own_inputs(subject.kernels, subject.manifest.kernel, root)


def _given(dims: tuple[str, ...]) -> tuple[str, ...]:
    """The names that `--dims` gives."""
    return tuple(dict.fromkeys(name for text in dims for name in given_values(text)))


def _no_baseline(subject: Subject) -> str:
    folder = f"{subject.kernels.name}/" if subject.kernels is not None else ""
    return f"no baseline: write `def {subject.manifest.kernel}(...)`, of torch tensors, in `{folder}baseline.py`"


def _compared(order: Order) -> Compared:
    try:
        return compare(order, COMMAND, hears)
    except NoDevice as error:
        raise UsageError(str(error)) from None


def _unmeasured(
    subject: Subject, launches: tuple[Mapping[str, float], ...], works: list[Work], named: Rates | None, missing: str,
    plot: str | None, *, as_json_: bool,
) -> int:  # fmt: skip
    """Print bounds from the contract and published rates; exit status 3."""
    assert named is not None
    found = Compared(arch=named.arch)
    print_line("error", f"nothing was measured: {missing}; run it on a machine with a GPU and its driver")
    if plot is not None:
        notify(f"no plot was made: `{plot}` needs measurements")
    if as_json_:
        print(json.dumps(as_json(subject.manifest, found, list(zip(launches, works, strict=True)), named), indent=1))
    else:
        print("\n".join(lines(subject.manifest, found, list(zip(launches, works, strict=True)), named)))
    sys.stdout.flush()
    return NOT_MEASURED


def _print_result(subject: Subject, found: Compared, works: list[Work], plot: str | None, *, as_json_: bool) -> int:
    pairs = [(row.launch, one) for row, one in zip(found.rows, works, strict=False)]
    if as_json_:
        print(json.dumps(as_json(subject.manifest, found, pairs, None), indent=1))
    else:
        print("\n".join(lines(subject.manifest, found, pairs, None)))
    sys.stdout.flush()
    for note in found.notes:
        print_line("note", note)
    if plot is not None and any(row.kernel for row in found.rows):
        write_named(plot, draw(subject.manifest, found, pairs, Path(plot).suffix))
    wrong = [found.wrong, *(row.wrong for row in found.rows)]
    for text in filter(None, wrong):
        print_line("error", f"`{subject.manifest.kernel}` is wrong: {text}")
    refused = [row for row in found.rows if row.refused]
    for row in refused:
        print_line("error", f"not launched at {values_text(row.launch, ', ')}: {row.refused}")
    return 1 if any(wrong) else 2 if refused else 0
