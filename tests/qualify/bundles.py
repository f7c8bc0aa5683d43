"""Small bundles of shipped kernels, and their side files, for tests without a GPU: stub code, the kernels' own tile IR."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import shipped
from tests.audit import samples
from tests.bundle import samples as stubs
from tests.qualify.fake_device import FakeDevice
from tilec.artifact.bundle_format import encode as encode_bundle
from tilec.artifact.records import to_json
from tilec.codegen import to_ptx
from tilec.lowering import lower
from tilec.qualify import child, prepare
from tilec.qualify.side_file import Entry, SideFile, decode, encode
from tilec.runtime import Bundle, Device, open_bundle
from tilec.target.targets import TARGETS

SM_90 = next(target for target in TARGETS if target.name == "sm_90a")
Record = dict[str, Any]


def written(folder: Path, *kernels: str) -> Path:
    """A bundle of shipped kernels with stub code and their tile IR."""
    path = folder / "tiny.bundle"
    path.write_bytes(samples.bundle({name: samples.text(name) for name in kernels}))
    return path


def with_ptx(folder: Path, kernel: str, change: Mapping[str, str] | None = None) -> Path:
    """A bundle of one kernel with stub code, its tile IR and its PTX, in which each text of `change` is replaced."""
    lowered = lower(shipped.prepared(kernel, SM_90), SM_90)
    ptx = to_ptx(lowered.mlir, SM_90)
    for before, after in (change or {}).items():
        assert before in ptx
        ptx = ptx.replace(before, after)
    tir, code = samples.text(kernel).encode(), stubs.cubin(lowered.entry)
    data = samples.manifest_data(shipped.load(kernel), tir, code)
    data |= {"abi": to_json(lowered.abi), "block": lowered.num_threads, "entry": lowered.entry}
    data["resources"]["dynamic_shared_bytes"] = lowered.dynamic_shared_bytes
    (role,) = data["schedule"]["roles"]
    role["warps"] = lowered.num_threads // 32
    data["digests"]["ptx"] = stubs_digest(ptx.encode())
    kernels = [{"name": kernel, "blob": data["digests"]["cubin"], "steps": ["norm"], "manifest": json.loads(json.dumps(data))}]
    description = {"model": "tiny-1b", "arch": "sm_90a", "config": {}, "kernels": kernels, **stubs.STEP}
    texts = {data["digests"]["tir"]: tir, data["digests"]["ptx"]: ptx.encode()}
    path = folder / f"{kernel}.bundle"
    path.write_bytes(encode_bundle(description, {data["digests"]["cubin"]: code}, texts))
    return path


def stubs_digest(text: bytes) -> str:
    """The digest under which a bundle has a text."""
    import hashlib

    return hashlib.sha256(text).hexdigest()


def prepared(path: Path, *, timed: bool = False, edges: int = 3) -> SideFile:
    """The side file of a bundle, written next to it; `timed`: its launches count as the model's."""
    with open_bundle(path, trust="none") as bundle:
        entries = [prepare.prepared(subject, edges) for subject in prepare.subjects(bundle)]
        if timed:
            entries = [Entry(e.name, e.tir, tuple(replace(one, timed=True) for one in e.launches), e.left_out) for e in entries]
        data = encode(prepare.side_file(bundle, entries))
    path.with_suffix(".qualify").write_bytes(data)
    return decode(data)


def launched(
    path: Path, monkeypatch: pytest.MonkeyPatch, *, oracle: str = "interpreter", fault: str = "none", kernel: str = "",
    repeats: int = 3, times: bool = False, tune: list[Record] | None = None,
) -> list[Record]:  # fmt: skip
    """All lines of the process that launches, run here on a fake device."""
    from tilec.qualify.side_file import read

    device = FakeDevice(str(path), oracle, fault, kernel)
    device.capture(monkeypatch.setattr)
    side = path.with_suffix(".qualify")
    with open_bundle(path, trust="none") as bundle:
        job = {
            "bundle": str(path), "digest": bundle.digest, "side": str(side), "side_digest": read(side).digest,
            "artifacts": [one.name for one in bundle.kernels], "repeats": repeats, "times": times, "tune": tune or [],
        }  # fmt: skip
    found: list[Record] = []
    child.Work(job, Device(device), found.append).run()
    return [json.loads(json.dumps(line)) for line in found]


def verdicts(lines: list[Record]) -> dict[str, str]:
    """The verdict of each artifact."""
    return {line["done"]: line["verdict"] for line in lines if "done" in line}


def bundle_of(path: Path) -> Bundle:
    """The open bundle."""
    return open_bundle(path, trust="none")
