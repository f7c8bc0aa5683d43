"""Packs what results need to be renewed on another machine: one with a GPU, and without network, compiler or checkout.

    python ci/carry.py --to FOLDER                          for every stale result of a GPU
    python ci/carry.py bench_4b lengths --to FOLDER --part-size 50MB --python 3.12 --has THEIRS
    python ci/carry.py --to FOLDER --build                  makes first what these results need and no GPU has to make

In: the files of the last commit, what `ci/evidence/renewals.toml` says that each result needs (`makes` of a step, or `carries`,
what results read of it), and with `--wheels` or `--python` the packages of others. Out, in FOLDER: `part-NN`, pieces of one
compressed archive, each of at most `--part-size`; `manifest.json`, which names them with their digests; `carried.py`, which
unpacks them there, runs `ci/renew_all.py` and collects what it wrote (`python carried.py --help`).

`--python 3.12` downloads the wheels of this project's dependencies and of `--extras` for that version on Linux (x86-64), at the
versions of `constraints.txt`; `--has FILE` names packages that the other machine has, as `pip list --format=freeze` prints
them there, which stay out. PyTorch and what else a result compares with must be there.

Exit status: 0 if all is packed, 1 if something is not built or does not fit, 2 for wrong arguments, 3 if a digest is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import math
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence import Digests, Entry, read_registry, states_of  # noqa: E402
from ci.renew import other_cubins  # noqa: E402
from ci.renew_all import LOGS, PLAN, Job, Progress, read_plan, run, without_digest  # noqa: E402

SCRIPT: Final = Path(__file__).with_name("carried.py")
WHEELS: Final = ROOT / "artifacts/wheels"
KERNELS: Final = "artifacts/build"
"""Where the CUBINs are that the record of products has, in a folder for each architecture."""
EXTRAS: Final = "serve,bench"
PLATFORMS: Final = tuple(f"manylinux{name}_x86_64" for name in (*(f"_2_{minor}" for minor in range(34, 4, -1)), "2014", "1"))
"""Of a C library of 2.34 or later. pip takes none for another."""
FILTERS: Final = [{"id": lzma.FILTER_LZMA2, "preset": 3, "dict_size": 1 << 27}]
"""Bundles have many kernels in common: a dictionary that reaches from one to the next makes eight of them as small as one."""
UNITS: Final = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


class CannotPack(Exception):
    """Something that has to travel is not there or is wrong; the message says which, and what to do."""


class Parts(io.RawIOBase):
    """A stream that is cut into files of `size` bytes; `listed` describes those that are finished."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.listed: list[dict[str, Any]] = []
        self._pending = bytearray()

    def writable(self) -> bool:
        """Always."""
        return True

    def write(self, data: Any) -> int:
        """Take all of the bytes."""
        self._pending += data
        while len(self._pending) >= self.size:
            self._finish(self.size)
        return len(data)

    def close(self) -> None:
        """Write what is left."""
        if self._pending and not self.closed:
            self._finish(len(self._pending))
        super().close()

    def _finish(self, count: int) -> None:
        data, name = bytes(self._pending[:count]), f"part-{len(self.listed) + 1:02}"
        del self._pending[:count]
        (self.folder / name).write_bytes(data)
        self.listed.append({"name": name, "bytes": count, "sha256": hashlib.sha256(data).hexdigest()})


def steps_of(plan: Mapping[str, Job], names: Iterable[str]) -> list[Job]:
    """The steps that results need, directly or not, and that take no GPU, in the order of the plan. Others run there."""
    wanted, waiting = set[str](), list(names)
    while waiting:
        needs = set(plan[waiting.pop()].needs) - wanted
        wanted |= needs
        waiting += needs
    return [job for job in plan.values() if job.name in wanted and job.makes and not job.gpus]


def made(job: Job, root: Path) -> list[Path]:
    """Files and folders that travel for a step; none if it was not run."""
    found = [sorted(root.glob(pattern)) for pattern in job.carries or (job.makes,)]
    return [path for paths in found for path in paths] if (root / job.makes).exists() and all(found) else []


