"""Lists results: what each rests on, its age, whether it is fresh or stale, and the command that renews it.

    python ci/check_results.py [--stale] [--long] [ROOT]

In: `ci/evidence/results.toml`, the JSON of `ci/bench/results`, the sources, the recorded digests of products, README and docs.
Out: a table of all results (`--stale`: only those that are not fresh; `--long`: with every name that a result rests on), then
errors. Status 1 if README or docs cite a stale result without its date, or if the registry and the files of results differ.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence import FOLDER, Entry, Status, read_registry, states_of  # noqa: E402
from ci.evidence.citations import citations, complaints, owners  # noqa: E402


def commits(root: Path) -> dict[str, str]:
    """Date and commit of the last change of each results file; empty without git."""
    command = ["git", "-C", str(root), "log", "--format=@%cs %h", "--name-only", "--", FOLDER]
    try:
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {}
    found: dict[str, str] = {}
    now = ""
    for line in text.splitlines():
        if line.startswith("@"):
            now = line[1:]
        elif line:
            found.setdefault(Path(line).name, now)
    return found


def files_wrong(root: Path, entries: Mapping[str, Entry]) -> list[str]:
    """Files without a result in the registry, and results without files."""
    folder = root / FOLDER
    present = {path.name for path in folder.iterdir() if path.is_file()}
    lines = [
        f"{FOLDER}/{name}: ci/evidence/results.toml does not have it"
        for name in sorted(present - owners(entries.values()).keys())
    ]
    for name, entry in entries.items():
        if not present & {*entry.files()}:
            lines.append(f"ci/evidence/results.toml: `{name}` has no file in {FOLDER}")
    return lines


def table(states: Mapping[str, Status], made: Mapping[str, str], *, long: bool, only_stale: bool) -> list[str]:
    """The lines of the table."""
    lines: list[str] = []
    for name, state in states.items():
        if only_stale and state.state == "fresh":
            continue
        entry = state.entry
        age = state.age or made.get(f"{name}.json", "")
        lines.append(f"{state.state:8} {age:19} {name:24} {'GPU' if entry.gpu else '   '}  {_basis(entry, long=long)}")
        if state.state in ("stale", "failed"):
            lines.append(f"{'':8} {'':19} {'; '.join(state.reasons)[:300]}")
            lines.append(f"{'':8} {'':19} renew: python ci/renew.py {name}    ({entry.command})")
    return lines


def _basis(entry: Entry, *, long: bool) -> str:
    short_names = [re.sub(r"^(source|version):(tilec/|ci/bench/(\w+/)?)?", "", name) for name in entry.rests_on]
    text = ", ".join(short_names)
    return text if long or len(text) <= 90 else f"{text[:87]}..."


def main() -> int:
    """Print the table; returns the exit status."""
    parser = argparse.ArgumentParser(description="which results hold")
    parser.add_argument("root", nargs="?", type=Path, default=ROOT)
    parser.add_argument("--stale", action="store_true", help="only what does not hold")
    parser.add_argument("--long", action="store_true", help="every name that a result rests on")
    options = parser.parse_args()
    root: Path = options.root.resolve()
    entries = read_registry(root / "ci/evidence/results.toml")
    states = states_of(root, entries)
    print("\n".join(table(states, commits(root), long=options.long, only_stale=options.stale)))
    wrong = [*files_wrong(root, entries), *complaints(citations(root), states, entries.values())]
    counts = ", ".join(f"{sum(s.state == state for s in states.values())} {state}" for state in ("fresh", "stale", "failed"))
    print(f"{len(states)} results: {counts}")
    for line in wrong:
        print(f"error: {line}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
