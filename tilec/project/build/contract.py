"""Cross-checks the manifest of an artifact against the artifact's other products.

In: the products of an artifact that another machine made. Out: the first difference. The loader must accept the manifest.

- Tile IR: constants, tensors with their alignment, scalars, grid, the calling convention except tensor maps, and all that a
  launcher enforces or a caller relies on: launch checks, value checks, pairs of tensors that must not overlap, promises. The
  manifest may align a tensor that is only read to the schedule's widest load (`vector` in `tilec/target/schedule.py`) where the
  tile IR asks for less.
- Stage digests in the manifest: the proofs, and the schedule.
- PTX: number and kinds of parameters, threads per block, whether the kernel executes `griddepcontrol.wait`, and whether it
  loads more bytes at once than any tensor is aligned to.

No other product states which tensors a schedule aligns, the boxes of tensor maps, registers, and bytes of shared memory, so
these are not checked. A change of one product is found even if its digests were recomputed; a consistent change of all products
is not. Whether the tile IR belongs to the sources can only be checked with the sources.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any, Final

from tilec.artifact.manifest_reader import manifest_from_json
from tilec.artifact.records import PROOF_FIELDS, json_bytes, parameter_specs, to_json, value_promise
from tilec.ir.text.parser import parse_function
from tilec.passes.prover.aliasing import launch_checks, no_alias_pairs, value_checks
from tilec.target.schedule import VECTOR

_PARAMETER: Final = re.compile(r"\.param ([^\n]*?)(\[\d+\])?,?\n")
_BLOCK: Final = re.compile(r"\n\.reqntid (\d+)")
_WIDE_LOAD: Final = re.compile(r"\bld\.global(?:\.\w+(?:::\w+)?)*\.(?:v8\.[bf]32|v4\.[bfsu]64)\s")
"""A load of 32 bytes (PTX ISA, `ld`, `.vec`)."""
WIDE: Final = 32
_KINDS: Final = {"pointer": ".u64 .ptr ", "dim": ".u32 ", "stride": ".u64 ", "tensor_map": ".align 64 .b8 "}
"""Prefix of a PTX parameter declaration by kind; a scalar has `.`."""
KEPT: Final = 64
"""Tile IR texts whose parsed contract is cached; one text serves several architectures."""


def contract_difference(products: Mapping[str, bytes]) -> str:
    """The first difference between the manifest and the tile IR, the PTX or its own digests, as the end of a sentence; empty if
    there is none. Raises whatever error a reader has for a malformed product."""
    manifest: dict[str, Any] = json.loads(products["json"])
    manifest_from_json(manifest)
    for name, value in _of_tile_ir(products["tir"]).items():
        found = [slot for slot in manifest["abi"] if slot["kind"] != "tensor_map"] if name == "abi" else manifest.get(name, [])
        if name == "tensors":
            found = [_with_own_alignment(one, own, manifest["schedule"]["vector"]) for one, own in zip_longest(found, value)]
        if not same(found, value):
            return f"the {name} of its manifest and of its tile IR differ"
    proofs = {name: manifest[name] for name in PROOF_FIELDS if name in manifest}
    for name, value in (("proofs", proofs), ("schedule", manifest["schedule"])):
        if hashlib.sha256(json_bytes(value)).hexdigest() != manifest["digests"][name]:
            return f"the {name} of its manifest are not those of their digest"
    return _ptx_difference(manifest, products["ptx"].decode())


def _with_own_alignment(stated: Any, own: Any, vector: int) -> Any:
    """A tensor of the manifest, with the alignment of the tile IR if the schedule's loads explain that it is stricter."""
    if stated is None or own is None:
        return stated
    explained = own["access"] == "in" and own["align"] < stated["align"] == vector and vector > VECTOR
    return stated | {"align": own["align"]} if explained else stated


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values have the same text: `1`, `1.0` and `true` differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@functools.lru_cache(KEPT)
def _of_tile_ir(text: bytes) -> dict[str, Any]:
    function = parse_function(text.decode())
    tensors, scalars = parameter_specs(function)
    sizes = [{"kind": "stride" if name in function.strides else "dim", "name": name} for name in function.dims]
    pointers = [{"kind": "pointer", "name": one.name} for one in tensors]
    values = [{"kind": "scalar", "name": one.name} for one in scalars]
    return {
        "constants": function.constants, "tensors": to_json(tensors), "scalars": to_json(scalars),
        "grid": to_json(function.grid), "abi": [*pointers, *sizes, *values],
        "launch_checks": to_json(launch_checks(function)), "value_checks": to_json(value_checks(function)),
        "no_alias": to_json(no_alias_pairs(function)), "promises": to_json(tuple(map(value_promise, function.promises))),
    }  # fmt: skip


def _ptx_difference(manifest: dict[str, Any], ptx: str) -> str:
    start = ptx.index(f".entry {manifest['entry']}")
    head = ptx[start : ptx.index("{", start)]
    found = [match[1] for match in _PARAMETER.finditer(head)]
    slots: list[dict[str, str]] = manifest["abi"]
    kinds = [_KINDS.get(slot["kind"], ".") for slot in slots]
    if len(found) != len(kinds) or not all(one.startswith(kind) for one, kind in zip(found, kinds, strict=True)):
        return "its PTX takes other parameters than its manifest says"
    block = _BLOCK.search(head)
    if block is None or block[1] != str(manifest["block"]):
        return "its PTX is for another block than its manifest says"
    if _WIDE_LOAD.search(ptx) and all(tensor["align"] < WIDE for tensor in manifest["tensors"]):
        return f"its PTX loads {WIDE} bytes at once from bases that its manifest does not align"
    waits = "griddepcontrol.wait" in ptx
    return "" if waits is manifest["dependent_launch"] else "its PTX and its manifest differ in what it waits for"
