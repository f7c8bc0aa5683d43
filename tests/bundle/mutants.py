"""Bundles with one fault, for the loader to refuse: damaged bytes, and hostile values under a repaired digest.

A different valid value (40 registers instead of 41, under a recomputed digest) makes another bundle, not a damaged one; only
the digest that a user compares tells them apart. So hostile values are those that no bundle may have.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

from tilec.artifact.bundle_format import HEADER, MAGIC, TRAILER, aligned, canonical

Path = tuple[str | int, ...]
FREE = ("constants", "config", "toolchain", "digests", "numbers", "choices")
"""Objects with arbitrary keys."""
NAMES = ("name", "kernel", "entry", "arch", "model", "blob", "sha256", "steps", "tensor")
BAD_NAMES = ("../../etc/passwd", "/etc/passwd", "a/b", "..", "", "C:\\x", "a\0b", "a b", "\u202eabc", "x" * 5000, "con:")
NUMBERS = ("offset", "size", "block", "cluster", "align", "registers", "spill_bytes", "dynamic_shared_bytes", "format")
BAD_NUMBERS = (-1, -(1 << 63), 1 << 62, 1 << 64, 10**25, 0.5, True, "1", None)


def sealed(data: bytes) -> bytes:
    """`data` with a matching trailer."""
    return data + hashlib.sha256(data).digest()


def split(data: bytes) -> tuple[list[int], bytes, bytes]:
    """Header fields (without the magic), manifest, and the rest up to the trailer."""
    fields = list(HEADER.unpack(data[: HEADER.size]))[1:]
    end = fields[3] + fields[4]
    return fields, data[fields[3] : end], data[end:-TRAILER]


def joined(fields: list[int], manifest: bytes, rest: bytes) -> bytes:
    """The inverse of `split`, with fields unchanged: the header is not fitted."""
    return sealed(HEADER.pack(MAGIC, *fields) + manifest + rest)


def with_manifest(data: bytes, text: bytes) -> bytes:
    """The bundle with another manifest text, blobs moved, and header and trailer fitted."""
    fields, _, _ = split(data)
    blobs = data[fields[5] : -TRAILER]
    start = aligned(HEADER.size + len(text))
    body = text + bytes(start - HEADER.size - len(text)) + blobs
    fields[4], fields[5] = len(text), start
    fields[2] = HEADER.size + len(body) + TRAILER
    return joined(fields, b"", body)


def paths(value: Any, at: Path = ()) -> Iterator[Path]:
    """The path of every value in a JSON value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths(item, (*at, key))


def get(value: Any, path: Path) -> Any:
    """The value at a path."""
    for key in path:
        value = value[key]
    return value


def put(value: Any, path: Path, item: Any) -> None:
    """Replaces the value at a path."""
    get(value, path[:-1])[path[-1]] = item


