"""Carries results over the renaming that `ci/evidence/renames.toml` describes: what was fresh at its commit is stamped anew.

    python ci/renamed_results.py [--check]

For each result that was fresh at the commit `before` and is not now: its definitions then and now are compared under the table
(`ci/evidence/renamed.py`). Where they are the same, its JSON gets today's digests, and `renamed_since` names the commit. Status
1 if a result is left that changed otherwise; the table of these goes to stdout. `--check` writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence import RESULTS, Digests, read_registry  # noqa: E402
from ci.evidence.digests import UnknownDigest  # noqa: E402
from ci.evidence.registry import Entry  # noqa: E402
from ci.evidence.renamed import Renames, check, read_renames, same, trees  # noqa: E402
from ci.evidence.result import is_source, status  # noqa: E402


def check_out(commit: str, folder: Path) -> None:
    """Write the tree of a commit to a folder."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", commit], capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)


def sources(entry: Entry) -> list[str]:
    """Paths of the sources that a result rests on."""
    return [name.partition(":")[2] for name in entry.rests_on if is_source(name)]


def was_fresh(entry: Entry, data: Any, before: Digests) -> bool:
    """Whether the sources at the commit are those of the result; `changed` compares products and versions with today's."""
    names = tuple(name for name in entry.rests_on if is_source(name))
    return status(dataclasses.replace(entry, rests_on=names), data, before).state != "stale"


def changed(entry: Entry, earlier: Entry, data: Any, sides: tuple[Digests, Digests], renames: Renames) -> str:
    """Why a result that was fresh at the commit does not hold under other names; empty if it does."""
    before, now = sides
    others = [name for name in entry.rests_on if not is_source(name)]
    try:
        moved = [name for name in others if data["rests_on"].get(name) != now.of(name)]
        if moved:
            return f"{', '.join(moved)} changed"
        return "" if same(before, now, sources(earlier), sources(entry), renames) else "more than names changed"
    except UnknownDigest as error:
        return str(error)


def main() -> int:
    """Compare and stamp; the exit status."""
    parser = argparse.ArgumentParser(description="carry results over a renaming")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    renames, stale = read_renames(), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        check_out(renames.before, folder)
        earlier = read_registry(folder / "ci/evidence/results.toml")
        before, now = Digests(folder), Digests(ROOT)
        check(renames, trees(before, dict.fromkeys(path for entry in earlier.values() for path in sources(entry))))
        for entry in read_registry().values():
            path = RESULTS / f"{entry.name}.json"
            data = json.loads(path.read_text(encoding="utf-8"))
            if entry.name not in earlier or not was_fresh(earlier[entry.name], data, before):
                continue
            if status(entry, data, now).state != "stale":
                continue
            reason = changed(entry, earlier[entry.name], data, (before, now), renames)
            print(f"{entry.name:20} {reason or 'the same under other names'}")
            stale += bool(reason)
            if not reason and not options.check:
                stamp = {"rests_on": now.all_of(entry.rests_on), "renamed_since": renames.before}
                path.write_text(json.dumps(data | stamp, indent=1) + "\n", encoding="utf-8")
    return int(stale > 0)


if __name__ == "__main__":
    sys.exit(main())
