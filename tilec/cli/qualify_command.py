"""`tilec qualify`: launches every artifact of a bundle on this machine's GPU, or prepares the side file for it."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tilec.cli.bundle_group import BUNDLE, DIGEST, TRUST
from tilec.cli.options import ENDED, JOBS, a_number, cores
from tilec.cli.project import UsageError, print_line
from tilec.diagnostics.diagnostic import CompileError, Diagnostic
from tilec.untrusted.output import write_named

if TYPE_CHECKING:
    from tilec.qualify.side_file import Entry, SideFile
    from tilec.runtime import Bundle

EPILOG: Final = (
    "Exit status: 0 every launch of every artifact is right, 1 something is wrong, writes outside, is not repeatable or fails, "
    "2 wrong usage, a file that cannot be read or written, or the environment, such as no GPU, 3 nothing is wrong but "
    f"something was not tried, {ENDED}."
)
_WRITTEN: Final = click.Path(dir_okay=False, readable=False)


@click.command(epilog=EPILOG)
@BUNDLE
@DIGEST
@TRUST
@click.option("--with", "side", metavar="FILE", help="The side file. Default: that next to the bundle, `NAME.qualify`.")
@click.option("--prepare", is_flag=True, help="Write the side file instead; needs `tilec[audit]`, and no GPU.")
@click.option("--output", "-o", metavar="FILE", type=_WRITTEN, help="With --prepare: the file to write.")
@click.option(
    "--references", metavar="DIR", type=click.Path(file_okay=False),
    help="With --prepare: run the NumPy references (`reference*.py`) of this folder, and compare them too.",
)  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", type=_WRITTEN, help="Write the report there, ready to be signed.")
@click.option("--tune", metavar="DIR", type=click.Path(file_okay=False), help="Time choices too, and write records to DIR.")
@click.option("--kernel", "-k", "kernels", multiple=True, metavar="NAME", help="Only this kernel or artifact; may be repeated.")
@click.option(
    "--repeats", type=click.IntRange(1, 10_000), default=50, show_default=True, help="Launches that must agree bit by bit."
)
@click.option("--times/--no-times", default=True, show_default=True, help="Time the launches at the model's shapes.")
@click.option(
    "--time-limit", type=click.FloatRange(0, 1e6), callback=a_number, default=120.0, show_default=True, metavar="S",
    help="Start no launch after S seconds; the rest is `not tried`.",
)  # fmt: skip
@JOBS
def qualify(
    file: str, digest: str | None, trust: str | None, side: str | None, prepare: bool, output: str | None,
    references: str | None, json_file: str | None, tune: str | None, kernels: tuple[str, ...], repeats: int, times: bool,
    time_limit: float, jobs: int | None,
) -> int:  # fmt: skip
    """Say whether a bundle is right on this machine's GPU, without the compiler.

    Every artifact is launched at the edges of its contract and at the model's shapes, between guard zones, again and again, and
    what it writes is compared with the results in the side file. `--prepare` writes that file on any machine: the tile
    interpreter computes the results from the tile IR in the bundle.

    \b
    Examples:
      tilec qualify qwen3-4b-sm_90a.bundle --prepare           writes qwen3-4b-sm_90a.qualify
      tilec qualify qwen3-4b-sm_90a.bundle --prepare --references kernels_src
      tilec qualify qwen3-4b-sm_90a.bundle                     on the GPU, with both files
      tilec qualify qwen3-4b-sm_90a.bundle --json report.json  a report to sign, or to send
      tilec qualify qwen3-4b-sm_90a.bundle --tune records      times the choices that the bundle has, too
    """
    if prepare and (side is not None or json_file is not None or tune is not None):
        raise UsageError("`--prepare` launches nothing: leave out `--with`, `--json` and `--tune`")
    if (output is not None or references is not None) and not prepare:
        raise UsageError("`--output` and `--references` are for `--prepare`; `--json` writes the report")
    from tilec.cli.bundle_commands import opened  # a command that is not run loads no NumPy

    with contextlib.closing(opened(file, digest=digest, trust=trust)) as bundle:
        if bundle.gpus > 1:
            raise UsageError(f"`{file}` is for {bundle.gpus} GPUs, whose kernels wait for each other; qualify that for one GPU")
        known = {name for one in bundle.kernels for name in (one.name, one.manifest.kernel)}
        for name in kernels:
            if name not in known:
                raise CompileError(Diagnostic("E0707", f"`{file}` has no kernel `{name:.80}`"))
        if prepare:
            return prepare_command(bundle, kernels, output, jobs or cores(), references)
        return launch_command(
            bundle, side, kernels, json_file=json_file, tune=tune, repeats=repeats, times=times, time_limit=time_limit
        )


def prepare_command(
    bundle: Bundle, kernels: Sequence[str], output: str | None, jobs: int, references: str | None = None
) -> int:  # fmt: skip
    """Write the side file; returns the exit status: 1 if a reference differs, 3 if an artifact has no launch."""
    try:
        from tilec.qualify.prepare import side_file, subjects
        from tilec.qualify.preparing import entries
        from tilec.qualify.side_file import default_path, encode
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("z3", "ml_dtypes"):
            raise
        hint = "run `pip install 'tilec[audit]'`"
        raise CompileError(Diagnostic("E0601", f"`{error.name}` is not installed", hint=hint)) from None
    problems: list[str] = []
    wanted = subjects(bundle, kernels, problems)
    show = _progress() if sys.stderr.isatty() else None
    found = entries(wanted, jobs, show, Path(references) if references is not None else None)
    data = encode(side_file(bundle, found))
    path = output or str(default_path(bundle.path))
    write_named(path, data)
    launches = sum(len(entry.launches) for entry in found)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    empty = [entry for entry in found if not entry.launches]
    for entry in empty:
        print(f"warning: {entry.name}: {'; '.join(entry.left_out)}", file=sys.stderr)
    print(f"{path}  {len(found)} artifacts  {launches} launches  {len(data)} bytes")
    differing = _compared_references(found) if references is not None else 0
    return 1 if differing else 3 if empty else 0


def _compared_references(found: Sequence[Entry]) -> int:
    """Print what the references say; returns the number of launches at which one differs."""
    from tilec.qualify.references import AGREES, DIFFERS

    compared = [(entry.name, launch.name, launch.reference) for entry in found for launch in entry.launches if launch.reference]
    differing = [one for one in compared if one[2].startswith(DIFFERS)]
    for name, launch, text in differing:
        print(f"error: {name}, {launch}: {text}", file=sys.stderr)
    for reason in sorted({text for _, _, text in compared if text != AGREES and not text.startswith(DIFFERS)}):
        names = sorted({name for name, _, text in compared if text == reason})
        print(f"note: {', '.join(names)}: {reason}", file=sys.stderr)
    agreeing = sum(text == AGREES for _, _, text in compared)
    others = len(compared) - agreeing - len(differing)
    print(f"references: {agreeing} launches agree, {len(differing)} differ, {others} not compared")
    return len(differing)


def launch_command(
    bundle: Bundle, side_path: str | None, kernels: Sequence[str], *, json_file: str | None, tune: str | None, repeats: int,
    times: bool, time_limit: float, command: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """Launch, print the report and write it; returns the exit status. `command` starts the process that launches."""
    from tilec.qualify.report import encoded, lines, report
    from tilec.qualify.session import CHILD, Session
    from tilec.qualify.side_file import default_path
    from tilec.tuning.measure import NoDevice

    path = Path(side_path) if side_path is not None else default_path(bundle.path)
    side = _side_file(path)
    names = [one.name for one in bundle.kernels if not kernels or {one.name, one.manifest.kernel} & set(kernels)]
    date, begin = datetime.datetime.now(datetime.UTC).date().isoformat(), time.monotonic()
    session = Session(
        bundle, side, str(path), names, repeats, time_limit, times, notify=_progress() if sys.stderr.isatty() else _silent,
        command=command or CHILD,
    )  # fmt: skip
    try:
        session.run()
        if tune is not None:
            _tune(session, tune, date, max(0.0, time_limit - (time.monotonic() - begin)))
    except NoDevice as error:
        raise UsageError(str(error)) from None
    found = report(session, time.monotonic() - begin, date)
    print("\n".join(lines(found)))
    if json_file is not None:
        write_named(json_file, encoded(found))
    return int(found["summary"]["status"])


def _side_file(path: Path) -> SideFile:
    """The side file; UsageError if there is none, or if it is none."""
    from tilec.qualify.side_file import Malformed, read

    try:
        return read(path)
    except FileNotFoundError:
        raise UsageError(
            f"there is no `{path}`; write it with `tilec qualify BUNDLE --prepare`, or name one with `--with`"
        ) from None
    except OSError as error:
        raise UsageError(f"`{path}` cannot be read: {error.strerror or error}") from None
    except Malformed as error:
        raise UsageError(f"`{path}` {error}") from None


def _tune(session: Any, folder: str, date: str, seconds: float) -> None:
    """Time the choices of the artifacts that are right, and write records."""
    from tilec.qualify.records import write
    from tilec.qualify.trial import RIGHT
    from tilec.qualify.tune import groups

    right = {name: record["verdict"] == RIGHT for name, record in session.records.items()}
    session.tune, session.names, session.time_limit = groups(session.bundle, session.side, right), [], seconds
    if not session.tune and not session.bundle.has_step:
        print_line("note", f"`{session.bundle.path}` has no step, so it has no launches of a model to time choices at")
    names = list(session.records)
    session.run()
    session.names = names
    for path, count in write(session, Path(folder), date).items():
        print(f"{path}  {count} launches", file=sys.stderr)


def _progress() -> Any:
    start = time.monotonic()

    def show(label: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {label}", file=sys.stderr)

    return show


def _silent(_: str) -> None:
    """Report no progress."""