def require_built(steps: Sequence[Job], root: Path, processors: int) -> None:
    """CannotPack if a step was not run, or has left other CUBINs than the record names."""
    if missing := [job for job in steps if not made(job, root)]:
        rows = [f"  {job.name}: {job.command.format(processors=job.share(processors))}" for job in missing]
        raise CannotPack("\n".join(["not built (`--build` runs these):", *rows]))
    for folder in (root / job.makes for job in steps if Path(job.makes).parent.as_posix() == KERNELS):
        if others := [name for name in other_cubins(folder, Digests(root)) if (folder / f"{name}.cubin").exists()]:
            raise CannotPack(f"{folder} has other CUBINs than the record: {', '.join(others[:5])} ({len(others)} in all)")


def build(steps: Sequence[Job], root: Path, processors: int) -> None:
    """Run the steps that were not run; CannotPack if one fails."""
    progress = Progress([job for job in steps if not made(job, root)], processors, [])
    run(progress, math.inf, LOGS, root)
    if failed := [name for name, code in progress.ended.items() if code != 0]:
        raise CannotPack(f"failed: {', '.join(failed)}; their output is in {LOGS}")


def head(root: Path) -> str:
    """The last commit; CannotPack if files differ from it, because what travels is the commit."""
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno"], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        raise CannotPack(f"files differ from the last commit, which is what travels: commit or stash them\n{changed.rstrip()}")
    return subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True).stdout.strip()


def requirements(root: Path, extras: Iterable[str]) -> list[str]:
    """What pyproject.toml requires, with these extras and those that they name."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    found, waiting = list[str](project["dependencies"]), list(extras)
    for extra in waiting:  # grows
        if extra not in project["optional-dependencies"]:
            raise CannotPack(f"pyproject.toml has no extra `{extra}`: {', '.join(project['optional-dependencies'])}")
        for requirement in project["optional-dependencies"][extra]:
            own = re.fullmatch(rf"{project['name']}\[(.*)\]", requirement)
            waiting += [name for name in own[1].split(",") if name not in waiting] if own else []
            found += [] if own else [requirement]
    return list(dict.fromkeys(found))


def download(root: Path, version: str, extras: Iterable[str], folder: Path) -> None:
    """Put the wheels of `requirements` and of all that they require into a folder."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--implementation", "cp"]
    command += ["--python-version", version, *(word for name in PLATFORMS for word in ("--platform", name))]
    command += ["--constraint", "constraints.txt", "--dest", str(folder), *requirements(root, extras)]
    if subprocess.run(command, cwd=root, check=False).returncode:
        raise CannotPack(f"pip could not download the wheels for Python {version}")


def chosen_wheels(folder: Path, has: Iterable[str]) -> list[Path]:
    """The wheels of a folder without those of packages that the other machine has; CannotPack if there are two of one."""
    there = {_normal(re.split(r"==| @ ", line.strip())[0]) for line in has}
    found = {path: _normal(path.name.split("-")[0]) for path in sorted(folder.glob("*.whl"))}
    names = [*found.values()]
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise CannotPack(f"{folder} has several wheels of one package: {', '.join(twice)}")
    return [path for path, name in found.items() if name not in there]


def _normal(name: str) -> str:
    """The name of a package in the one spelling of all that an index takes for the same."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unpacked(wheel: Path) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The files of a wheel as they lie in a folder of packages, without scripts and headers."""
    with zipfile.ZipFile(wheel) as archive:
        for item in archive.infolist():
            name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", item.filename)
            if item.is_dir() or re.match(r"[^/]+\.data/", name):
                continue
            member = tarfile.TarInfo(f"packages/{name}")
            member.size, member.mode = item.file_size, 0o644
            yield member, archive.read(item)


def write_archive(parts: Parts, root: Path, commit: str, paths: Iterable[Path], wheels: Iterable[Path]) -> None:
    """Write the commit without its pictures, files and folders of `root`, and packages."""
    with (
        io.BufferedWriter(parts) as stream,
        lzma.LZMAFile(stream, "wb", filters=FILTERS) as packed,
        tarfile.open(fileobj=packed, mode="w|") as archive,
    ):
        process = subprocess.Popen(["git", "archive", commit], cwd=root, stdout=subprocess.PIPE)
        with process, tarfile.open(fileobj=process.stdout, mode="r|") as tracked:
            for member in tracked:
                if not member.name.endswith(".svg"):
                    content = tracked.extractfile(member) if member.isfile() else None
                    member.name = f"repository/{member.name}"
                    archive.addfile(member, content)
        for path in dict.fromkeys(paths):
            archive.add(path, f"repository/{path.relative_to(root).as_posix()}")
        for wheel in wheels:
            for member, data in unpacked(wheel):
                archive.addfile(member, io.BytesIO(data))


