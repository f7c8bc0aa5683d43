"""`tilec explain`, `tilec dump` and `tilec graph`."""

from __future__ import annotations

import contextlib
import importlib.resources
import sys
import tempfile
from pathlib import Path

from tilec.build.buildfile import BuildFile, Constant, KernelEntry
from tilec.cli.project import (
    UsageError,
    chosen_entries,
    chosen_targets,
    open_project,
    open_store,
    print_diagnostics,
    status_of,
    toolchain,
)
from tilec.diagnostics import CompileError, Diagnostic


def explain_command(code: str) -> int:
    """Print the page of an error code."""
    pages = importlib.resources.files("tilec") / "explain"
    page = pages / f"{code.upper()}.md"
    if not (code.isalnum() and page.is_file()):
        known = sorted(item.name.removesuffix(".md") for item in pages.iterdir() if item.name.endswith(".md"))
        raise UsageError(f"no error `{code}`; the codes are {', '.join(known)}")
    text = page.read_text(encoding="utf-8")
    if sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(text))
    else:
        print(text.rstrip())
    return 0


def specialisation(entry: KernelEntry, given: tuple[str, ...]) -> dict[str, Constant]:
    """The first specialisation of `entry` that agrees with `NAME=VALUE` texts; UsageError where there is none."""
    wanted: dict[str, str] = {}
    for item in (part for text in given for part in text.split(",")):
        name, equals, value = item.partition("=")
        if not equals or name not in entry.constants:
            raise UsageError(f"`{item}` is not NAME=VALUE for a constant of `{entry.name}` ({', '.join(entry.constants)})")
        wanted[name] = value
    for values in entry.specialisations():
        if all(str(values[name]) == value for name, value in wanted.items()):
            return values
    raise UsageError(f"`build.toml` has no specialisation of `{entry.name}` with {', '.join(given)}")


def _entry(project: str, kernel: str) -> tuple[BuildFile, KernelEntry]:
    build = open_project(project)
    return build, chosen_entries(build, [kernel])[0]


def dump_command(
    project: str, kernel: str, stage: str, arch: str | None, constants: tuple[str, ...], output: str | None
) -> int:  # fmt: skip
    """Print one product of one specialisation; nothing where the kernel is refused before that stage. The exit status."""
    from dataclasses import replace

    from tilec.build.driver import crash
    from tilec.build.plan import plan
    from tilec.build.scheduler import Crashed, Report, run
    from tilec.build.worker import BUILD_PRELOAD, Outcome, Task
    from tilec.build.worker import run as run_task
    from tilec.cache import FileDigests
    from tilec.pipeline import CHECK_STAGES, stage_named

    build, entry = _entry(project, kernel)
    values = specialisation(entry, constants)
    one = replace(entry, constants={name: (value,) for name, value in values.items()})
    targets = (chosen_targets(arch) or entry.targets)[:1]
    with contextlib.closing(open_store(build)) as store:
        planned, refusals = plan(build, (one,), targets, store, FileDigests(), toolchain(store))
    diagnostics = [item for refusal in refusals for item in refusal.diagnostics]
    data: bytes | None = None
    preload = () if stage_named(stage) in CHECK_STAGES else BUILD_PRELOAD
    with tempfile.TemporaryDirectory() as folder:
        tasks = [
            Task(item.request, item.name, targets, (item.key,), str(store.root), (stage, folder), True) for item in planned
        ]
        for event in run(tasks, run_task, 1, preload):
            if isinstance(event, Report) and isinstance(event.message, Outcome):
                diagnostics.extend(event.message.diagnostics)
            elif isinstance(event, Crashed):
                diagnostics.append(crash(planned[event.index], event.text))
        for path in Path(folder).rglob(f"*{stage_named(stage).suffix}"):
            data = path.read_bytes()
    print_diagnostics(diagnostics, build.root)
    if data is None:
        return status_of(diagnostics)
    if output is not None:
        _write(Path(output), data)
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    return 0


def graph_command(project: str, kernel: str, constants: tuple[str, ...], output: str) -> int:
    """Write the drawing of one specialisation; 1 where the kernel is refused."""
    from tilec.frontend import load_kernel
    from tilec.graph import draw
    from tilec.passes import prove

    build, entry = _entry(project, kernel)
    try:
        function = load_kernel(build.kernels / f"{entry.name}.py", specialisation(entry, constants), root=build.root)
        text = draw(prove(function), function)
    except CompileError as error:
        print_diagnostics(error.diagnostics, build.root)
        return 1
    _write(Path(output), text.encode())
    print(f"wrote {output}")
    return 0


def _write(path: Path, data: bytes) -> None:
    from tilec.cache import write_atomically

    try:
        write_atomically(path, data, durable=False)
    except OSError as error:
        raise CompileError(Diagnostic("E0702", f"`{path}` cannot be written: {error.strerror}")) from None
