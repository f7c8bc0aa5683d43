"""Renews results on a machine that has a GPU, and no network, compiler or checkout, from the parts that `ci/carry.py` wrote.

    python3 carried.py unpack FOLDER [FOLDER ...] --to NEW_FOLDER      parts may come one by one, in folders of their own
    python3 NEW_FOLDER/carried.py run --seconds 1500 [RESULT ...]      goes on after this command has ended
    python3 NEW_FOLDER/carried.py collect FILE.tar.xz                  at any time: what is finished so far, and the logs

In: parts and `manifest.json`. Out: an archive of a few hundred kilobytes; `tar -xJf FILE.tar.xz` in the root of the checkout
puts results where they belong, and unfinished ones and the logs below `artifacts/carried`. Needs the standard library alone;
results run with the same Python as this file. The exit status is 1, after one line, if a part is missing or damaged, if files
of the project have other digests than where they were packed, or if a run is under way.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MANIFEST = "manifest.json"
RESULTS = "ci/bench/results"
LOGS = "artifacts/carried"
RUN_LOG = "renew_all.log"
LOG_BYTES = 200_000
"""Of each log only the end travels, because what comes back is small."""


class Refused(Exception):
    """The one line that a user sees."""


class Joined(io.RawIOBase):
    """Files one after the other, as one stream."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._chunks = (chunk for path in paths for chunk in chunks(path))
        self._left = b""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Up to as many bytes as the buffer has; 0 at the end."""
        self._left = self._left or next(self._chunks, b"")
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


def chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file."""
    with path.open("rb") as file:
        while chunk := file.read(1 << 16):
            yield chunk


def manifest_in(folders: Iterable[Path]) -> Path:
    """The first manifest in some folders."""
    for folder in folders:
        if (path := folder / MANIFEST).is_file():
            return path
    raise Refused(f"no {MANIFEST} in {', '.join(map(str, folders))}")


def read_manifest(path: Path) -> dict[str, Any]:
    """What a manifest says."""
    return json.loads(path.read_text(encoding="utf-8"))


def verified(manifest: dict[str, Any], folders: list[Path]) -> list[Path]:
    """The parts in order; Refused if one is missing or has other bytes than it was written with."""
    found: list[Path] = []
    for part in manifest["parts"]:
        paths = [path for folder in folders if (path := folder / part["name"]).is_file()]
        if not paths:
            raise Refused(f"{part['name']} of {len(manifest['parts'])} parts is missing: bring it to {folders[-1]}")
        digest = hashlib.sha256()
        for chunk in chunks(paths[0]):
            digest.update(chunk)
        if digest.hexdigest() != part["sha256"]:
            size = paths[0].stat().st_size
            raise Refused(f"{paths[0]} is damaged, with {size} bytes of {part['bytes']}: bring it again")
        found.append(paths[0])
    return found


def unpack(folders: list[Path], to: Path) -> None:
    """Unpack the parts to a new folder and compare digests; prints what to export."""
    source = manifest_in(folders)
    manifest = read_manifest(source)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if manifest["packages"] and manifest["python"] not in ("", here):
        raise Refused(
            f"the packages are for Python {manifest['python']}, and this is {here}: run {Path(__file__).name} with that"
        )
    if to.exists() and any(to.iterdir()):
        raise Refused(f"{to} is not empty")
    parts = verified(manifest, folders)
    to.mkdir(parents=True, exist_ok=True)
    stream = io.BufferedReader(Joined(parts), 1 << 16)
    with lzma.open(stream) as packed, tarfile.open(fileobj=packed, mode="r|") as archive:
        archive.extractall(to, filter="data")
    shutil.copy(__file__, to / Path(__file__).name)
    shutil.copy(source, to)
    require_digests(manifest, to / "repository")
    print("\n".join(f"export {name}={value}" for name, value in environment(to).items()))
    print(f"python3 {to / Path(__file__).name} run --seconds N")


def require_digests(manifest: dict[str, Any], root: Path) -> None:
    """Refused if a result would be stamped with other digests than it has where it was packed."""
    sys.path.insert(0, str(root))
    from ci.evidence import Digests

    now = Digests(root).all_of(name for name in manifest["digests"] if name != "sources")
    if other := [name for name, digest in manifest["digests"].items() if now.get(name) != digest]:
        raise Refused(f"{', '.join(other[:5])} ({len(other)} in all) has another digest here than where it was packed")


def environment(folder: Path) -> dict[str, str]:
    """What the programs of an unpacked folder need."""
    return {"PYTHONPATH": f"{folder / 'repository'}:{folder / 'packages'}", "TILEC_CACHE_DIR": str(folder / "cache")}


def states(root: Path, names: Iterable[str]) -> dict[str, str]:
    """Of results, whether they are fresh, stale or failed. One that is being written is stale."""
    sys.path.insert(0, str(root))
    from ci.evidence import Digests, read_registry, status

    registry, digests, found = read_registry(), Digests(root), dict[str, str]()
    for name in names:
        path = root / RESULTS / f"{name}.json"
        data: Any = {}
        with contextlib.suppress(ValueError):
            data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        found[name] = status(registry[name], data, digests).state
    return found


