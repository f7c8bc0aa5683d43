"""Renews results: runs the command of a result and adds a stamp to its JSON with what it rests on.

    python ci/renew.py soundness [MORE ARGUMENTS]      from the root of the repository
    python ci/renew.py kernels_gpu --cubins artifacts/build/sm_90a --out $OUT      on a machine with a GPU

A word in capitals in the command, such as FOLDER, is replaced by the first argument; the others are passed to the command. With
`--out` or `--output` among them, the JSON there is stamped. A GPU result names the GPU that `nvidia-smi` reports. `--cubins
FOLDER` first compares the CUBINs of a folder with `tests/golden/products.json`, because a result that refers to CUBINs must
have used these. Digests are computed before the run and again after it; if they differ, nothing is stamped. The programs of
`ci/bench` stamp a result themselves, with its device, unless it has parts of earlier runs. The exit status is the command's,
and is recorded in the JSON unless it is 0. It is 3 if the command wrote no JSON, if a program of `ci/bench` left it without a
stamp, if digests are unknown, or if the CUBINs differ.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence import RESULTS, Digests, Result, read_registry  # noqa: E402
from ci.evidence.digests import UnknownDigest  # noqa: E402
from ci.evidence.products import DIGITS  # noqa: E402
from ci.evidence.result import Changed, gpu_name  # noqa: E402

STAMPING: Final = "ci/bench/"
"""Where the programs are that stamp what they finish."""


def other_cubins(folder: Path, digests: Digests) -> list[str]:
    """Artifacts of a folder (named like an architecture) whose CUBIN differs from the record, or that only one of both has."""
    recorded = digests.recorded(f"cubin:{folder.name}")
    found = {path.stem: hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS] for path in folder.glob("*.cubin")}
    return sorted(name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name))


def main() -> int:
    """Run and stamp; returns the exit status."""
    parser = argparse.ArgumentParser(description="renew a result", epilog="other arguments go to its command")
    parser.add_argument("name", choices=sorted(read_registry()), metavar="NAME")
    parser.add_argument("--cubins", type=Path, metavar="FOLDER")
    options, rest = parser.parse_known_args()
    entry = read_registry()[options.name]
    given = [Path(after) for before, after in pairwise(rest) if before in ("--out", "--output")]
    path = (given or [RESULTS])[-1] / f"{entry.name}.json"
    try:
        if options.cubins and (others := other_cubins(options.cubins, Digests(ROOT))):
            print(f"error: {options.cubins} has other CUBINs than the record: {', '.join(others[:5])} ({len(others)} in all)")
            return 3
        result = Result(entry.name, gpu_name() if entry.gpu else "")
    except UnknownDigest as error:
        print(f"error: {error}")
        return 3
    before = path.stat().st_mtime_ns if path.exists() else None
    python, *arguments = shlex.split(entry.command)
    for number, word in enumerate(arguments):
        if word.isalpha() and word.isupper():
            if not rest:
                parser.error(f"say what {word} is in `{entry.command}`")
            arguments[number] = rest.pop(0)
    command = [sys.executable if python.startswith("python") else python, *arguments, *rest]
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    if not path.exists() or path.stat().st_mtime_ns == before:
        print(f"error: the command (status {status}) wrote no {path}")
        return status or 3
    data = json.loads(path.read_text(encoding="utf-8"))
    if "rests_on" in data and data["rests_on"] == result.rests_on:  # the command has stamped it
        return status
    if arguments[0].startswith(STAMPING):
        print(f"error: the command (status {status}) left {path} without a stamp")
        return status or 3
    try:
        result.write(data, path.parent, exit_status=status)
    except Changed as error:
        print(f"error: {error}")
        return 3
    return status


if __name__ == "__main__":
    sys.exit(main())
