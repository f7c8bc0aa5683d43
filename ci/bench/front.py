"""The front that the programs of `ci/bench` share: options, files of a result, its stamp, exit status.

A program (`engine.py`, `judges.py`, `kernels.py`) has a table of cases. `python ci/bench/judges.py CASE` runs the case's module
in the folder of the program's name. The module has `arguments(parser)`, its own options, and `measure(options)`, which returns
what it found: an `Outcome`; several of them one after the other, each with everything so far, so that an interrupted run leaves
files; or an exit status, if it only printed something. Of each outcome the front writes `CASE.json` and the pages to `--out`.

A finished result is stamped with the digests of what it rests on (`ci.evidence`), computed before and after the work. It is
left without a stamp if it has parts of earlier runs, or if the digests are unknown. The exit status is the outcome's, or 3 if
the budget ended before the last case, or if what the result rests on changed meanwhile: then it is written without a stamp.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ci.evidence import RESULTS, Result, read_registry
from ci.evidence.digests import UnknownDigest
from ci.evidence.result import STAMP, Changed, gpu_name

UNFINISHED: Final = 3


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a program: a summary, its module if it has another name, and defaults of options that differ from the
    module's."""

    summary: str
    module: str = ""
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case found: the data of its JSON (None: no files), pages by name, exit status. `whole`: nothing is of an earlier
    run. `device`: what it was measured on, if not the processors or the GPU of this machine."""

    data: Any
    pages: Mapping[str, str] = field(default_factory=dict[str, str])
    status: int = 0
    whole: bool = True
    device: str = ""


class Unfinished(Exception):
    """The budget ended before the last case; the message says how many were done."""


def run(program: str, cases: Mapping[str, Case], arguments: Sequence[str]) -> int:
    """Run the case that the arguments name; returns the exit status."""
    name, options = parse(program, cases, arguments)
    measure = importlib.import_module(f"ci.bench.{program}.{cases[name].module or name}").measure
    is_child = getattr(options, "child", None) is not None  # of a case that has some; its parent writes
    result, last = None if is_child else _started(options.name), Outcome(None)
    try:
        found: Outcome | Iterable[Outcome] | int = measure(options)
        if isinstance(found, int):
            return found
        for last in [found] if isinstance(found, Outcome) else found:
            write(last, options.out, options.name, result)
    except Unfinished as error:
        print(f"{error}: run again to go on")
        return UNFINISHED
    except Changed as error:
        print(f"not stamped: {error}", file=sys.stderr)
        write(last, options.out, options.name)
        return UNFINISHED
    print(*last.pages.values(), sep="\n")
    return last.status


def parse(program: str, cases: Mapping[str, Case], arguments: Sequence[str]) -> tuple[str, argparse.Namespace]:
    """The name of a case and its options; exits with a message if there is no such case or option."""
    command, layout = f"python ci/bench/{program}.py", argparse.RawDescriptionHelpFormatter
    listed = "\n".join(f"  {name:20} {case.summary}" for name, case in cases.items())
    chooser = argparse.ArgumentParser(command, epilog=f"cases:\n{listed}", formatter_class=layout)
    chooser.add_argument("case", choices=cases, metavar="CASE", help="`CASE --help` lists its options")
    name: str = chooser.parse_args(arguments[:1]).case
    case = cases[name]
    module = importlib.import_module(f"ci.bench.{program}.{case.module or name}")
    parser = argparse.ArgumentParser(f"{command} {name}", description=module.__doc__, formatter_class=layout)
    folder = Path(os.environ.get("OUT", RESULTS))
    parser.add_argument("--out", "--output", type=Path, default=folder, metavar="FOLDER", help="where JSON and pages go")
    parser.add_argument("--name", default=name, help="of the written files")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin nothing after; the next run goes on")
    module.arguments(parser)
    parser.set_defaults(**case.defaults)
    return name, parser.parse_args(arguments[1:])


def _started(name: str) -> Result | None:
    """The result in progress; None if it is not registered, or if a digest is unknown."""
    entry = read_registry().get(name)
    if entry is None:
        return None
    try:
        return Result(name, gpu_name() if entry.gpu else "")
    except UnknownDigest as error:
        print(f"not stamped: {error}", file=sys.stderr)
        return None


def write(outcome: Outcome, folder: Path, name: str, result: Result | None = None) -> None:
    """Write the files of an outcome; `NAME.json` is stamped if the result is given and the outcome whole."""
    if outcome.data is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for page, text in outcome.pages.items():
        (folder / page).write_text(text, encoding="utf-8")
    if result is not None and outcome.whole:
        result.device = outcome.device or result.device
        result.write(outcome.data, folder, exit_status=outcome.status)
    else:
        (folder / f"{name}.json").write_text(json.dumps(outcome.data, indent=1) + "\n", encoding="utf-8")


def earlier(options: argparse.Namespace) -> dict[str, Any]:
    """The data that earlier runs of a case left in `--out`, without its stamp; empty if there are none."""
    path: Path = options.out / f"{options.name}.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {key: value for key, value in data.items() if key not in STAMP}


def names(text: str) -> list[str]:
    """The names in a comma-separated option."""
    return [name for name in text.split(",") if name]
