"""Checks that the products of an entry agree with its key and with each other.

In: the fields of the key, and the products. Out: the first disagreement. Compared are:

- key and manifest: kernel name, constants, schedule overrides, architecture, toolchain, digest of the sources;
- the digests in the manifest with tile IR, PTX and CUBIN;
- name, entry and architecture with the tile IR's first line, the PTX's directives (PTX ISA, "Directives") and the CUBIN's
  headers;
- resources and proofs with the summary.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from tilec.artifact.cubin_image import check_image, read_image
from tilec.target.families import helper_named
from tilec.toolchain import stated

Fields = Mapping[str, int | str | None]
ARTIFACT_PRODUCTS: Final = ("cubin", "json", "ptx", "summary", "tir")
"""Products of an artifact: a bundle includes the texts that its code was generated from, for `tilec audit`."""
MAX_JSON: Final = 8 << 20
"""Largest manifest or summary, in bytes."""


def typed(value: int | float | bool | str) -> str:
    """A constant as it is encoded in keys: its type and its exact value."""
    return f"{type(value).__name__} {value.hex() if isinstance(value, float) else value}"


def disagreement(stage: str, fields: Fields, products: Mapping[str, bytes], digests: Mapping[str, str]) -> str:
    """What is wrong with the products of `stage`, as the end of a sentence; empty if they agree. `digests` are the sha256 of
    the products."""
    check = CHECKS.get(stage)
    if check is None:
        return ""
    try:
        return check(fields, products, digests)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        return f"its products cannot be read ({type(error).__name__} {error})"[:200]


def _tir(fields: Fields, products: Mapping[str, bytes], _: Mapping[str, str]) -> str:
    interface = _json(products["interface"])
    if not products["tir"].startswith(_header(str(fields["path"]))):
        return "its tile IR is of another kernel"
    return "" if _constants(interface["constants"], fields) else "its constants differ"


def _ptx(fields: Fields, products: Mapping[str, bytes], _: Mapping[str, str]) -> str:
    return _directives(products["ptx"], str(fields["target"]), "")


def _cubin(fields: Fields, products: Mapping[str, bytes], _: Mapping[str, str]) -> str:
    found = read_image(products["cubin"]).arch
    return (
        ""
        if f"sm_{found}" == str(fields["target"]).rstrip("af")
        else f"its CUBIN is for sm_{found}, not for {fields['target']}"
    )


def _artifact(fields: Fields, products: Mapping[str, bytes], digests: Mapping[str, str]) -> str:
    if {*products} != {*ARTIFACT_PRODUCTS}:
        return "its products are not those that an artifact has"
    manifest, summary = _json(products["json"]), _json(products["summary"])
    path, arch = str(fields["option path"]), str(fields["option target"])
    kernel, entry = PurePosixPath(path).stem, manifest["entry"]
    if manifest["kernel"] != kernel:
        return f"its manifest is of the kernel `{manifest['kernel']!s:.80}`, not of `{kernel}`"
    if not _constants(manifest["constants"], fields):
        return "its manifest has other constants"
    if manifest["arch"] != arch:
        return f"its manifest is for {manifest['arch']!s:.20}, not for {arch}"
    if not _scheduled(manifest["schedule"], fields):
        return "its manifest has another schedule"
    for name in ("cubin", "ptx", "tir"):
        if manifest["digests"][name] != digests[name]:
            return f"its {name} differs from its manifest's digest"
    if not _toolchain(manifest["toolchain"], fields) or manifest["digests"]["source"] != _digest("source", fields):
        return "its manifest names other sources or another toolchain"
    try:
        check_image(products["cubin"], arch, entry)
    except ValueError as error:
        return f"its CUBIN {error}"
    if not products["tir"].startswith(_header(path)):
        return "its tile IR is of another kernel"
    rungs = Counter(one["rung"] for one in manifest["obligations"])
    if (summary["resources"], summary["proofs"], summary["unsafe"]) != (manifest["resources"], rungs, len(manifest["unsafe"])):
        return "its summary differs from its manifest"
    return _directives(products["ptx"], arch, entry)


def _json(text: bytes) -> dict[str, Any]:
    if len(text) > MAX_JSON:
        raise ValueError(f"{len(text)} bytes of JSON")
    return json.loads(text)


def _header(path: str) -> bytes:
    """The first bytes of the kernel's tile IR."""
    return f"kernel @{PurePosixPath(path).stem}(".encode()


def _directives(ptx: bytes, arch: str, entry: str) -> str:
    if f"\n.target {arch}".encode() not in ptx:
        return f"its PTX is not for {arch}"
    return "" if f".entry {entry}".encode() in ptx else f"its PTX has no entry `{entry}`"


def _named(kind: str, fields: Fields) -> dict[str, int | str | None]:
    start = f"{kind} "
    return {name[len(start) :]: value for name, value in fields.items() if name.startswith(start)}


def _constants(found: dict[str, Any], fields: Fields) -> bool:
    return {name: typed(value) for name, value in found.items()} == _named("constant", fields)


PLAIN_PARTS: Final = ("blocks", "persistent", "cluster", "order", "early", "next", "store", "vector")
"""Fields of a schedule that have a single value and the same name as in the build file."""


def _scheduled(found: dict[str, Any], fields: Fields) -> bool:
    """Whether the manifest's schedule has every override in the key."""
    parts = {name: typed(found[name]) for name in PLAIN_PARTS if name in found}
    parts["warps"] = typed(sum(role["warps"] for role in found["roles"]))
    parts["consumers"] = typed(sum(role["warps"] for role in found["roles"] if not helper_named(role["name"])) // 4)
    loops = {(part, typed(loop[part])) for loop in found["pipelines"] for part in ("stages", "copy", "mma")}
    wanted = _named("schedule", fields).items()
    return all(parts.get(name) == value or {v for n, v in loops if n == name} == {value} for name, value in wanted)


def _digest(kind: str, fields: Fields) -> str:
    return hashlib.sha256(json.dumps(_named(kind, fields), sort_keys=True).encode()).hexdigest()


def _toolchain(found: dict[str, str], fields: Fields) -> bool:
    """Whether a manifest names the key's distributions (as `stated` formats them) and the digest of tilec's own source."""
    named = {name: str(text) for name, text in _named("toolchain", fields).items()}
    tilec_digest = found.get("tilec", "").partition(" sha256:")[2]
    return found == stated(named) | {"tilec": found.get("tilec")} and tilec_digest == _digest("compiler", fields)


CHECKS: Final[dict[str, Callable[[Fields, Mapping[str, bytes], Mapping[str, str]], str]]] = {
    "tir": _tir, "ptx": _ptx, "cubin": _cubin, "artifact": _artifact,
}  # fmt: skip
