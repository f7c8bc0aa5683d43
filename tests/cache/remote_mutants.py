"""Mutated entries of a remote, as a broken disk, a hostile server, or somebody with another key would serve them."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterator, Sequence


def mutants(data: bytes, others: Sequence[bytes], count: int, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """About `count` mutants of the entry `data`, each with its kind; `others` are entries of another key or signer."""
    rng = random.Random(seed)
    head, _, body = data.partition(b"\n\n")
    lines = head.split(b"\n")
    fixed: list[tuple[str, bytes]] = [
        ("empty", b""),
        ("of another kind", b"\x80\x04N."),
        ("a page", b"<html>504</html>"),
        ("no products", head + b"\n\n"),
        ("no blank line", head + body),
        ("only lines", b"\n" * 1000),
        ("long head", b"x" * 100000 + data),
        ("zeros", bytes(len(data))),
        ("bomb", head + b"\n\n" + zlib.compress(bytes(1 << 24), 9)),
        ("trailing byte", data + b"x"),
        ("twice", data + data),
        ("signature left out", b"\n".join(line for line in lines if not line.startswith(b"signature")) + b"\n\n" + body),
        ("signature none", b"\n".join(lines[:-1]) + b"\nsignature none\n\n" + body),
        ("huge size", re.sub(rb" \d+\n", b" 9999999999\n", head) + b"\n\n" + body),
        ("larger size", re.sub(rb" (\d+)\n", rb" \g<1>0\n", head) + b"\n\n" + body),
        ("older format", data.replace(b"entry 1", b"entry 0", 1)),
        *(("another's", other) for other in others),
        *(("another's products", head + b"\n\n" + other.partition(b"\n\n")[2][:-1]) for other in others),
        *(("another's record", other.partition(b"\n\n")[0] + b"\n\n" + body[:-1]) for other in others),
    ]
    yield from fixed
    for _ in range(count - len(fixed)):
        kind = rng.choice(("flip", "cut", "double line", "drop line", "swap lines", "insert"))
        if kind == "flip":
            found = bytearray(data)
            found[rng.randrange(len(found))] ^= 1 << rng.randrange(8)
            yield kind, bytes(found)
        elif kind == "cut":
            yield kind, data[: rng.randrange(len(data))]
        elif kind == "insert":
            index = rng.randrange(len(data))
            yield kind, data[:index] + rng.randbytes(rng.randrange(1, 20)) + data[index:]
        else:
            changed, index = list(lines), rng.randrange(len(lines))
            if kind == "double line":
                changed.insert(index, changed[index])
            elif kind == "drop line":
                del changed[index]
            else:
                other = rng.randrange(len(lines))
                changed[index], changed[other] = changed[other], changed[index]
                if changed == lines:
                    continue
            yield kind, b"\n".join(changed) + b"\n\n" + body
