"""Mutated bundles: each is refused in one line, or is valid in every respect.

python -m tests.fuzz.bundles --count 100000 --seed 1 [--json FILE]

Mutants change bytes, the header, the manifest as data and as text, machine code, and the compressed texts. Most are resealed
(trailer, header, blob and text digests), so that they pass the digest checks and reach the parsers. Accepted bundles are
checked by `examine`, which shares no code with the reader. Not tested: how a CUDA driver reacts to hostile machine code.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import lzma
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bundle import mutants, samples
from tests.fuzz.json_mutants import mutated, mutated_text
from tests.fuzz.watch import Tally, command
from tilec.artifact import bundle_format
from tilec.runtime import BundleError, open_bundle
from tilec.ship.bundle.describe import kernel_lines, summary

CODES = ("E0703", "E0704", "E0705", "E0706", "E0707")
LIMIT_SECONDS = 2.0
"""Processor time, for any mutant."""


@dataclasses.dataclass
class Base:
    """A sound bundle and its parts."""

    data: bytes
    manifest: dict[str, Any]
    blobs: dict[str, bytes]
    texts: dict[str, bytes]


def bases() -> list[Base]:
    """Small bundles with every kind of field."""
    found: list[Base] = []
    for arch, salts in (("sm_90a", (1, 2, 1)), ("sm_120a", (5,)), ("sm_90a", tuple(range(9)))):
        data = samples.bundle(arch, salts)
        manifest = json.loads(mutants.split(data)[1])
        start = mutants.split(data)[0][5]
        blobs = {one["sha256"]: data[start + one["offset"] :][: one["size"]] for one in manifest["blobs"]}
        texts: dict[str, bytes] = {}
        for kernel in manifest["kernels"]:
            for text in samples.source(kernel["name"], kernel["blob"]).values():
                texts[hashlib.sha256(text).hexdigest()] = text
        found.append(Base(data, manifest, blobs, texts))
    return found


def canonical(data: Any) -> bytes:
    """The canonical encoding, also of data that no bundle may have."""
    return json.dumps(data, sort_keys=True, separators=(",", ":")).encode("ascii", "replace")


def other_manifest(base: Base, rng: random.Random) -> bytes:
    """Changes the manifest as data, and fits everything around it."""
    _, data = mutated(base.manifest, rng)
    try:
        return mutants.with_manifest(base.data, canonical(data))
    except (ValueError, RecursionError, TypeError):  # a number that Python cannot print
        return mutants.with_manifest(base.data, canonical({}))


def other_text(base: Base, rng: random.Random) -> bytes:
    """Changes the manifest as text."""
    return mutants.with_manifest(base.data, mutated_text(canonical(base.manifest), rng)[1])


def other_code(base: Base, rng: random.Random) -> bytes:
    """Changes the headers of a CUBIN and recomputes every digest of it, to test the ELF parser."""
    description, blobs = json.loads(json.dumps(base.manifest)), dict(base.blobs)
    old = rng.choice(sorted(blobs))
    code = bytearray(blobs.pop(old))
    at = rng.choice((rng.randrange(len(code)), rng.randrange(64), len(code) - 1 - rng.randrange(192), 40 + rng.randrange(24)))
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, 2, 64, 255, 256, 2**15, 2**16 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1, rng.getrandbits(64)))
    code[at : at + size] = (value % 256**size).to_bytes(size, "little")[: len(code) - at]
    if rng.random() < 0.2:
        code = code[: rng.randrange(len(code))]
    if rng.random() < 0.1:
        code += bytes(rng.randrange(5000))
    new = hashlib.sha256(code).hexdigest()
    blobs[new] = bytes(code)
    for kernel in description["kernels"]:
        if kernel["blob"] == old:
            kernel["blob"] = kernel["manifest"]["digests"]["cubin"] = new
    del description["blobs"], description["texts"]
    return bundle_format.encode(description, blobs, base.texts if rng.random() < 0.1 else {})  # compressing takes most time


@functools.cache
def bomb(size: int, container: int) -> tuple[str, bytes]:
    """Digest and compressed form of many zeros."""
    return hashlib.sha256(bytes(size)).hexdigest(), lzma.compress(bytes(size), format=container)


def other_stream(base: Base, rng: random.Random) -> bytes:
    """Changes the compressed texts: other bytes, another container, a decompression bomb, or sizes that are too large."""
    fields, _, _ = mutants.split(base.data)
    manifest = json.loads(json.dumps(base.manifest))
    entries = manifest["texts"]["entries"]
    ends = [one["offset"] + one["size"] for one in manifest["blobs"]]
    start = bundle_format.aligned(fields[5] + ends[-1])
    stream = bytearray(base.data[start : start + manifest["texts"]["size"]])
    kind = rng.randrange(5)
    if kind == 0:
        stream[rng.randrange(len(stream))] ^= 1 << rng.randrange(8)
    elif kind == 1:
        stream = stream[: rng.randrange(len(stream))] + rng.randbytes(rng.randrange(9))
    elif kind == 2:
        size = rng.choice((1 << 10, 1 << 20, 1 << 22))
        digest, packed = bomb(size, rng.choice((lzma.FORMAT_XZ, lzma.FORMAT_ALONE)))
        stream = bytearray(packed)
        entries[:] = [{"sha256": digest, "size": rng.choice((size, 10, 1 << 28, (1 << 28) + 1))}]
    elif kind == 3:
        rng.choice(entries)["size"] = rng.choice((0, 1, 10**6, 1 << 28, 1 << 40, (1 << 63) - 1))
    else:
        entries.append({"sha256": rng.choice(("f" * 64, "0" * 64)), "size": rng.choice((0, 5))})
    manifest["texts"]["size"] = len(stream)
    text = canonical(manifest)
    blobs = base.data[fields[5] : fields[5] + ends[-1]]
    at = bundle_format.aligned(bundle_format.HEADER.size + len(text))
    body = text + bytes(at - bundle_format.HEADER.size - len(text)) + blobs
    body += bytes(bundle_format.aligned(bundle_format.HEADER.size + len(body)) - bundle_format.HEADER.size - len(body)) + stream
    fields[4], fields[5] = len(text), at
    fields[2] = bundle_format.HEADER.size + len(body) + bundle_format.TRAILER
    return mutants.joined(fields, b"", bytes(body))


def one_of_old(base: Base, rng: random.Random) -> bytes:
    """A mutant of any kind that must always be refused (tests/bundle/mutants.py)."""
    kinds = [kind for name, kind in mutants.KINDS.items() if len(base.blobs) > 1 or "swap" not in name]
    try:
        return rng.choice(kinds)(base.data, rng)
    except (IndexError, ValueError, StopIteration):  # a bundle of one kernel has nothing to swap
        return mutants.bit_flip(base.data, rng)


KINDS: dict[str, Callable[[Base, random.Random], bytes]] = {
    "manifest as data": other_manifest,
    "manifest as text": other_text,
    "machine code": other_code,
    "compressed texts": other_stream,
    "bytes and structure": one_of_old,
}


def examine(data: bytes) -> str:
    """The error in an accepted bundle, or None; written from the format's description alone."""
    magic, format_, header, size, at, length, blobs_at, blobs = struct.unpack("<8sIIQQQQI12x", data[:64])
    manifest = json.loads(data[64 : 64 + length])
    if (magic, format_, header, size, at, blobs) != (b"\x89tilec\r\n", 3, 64, len(data), 64, len(manifest["blobs"])):
        return "header"
    if hashlib.sha256(data[:-32]).digest() != data[-32:] or any(data[52:64]):
        return "trailer"
    if canonical(manifest) != data[64 : 64 + length]:
        return "not canonical"
    offset = blobs_at
    for blob in manifest["blobs"]:
        offset = -(-offset // 128) * 128
        if blobs_at + blob["offset"] != offset or hashlib.sha256(data[offset:][: blob["size"]]).hexdigest() != blob["sha256"]:
            return "blob"
        offset += blob["size"]
    codes = {blob["sha256"]: data[blobs_at + blob["offset"] :][: blob["size"]] for blob in manifest["blobs"]}
    for kernel in manifest["kernels"]:
        one = kernel["manifest"]
        code = codes[kernel["blob"]]
        if one["digests"]["cubin"] != kernel["blob"] or one["arch"] != manifest["arch"] or code[:4] != b"\x7fELF":
            return "kernel"
        flags = struct.unpack_from("<I", code, 48)[0]
        built_for = flags >> 8 & 255 if code[8] >= 8 else flags & 255  # System V ABI, EI_ABIVERSION
        if manifest["arch"] != f"sm_{built_for}a" or f".text.{one['entry']}\0".encode() not in code:
            return "code"
        if not 1 <= one["block"] <= 1024 or type(one["block"]) is not int or one["cluster"] < 1:
            return "block"
    return ""


def attempt(path: Path, data: bytes, base: Base) -> str:
    """Opens a mutant and uses all of it. Returns the code of the refusal, or None if accepted; raises if it is wrong."""
    wanted = hashlib.sha256(base.data).hexdigest() if data[:1] == b"\x89" and data[-1] % 16 == 0 else None
    try:
        with open_bundle(path, digest=wanted) as bundle:
            if wanted is not None and data != base.data:
                raise AssertionError("another digest was accepted")
            summary(bundle)
            for kernel in bundle.kernels:
                kernel_lines(bundle, kernel)
                if hashlib.sha256(bundle.cubin(kernel)).hexdigest() != kernel.manifest.digests["cubin"]:
                    raise AssertionError("another CUBIN was served")
            for digest, text in bundle.texts().items():
                if hashlib.sha256(text).hexdigest() != digest:
                    raise AssertionError("another text was served")
    except BundleError as error:
        message = str(error)
        if error.code not in CODES or "\n" in message or len(message) > 800 or not message.isprintable():
            raise AssertionError(f"a bad refusal: {message!r:.300}") from None
        return error.code
    return ""


def campaign(count: int, seed: int, folder: Path) -> Tally:
    """Tries `count` mutants in `folder`."""
    rng, tally, known = random.Random(seed), Tally(), bases()
    folder = folder.resolve()
    path = folder / "m.bundle"
    for base in known:  # imports and compiles what a reader needs
        path.write_bytes(base.data)
        attempt(path, base.data, base)
        path.write_bytes(base.data[:-1])
        attempt(path, base.data[:-1], base)
    start, kinds = time.monotonic(), list(KINDS)
    for number in range(count):
        kind, base = kinds[number % len(kinds)], rng.choice(known)
        data = KINDS[kind](base, rng)
        path.write_bytes(data)
        if not tally.attempt(kind, number, folder, lambda data=data, base=base: attempt(path, data, base)):
            continue
        complaint = examine(data)
        if complaint:
            tally.wrong.append(f"{kind} {number}: accepted, but {complaint}")
    tally.end(folder, {path.name}, start)
    return tally


if __name__ == "__main__":
    raise SystemExit(command(campaign, LIMIT_SECONDS, __doc__))
