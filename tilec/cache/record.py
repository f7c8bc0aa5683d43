"""The text of an entry and of a note, and the strict readers of both.

An entry lists the outputs of a key; a note holds a text under a name that the caller chooses. Both carry a seal over their
contents (`seal`). The readers accept exactly what the writers write: no nesting, only bounded numbers, no file names, and a
printable label.

    tilec entry                          tilec note
    label ptx of add for sm_90a          seal <hmac-sha256>
    cost <milliseconds of CPU>           <blank line, then the text>
    output ptx <sha256> <size>
    seal <hmac-sha256>

The line `cost` is omitted if the cost is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tilec.cache.seal import Sealer

LONGEST_ENTRY: Final = 1 << 16  # bytes
LONGEST_NOTE: Final = 1 << 24
LARGEST_OUTPUT: Final = 1 << 28
MOST_OUTPUTS = 64
LONGEST_LABEL = 300
DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_COST = re.compile(r"cost ([1-9][0-9]{0,9})", re.ASCII)
_OUTPUT = re.compile(r"output ([\w.-]{1,64}) ([0-9a-f]{64}) (0|[1-9][0-9]{0,9})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Record:
    """The outputs of a key: digest and size by name, a `label` for people, `cost` in milliseconds of CPU (0: unknown)."""

    outputs: dict[str, str]
    sizes: dict[str, int]
    label: str
    cost: int = 0


def entry_text(
    sealer: Sealer, key: str, outputs: Mapping[str, str], sizes: Mapping[str, int], label: str, cost: int = 0
) -> bytes:
    """The bytes of the entry of `key`. ValueError for too many outputs, or a name or size that the format cannot hold."""
    shown = "".join(character if character.isprintable() else "?" for character in label)[:LONGEST_LABEL]
    named = [f"output {name} {outputs[name]} {sizes[name]}" for name in outputs]
    lines = ["tilec entry", f"label {shown}", *([f"cost {min(cost, 10**10 - 1)}"] if cost > 0 else []), *named]
    if len(outputs) > MOST_OUTPUTS or not all(_OUTPUT.fullmatch(line) for line in named):
        raise ValueError(f"no entry can hold these outputs: {', '.join(outputs)}")
    body = ("\n".join(lines) + "\n").encode("utf-8", "replace")
    return body + f"seal {sealer.seal('entry', key, body)}\n".encode()


def parse_entry(sealer: Sealer | None, key: str, data: bytes) -> Record | None:
    """The record of `key`; None if the bytes are malformed or not sealed by `sealer` (None: the seal is not checked)."""
    body, marker, end = data.rpartition(b"seal ")
    seal = end[:-1].decode("ascii", "replace")
    if not marker or end[-1:] != b"\n" or (sealer is not None and not sealer.holds(seal, "entry", key, body)):
        return None
    try:
        lines = body.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        return None
    cost = _COST.fullmatch(lines[2]) if len(lines) > 2 else None
    found = [_OUTPUT.fullmatch(line) for line in lines[3 if cost else 2 : -1]]
    outputs = {match[1]: match[2] for match in found if match}
    sizes = {match[1]: int(match[3]) for match in found if match}
    good = len(lines) > 2 and lines[0] == "tilec entry" and lines[1].startswith("label ") and lines[-1] == ""
    good = good and lines[1].isprintable() and len(outputs) == len(found) <= MOST_OUTPUTS
    good = good and all(size <= LARGEST_OUTPUT for size in sizes.values())
    return Record(outputs, sizes, lines[1][len("label ") :], int(cost[1]) if cost else 0) if good else None


def note_text(sealer: Sealer, name: str, text: str) -> bytes:
    """The bytes of a note."""
    data = text.encode("utf-8", "surrogatepass")
    return f"tilec note\nseal {sealer.seal('note', name, data)}\n\n".encode() + data


def parse_note(sealer: Sealer, name: str, data: bytes) -> str | None:
    """The text of the note `name`; None if the bytes are malformed or not sealed for it."""
    head, blank, body = data.partition(b"\n\n")
    seal = head.rpartition(b"\nseal ")[2].decode("ascii", "replace")
    if not blank or not sealer.holds(seal, "note", name, body):
        return None
    try:
        return body.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
