"""Loads a launcher in C on every compute capability: `python c_launcher_chips.py STUB LAUNCHER STEM`; prints the capabilities
that it accepts and what it says of the others, as JSON."""

from __future__ import annotations

import ctypes
import json
import sys
from itertools import product
from typing import Any

from c_launcher_calls import Stub


def main(stub_path: str, launcher: str, stem: str) -> dict[str, Any]:
    stub, library = Stub.in_dll(ctypes.CDLL(stub_path), "stub"), ctypes.CDLL(launcher)
    load, unload, error = (getattr(library, f"{stem}_{name}") for name in ("load", "unload", "error"))
    error.restype = ctypes.c_char_p
    accepted: list[tuple[int, int]] = []
    messages: set[str] = set()
    for capability in product(range(7, 13), range(10)):
        stub.capability[:] = capability
        kernels = ctypes.c_void_p()
        if load(ctypes.byref(kernels)) == 0:
            accepted.append(capability)
            unload(kernels)
        else:
            messages.add(error().decode().partition(", the device")[0])
    return {"accepted": accepted, "messages": sorted(messages)}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4])))
