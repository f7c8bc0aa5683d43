"""Records the digests of every product of build.toml, so that results can be checked against them without a build.

    python ci/products.py            build what changed, write tests/golden/products.json, name what differs
    python ci/products.py --check    no build: compare the record with the store's products of today's sources; status 1 if it
                                     is of other sources, or differs

In: the project, the user's store. Out: by artifact, digests of tile IR, and of PTX and CUBIN for each architecture, plus one
digest of all inputs of the build (`ci/evidence/digests.py` explains why that is enough).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ci.evidence.digests import PRODUCTS, Digests, UnknownDigest  # noqa: E402
from ci.evidence.products import DIGITS, Record, read_products, write_products  # noqa: E402
from tilec.cache import FileDigests, Store  # noqa: E402
from tilec.cli.project import open_store, print_diagnostics, toolchain  # noqa: E402
from tilec.project.build.driver import build_project  # noqa: E402
from tilec.project.read.buildfile import BuildFile, read_build_file  # noqa: E402
from tilec.project.read.plan import digests_note, plan  # noqa: E402
from tilec.untrusted.output import Output  # noqa: E402


def in_store(build: BuildFile, store: Store) -> Record:
    """The digests of the store's products of today's sources."""
    files = FileDigests(store, digests_note(build.root))
    planned, _ = plan(build, build.entries, None, store, files, toolchain(store))
    found: Record = {}
    for item in planned:
        entry = item.products(store)
        if entry is None:
            continue
        for kind in ("tir", "ptx", "cubin"):
            if kind in entry.digests:
                key = kind if kind == "tir" else f"{kind}:{item.target}"
                found.setdefault(key, {})[item.name] = entry.digests[kind][:DIGITS]
    return found


def compared(before: Record, after: Record) -> list[str]:
    """A line for each product in both records that differs."""
    return [
        f"{key} of {name}: {before[key][name]} -> {digest}"
        for key, products in sorted(after.items())
        for name, digest in sorted(products.items())
        if before.get(key, {}).get(name, digest) != digest
    ]


def check(digests: Digests, store: Store) -> int:
    """Compare the record with the store; returns the exit status."""
    found = in_store(read_build_file(digests.root / "build.toml"), store)
    try:
        recorded = {key: digests.recorded(key) for key in found or ("tir",)}
    except UnknownDigest as error:
        print(f"error: {error}")
        return 1
    differ = compared(recorded, found)
    print("\n".join(differ) or f"{sum(map(len, found.values()))} products of the store are those of {PRODUCTS}")
    return int(bool(differ))


def write(root: Path, store: Store, jobs: int) -> int:
    """Build, and write the record; returns 1 if an artifact is refused."""
    build = read_build_file(root / "build.toml")
    with tempfile.TemporaryDirectory() as output:
        built = build_project(build, build.entries, None, store, toolchain(store), jobs=jobs, output=Output(Path(output), None))
    if built.diagnostics:
        print_diagnostics(built.diagnostics, build.root)
        return 1
    path, found = root / PRODUCTS, in_store(build, store)
    before = read_products(path)[1] if path.exists() else {}
    write_products(path, Digests(root).made_from(), found)
    lines = compared(before, found)
    print("\n".join([*lines, f"{sum(map(len, found.values()))} products recorded, {len(lines)} differ from the record before"]))
    return 0


def main() -> int:
    """Record or check; returns the exit status."""
    parser = argparse.ArgumentParser(description="digests of every product of build.toml")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    with contextlib.closing(open_store()) as store:
        return check(Digests(ROOT), store) if options.check else write(ROOT, store, options.jobs)


if __name__ == "__main__":
    sys.exit(main())
