"""`tilec explain`, `tilec dump` and `tilec graph`."""

from __future__ import annotations

import contextlib
import importlib.resources
import sys
import tempfile
from pathlib import Path

from tilec.build.buildfile import BuildFile, Constant, KernelEntry
from tilec.cli.project import UsageError, chosen_entries, chosen_targets, open_project, open_store, print_diagnostics, toolchain
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
    """Print one product of one specialisation; 1 where the kernel is refused before that stage."""
    from dataclasses import replace

    from tilec.build.driver import build_project
    from tilec.pipeline import stage_named

    build, entry = _entry(project, kernel)
    values = specialisation(entry, constants)
    one = replace(entry, constants={name: (value,) for name, value in values.items()}, budget={})
    targets = (chosen_targets(arch) or entry.targets)[:1]
    store = open_store(build)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(store):
        built = build_project(build, (one,), targets, store, toolchain(store), jobs=1, dump=(stage, folder))
        found = sorted(Path(folder).rglob(f"*{stage_named(stage).suffix}"))
        data = found[0].read_bytes() if found else None
    print_diagnostics(built.diagnostics, build.root)
    if data is None:
        return 1
    if output is not None:
        _write(Path(output), data)
    else:
        sys.stdout.buffer.write(data)
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
