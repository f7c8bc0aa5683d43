"""`tilec dump`: what a stage, or a scheduling pass, makes of one specialisation of a kernel."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from tilec.cli.project import (
    UsageError,
    chosen_targets,
    notify,
    open_one,
    open_store,
    print_diagnostics,
    status_of,
    toolchain,
)
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.diagnostics.spelling import or_mean
from tilec.diagnostics.visible import visible
from tilec.untrusted.output import write_named

if TYPE_CHECKING:
    from tilec.project.read.plan import Planned


def dump_command(
    project: str | None, kernel: str, stage: str | None, after: str | None, arch: str | None, constants: tuple[str, ...],
    output: str | None,
) -> int:  # fmt: skip
    """Print one product of one specialisation (default: `tir`), or its tile IR after the pass `after`, unless an earlier stage
    refuses the kernel. Returns the exit status; UsageError for an unknown pass."""
    from tilec.cache import FileDigests
    from tilec.project.read.plan import plan

    if after is not None:
        _check_pass(after, stage)
    build, entry = open_one(project, kernel, constants, arch)
    targets = (chosen_targets(arch) or entry.targets)[:1]
    with contextlib.closing(open_store()) as store:
        planned, refusals = plan(build, (entry,), targets, store, FileDigests(), toolchain(store))
    diagnostics = [item for refusal in refusals for item in refusal.diagnostics]
    data: bytes | None = None
    for item in planned:
        root = str(store.root)
        data, found = _product(item, stage or "tir", root) if after is None else _after(item, after, root)
        diagnostics += found
    print_diagnostics(diagnostics, build.root)
    if data is None:
        return status_of(diagnostics)
    if output is not None:
        write_named(output, data, durable=False)
    elif sys.stdout.isatty():
        print(visible(data.decode("utf-8", "backslashreplace")), end="")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0


def _check_pass(after: str, stage: str | None) -> None:
    from tilec.passes.schedule.passes import pass_names

    if stage is not None:
        raise UsageError("`--stage` and `--after` each name what to print; leave one out")
    if after not in (names := pass_names()):
        raise UsageError(f"no pass `{after}`; the passes are {', '.join(names)}{or_mean(after, names)}")


def _product(item: Planned, stage: str, store: str) -> tuple[bytes | None, list[Diagnostic]]:
    """The product of a stage, or None and why there is none."""
    from tilec.pipeline import CHECK_STAGES, stage_named
    from tilec.project.build.job import crash
    from tilec.project.build.worker import BUILD_PRELOAD, Outcome, Task
    from tilec.project.build.worker import run as run_task
    from tilec.workers.scheduler import Crashed, Report, run

    diagnostics: list[Diagnostic] = []
    preload = () if stage_named(stage) in CHECK_STAGES else BUILD_PRELOAD
    with tempfile.TemporaryDirectory() as folder:
        task = Task(item.request, item.name, (item.target,), (item.key,), store, (stage, folder), True)
        with contextlib.closing(run([task], run_task, 1, preload, notify)) as events:
            for event in events:
                if isinstance(event, Report) and isinstance(event.message, Outcome):
                    diagnostics.extend(event.message.diagnostics)
                elif isinstance(event, Crashed):
                    diagnostics.append(crash(item, event))
        written = next(Path(folder).rglob(f"*{stage_named(stage).suffix}"), None)
        return (written.read_bytes() if written is not None else None), diagnostics


def _after(item: Planned, name: str, store: str) -> tuple[bytes | None, list[Diagnostic]]:
    """The tile IR after a pass, or None and why there is none."""
    from tilec.pipeline import tile_ir_after
    from tilec.workers.call import call

    what = f"running the passes of kernel `{item.request.kernel}`"
    try:
        text: str = call(tile_ir_after, item.request, item.target, name, store, what=what, notify=notify)
    except CompileError as error:
        return None, list(error.diagnostics)
    return text.encode(), []