def run(folder: Path, names: list[str], limits: dict[str, float | None]) -> None:
    """Begin to renew in a process that outlives this one; without names, what travelled and was not renewed here yet. `limits`
    are options of `ci/renew_all.py`."""
    root, process = folder / "repository", folder / "process"
    if process.exists() and is_running(int(process.read_text(encoding="ascii"))):
        raise Refused(f"process {process.read_text(encoding='ascii')} still runs: wait, or end it")
    carried = read_manifest(folder / MANIFEST)["results"]
    renewed = {name for name, state in states(root, carried).items() if state == "fresh"} & ended(root)
    wanted = names or [name for name in carried if name not in renewed]
    if not wanted:
        raise Refused("every result that travelled is renewed")
    command = [sys.executable, "ci/renew_all.py", *wanted, "--logs", LOGS]
    command += [word for name, limit in limits.items() if limit is not None for word in (f"--{name}", str(limit))]
    (root / LOGS).mkdir(parents=True, exist_ok=True)
    with (root / LOGS / RUN_LOG).open("ab") as log:
        started = subprocess.Popen(
            command, cwd=root, env=os.environ | environment(folder), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
    process.write_text(str(started.pid), encoding="ascii")
    print(f"process {started.pid} renews {', '.join(wanted)}; what it says is in {root / LOGS}")


def is_running(process: int) -> bool:
    """Whether there is a process of this number that has not ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ended(root: Path) -> set[str]:
    """The jobs that ended by themselves. One that was stopped, at the end of the time or by a signal, may have left a part."""
    log = root / LOGS / RUN_LOG
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return set(re.findall(r"^(\w+): (?:done|failed \(\d+\)) after", text, re.MULTILINE))


def changed_in(folder: Path) -> list[Path]:
    """The files of results that were written since they were unpacked."""
    since = (folder / MANIFEST).stat().st_mtime_ns
    paths = sorted((folder / "repository" / RESULTS).rglob("*"))
    return [path for path in paths if path.is_file() and path.stat().st_mtime_ns > since]


def collect(folder: Path, to: Path) -> None:
    """Write what changed in the results since they were unpacked, and the ends of the logs; prints how far the results are."""
    root, changed = folder / "repository", changed_in(folder)
    sys.path.insert(0, str(root))
    from ci.evidence.citations import owners
    from ci.evidence.registry import read_registry

    owner = {file: entry.name for file, entry in owners(read_registry().values()).items()}
    of = {path: owner.get(path.name, "") if path.parent.name == "results" else "" for path in changed}
    found = states(root, {name for name in of.values() if name} | set(read_manifest(folder / MANIFEST)["results"]))
    finished = {name for name, state in found.items() if state != "stale"} & ended(root)
    partial = to.with_name(f".{to.name}")
    with tarfile.open(partial, "w:xz") as archive:
        for path, name in of.items():
            is_unfinished = name and name not in finished
            there = f"{LOGS}/unfinished/{path.name}" if is_unfinished else path.relative_to(root).as_posix()
            archive.add(path, there)
        for path in sorted((root / LOGS).glob("*.log")):
            data = path.read_bytes()[-LOG_BYTES:]
            member = tarfile.TarInfo(f"{LOGS}/{path.name}")
            member.size, member.mtime = len(data), int(path.stat().st_mtime)
            archive.addfile(member, io.BytesIO(data))
    partial.replace(to)
    print("\n".join(f"{name:24} {state if name in finished else 'not renewed'}" for name, state in sorted(found.items())))
    process = folder / "process"
    runs = process.exists() and is_running(int(process.read_text(encoding="ascii")))
    print(f"{to}: {len(changed)} files, {to.stat().st_size} bytes; {'the run is under way' if runs else 'no run is under way'}")


def main() -> int:
    """Do what the command says; returns the exit status."""
    parser = argparse.ArgumentParser(description="renew results from parts that ci/carry.py wrote")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("unpack", help="check and unpack the parts, and print what to export")
    command.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="which have the parts, and one the manifest")
    command.add_argument("--to", type=Path, required=True, metavar="NEW_FOLDER")
    command = commands.add_parser("run", help="begin to renew, in the background")
    command.add_argument(
        "names", nargs="*", metavar="RESULT", help="without one, those that travelled and were not renewed yet"
    )
    command.add_argument("--seconds", type=float, required=True)
    command.add_argument("--processors", type=int, help="as many as there are, if not said")
    command.add_argument("--gpus", type=int, help="1, if not said")
    command = commands.add_parser("collect", help="write what is finished so far")
    command.add_argument("to", type=Path, metavar="FILE.tar.xz")
    options = parser.parse_args()
    try:
        if options.command == "unpack":
            unpack(options.folders, options.to.resolve())
        elif options.command == "run":
            run(HERE, options.names, {name: getattr(options, name) for name in ("seconds", "processors", "gpus")})
        else:
            collect(HERE, options.to)
    except (Refused, OSError, tarfile.TarError, lzma.LZMAError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
