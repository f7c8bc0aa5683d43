"""What a build prints: progress while it runs, the table of results, and the same as JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

from tilec.diagnostics import Diagnostic, render
from tilec.project.driver import BuildResult, Progress, Result
from tilec.terminal import wants_colour

HEADER = ("kernel", "constants", "arch", "registers", "spills", "shared", "proofs", "ms", "")
RUNGS = ("static", "interval", "set", "launch", "value", "unsafe")
ON_RIGHT = frozenset({"registers", "spills", "shared", "ms"})


@contextlib.contextmanager
def progress(total_known: bool = True) -> Generator[Progress]:
    """Progress on stderr: a live bar at a terminal, else one line per artifact that was made or refused."""
    if not sys.stderr.isatty():
        yield _plain
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, no_color=not wants_colour(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("building", total=None)

        def show(result: Result, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{result.planned.name} {result.planned.target}")

        yield show


def _plain(result: Result, done: int, total: int) -> None:
    if result.status != "hit":
        spent = sum(result.milliseconds.values())
        print(f"[{done}/{total}] {result.status} {result.planned.name} {result.planned.target} {spent:.0f} ms", file=sys.stderr)


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
    """The table of results on stdout."""
    rows = [row(result) for result in results]
    if sys.stdout.isatty() and wants_colour(sys.stdout):
        from rich.console import Console
        from rich.table import Table

        drawn = Table(box=None, header_style="bold")
        for name in HEADER:
            drawn.add_column(name, justify="right" if name in ON_RIGHT else "left", overflow="fold")
        styles = {"built": "green", "failed": "red", "hit": "dim"}
        for cells in rows:
            drawn.add_row(*cells[:-1], f"[{styles[cells[-1]]}]{cells[-1]}[/]")
        Console().print(drawn)
        return
    widths = [max(len(line[i]) for line in (HEADER, *rows)) for i in range(len(HEADER))]
    for line in (HEADER, *rows):
        cells = (
            cell.rjust(width) if name in ON_RIGHT else cell.ljust(width)
            for cell, width, name in zip(line, widths, HEADER, strict=True)
        )
        print("  ".join(cells).rstrip())


def summary_line(built: BuildResult, seconds: float) -> str:
    """One line: how many were made, found and refused."""
    counts = {status: sum(result.status == status for result in built.results) for status in ("built", "hit", "failed")}
    failed = counts["failed"] + len(built.refusals)
    parts = [f"{counts['built']} built", f"{counts['hit']} up to date"] + ([f"{failed} failed"] if failed else [])
    return f"{', '.join(parts)} in {seconds:.2f} s"


def notes(results: list[Result]) -> list[str]:
    """What was made and is slower than it could be, one line a kernel, with what mends it: registers that spill to memory."""
    spilling: dict[str, list[Result]] = {}
    for result in results:
        if result.status == "built" and result.summary["resources"]["spill_bytes"]:
            spilling.setdefault(result.planned.request.kernel, []).append(result)
    lines: list[str] = []
    for kernel, found in spilling.items():
        worst = max(found, key=lambda result: result.summary["resources"]["spill_bytes"])
        size = worst.summary["resources"]["spill_bytes"]
        more = f", and {len(found) - 1} more of `{kernel}` spill" if len(found) > 1 else ""
        fix = "use smaller tiles, or raise `warps` or lower `blocks` of its schedule in build.toml"
        lines.append(f"{worst.planned.name} {worst.planned.target}: {size} bytes of spills{more}; {fix}")
    return lines


def source_texts(diagnostics: list[Diagnostic], root: Path | None) -> dict[str, str]:
    """Texts of the files that diagnostics name relative to `root`."""
    sources: dict[str, str] = {}
    for item in diagnostics:
        for label in (*item.secondary, *([item.primary] if item.primary else [])):
            name = label.span.file
            if root is not None and name not in sources and not Path(name).is_absolute():
                with contextlib.suppress(OSError, UnicodeDecodeError):
                    sources[name] = (root / name).read_text(encoding="utf-8-sig")
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
                "stage_hits": result.hits,
                "reasons": result.reasons,
                **result.summary,
            }
            for result in built.results
        ],
        "errors": [diagnostic_json(item, root) for item in built.diagnostics],
    }


def diagnostic_json(item: Diagnostic, root: Path | None = None) -> dict[str, Any]:
    """A diagnostic as plain data; `rendered` is what the terminal shows."""
    span = item.primary.span if item.primary else None
    place = {"file": span.file, "line": span.line, "column": span.column + 1} if span else None
    shown = str(item.counterexample) if item.counterexample else None
    return {
        "code": item.code, "message": item.message, "at": place, "counterexample": shown, "notes": list(item.notes),
        "hint": item.hint,
        "rendered": render(item, source_texts([item], root)),
    }  # fmt: skip
