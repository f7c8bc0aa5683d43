"""Tampers with signed bundles, signatures and policies, and counts the refusals.

`python -P ci/bench/tampering.py` tries 3,200 changes, 100 of each family of `tests/signing/families.py`, from a seed, and
writes `ci/bench/results/tampering.md` and `.json`. Each change is made to a valid bundle of three kernels with two signatures.
It must be refused by one clear error, whatever was changed. If a file changes while it is read, the result must be the valid
bundle or nothing; if invalid bundles precede it, a search must find the valid one. `--bundle FILE` also measures, on a real
bundle, the cost of verification and of the cheapest private copy. Status 1 if anything invalid was used, or a refusal exceeded
its limits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.fuzz.watch import quick  # noqa: E402
from tests.signing import scene  # noqa: E402
from tests.signing.campaign import as_json, run  # noqa: E402
from tests.signing.families import FAMILIES  # noqa: E402
from tilec.artifact.signature_format import encode_sidecar, sidecar_path  # noqa: E402
from tilec.artifact.signing_keys import KINDS, generate  # noqa: E402
from tilec.runtime import open_bundle  # noqa: E402
from tilec.runtime.signatures import authenticate  # noqa: E402
from tilec.runtime.trust import Trust, TrustedKey  # noqa: E402
from tilec.ship.signing.sign import signed_envelopes, statements  # noqa: E402
from tilec.untrusted.regular_file import read_regular  # noqa: E402

RESULTS: Final = ROOT / "ci" / "bench" / "results"
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
        "`python -P ci/bench/tampering.py`. Every change must be refused; where files change while they are read,",
    ]
    lines += [
        "or after, the sound bundle may come out too (used); a search must find it behind others. Used for what it is not"
    ]
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


def main() -> int:
    """Run the campaign; returns 1 if anything went wrong or over its budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100 * len(FAMILIES))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bundle", type=Path, help="a real bundle to measure costs on")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    began = time.monotonic()
    result: dict[str, Any] = {"seed": options.seed, "python": platform.python_version()}
    result["families"] = tamper(options.count, options.seed)
    result["seconds"] = round(time.monotonic() - began, 1)
    if options.bundle is not None:
        result["costs"] = costs(options.bundle)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "tampering.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    (options.output / "tampering.md").write_text(table(result), encoding="utf-8")
    print(table(result))
    rows = result["families"].values()
    slow = any(row["worst_seconds"] > LIMIT_SECONDS or row["worst_mib"] > LIMIT_MIB for row in rows)
    return int(slow or any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
