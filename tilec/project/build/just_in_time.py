"""Just-in-time compilation: a kernel function and its constants go in, an artifact or a loaded kernel comes out.

The artifact comes from the store, or is built in a worker as by `tilec build` and stored. If the file is in the kernels' folder
of a project whose `build.toml` has the specialisation, the schedule of the build file is used, so that the same code is tried
out and shipped.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest
from tilec.cache import FileDigests, Store, store_root
from tilec.diagnostics.diagnostic import CompileError, Diagnostic, Label, render_all
from tilec.frontend import kernel_file
from tilec.ir.aligned import ALIGNED, without_aligned
from tilec.project.build.job import Job, Result
from tilec.project.build.report import source_texts
from tilec.project.build.worker import BUILD_PRELOAD
from tilec.project.build.worker import run as run_task
from tilec.project.read.buildfile import BuildFile, read_build_file
from tilec.project.read.models import Constant, too_wide
from tilec.project.read.plan import Planned, digests_note, plan
from tilec.project.read.single import project_of
from tilec.runtime import Device, Kernel
from tilec.target.targets import Target
from tilec.toolchain import fingerprint
from tilec.untrusted.output import Output
from tilec.untrusted.strict_json import LARGEST_OF_MANIFEST, parse
from tilec.workers.scheduler import run as run_tasks

if TYPE_CHECKING:
    from tilec.cache import Entry

BUILD_FILE = "build.toml"


class Refused(CompileError):
    """The kernel was refused; as text, the output of `tilec check`."""

    def __init__(self, error: CompileError, root: Path) -> None:
        super().__init__(error.diagnostics)
        found = list(error.diagnostics)
        self.args = ("\n" + render_all(found, source_texts(found, root)),)


def compile(
    kernel: Callable[..., Any] | str | Path,
    constants: Mapping[str, Constant] | None = None,
    arch: str | None = None,
    *,
    device: Device | None = None,
) -> Kernel:
    """Compile a kernel, through the store, and load it on a device (default: the current one).

    `kernel` is a function under `@tilec.kernel`, or the path of its file. `constants` has a value for each `Const` parameter; a
    dtype is given by its name. `arch` is the architecture, such as `sm_90`; the default is that of the device. Raises
    CompileError with the output of `tilec check` as its text, and LaunchError if the kernel cannot be loaded.
    """
    if arch is None:
        device = Device() if device is None else device
        arch = device.architecture
    manifest, cubin, _ = _artifact(kernel, constants or {}, arch)
    return Kernel(manifest, cubin, Device() if device is None else device)


def compile_general(path: Path, constants: Mapping[str, Constant], device: Device) -> tuple[Kernel, str]:
    """As `compile`, and the precondition of the aligned version that `tilec build` would make in addition; empty if none.
    With it as the constant of `tilec.ir.aligned`, `compile` makes that version."""
    manifest, cubin, aligned = _artifact(path, constants, device.architecture)
    return Kernel(manifest, cubin, device), aligned


def _artifact(
    kernel: Callable[..., Any] | str | Path, constants: Mapping[str, Constant], arch: str
) -> tuple[Manifest, bytes, str]:  # fmt: skip
    """Manifest and CUBIN of a specialisation, and the precondition of its aligned version. Raises Refused."""
    root = Path()
    try:
        path, target = kernel_file(kernel), Target.parse(arch)
        build = _project(path, dict(constants), target)
        root = build.root
        outputs = products(build, target)
    except CompileError as error:
        raise Refused(error, root) from None
    text = outputs["json"]
    aligned: str = json.loads(outputs["summary"])["aligned"] if build.entries[0].aligned else ""
    return manifest_from_json(parse(text, limit=len(text), largest=LARGEST_OF_MANIFEST)), outputs["cubin"], aligned


def products(build: BuildFile, target: Target) -> Mapping[str, bytes]:
    """The products of the only specialisation of `build`, from the store or built now, including `json` (the manifest) and
    `cubin`. CompileError if the kernel is refused."""
    with contextlib.closing(Store(store_root())) as store:
        files = FileDigests(store, digests_note(build.root))
        planned, refusals = plan(build, build.entries, (target,), store, files, fingerprint(store))
        files.save()
        if refusals:
            raise CompileError(refusals[0].diagnostics)
        return (planned[0].products(store) or _built(planned[0], store)).outputs


def _built(item: Planned, store: Store) -> Entry:
    """Build an artifact in a worker. CompileError if the kernel is refused."""
    result = Result(item)
    with tempfile.TemporaryDirectory(prefix="tilec-") as folder:
        output = Output(Path(folder), None)
        job = Job([result], store, output, 1, lambda _: None, None, run_task, BUILD_PRELOAD, None, run_tasks)
        try:
            job.make([0])
        finally:
            job.close(0.0)
    if result.diagnostics:
        raise CompileError(result.diagnostics)
    entry = item.products(store)
    if entry is None:
        message = f"artifact `{item.name}` was built but is not in the store"
        raise CompileError(Diagnostic("E0701", message, Label(item.entry.span), hint="check what empties the cache folder"))
    return entry


def _project(path: Path, constants: dict[str, Constant], target: Target) -> BuildFile:
    """A build file of this specialisation only: that of its project, with the schedule there, or else one for the file
    alone."""
    kernel, file = path.stem, path.resolve()
    wide = [name for name, value in constants.items() if too_wide(value)]
    if wide:
        raise CompileError(Diagnostic("E0514", f"`{wide[0]:.80}` is out of range", hint="integers have 64 bits"))
    values = {name: (value,) for name, value in constants.items()}
    for folder in file.parents:
        if not (folder / BUILD_FILE).is_file():
            continue
        build = read_build_file(folder / BUILD_FILE)
        if (build.kernels / file.name).resolve() == file:
            for entry in build.entries:
                if entry.name == kernel and without_aligned(constants) in entry.specialisations():
                    order = [*entry.constants, *(name for name in values if name == ALIGNED)]
                    specialised = replace(entry, constants={name: values[name] for name in order}, targets=(target,))
                    return replace(build, entries=(specialised,))
        break
    return project_of(path, kernel, values, (target,))
