"""The output of a build: progress while it runs, the table of results, and the same as JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tilec.diagnostics.diagnostic import Diagnostic, Label, Span, render
from tilec.diagnostics.terminal import wants_colour
from tilec.diagnostics.visible import unguarded, visible
from tilec.ir.aligned import ALIGNED_SUFFIX
from tilec.link import NOTE_CODES
from tilec.project.build.driver import BuildResult, Progress, Result
from tilec.project.build.fixes import Edit, resolved
from tilec.project.read.plan import Planned

HEADER = ("kernel", "constants", "arch", "registers", "spills", "shared", "proofs", "ms", "")
RUNGS = ("static", "interval", "set", "launch", "value", "unsafe")
ON_RIGHT = frozenset({"registers", "spills", "shared", "ms"})


@contextlib.contextmanager
def progress(total_known: bool = True) -> Generator[Progress]:
    """Progress on stderr: a bar on a terminal, else one line per artifact that was built or refused."""
    if not sys.stderr.isatty():
        yield _plain
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=unguarded(sys.stderr), no_color=not wants_colour(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("building", total=None)

        def show(result: Result, done: int, total: int) -> None:
            bar.update(
                task, completed=done, total=total, description=escape(visible(f"{result.planned.name} {result.planned.target}"))
            )

        yield show


def _plain(result: Result, done: int, total: int) -> None:
    if result.status != "hit":
        name, spent = visible(result.planned.name), sum(result.milliseconds.values())
        print(f"[{done}/{total}] {result.status} {name} {result.planned.target} {spent:.0f} ms", file=sys.stderr)


def row(result: Result) -> tuple[str, ...]:
    """The cells of a result under `HEADER`."""
    constants = " ".join(f"{name}={value}" for name, value in result.planned.request.constants.items())
    spent = f"{sum(result.milliseconds.values()):.0f}"
    front = (result.planned.request.kernel, constants, result.planned.target.name)
    if not result.summary:
        return (*front, "", "", "", "", spent, result.status)
    used = result.summary["resources"]
    proofs = " ".join(f"{rung}:{result.summary['proofs'][rung]}" for rung in RUNGS if rung in result.summary["proofs"])
    shared = used["static_shared_bytes"] + used["dynamic_shared_bytes"]
    return (*front, str(used["registers"]), str(used["spill_bytes"]), str(shared), proofs, spent, result.status)


def table(results: list[Result]) -> None:
    """Print the table of results on stdout."""
    rows = [row(result) for result in results]
    if sys.stdout.isatty() and wants_colour(sys.stdout):
        from rich.console import Console
        from rich.markup import escape
        from rich.table import Table

        drawn = Table(box=None, header_style="bold")
        for name in HEADER:
            drawn.add_column(name, justify="right" if name in ON_RIGHT else "left", overflow="fold")
        styles = {"built": "green", "failed": "red", "hit": "dim"}
        for cells in rows:
            drawn.add_row(*(escape(visible(cell)) for cell in cells[:-1]), f"[{styles[cells[-1]]}]{cells[-1]}[/]")
        Console(file=unguarded(sys.stdout)).print(drawn)
        return
    widths = [max(len(line[i]) for line in (HEADER, *rows)) for i in range(len(HEADER))]
    for line in (HEADER, *rows):
        cells = (
            cell.rjust(width) if name in ON_RIGHT else cell.ljust(width)
            for cell, width, name in zip(line, widths, HEADER, strict=True)
        )
        print("  ".join(cells).rstrip())


def summary_line(built: BuildResult, seconds: float) -> str:
    """One line with the numbers of built, up-to-date and failed artifacts."""
    counts = {status: sum(result.status == status for result in built.results) for status in ("built", "hit", "failed")}
    failed = counts["failed"] + len(built.refusals)
    parts = [f"{counts['built']} built", f"{counts['hit']} up to date"] + ([f"{failed} failed"] if failed else [])
    return f"{', '.join(parts)} in {seconds:.2f} s"


SPILL_NOTE: Final = NOTE_CODES["spill"]
"""The note that a build prints also of an artifact that was up to date: only a build knows it."""
NARROW_NOTE: Final = NOTE_CODES["narrow_access"]


def notes(records: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Diagnostic]:
    """Performance notes as diagnostics, equal ones merged. In: pairs of an artifact's name and a record of
    `tilec.link.note_records`."""
    found: dict[tuple[str, str, str], list[str]] = {}
    first: dict[tuple[str, str, str], Mapping[str, Any]] = {}
    for name, record in records:
        key = (record["code"], str(record["span"]) if record["span"] else record["message"], record["hint"])
        names = found.setdefault(key, [])
        first.setdefault(key, record)
        if name not in names:
            names.append(name)
    return [
        Diagnostic(
            record["code"], record["message"], Label(Span(**record["span"])) if record["span"] else None,
            notes=(f"in {found[key][0]}" + (f" and {len(found[key]) - 1} more" if len(found[key]) > 1 else ""),),
            hint=record["hint"],
        )
        for key, record in first.items()
    ]  # fmt: skip


def named_notes(
    results: Iterable[Result], wanted: Callable[[Result, str], bool] = lambda result, code: True
) -> list[tuple[str, Mapping[str, Any]]]:  # fmt: skip
    """The notes of built artifacts that are `wanted` by artifact and code, each with its artifact's name. If there is an
    aligned version of one, an access is noted as narrow only where it is so in that version, too."""
    built = [result for result in results if result.summary]
    names = {(result.planned.name, result.planned.target) for result in built}
    return [
        (f"{result.planned.name} {result.planned.target}", record)
        for result in built
        for record in result.summary["notes"]
        if wanted(result, record["code"])
        and not (record["code"] == NARROW_NOTE and (result.planned.name + ALIGNED_SUFFIX, result.planned.target) in names)
    ]


def before_build(item: Planned, records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Notes of an artifact that is checked and not built, with what a build adds on its own."""
    addition = "; `tilec build` adds an aligned version for such launches"
    return [
        {**record, "hint": record["hint"] + addition} if record["aligned"] and item.entry.aligned else record
        for record in records
    ]


