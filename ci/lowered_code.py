"""Check whether an edit of the schedule or of lowering changed any code: digests of every kernel's MLIR, before and after.

    python ci/lowered_code.py AFTER.json [--before BEFORE.json] [--ptx FOLDER] [--arch sm_80,sm_89]

In: build.toml's specialisations and the kernels of `tests/lowering`, for the targets of `--arch` or one chip of each kind.
Out: `AFTER.json`, with a digest of the MLIR text and one of the launch, by name and target; given `BEFORE.json`, a line for
each that differs, and status 1 if any does. The prover's results about divisors are reused from BEFORE if the tile IR is the
same. `--ptx` writes the PTX of the first specialisation of each kernel there, for `ci/compare_ptx.py`. Everything runs in one
process; if LLVM aborts it, nothing is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tilec.diagnostics.diagnostic import CompileError  # noqa: E402
from tilec.pipeline import Request, Work, stage_named  # noqa: E402
from tilec.project.read.buildfile import read_build_file  # noqa: E402
from tilec.project.read.plan import artifact_name  # noqa: E402
from tilec.target.targets import MAIN_TARGETS, Target  # noqa: E402

FOLDERS: Final = ("tests/lowering/corpus", "tests/soundness/corpus")


def requests() -> list[tuple[str, Request]]:
    """Every specialisation by name, the shipped ones first."""
    build = read_build_file(ROOT / "build.toml")
    found: list[tuple[str, Request]] = []
    for entry in build.entries:
        path = (build.kernels / f"{entry.name}.py").relative_to(ROOT).as_posix()
        for values in entry.specialisations():
            request = Request(entry.name, path, str(ROOT), values, {}, {}, {}, entry.overrides(values))
            found.append((artifact_name(entry.name, values), request))
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).glob("*.py")):
            found.append((path.stem, Request(path.stem, path.name, str(ROOT / folder), {}, {}, {}, {})))
    return found


def digest(data: bytes) -> str:
    """A short digest of some bytes."""
    return hashlib.sha256(data).hexdigest()[:16]


def lowered(request: Request, known: dict[str, str], ptx: Path | None, targets: tuple[Target, ...]) -> dict[str, str]:
    """Digests of the code for each target. `known` caches the proven divisions by digest of the tile IR, and is updated."""
    first = Work(request, None)
    first.products |= stage_named("tir").run(first)
    tir = digest(first.products["tir"])
    if tir not in known:
        try:
            first.products |= stage_named("proofs").run(first)
        except CompileError:
            first.products["positive_divisions"] = b"[]"
        known[tir] = first.products["positive_divisions"].decode()
    found: dict[str, str] = {}
    for target in targets:
        work = Work(request, target, dict(first.products) | {"positive_divisions": known[tir].encode()})
        try:
            work.products |= stage_named("schedule").run(work)
            work.products |= stage_named("mlir").run(work)
        except CompileError as error:
            found[target.name] = f"refused: {error.diagnostics[0].code}"
            continue
        launch: dict[str, Any] = json.loads(work.products["launch"])
        launch_parts = {
            name: launch[name] for name in ("entry", "abi", "block", "dynamic_shared_bytes", "dependent_launch", "notes")
        }
        found[target.name] = f"{digest(work.products['mlir'])} {digest(json.dumps(launch_parts, sort_keys=True).encode())}"
        if ptx is not None:
            from tilec.codegen import to_ptx

            (ptx / target.name).mkdir(parents=True, exist_ok=True)
            path = ptx / target.name / f"{artifact_name(request.kernel, request.constants)}.ptx"
            path.write_text(to_ptx(work.products["mlir"].decode(), target))
    return found


def main() -> int:
    """Digest everything and compare; returns the exit status."""
    parser = argparse.ArgumentParser(description="digests of the lowered code of every kernel")
    parser.add_argument("after", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--ptx", type=Path)
    parser.add_argument("--only", default="", help="kernels whose names begin so")
    parser.add_argument("--arch", help="instead of one target for each kind of chip", metavar="LIST")
    options = parser.parse_args()
    targets = tuple(map(Target.parse, options.arch.split(","))) if options.arch else MAIN_TARGETS
    before: dict[str, Any] = json.loads(options.before.read_text()) if options.before else {"code": {}, "positive": {}}
    known: dict[str, str] = dict(before["positive"])
    code: dict[str, str] = {}
    shown: set[str] = set()
    for name, request in requests():
        if not name.startswith(options.only):
            continue
        first, _ = request.kernel not in shown, shown.add(request.kernel)
        for target, text in lowered(request, known, options.ptx if first else None, targets).items():
            code[f"{name} {target}"] = text
    options.after.write_text(json.dumps({"code": code, "positive": known}, indent=1, sort_keys=True))
    differ = [name for name, text in code.items() if before["code"].get(name, text) != text]
    for name in differ:
        print(f"{name}: {before['code'][name]} -> {code[name]}")
    compared = sum(name in before["code"] for name in code)
    print(f"{len(code)} lowered, {compared} compared, {len(differ)} differ")
    return int(bool(differ))


if __name__ == "__main__":
    sys.exit(main())