def pack(options: argparse.Namespace, registry: Mapping[str, Entry], plan: Mapping[str, Job], names: Sequence[str]) -> None:
    """Write the folder; CannotPack if something is missing."""
    folder: Path = options.to
    steps = steps_of(plan, names)
    commit = head(ROOT)
    if folder.exists() and any(folder.iterdir()):
        raise CannotPack(f"{folder} is not empty")
    if options.build:
        build(steps, ROOT, options.processors)
    require_built(steps, ROOT, options.processors)
    stored: Path | None = options.wheels or (WHEELS / options.python if options.python else None)
    if options.python and stored:
        download(ROOT, options.python, options.extras.split(","), stored)
    has: list[str] = options.has.read_text(encoding="utf-8").splitlines() if options.has else []
    wheels = chosen_wheels(stored, has) if stored else []
    folder.mkdir(parents=True, exist_ok=True)
    parts = Parts(folder, options.part_size)
    write_archive(parts, ROOT, commit, (path for job in steps for path in made(job, ROOT)), wheels)
    rests_on = dict.fromkeys(name for result in names for name in registry[result].rests_on)
    manifest = {
        "commit": commit, "results": list(names), "steps": [job.name for job in steps], "python": options.python or "",
        "packages": [wheel.name for wheel in wheels], "digests": Digests(ROOT).all_of(rests_on), "parts": parts.listed,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    shutil.copy(SCRIPT, folder)
    print(f"{', '.join(names)}: {len(steps)} steps, {len(wheels)} packages, commit {commit[:8]}")
    print("\n".join(f"{folder / part['name']}  {part['bytes'] / 1e6:.1f} MB" for part in parts.listed))
    print(f"there: python3 {SCRIPT.name} unpack FOLDER [FOLDER ...] --to NEW_FOLDER")


def bytes_of(text: str) -> int:
    """A size such as `50MB`."""
    found = re.fullmatch(r"(\d+)\s*(\w*)", text)
    if found is None or found[2] not in UNITS or not int(found[1]):
        raise argparse.ArgumentTypeError(f"`{text}` is no size: a number and one of {', '.join(filter(None, UNITS))}")
    return int(found[1]) * UNITS[found[2]]


def main() -> int:
    """Pack; returns the exit status."""
    parser = argparse.ArgumentParser(description="pack what results need to be renewed on another machine")
    parser.add_argument("names", nargs="*", metavar="RESULT", help="without one, all stale results of a GPU")
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="a new or empty folder")
    parser.add_argument("--part-size", type=bytes_of, default="50MB", metavar="SIZE", help="of a part at most, such as 50MB")
    parser.add_argument(
        "--build", action="store_true", help="run the steps that were not run; their output goes to a file each"
    )
    parser.add_argument("--processors", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--python", metavar="VERSION", help="download wheels for this version, such as 3.12")
    parser.add_argument("--extras", default=EXTRAS, help="of pyproject.toml, whose packages travel too (%(default)s)")
    parser.add_argument(
        "--wheels", type=Path, metavar="FOLDER", help="take the wheels of this folder; with --python, put them there"
    )
    parser.add_argument("--has", type=Path, metavar="FILE", help="packages that are there, a `NAME==VERSION` a line")
    options = parser.parse_args()
    registry = read_registry()
    plan = read_plan(registry)
    if unknown := set(options.names) - (registry.keys() & plan.keys()):
        parser.error(f"no result of {PLAN.name}: {', '.join(sorted(unknown))}")
    stale = (name for name, state in states_of(ROOT, registry).items() if state.state != "fresh" and registry[name].gpu)
    names = options.names or [name for name in stale if name in plan]
    if not names:
        print("every result of a GPU is fresh: nothing to pack")
        return 0
    if problem := without_digest((registry[name] for name in names), Digests(ROOT)):
        print(f"error: {problem}", file=sys.stderr)
        return 3
    try:
        pack(options, registry, plan, names)
    except (CannotPack, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