def source_texts(diagnostics: list[Diagnostic], root: Path | None) -> dict[str, str]:
    """Texts of the files that diagnostics name, relative to `root`; unreadable ones are omitted."""
    sources: dict[str, str] = {}
    for item in diagnostics:
        for label in (*item.secondary, *([item.primary] if item.primary else [])):
            name = label.span.file
            if name not in sources and (root is not None or Path(name).is_absolute()):
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    sources[name] = (root or Path()).joinpath(name).read_text(encoding="utf-8-sig")
    return sources


def as_json(built: BuildResult, seconds: float, root: Path | None = None) -> dict[str, Any]:
    """The result as plain data."""
    return {
        "seconds": round(seconds, 3),
        "artifacts": [
            {
                "kernel": result.planned.request.kernel,
                "constants": result.planned.request.constants,
                "arch": result.planned.target.name,
                "name": result.planned.name,
                "status": result.status,
                "milliseconds": {name: round(value, 2) for name, value in result.milliseconds.items()},
                "cpu_milliseconds": result.costs,
                "stage_hits": result.hits,
                "reasons": result.reasons,
                **result.summary,
            }
            for result in built.results
        ],
        "cache": built.counts.counts,
        "errors": [diagnostic_json(item, root) for item in built.diagnostics],
        "notes": [diagnostic_json(item, root) for item in notes(named_notes(built.results))],
    }


def diagnostic_json(item: Diagnostic, root: Path | None = None) -> dict[str, Any]:
    """A diagnostic as plain data, for programs that write kernels. `rendered` is the text for a terminal."""
    shown = item.counterexample
    texts = source_texts([item], root)
    return {
        "level": item.level, "code": item.code, "message": item.message,
        "at": _location_json(item.primary) if item.primary else None,
        "labels": [_location_json(label) for label in item.secondary],
        "counterexample": {"text": str(shown), **asdict(shown)} if shown else None,
        "notes": list(item.notes), "hint": item.hint,
        "fixes": [
            {"title": fix.title, "certain": fix.certain, "edits": [_location_json(edit) for edit in fix.edits]}
            for fix in resolved(item, texts)
        ],
        "rendered": render(item, texts),
    }  # fmt: skip


def _location_json(located: Label | Edit) -> dict[str, Any]:
    """A span as plain data. Lines and columns count from 1; the end is exclusive."""
    span = located.span
    return {
        "file": span.file, "line": span.line, "column": span.column + 1, "end_line": span.end_line,
        "end_column": span.end_column + 1, "text": located.text,
    }  # fmt: skip
