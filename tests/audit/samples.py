"""Manifests and bundles of shipped kernels without a compiler: the prover's record, and stub code."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests import shipped
from tests.bundle import samples
from tilec.artifact.bundle_format import encode
from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import Manifest, parameter_specs, to_json, value_promise
from tilec.ir.core import Function
from tilec.ir.text.parser import parse_function
from tilec.ir.text.printer import print_function
from tilec.passes.prover import prove
from tilec.passes.prover.aliasing import launch_checks, no_alias_pairs, value_checks

KERNELS = Path(__file__).parent / "kernels"
ACCEPTED_ONCE = Path(__file__).parents[1] / "soundness" / "corpus"
"""Unsafe kernels that the prover once accepted."""
PTX = ".version 8.7\n.target sm_90a\n"


@cache
def text(name: str, **wanted: Any) -> str:
    """The tile IR of a shipped kernel's first specialisation that agrees with `wanted`."""
    return print_function(shipped.load(name, wanted))


def manifest_data(function: Function, tir: bytes, code: bytes, *, proven: bool = True) -> dict[str, Any]:
    """The manifest of a function as JSON data: with the prover's record, or without one if the prover refuses it."""
    data = samples.manifest(function.name, code, dict(function.constants))
    tensors, scalars = parameter_specs(function)
    abi = [{"kind": "pointer", "name": spec.name} for spec in tensors]
    abi += [{"kind": "stride" if name in function.strides else "dim", "name": name} for name in function.dims]
    abi += [{"kind": "scalar", "name": scalar.name} for scalar in scalars]
    data |= {
        "tensors": to_json(tensors),
        "scalars": to_json(scalars),
        "abi": abi,
        "tensor_maps": [],
        "grid": to_json(function.grid),
        "launch_checks": to_json(launch_checks(function)),
        "value_checks": to_json(value_checks(function)),
        "no_alias": to_json(no_alias_pairs(function)),
        "obligations": to_json(prove(function).obligations) if proven else [],
    }
    if function.promises:
        data["promises"] = to_json(tuple(map(value_promise, function.promises)))
    ptx = PTX.encode()
    data["digests"] = {
        "cubin": hashlib.sha256(code).hexdigest(),
        "tir": hashlib.sha256(tir).hexdigest(),
        "ptx": hashlib.sha256(ptx).hexdigest(),
    }
    return json.loads(json.dumps(data))


def manifest(name: str, **wanted: Any) -> Manifest:
    """The manifest of a shipped kernel."""
    tir = text(name, **wanted)
    return manifest_from_json(manifest_data(parse_function(tir), tir.encode(), samples.cubin(name)))


def bundle(tirs: Mapping[str, str], *, proven: bool = True, change: Mapping[str, Any] | None = None) -> bytes:
    """A bundle of kernels by name, from their tile IR; `change` replaces texts by digest name after the digests are
    computed."""
    kernels: list[dict[str, Any]] = []
    blobs: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    for name, tir in sorted(tirs.items()):
        function = parse_function(tir)
        code = samples.cubin(function.name)
        data = manifest_data(function, tir.encode(), code, proven=proven)
        data = copy.deepcopy(data) | dict(change or {})
        blobs[data["digests"]["cubin"]] = code
        texts[data["digests"]["tir"]] = tir.encode()
        texts[data["digests"]["ptx"]] = PTX.encode()
        kernels.append({"name": name, "blob": data["digests"]["cubin"], "steps": ["norm"], "manifest": data})
    description = {"model": "tiny-1b", "arch": "sm_90a", "config": {}, "kernels": kernels, **samples.STEP}
    return encode(description, blobs, texts)
