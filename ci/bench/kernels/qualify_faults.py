"""`tilec qualify` on a GPU: right bundles, and bundles with one wrong constant each, all of which it must find.

    python ci/bench/kernels.py qualify FOLDER --build BUNDLE...   anywhere, needs the compiler's assembler: side files
        and faulty bundles
    python ci/bench/kernels.py qualify FOLDER                     on a GPU, needs the base install alone: runs all

A faulty bundle has one artifact, whose PTX has one constant, operand or operation changed, and was assembled again; its digests
are right, as those of a compiler with a mistake would be. The kinds of changes are `KINDS`, each at up to two artifacts. A
place is taken if the emulator shows that the change matters: another bit of a result at some launch, or a fault. So the
emulator chooses, and the interpreter's results decide. In addition, one bundle has a CUBIN with one byte of its instructions
changed, for which there is no PTX. Status 1 if a right bundle is not right, or a fault is not found.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ci.bench.front import Outcome
from ci.bench.markdown import grid, page

if TYPE_CHECKING:
    from tilec.qualify.session import Session

FAULTS: Final = "faults.json"
REPEATS: Final = 50
SECONDS: Final = 120.0
"""What `tilec qualify` may take for a bundle."""
Row = dict[str, Any]
Command = Callable[[Path], Sequence[str]]


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", nargs="+", type=Path, metavar="BUNDLE", help="prepare these bundles, and faulty ones, there")
    parser.add_argument(
        "--references", type=Path, metavar="DIR", help="with --build: compare the references of this folder too"
    )


def measure(options: argparse.Namespace) -> Outcome | int:
    """Prepare, or run."""
    if options.build:
        from ci.bench.kernels.qualify_mutants import built

        return built(options.build, options.folder, options.references, options.jobs)
    return examined(options.folder)


def examined(folder: Path, command: Command | None = None) -> Outcome:
    """Qualify every bundle of a folder. `command` gives the command that launches a bundle, if not that of `tilec qualify`."""
    planted: list[Row] = json.loads((folder / FAULTS).read_text(encoding="utf-8"))
    names = {row["bundle"] for row in planted}
    right = [path for path in sorted(folder.glob("*.bundle")) if path.name not in names]
    rows, device = list[Row](), dict[str, Any]()
    for path in right:
        session, seconds = _run(path, path.with_suffix(".qualify"), True, command)
        device = session.device
        rows.append(_right(session, seconds))
        print(f"{path.name}: {rows[-1]['verdicts']}, {seconds:.1f} s", flush=True)
    faults = [_found(folder, row, command) for row in planted]
    missed = [row for row in faults if row["verdict"] in ("right", "not tried")]
    wrong = [row for row in rows if set(row["verdicts"]) != {"right"} or row["seconds"] > SECONDS]
    summary = {
        "bundles": len(rows), "right": len(rows) - len(wrong), "faults": len(faults), "found": len(faults) - len(missed),
        "kinds": len({row["kind"] for row in faults}),
    }  # fmt: skip
    data = {
        "gpu": device.get("device", ""), "driver": device.get("driver", ""), "bundles": rows, "faults": faults,
        "summary": summary,
    }  # fmt: skip
    return Outcome(data, {"qualify.md": _page(data)}, int(bool(missed or wrong)))


def _run(path: Path, side: Path, times: bool, command: Command | None) -> tuple[Session, float]:
    """A qualification, and its seconds from opening the files to the last result."""
    from tilec.qualify.session import CHILD, Session
    from tilec.qualify.side_file import read
    from tilec.runtime import open_bundle

    begin = time.monotonic()
    with open_bundle(path, trust="none") as bundle:
        names = [one.name for one in bundle.kernels]
        session = Session(
            bundle, read(side), str(side), names, REPEATS, 4 * SECONDS, times, command=command(path) if command else CHILD
        )
        session.run()
    return session, time.monotonic() - begin


def _right(session: Session, seconds: float) -> Row:
    """What was found about a bundle that must be right."""
    from tilec.qualify.report import report

    found = report(session, seconds, datetime.datetime.now(datetime.UTC).date().isoformat())
    shares = [time["share"] for one in found["artifacts"] for time in one["times"]]
    return {
        "bundle": found["bundle"], "side_file": found["side_file"], "rates": found["rates"], "seconds": round(seconds, 1),
        "artifacts": len(found["artifacts"]), "launches": found["summary"]["launches"], "timed": len(shares),
        "verdicts": {name: count for name, count in found["summary"]["verdicts"].items() if count},
        "reasons": [f"{one['name']}, {trial['launch']}: {trial['reason']}" for one in found["artifacts"]
                    for trial in one["launches"] if trial["verdict"] != "right"],
        "problems": found["problems"],
    }  # fmt: skip


def _found(folder: Path, row: Row, command: Command | None) -> Row:
    """What was found about a faulty bundle."""
    session, seconds = _run(folder / row["bundle"], folder / row["side"], False, command)
    (record,) = session.records.values()
    trials = [trial for trial in record["launches"] if trial["verdict"] != "right"]
    reason = f"{trials[0]['launch']}: {trials[0]['reason']}" if trials else ""
    print(f"{row['kind']}, {row['artifact']}: {record['verdict']}", flush=True)
    return {**row, "verdict": record["verdict"], "reason": reason, "launches": len(trials), "seconds": round(seconds, 1)}


def _page(data: Row) -> str:
    """The result as a page."""
    summary = data["summary"]
    lines = [
        "# `tilec qualify` on a GPU", "",
        f"{data['gpu']}, driver {data['driver']}. Right bundles are right: {summary['right']} of {summary['bundles']}. Planted "
        f"faults of {summary['kinds']} kinds, found: {summary['found']} of {summary['faults']}.", "",
    ]  # fmt: skip
    lines += grid(
        ("bundle", "artifacts", "launches", "timed", "seconds", "verdicts"),
        [
            (row["bundle"]["model"], row["artifacts"], row["launches"], row["timed"], row["seconds"],
             ", ".join(f"{count} {name}" for name, count in row["verdicts"].items()))
            for row in data["bundles"]
        ],
    )  # fmt: skip
    lines += ["", *(f"- {reason}" for row in data["bundles"] for reason in (*row["reasons"], *row["problems"])), ""]
    lines += grid(
        ("planted fault", "artifact", "change", "verdict", "first seen"),
        [
            (row["kind"], f"`{row['artifact']}`", f"`{row['before']}` to `{row['after']}`", row["verdict"], row["reason"])
            for row in data["faults"]
        ],
        left=5,
    )  # fmt: skip
    return page(lines)
