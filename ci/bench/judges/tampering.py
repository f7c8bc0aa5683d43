"""Tampers with signed bundles, signatures and policies, and counts the refusals.

`judges.py tampering` tries 3,200 changes, 100 of each family of `tests/signing/families.py`, from a seed, and
writes `ci/bench/results/tampering.md` and `.json`. Each change is made to a valid bundle of three kernels with two signatures.
It must be refused by one clear error, whatever was changed. If a file changes while it is read, the result must be the valid
bundle or nothing; if invalid bundles precede it, a search must find the valid one. `--bundle FILE` also measures, on a real
bundle, the cost of verification and of the cheapest private copy. Status 1 if anything invalid was used, or a refusal exceeded
its limits.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ci.bench.front import Outcome
from tests.fuzz.watch import quick
from tests.signing import scene
from tests.signing.campaign import as_json, run
from tests.signing.families import FAMILIES
from tilec.artifact.signature_format import encode_sidecar, sidecar_path
from tilec.artifact.signing_keys import KINDS, generate
from tilec.runtime import open_bundle
from tilec.runtime.signatures import authenticate
from tilec.runtime.trust import Trust, TrustedKey
from tilec.ship.signing.sign import signed_envelopes, statements
from tilec.untrusted.regular_file import read_regular

LIMIT_SECONDS: Final = 2.0
LIMIT_MIB: Final = 128.0
"""Limit of one refusal; the sidecar may have 16 MiB, and is in memory once as bytes and once as text."""


def tamper(count: int, seed: int) -> dict[str, Any]:
    """Outcomes of `count` changes, by family."""
    with tempfile.TemporaryDirectory(dir=quick()) as name:
        setup = scene.make(Path(name).resolve())
        return as_json(run(setup, FAMILIES, count, seed))


def milliseconds(call: Callable[[], object], times: int = 30) -> float:
    """The minimum of `times` calls: other load on the machine only adds time."""
    times_taken: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        times_taken.append((time.perf_counter() - began) * 1000)
    return round(min(times_taken), 3)


def sealed_mapping(path: Path) -> None:
    """The alternative private copy: a sealed and mapped memfd."""
    import fcntl

    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        handle = os.memfd_create("bundle", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            done = 0
            while done < size:
                done += os.sendfile(handle, file.fileno(), done, size - done)
            fcntl.fcntl(
                handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )
            with mmap.mmap(handle, size, prot=mmap.PROT_READ) as data:
                hashlib.sha256(data).digest()
        finally:
            os.close(handle)


def costs(source: Path) -> dict[str, Any]:
    """Milliseconds of the ways to read, and of opening with and without a policy."""
    with tempfile.TemporaryDirectory(dir=quick()) as name:
        path = Path(name) / source.name
        shutil.copy(source, path)
        found: dict[str, Any] = {"bundle": source.name, "bytes": path.stat().st_size}
        found["private copy, read and hashed"] = milliseconds(lambda: hashlib.sha256(read_regular(path, 1 << 30)).digest())
        found["sealed memfd, mapped and hashed"] = milliseconds(lambda: sealed_mapping(path))
        found["opened without a policy"] = milliseconds(lambda: open_bundle(path, trust="none").close())
        for kind in KINDS:
            signer = generate(kind)
            key = TrustedKey(signer.public_key, kind)
            trust = Trust({key.key.id: key}, 1, {}, "measured")
            with open_bundle(path, trust="none") as bundle:
                payloads = statements(bundle, 0, "urn:example:builder", {})
                data = encode_sidecar(signed_envelopes(bundle.digest, payloads.values(), signer))
            sidecar_path(path).write_bytes(data)
            found["bytes of signatures"] = len(data)
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            found[f"signatures read and verified, {kind}"] = milliseconds(lambda d=digest, t=trust: authenticate(path, d, t))
            found[f"opened under a policy, {kind}"] = milliseconds(lambda trust=trust: open_bundle(path, trust=trust).close())
        return found


def table(result: dict[str, Any]) -> str:
    """The result as a readable table."""
    rows: dict[str, Any] = result["families"]
    lines = [
        "# Tampering",
        "",
        "`judges.py tampering`. Every change must be refused; where files change while they are read,",
    ]
    lines += ["or after, the sound bundle may come out too (used); a search must find it after others. Used for what it is not"]
    lines += ["must be 0. Memory is what Python held more during a refusal than before.", ""]
    lines += [
        "| what is changed | tried | refused | used, sound | used wrongly | worst, s | worst, MiB |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in rows.items():
        refused = sum(row["refused"].values())
        lines.append(
            f"| {name} | {row['tried']} | {refused} | {row['used']} | {len(row['wrong'])} | {row['worst_seconds']:.3f} "
            f"| {row['worst_mib']:.1f} |"
        )
    total = [sum(row[key] for row in rows.values()) for key in ("tried", "used")]
    refused, wrong = sum(sum(row["refused"].values()) for row in rows.values()), sum(len(row["wrong"]) for row in rows.values())
    worst = [max(row[key] for row in rows.values()) for key in ("worst_seconds", "worst_mib")]
    lines.append(f"| all | {total[0]} | {refused} | {total[1]} | {wrong} | {worst[0]:.3f} | {worst[1]:.1f} |")
    if cost := result.get("costs"):
        lines += [
            "",
            f"Milliseconds, the least of 30, on `{cost['bundle']}`: {cost['bytes']} bytes, and "
            f"{cost['bytes of signatures']} of signatures.",
            "",
        ]
        lines += [f"- {name}: {value}" for name, value in cost.items() if isinstance(value, float)]
    bad = [text for row in rows.values() for text in row["wrong"]]
    return "\n".join([*lines, *(["", "## Went wrong", ""] if bad else []), *(f"- `{text[:300]}`" for text in bad)]) + "\n"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the case."""
    parser.add_argument("--count", type=int, default=100 * len(FAMILIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bundle", type=Path, help="a real bundle to measure costs on")


def measure(options: argparse.Namespace) -> Outcome:
    """Run the campaign; status 1 if anything went wrong or over its budget."""
    began = time.monotonic()
    result: dict[str, Any] = {"seed": options.seed, "python": platform.python_version()}
    result["families"] = tamper(options.count, options.seed)
    result["seconds"] = round(time.monotonic() - began, 1)
    if options.bundle is not None:
        result["costs"] = costs(options.bundle)
    rows = result["families"].values()
    slow = any(row["worst_seconds"] > LIMIT_SECONDS or row["worst_mib"] > LIMIT_MIB for row in rows)
    return Outcome(result, {"tampering.md": table(result)}, int(slow or any(row["wrong"] for row in rows)))
