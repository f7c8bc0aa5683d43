"""Small bundles that need no compiler: an ELF header with the fields that the loader reads, and manifests written by hand."""

from __future__ import annotations

import copy
import hashlib
import struct
from collections.abc import Sequence
from typing import Any

from tilec.artifact import bundle_format

SM = 90
TOOLCHAIN = {"llvmlite": "1 sha256:aa"}


STEP: dict[str, Any] = {
    "step": ["Module", [["FunctionDef", "decode", [["Pass"]]], ["FunctionDef", "prefill", [["Pass"]]]]],
    "tuning": [],
}
"""The description of the model's step: no launches."""


def cubin(entry: str, salt: int = 0, sm: int = SM, padding: int = 0) -> bytes:
    """A stub CUBIN of `sm` with the entry, different for each `salt`: an ELF header, code, names and sections."""
    code = salt.to_bytes(4, "little") * 50 + bytes(padding)
    names = b"\0.shstrtab\0.text." + entry.encode() + b"\0"
    section_offset = 64 + len(code) + len(names)
    header = bytearray(64)
    header[:9] = b"\x7fELF\x02\x01\x01\x41\x08"
    struct.pack_into("<HH", header, 16, 2, 190)
    struct.pack_into("<Q", header, 40, section_offset)
    struct.pack_into("<I", header, 48, 6 << 24 | sm << 8 | 4)
    struct.pack_into("<HHH", header, 58, 64, 3, 1)
    sections = [
        (0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        (1, 3, 0, 0, 64 + len(code), len(names), 0, 0, 1, 0),
        (11, 1, 6, 0, 64, len(code), 0, 0, 1, 0),
    ]
    return bytes(header) + code + names + b"".join(struct.pack("<IIQQQQIIQQ", *one) for one in sections)


def manifest(kernel: str, code: bytes, constants: dict[str, Any], arch: str = "sm_90a") -> dict[str, Any]:
    """A manifest with every kind of field."""
    return {
        "format": 7,
        "kernel": kernel,
        "entry": kernel,
        "arch": arch,
        "constants": constants,
        "tensors": [
            {
                "name": "x",
                "access": "in",
                "dtype": "bf16",
                "dims": ["T", 128],
                "strides": None,
                "align": 16,
                "resident": True,
                "row": None,
            },
            {
                "name": "out",
                "access": "out",
                "dtype": "bf16",
                "dims": ["T", 128],
                "strides": ["S", 1],
                "align": 16,
                "resident": False,
                "row": 0,
            },
        ],
        "scalars": [{"name": "eps", "dtype": "f32"}],
        "abi": [
            {"kind": "pointer", "name": "x"},
            {"kind": "pointer", "name": "out"},
            {"kind": "dim", "name": "T"},
            {"kind": "stride", "name": "S"},
            {"kind": "scalar", "name": "eps"},
            {"kind": "tensor_map", "name": "x"},
        ],
        "tensor_maps": [{"tensor": "x", "box": [8, 64], "swizzle": 128}],
        "grid": [["//", ["+", "T", 3], 4], 1],
        "block": 128,
        "cluster": 1,
        "schedule": {
            "roles": [{"name": "all", "warps": 4, "registers": None}],
            "blocks": None,
            "cluster": 1,
            "pipelines": [{"stages": 3, "copy": "cp_async", "mma": "mma_sync"}],
            "persistent": False,
            "order": "grid",
            "early": None,
            "next": "after",
            "store": "threads",
            "vector": 16,
        },
        "dependent_launch": True,
        "launch_checks": [{"condition": [">=", "T", 1], "text": "T is at least 1"}],
        "value_checks": [{"tensor": "x", "low": 0, "high": "T", "distinct": False}],
        "no_alias": [["x", "out"]],
        "resources": {
            "registers": 40,
            "spill_bytes": 0,
            "stack_bytes": 0,
            "static_shared_bytes": 16,
            "dynamic_shared_bytes": 1024,
        },
        "obligations": [
            {
                "property": "bounds",
                "subject": "load from `x`",
                "location": "k.py:3:5",
                "rung": "set",
                "facts": ["T is at least 1"],
                "sets": ["{ [T] : T >= 1 }"],
            },
            {"property": "race", "subject": "`out`", "location": "k.py:4:5", "rung": "static", "facts": [], "sets": []},
        ],
        "unsafe": [],
        "digests": {"cubin": hashlib.sha256(code).hexdigest(), "tir": "00" * 32},
        "toolchain": TOOLCHAIN,
    }


def parts(arch: str = "sm_90a", salts: Sequence[int] = (1, 2, 1)) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Description and blobs of a bundle with one artifact per salt; equal salts share a blob."""
    kernels: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    for number, salt in enumerate(salts):
        code = cubin("scale", salt, int(arch[3:].rstrip("af")))
        digest = hashlib.sha256(code).hexdigest()
        blobs[digest] = code
        constants = {"E": "bf16", "N": number, "F": 0.5, "G": True}
        one = manifest("scale", code, constants, arch)
        name = f"scale-E=bf16-N={number}"
        one["digests"] |= {key: hashlib.sha256(text).hexdigest() for key, text in source(name, digest).items()}
        kernels.append({"name": name, "blob": digest, "steps": ["norm"], "manifest": one})
    config = {"hidden_size": 128, "tied": True, "eps": 1e-6, "dtype": "bf16"}
    return {"model": "tiny-1b", "arch": arch, "config": config, "kernels": kernels, **STEP}, blobs


def bundle(arch: str = "sm_90a", salts: Sequence[int] = (1, 2, 1), **changes: Any) -> bytes:
    """A sound bundle; `changes` replace fields of every kernel's manifest."""
    description, blobs = parts(arch, salts)
    description = copy.deepcopy(description)
    for kernel in description["kernels"]:
        kernel["manifest"] |= changes
    return encode(description, blobs)


def with_proofs_apart(arch: str = "sm_90a", salts: Sequence[int] = (1, 2, 1), **changes: Any) -> bytes:
    """The bundle of `bundle` as it is packed: the obligations of its kernels are among its texts."""
    description, blobs = parts(arch, salts)
    description = copy.deepcopy(description)
    for kernel in description["kernels"]:
        kernel["manifest"] |= changes
    return encode(*apart(description, blobs))


def apart(
    description: dict[str, Any], blobs: dict[str, bytes]
) -> tuple[dict[str, Any], dict[str, bytes], dict[str, bytes]]:  # fmt: skip
    """Description, blobs and proofs of a bundle whose obligations are apart from its manifests."""
    description = copy.deepcopy(description)
    proofs: dict[str, bytes] = {}
    for kernel in description["kernels"]:
        text = bundle_format.proofs_of(kernel["manifest"])
        kernel["proofs"] = hashlib.sha256(text).hexdigest()
        proofs[kernel["proofs"]] = text
    return description, blobs, proofs


def source(name: str, blob: str) -> dict[str, bytes]:
    """Stub tile IR and PTX of a kernel."""
    return {"tir": f"kernel @{name}".encode() * 20, "ptx": f".entry {blob}".encode() * 20}


def encode(description: dict[str, Any], blobs: dict[str, bytes], proofs: dict[str, bytes] | None = None) -> bytes:
    """The bundle, with the texts of every kernel whose manifest has the digests of `parts`."""
    texts: dict[str, bytes] = {}
    for kernel in description["kernels"]:
        for name, data in source(kernel["name"], kernel["blob"]).items():
            digest = hashlib.sha256(data).hexdigest()
            if kernel["manifest"]["digests"].get(name) == digest:
                texts[digest] = data
    return bundle_format.encode(description, blobs, texts, proofs)
