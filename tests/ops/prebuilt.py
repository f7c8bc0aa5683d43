"""Artifacts of shipped kernels that need no compiler: manifests written by hand, and stub CUBINs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.bundle import samples
from tilec.ir.aligned import ALIGNED, aligned_text
from tilec.project.read.plan import artifact_name

KERNELS = Path(__file__).resolve().parents[2] / "kernels_src"


def tensor(name: str, access: str, dtype: str, *dims: int | str) -> dict[str, Any]:
    return {
        "name": name,
        "access": access,
        "dtype": dtype,
        "dims": list(dims),
        "strides": None,
        "align": 16,
        "resident": False,
        "row": None,
    }


def add(element: str, block: int = 2048) -> dict[str, Any]:
    """`add` of `kernels_src`."""
    tensors = [tensor("x", "in", element, "N"), tensor("y", "in", element, "N"), tensor("out", "out", element, "N")]
    grid = [["//", ["+", "N", block - 1], block]]
    return manifest("add", {"E": element, "BLOCK": block}, tensors, [], ["N"], grid, [["x", "out"], ["y", "out"]])


def aligned(entry: dict[str, Any], name: str, number: int) -> dict[str, Any]:
    """The aligned version of an artifact, which requires that a dim is a multiple."""
    checks = [{"condition": ["==", ["%", name, number], 0], "text": f"requires({name} % {number} == 0)"}]
    return entry | {"constants": entry["constants"] | {ALIGNED: aligned_text({name: number})}, "launch_checks": checks}


def rms_norm(element: str, hidden: int) -> dict[str, Any]:
    """`rms_norm` of `kernels_src`."""
    tensors = [
        tensor("x", "in", element, "T", hidden), tensor("weight", "in", element, hidden),
        tensor("out", "out", element, "T", hidden),
    ]  # fmt: skip
    scalars = [{"name": "eps", "dtype": "f32"}]
    return manifest("rms_norm", {"E": element, "H": hidden}, tensors, scalars, ["T"], ["T"], [["x", "out"], ["weight", "out"]])


def add_rms_norm(element: str, hidden: int) -> dict[str, Any]:
    """`add_rms_norm` of `kernels_src`, which writes one of its arguments."""
    tensors = [
        tensor("x", "in", element, "T", hidden), tensor("residual", "inout", element, "T", hidden),
        tensor("weight", "in", element, hidden), tensor("out", "out", element, "T", hidden),
    ]  # fmt: skip
    scalars = [{"name": "eps", "dtype": "f32"}]
    no_alias = [["x", "residual"], ["x", "out"], ["residual", "weight"], ["residual", "out"], ["weight", "out"]]
    return manifest("add_rms_norm", {"E": element, "H": hidden}, tensors, scalars, ["T"], ["T"], no_alias)


ROWS = """import tilec
from tilec import Dim, In, Out, Strides, bf16, grid, i32

class T(Dim): ''
class S(Dim): ''

@tilec.kernel
def rows(x: In[bf16, T, 8, Strides[S, 1]], out: Out[bf16, T, 8], n: i32):
    grid(T)
"""
"""A kernel of a tensor with a stride, and an integer."""


def rows(name: str = "rows", dtype: str = "i32") -> dict[str, Any]:
    """Of the kernel `ROWS`, with an integer of another dtype."""
    tensors = [tensor("x", "in", "bf16", "T", 8) | {"strides": ["S", 1]}, tensor("out", "out", "bf16", "T", 8)]
    found = manifest(name, {}, tensors, [{"name": "n", "dtype": dtype}], ["T"], ["T"], [["x", "out"]])
    found["abi"].insert(3, {"kind": "stride", "name": "S"})
    return found


def manifest(
    kernel: str, constants: dict[str, Any], tensors: list[dict[str, Any]], scalars: list[dict[str, Any]], dims: list[str],
    grid: list[Any], no_alias: list[list[str]],
) -> dict[str, Any]:  # fmt: skip
    """A manifest with the compiler's calling convention."""
    base = samples.manifest(kernel, samples.cubin(kernel), constants)
    slots = [("pointer", entry["name"]) for entry in tensors] + [("dim", name) for name in dims]
    slots += [("scalar", entry["name"]) for entry in scalars]
    return base | {
        "tensors": tensors, "scalars": scalars, "abi": [{"kind": kind, "name": name} for kind, name in slots],
        "tensor_maps": [], "grid": grid, "launch_checks": [], "value_checks": [], "no_alias": no_alias,
    }  # fmt: skip


def write(folder: Path, *manifests: dict[str, Any]) -> Path:
    """Artifacts as `tilec build` writes them: a folder for the architecture."""
    architecture_folder = folder / "sm_90a"
    architecture_folder.mkdir(parents=True, exist_ok=True)
    for entry in manifests:
        code = samples.cubin(entry["kernel"])
        name = artifact_name(entry["kernel"], entry["constants"])
        (architecture_folder / f"{name}.cubin").write_bytes(code)
        (architecture_folder / f"{name}.json").write_text(
            json.dumps(entry | {"digests": {"cubin": hashlib.sha256(code).hexdigest()}})
        )
    return folder


def bundle(*manifests: dict[str, Any], arch: str = "sm_90a") -> bytes:
    """The same kernels in a bundle."""
    kernels: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    entries: list[dict[str, Any]] = [{**one, "arch": arch} for one in manifests]
    for entry in entries:
        code = samples.cubin(entry["kernel"], sm=int(arch[3:].rstrip("af")))
        digest = hashlib.sha256(code).hexdigest()
        named = {key: value for key, value in entry["constants"].items() if not isinstance(value, float)}
        name = artifact_name(entry["kernel"], named)
        texts = {key: hashlib.sha256(text).hexdigest() for key, text in samples.source(name, digest).items()}
        kernels.append({"name": name, "blob": digest, "steps": [], "manifest": entry | {"digests": {"cubin": digest} | texts}})
        blobs[digest] = code
    kernels.sort(key=lambda entry: entry["name"])
    description = {"model": "ops", "arch": arch, "config": {"n": 1}, "kernels": kernels, **samples.STEP}
    return samples.encode(description, dict(sorted(blobs.items())))