def bit_flip(data: bytes, rng: random.Random) -> bytes:
    """Flips one bit."""
    at = rng.randrange(len(data) * 8)
    out = bytearray(data)
    out[at // 8] ^= 1 << at % 8
    return bytes(out)


def truncation(data: bytes, rng: random.Random) -> bytes:
    """Truncates the bundle."""
    return data[: rng.randrange(len(data))]


def growth(data: bytes, rng: random.Random) -> bytes:
    """Appends bytes; half of the mutants get a matching digest."""
    extra = rng.randbytes(rng.randrange(1, 300))
    return data + extra if rng.random() < 0.5 else sealed(data[:-TRAILER] + extra)


def overwritten(data: bytes, rng: random.Random) -> bytes:
    """A run of other bytes, as from a bad disk."""
    at = rng.randrange(len(data))
    run = rng.randbytes(rng.randrange(1, 4096))[: len(data) - at]
    return data[:at] + run + data[at + len(run) :]


def swapped_blobs(data: bytes, rng: random.Random) -> bytes:
    """Swaps the bytes of two blobs, up to the shorter length, under a repaired digest."""
    fields, text, _ = split(data)
    first, right = rng.sample(json.loads(text)["blobs"], 2)
    size = min(first["size"], right["size"])
    a, b = fields[5] + first["offset"], fields[5] + right["offset"]
    out = bytearray(data)
    out[a : a + size], out[b : b + size] = data[b : b + size], data[a : a + size]
    return sealed(bytes(out[:-TRAILER]))


def swapped_references(data: bytes, rng: random.Random) -> bytes:
    """Swaps the code of two kernels."""
    manifest = json.loads(split(data)[1])
    kernels = manifest["kernels"]
    first, right = next(
        (a, b) for a in rng.sample(kernels, len(kernels)) for b in rng.sample(kernels, len(kernels)) if a["blob"] != b["blob"]
    )
    first["blob"], right["blob"] = right["blob"], first["blob"]
    return with_manifest(data, canonical(manifest))


def changed_blob(data: bytes, rng: random.Random) -> bytes:
    """A bit of a blob flipped, under a repaired digest of the file but not of the blob."""
    fields, text, _ = split(data)
    blob = rng.choice(json.loads(text)["blobs"])
    at = fields[5] + blob["offset"] + rng.randrange(blob["size"])
    out = bytearray(data)
    out[at] ^= 1 << rng.randrange(8)
    return sealed(bytes(out[:-TRAILER]))


def hostile_header(data: bytes, rng: random.Random) -> bytes:
    """A header field that is huge, zero or slightly wrong."""
    fields, text, rest = split(data)
    at = rng.randrange(len(fields))
    limit = (1 << 32) - 1 if at in (0, 1, 6) else (1 << 64) - 1
    wrong = [0, 1, limit, limit // 2, limit // 2 + 1, fields[at] + 1, max(fields[at] - 1, 0), len(data), fields[at] * 2]
    fields[at] = rng.choice([value for value in wrong if value != fields[at] and value <= limit])
    return joined(fields, text, rest)


def reserved_bytes(data: bytes, rng: random.Random) -> bytes:
    """Nonzero bytes where zero is required: the end of the header or the space between blobs."""
    fields, text, _ = split(data)
    holes = [HEADER.size - 12, HEADER.size + len(text)]
    blobs = json.loads(text)["blobs"]
    ends = [fields[5] + blob["offset"] + blob["size"] for blob in blobs]
    starts = [fields[5] + blob["offset"] for blob in blobs[1:]]
    holes += [end for end, start in zip(ends, starts, strict=False) if end < start]
    out = bytearray(data)
    at = rng.choice([hole for hole in holes if out[hole] == 0])
    out[at] = rng.randrange(1, 256)
    return sealed(bytes(out[:-TRAILER]))


def hostile_value(data: bytes, rng: random.Random) -> bytes:
    """A value of the manifest that no bundle may have, in canonical form under a repaired digest."""
    manifest = json.loads(split(data)[1])
    while True:
        path = rng.choice([path for path in paths(manifest) if path])
        old, name = get(manifest, path), next(key for key in reversed(path) if isinstance(key, str))
        free = any(key in FREE for key in path[:-1])
        if isinstance(old, (dict, list)):
            if path[-1] in (*FREE, "strides"):  # an empty table, or no strides, may be valid
                continue
            item = rng.choice((None, 0.25, "two words"))
        elif name in NUMBERS and not free and type(old) is int:
            item = rng.choice(BAD_NUMBERS)
        elif name in NAMES and not free and isinstance(old, str):
            item = rng.choice(BAD_NAMES)
        elif old is None:
            item = rng.choice((3, "x", {"a": 1}))
        else:
            wrong = ("\x1b[2J", {"a": 1}, 1 << 70, "\ud800")
            item = rng.choice(wrong if path[-1] == "row" else (None, *wrong))  # a tensor may have no row
        put(manifest, path, item)
        return with_manifest(data, canonical(manifest))


def missing_or_unknown_field(data: bytes, rng: random.Random) -> bytes:
    """A missing or an unknown field."""
    manifest = json.loads(split(data)[1])
    objects = [path for path in paths(manifest) if isinstance(get(manifest, path), dict) and not any(k in FREE for k in path)]
    target = get(manifest, rng.choice(objects))
    if rng.random() < 0.5:
        del target[rng.choice(list(target))]
    else:
        target[rng.choice(("__class__", "extra", "path", "../x"))] = 1
    return with_manifest(data, canonical(manifest))


def repeated(data: bytes, rng: random.Random) -> bytes:
    """A duplicate kernel or blob, or two out of order."""
    manifest = json.loads(split(data)[1])
    items = manifest[rng.choice(("kernels", "blobs"))]
    if rng.random() < 0.5:
        items.insert(rng.randrange(len(items)), items[rng.randrange(len(items))])
    else:
        items.reverse()
    return with_manifest(data, canonical(manifest))


def other_text(data: bytes, rng: random.Random) -> bytes:
    """The same data in another text, invalid JSON, or a pickle that runs code when loaded."""
    text = split(data)[1]
    at = text.index(b'"kernels"')
    return with_manifest(
        data,
        rng.choice(
            (
                text + b" ",
                text[:at] + b" " + text[at:],
                text[:1] + b'"arch":"sm_90a",' + text[1:],
                text.replace(b'"block":', b'"block": ', 1),
                text.replace(b'"registers":', b'"registers":1e999,"x":', 1),
                text.replace(b'"registers":', b'"registers":NaN,"x":', 1),
                text.replace(b'"grid":[', b'"grid":[' + b"[" * 5000, 1),
                text.replace(b'"grid":[', b'"grid":[' + b'["+",1,' * 80 + b"1" + b"]" * 80 + b",", 1),
                text.replace(b'"grid":[', b'"grid":[' + b"9" * 5000 + b",", 1),
                text[: len(text) // 2],
                b"\x80" + rng.randbytes(200),
                pickle.dumps(_Bomb()),
                '{"arch":"\u00e9"}'.encode(),
                b"",
                b"null",
                b"[]",
            )
        ),
    )


class _Bomb:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('unpickled')",)


KINDS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "bit flip": bit_flip,
    "truncation": truncation,
    "growth": growth,
    "overwritten run": overwritten,
    "swapped blobs": swapped_blobs,
    "swapped references": swapped_references,
    "changed blob": changed_blob,
    "hostile header": hostile_header,
    "bytes that must be zero": reserved_bytes,
    "hostile manifest value": hostile_value,
    "missing or unknown field": missing_or_unknown_field,
    "repeated or unordered": repeated,
    "other text": other_text,
}


def mutants(data: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """`count` mutants of a sound bundle, cycling through the kinds; none equals the original."""
    rng = random.Random(seed)
    kinds = list(KINDS)
    for number in range(count):
        kind = kinds[number % len(kinds)]
        while (mutant := KINDS[kind](data, rng)) == data:
            pass
        yield kind, mutant
