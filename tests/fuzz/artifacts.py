"""Mutated artifacts and launches: each is refused in one line, or is a launch that the contract allows.

python -m tests.fuzz.artifacts --count 100000 --seed 1 [--json FILE]

An artifact is a manifest (JSON) and a CUBIN in one folder. Mutants change the manifest as data or text, the CUBIN, its digest,
or the launch arguments: addresses, shapes, strides, dtypes, scalars, dims, stored values. A stub driver receives what was
accepted, and `contract_oracle` computes anew, from the JSON and with Python's integers, that every clause is satisfied and that
the argument bytes are right. Not tested: how a CUDA driver reacts to hostile machine code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import time
from pathlib import Path
from typing import Any

from tests.fuzz.contract_oracle import Given, Reached, complaint
from tests.fuzz.contract_samples import CONTRACTS, Launchable
from tests.fuzz.json_mutants import NUMBERS, STRINGS, mutated, mutated_text
from tests.fuzz.watch import Tally, command
from tests.runtime.fake_driver import FakeDriver, argument_bytes
from tilec.runtime import Device, LaunchError, TensorView, load

LIMIT_SECONDS = 1.0
"""Processor time, for any mutant."""
KINDS = ("manifest as data", "manifest as text", "machine code", "files", "launch", "manifest and launch")


def other_cubin(code: bytes, rng: random.Random) -> bytes:
    """Changes some bytes of the headers, or the length."""
    if rng.random() < 0.2:
        return code[: rng.randrange(len(code))]
    changed = bytearray(code)
    at = rng.choice((rng.randrange(len(code)), rng.randrange(64), len(code) - 1 - rng.randrange(192)))
    size = rng.choice((1, 2, 4, 8))
    value = rng.choice((0, 1, 255, 2**16 - 1, 2**31, 2**63, 2**64 - 1, rng.getrandbits(64)))
    changed[at : at + size] = (value % 256**size).to_bytes(size, "little")[: len(code) - at]
    return bytes(changed)


def write(folder: Path, kind: str, one: Launchable, rng: random.Random) -> None:
    """Writes the two files of a mutant."""
    manifest, code = one.manifest, one.cubin
    text = json.dumps(manifest).encode()
    if kind == "machine code":
        code = other_cubin(code, rng)
        if rng.random() < 0.8:
            text = json.dumps(manifest | {"digests": {"cubin": hashlib.sha256(code).hexdigest()}}).encode()
    elif kind in ("manifest as data", "manifest and launch"):
        changed = mutated(manifest, rng)[1]
        try:
            text = json.dumps(changed).encode()
        except (ValueError, TypeError):  # a number that Python cannot print
            text = b"{}"
    elif kind == "manifest as text":
        text = mutated_text(text, rng)[1]
    elif kind == "files":
        text, code = rng.choice(((text, b""), (b"", code), (code, text), (text, text), (text * 2, code), (text[1:], code)))
    (folder / "k.json").write_bytes(text)
    (folder / "k.cubin").write_bytes(code)


def tensor_changed(tensor: Given, others: list[Given], rng: random.Random) -> Given:
    """Changes one property of a tensor."""
    shape, strides = list(tensor.shape), list(tensor.strides)
    axis = rng.randrange(max(1, len(shape)))
    kind = rng.randrange(8)
    if kind == 0 and shape:
        shape[axis] = rng.choice(
            (shape[axis] + 1, shape[axis] - 1, 0, 1, -1, 2**31 - 2**16, 2**31, 2**62, 10**5000, shape[axis] * 2)
        )
    elif kind == 1 and strides:
        strides[axis] = rng.choice((strides[axis] + 1, 0, 1, -strides[axis], 2**31, 2**62, 2**70, -(2**63)))
    elif kind == 2:
        offset = rng.choice((1, 2, 8, -1, 16, 4096))
        return dataclasses.replace(tensor, pointer=tensor.pointer + offset)
    elif kind == 3:
        pointer = rng.choice((0, -1, 2**64, 2**64 - 16, 2**64 - 4096, 2**63, 16, 10**5000, rng.choice(others).pointer))
        return dataclasses.replace(tensor, pointer=pointer)
    elif kind == 4:
        return dataclasses.replace(tensor, dtype=rng.choice(("f32", "bf16", "i32", "i64", "u8", "f64", "")))
    elif kind == 5:
        del shape[axis:], strides[axis + rng.randrange(2) :]
    elif kind == 6:
        shape.insert(axis, 1)
        strides.insert(axis, rng.choice((1, 0, 77)))
    else:
        return dataclasses.replace(tensor, read_only=True)
    return dataclasses.replace(tensor, shape=tuple(shape), strides=tuple(strides))


def changed(
    one: Launchable, rng: random.Random
) -> tuple[dict[str, Given], dict[str, Any], dict[str, Any], dict[str, list[int]]]:
    """Launch arguments with one or two changes: tensors, scalars, dims, stored values."""
    tensors, scalars, dims, stored = one.launch(rng)
    for _ in range(rng.choice((1, 1, 2))):
        kind = rng.randrange(6)
        if kind < 3:
            name = rng.choice(sorted(tensors))
            tensors[name] = tensor_changed(tensors[name], list(tensors.values()), rng)
        elif kind == 3 and scalars:
            scalars[rng.choice(sorted(scalars))] = rng.choice((*NUMBERS, "3", [1], 10**5000))
        elif kind == 4:
            dims[rng.choice(("T", "S", "V", "n", *STRINGS[:4]))] = rng.choice((*NUMBERS, 5))
        elif stored:
            values = stored[rng.choice(sorted(stored))]
            values[rng.randrange(len(values))] = rng.choice((-1, 0, 5, 10**6, 2**31 - 1, values[0]))
    return tensors, scalars, dims, stored


def attempt(folder: Path, given: tuple[Any, ...]) -> str:
    """Loads and launches. Returns the code of the refusal, or None if accepted; raises if an accepted launch is wrong."""
    tensors, scalars, dims, stored = given
    driver = FakeDriver()
    try:
        kernel = load(folder / "k.json", Device(driver))
        arguments = {
            name: TensorView(one.pointer, one.dtype, one.shape, one.strides, one.read_only) for name, one in tensors.items()
        }
        evidence = {check.tensor: stored.get(check.tensor, [0]) for check in kernel.manifest.value_checks}
        values = {name: shaped(found, tensors[name].shape) for name, found in evidence.items() if name in tensors}
        plan = kernel.plan({**arguments, **scalars}, values=values, dims=dims)
        plan.launch()
    except LaunchError as error:
        message = str(error)
        if "\n" in message or len(message) > 4500 or not message.isprintable() or not error.code.startswith("E09"):
            raise AssertionError(f"a bad refusal: {message!r:.300}") from None
        return error.code
    (record,) = driver.launches
    slots = argument_bytes(record, [8] * len(kernel.manifest.abi))
    wrong = complaint(
        json.loads((folder / "k.json").read_bytes()), tensors, scalars, stored,
        Reached(record.grid, record.block, record.shared, slots, plan.env, driver.map_requests),
    ) or checked_code(folder, driver)  # fmt: skip
    if wrong:
        raise AssertionError(wrong)
    return ""


def shaped(values: list[int], shape: tuple[int, ...]) -> Any:
    """Stored values in the shape of their tensor, if they fit it."""
    import numpy as np

    array = np.array(values)
    try:
        return array.reshape(shape)
    except (ValueError, OverflowError, TypeError):
        return array


def checked_code(folder: Path, driver: FakeDriver) -> str:
    """The error in the code that the driver received, or None."""
    manifest = json.loads((folder / "k.json").read_bytes())
    image = driver.images[0]
    if hashlib.sha256(image).hexdigest() != manifest["digests"]["cubin"] or manifest["arch"] != "sm_90a" or image[49] != 90:
        return "other code than the manifest's, or for another GPU"
    return "" if b".text." + manifest["entry"].encode() + b"\0" in image else "code without the entry"


def campaign(count: int, seed: int, folder: Path) -> Tally:
    """Tries `count` mutants in `folder`."""
    rng, tally = random.Random(seed), Tally()
    folder = folder.resolve()
    for one in CONTRACTS:  # imports and compiles everything a launcher needs, and shows that unmutated launches work
        write(folder, "", one, rng)
        for _ in range(3):
            refusal = attempt(folder, one.launch(rng))
            assert refusal == "", (one.manifest["kernel"], refusal)
    start = time.monotonic()
    for number in range(count):
        kind, one = KINDS[number % len(KINDS)], rng.choice(CONTRACTS)
        write(folder, kind, one, rng)
        given = changed(one, rng) if "launch" in kind else one.launch(rng)
        tally.launched += tally.attempt(kind, number, folder, lambda given=given: attempt(folder, given))
    tally.end(folder, {"k.json", "k.cubin"}, start)
    return tally


if __name__ == "__main__":
    raise SystemExit(command(campaign, LIMIT_SECONDS, __doc__))
