"""The format of an entry on a remote: a signed record of the key and the digests, then the products.

    tilec remote entry 1
    key <64 hex digits>
    cost <CPU time to make it, in milliseconds>
    output <name> <sha256> <size>          one line per product, in the order of the bytes
    signature <text of the signer>         over all lines above
    <blank line>
    <the products, concatenated and deflated>

A key has one object instead of a record and blobs: it needs one round trip, every kind of server stores it completely or not at
all, and there is no garbage to collect. Products are identified by the sha256 of their bytes. The reader is strict and bounded:
it inflates at most the total size in the record, which is at most `LARGEST`.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tilec.cache.record import LARGEST_OUTPUT, MOST_OUTPUTS
from tilec.cache.remote.signer import Signer

FIRST: Final = "tilec remote entry 1"
LARGEST: Final = 1 << 26
"""Bytes of an entry, both as it is sent and with its products inflated; a larger entry is not shared."""
LONGEST_HEAD: Final = 1 << 14
_KEY = re.compile(r"key ([0-9a-f]{64})", re.ASCII)
_COST = re.compile(r"cost (0|[1-9][0-9]{0,9})", re.ASCII)
_OUTPUT = re.compile(r"output ([\w.-]{1,64}) ([0-9a-f]{64}) (0|[1-9][0-9]{0,9})", re.ASCII)


class Refused(ValueError):
    """An entry that is not used. `kind` is damaged, oversized, unsigned, foreign (signed by another key) or swapped (the entry
    of another cache key)."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Received:
    """The products of an entry with their digests, and the CPU time to make them in milliseconds."""

    outputs: dict[str, bytes] = field(repr=False)
    digests: dict[str, str]
    cost: int


def pack(key: str, outputs: Mapping[str, bytes], cost: int, signer: Signer) -> bytes | None:
    """The bytes of an entry; None if it is too large to be shared or the format cannot hold it."""
    if len(outputs) > MOST_OUTPUTS or sum(map(len, outputs.values())) > LARGEST:
        return None
    lines = [FIRST, f"key {key}", f"cost {max(0, min(cost, 10**10 - 1))}"]
    lines += [f"output {name} {hashlib.sha256(data).hexdigest()} {len(data)}" for name, data in outputs.items()]
    if not all(_OUTPUT.fullmatch(line) for line in lines[3:]):
        return None
    head = ("\n".join(lines) + "\n").encode()
    body = zlib.compress(b"".join(outputs.values()), 1)
    data = head + f"signature {signer.sign(head)}\n\n".encode() + body
    return data if len(data) <= LARGEST else None


def unpack(key: str, data: bytes, signer: Signer) -> Received:
    """The products of the entry of `key`; Refused unless `data` is that entry, complete, and `signer` accepts its signature."""
    if len(data) > LARGEST:
        raise Refused("oversized", "it exceeds the size limit of an entry")
    end = data.find(b"\n\n", 0, LONGEST_HEAD)
    marker = data.rfind(b"\nsignature ", 0, end + 1)
    if end < 0 or marker < 0:
        raise Refused("damaged", "it is not an entry")
    head, signature = data[: marker + 1], data[marker + len(b"\nsignature ") : end]
    try:
        lines, signer_line = head.decode("ascii").split("\n")[:-1], signature.decode("ascii")
    except UnicodeDecodeError:
        raise Refused("damaged", "it is not an entry") from None
    if problem := signer.fault(signer_line, head):
        raise Refused("foreign" if signer_line.partition(" ")[0] != "none" else "unsigned", problem)
    outputs, digests, cost = _read_head(key, lines)
    return Received(_inflate(data[end + 2 :], outputs, digests), digests, cost)


def _read_head(key: str, lines: list[str]) -> tuple[dict[str, int], dict[str, str], int]:
    found = [_OUTPUT.fullmatch(line) for line in lines[3:]]
    named, cost = _KEY.fullmatch(lines[1]) if len(lines) > 3 else None, _COST.fullmatch(lines[2]) if len(lines) > 3 else None
    if lines[0] != FIRST or named is None or cost is None or len(found) > MOST_OUTPUTS:
        raise Refused("damaged", "it is not an entry of this format")
    sizes = {match[1]: int(match[3]) for match in found if match}
    if len(sizes) != len(found):
        raise Refused("damaged", "its record cannot be read")
    if named[1] != key:
        raise Refused("swapped", "it is the entry of another key")
    if sum(sizes.values()) > LARGEST or any(size > LARGEST_OUTPUT for size in sizes.values()):
        raise Refused("oversized", "its products exceed the size limit")
    return sizes, {match[1]: match[2] for match in found if match}, int(cost[1])


def _inflate(packed: bytes, sizes: dict[str, int], digests: dict[str, str]) -> dict[str, bytes]:
    total = sum(sizes.values())
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(packed, total + 1)
    except zlib.error:
        raise Refused("damaged", "its products cannot be decompressed") from None
    if len(body) != total or not reader.eof or reader.unused_data:
        raise Refused("damaged", "its products have another size")
    outputs: dict[str, bytes] = {}
    offset = 0
    for name, size in sizes.items():
        outputs[name] = body[offset : offset + size]
        offset += size
        if hashlib.sha256(outputs[name]).hexdigest() != digests[name]:
            raise Refused("damaged", f"its {name} does not match its record")
    return outputs
