"""Parses the manifest of a bundle: untrusted JSON becomes kernels with contracts and safety records, or a ValueError.

    {"arch": "sm_90a", "blobs": [{"offset": 0, "sha256": "...", "size": 6376}], "config": {"hidden_size": 1024},
     "kernels": [{"blob": "...", "manifest": {...}, "name": "...", "proofs": "...", "steps": ["..."]}], "model": "qwen3-4b",
     "step": ["Module", ...],
     "texts": {"entries": [{"sha256": "...", "size": 2048}], "proofs": [{"sha256": "...", "size": 9000}], "size": 700},
     "tuning": [{"measured": "...", "numbers": {"parts": 32}}]}

`step` is the syntax tree of the model's step and `tuning` its measured numbers (`tilec.step`). `offset` is relative to the
first blob. `steps` are the operations of the step that need the kernel, `proofs` the digest of the obligations of its manifest,
which are among the texts (`with_proofs` reads them). In format 3 obligations are in the manifest, and there are no `proofs`.

A bundle of kernels without a model has a step whose modes are empty, and its `config` is the names of exactly its kernels:
`{"kernels": "rms_norm softmax"}`. So the model digest, by which a trust policy knows a bundle, stands for these names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tilec.artifact.bundle_format import (
    FORMAT,
    MAX_BLOBS,
    MAX_MANIFEST,
    MAX_PROOFS,
    MAX_TEXTS,
    MODEL,
    NAME,
    STEP,
    Header,
    layout,
)
from tilec.artifact.manifest_reader import manifest_from_json, obligations_from_json
from tilec.artifact.records import Manifest, Obligation
from tilec.step.caches import CACHE_FORMAT
from tilec.step.expressions import StepError
from tilec.step.formats import WEIGHT_FORMAT
from tilec.step.ranks import GPUS, MAX_RANKS
from tilec.step.reader import Declaration, decode_declaration
from tilec.step.tuning import Tuning, read_tuning
from tilec.untrusted.strict_json import LARGEST_OF_MANIFEST, parse

_ARCH: Final = re.compile(r"sm_[0-9]{2,3}[af]?", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)

Decode = Callable[[Any], Declaration]
"""Makes a declaration of a step's syntax, or raises StepError."""


@dataclass(frozen=True, slots=True)
class Blob:
    """A CUBIN, identified by its digest; `offset` in bytes from the first blob."""

    sha256: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BundledKernel:
    """One artifact: its contract and safety record, the operations of the step that use it, and the digests of its CUBIN and of
    its proofs; of these none in format 3. If the proofs were not read, its manifest has no obligations."""

    name: str
    manifest: Manifest
    steps: tuple[str, ...]
    blob: str
    proofs: str | None = None


@dataclass(frozen=True, slots=True)
class Texts:
    """Proofs, tile IR and PTX: offset of their stream (from the first blob), its bytes, and digest and size of each of the
    proofs and of each text in it."""

    offset: int
    size: int
    entries: tuple[tuple[str, int], ...]
    proofs: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """The contents of a manifest; `blobs` by digest in the order of the file."""

    model: str
    arch: str
    config: dict[str, int | float | bool | str]
    kernels: tuple[BundledKernel, ...]
    blobs: dict[str, Blob]
    texts: Texts
    declaration: Declaration
    tuning: Tuning
    tables: list[Any]


def read_contents(text: bytes, header: Header, decode: Decode = decode_declaration) -> Contents:
    """Parse the manifest and check it against the header and for consistency; ValueError if it is invalid. `decode` reads the
    step's syntax."""
    data = _object(_parsed(text), ("arch", "blobs", "config", "kernels", "model", "step", "texts", "tuning"), "manifest")
    arch = _matching(data["arch"], _ARCH, "arch")
    blobs = _blobs(data["blobs"])
    apart = header.format == FORMAT
    size, entries, proofs = _texts(data["texts"], apart=apart)
    expected, offsets = layout(len(text), (blob.size for blob in blobs), size, header.format)
    if header != expected:
        raise ValueError("its header does not agree with its manifest")
    first = expected.blobs_offset
    for blob, offset in zip(blobs, offsets[:-1], strict=True):
        if blob.offset != offset - first:
            raise ValueError(f"blob {blob.sha256[:12]} is at the wrong offset")
    by_digest = {blob.sha256: blob for blob in blobs}
    items = enumerate(_items(data["kernels"], "kernels"))
    kernels = [_kernel(item, arch, by_digest, f"kernels[{i}]", apart=apart) for i, item in items]
    names = [kernel.name for kernel in kernels]
    if names != sorted(set(names)):
        raise ValueError("its kernels are unsorted, or two have the same name")
    if {kernel.blob for kernel in kernels} != by_digest.keys():
        raise ValueError("it has a blob that no kernel uses")
    if apart and {kernel.proofs for kernel in kernels} != {digest for digest, _ in proofs}:
        raise ValueError("its proofs are not those of its kernels")
    config = _config(data["config"])
    declaration, tuning, tables = _step(data["step"], data["tuning"], decode)
    if WEIGHT_FORMAT in config and config[WEIGHT_FORMAT] not in declaration.formats:
        raise ValueError(f"its step has no weights in {config[WEIGHT_FORMAT]!r:.60}")
    if CACHE_FORMAT in config and config[CACHE_FORMAT] not in declaration.caches:
        raise ValueError(f"its step has no caches in {config[CACHE_FORMAT]!r:.60}")
    gpus = config.get(GPUS, 1)
    if type(gpus) is not int or not 1 <= gpus <= MAX_RANKS or (gpus > 1 and not declaration.shards):
        raise ValueError(f"its step is not shared by {gpus!r:.60} GPUs")
    kernel_names = " ".join(sorted({kernel.manifest.kernel for kernel in kernels}))
    if config.keys() == {"kernels"} and declaration.is_empty and config["kernels"] != kernel_names:
        raise ValueError("its kernels are not those that `kernels` of its configuration names")
    return Contents(
        _matching(data["model"], MODEL, "model"),
        arch,
        config,
        tuple(kernels),
        by_digest,
        Texts(offsets[-1] - first, size, entries, proofs),
        declaration,
        tuning,
        tables,
    )


def _parsed(text: bytes) -> Any:
    try:
        return parse(text, limit=MAX_MANIFEST, canonical=True, largest=LARGEST_OF_MANIFEST)
    except ValueError as error:
        raise ValueError(f"its manifest: {error}") from None


def _object(data: Any, fields: tuple[str, ...], where: str) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(fields):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"{where}: not an object with {', '.join(fields)}")
    return data  # pyright: ignore[reportUnknownVariableType]


def _items(data: Any, where: str) -> list[Any]:
    if not isinstance(data, list):
        raise ValueError(f"{where}: not a list")
    return data  # pyright: ignore[reportUnknownVariableType]


def _matching(data: Any, pattern: re.Pattern[str], where: str) -> str:
    if not isinstance(data, str) or not pattern.fullmatch(data):
        raise ValueError(f"{where}: {data!r:.60} is not allowed")
    return data


def _size(data: Any, where: str) -> int:
    if not isinstance(data, int) or isinstance(data, bool) or data < 0:
        raise ValueError(f"{where}: not a size")
    return data


def _blobs(data: Any) -> list[Blob]:
    items = _items(data, "blobs")
    if len(items) > MAX_BLOBS:
        raise ValueError("blobs: too many")
    blobs: list[Blob] = []
    for i, item in enumerate(items):
        record = _object(item, ("offset", "sha256", "size"), f"blobs[{i}]")
        size, offset = _size(record["size"], f"blobs[{i}].size"), _size(record["offset"], f"blobs[{i}].offset")
        blobs.append(Blob(_matching(record["sha256"], _DIGEST, f"blobs[{i}].sha256"), offset, size))
    digests = [blob.sha256 for blob in blobs]
    if digests != sorted(set(digests)):
        raise ValueError("blobs: unsorted, or one is repeated")
    return blobs


def _texts(data: Any, *, apart: bool) -> tuple[int, tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """Bytes of the stream, its texts, and the proofs before them, which it has if they are `apart` from the manifests."""
    record = _object(data, ("entries", "proofs", "size") if apart else ("entries", "size"), "texts")
    entries = _entries(record["entries"], "texts.entries")
    proofs = _entries(record["proofs"], "texts.proofs") if apart else ()
    size = _size(record["size"], "texts.size")
    proof_bytes = sum(length for _, length in proofs)
    total = proof_bytes + sum(length for _, length in entries)
    if proof_bytes > MAX_PROOFS or total > MAX_TEXTS or bool(entries or proofs) != bool(size):
        raise ValueError("texts: their sizes are invalid")
    return size, entries, proofs


def _entries(data: Any, where: str) -> tuple[tuple[str, int], ...]:
    """Digest and size of each text of a list."""
    items = _items(data, where)
    if len(items) > MAX_BLOBS:
        raise ValueError(f"{where}: too many")
    entries: list[tuple[str, int]] = []
    for i, item in enumerate(items):
        entry = _object(item, ("sha256", "size"), f"{where}[{i}]")
        digest = _matching(entry["sha256"], _DIGEST, f"{where}[{i}].sha256")
        entries.append((digest, _size(entry["size"], f"{where}[{i}].size")))
    digests = [digest for digest, _ in entries]
    if digests != sorted(set(digests)):
        raise ValueError(f"{where}: unsorted, or one is repeated")
    return tuple(entries)


def _kernel(data: Any, arch: str, blobs: dict[str, Blob], where: str, *, apart: bool) -> BundledKernel:
    record = _object(data, ("blob", "manifest", "name", *(("proofs",) if apart else ()), "steps"), where)
    name = _matching(record["name"], NAME, f"{where}.name")
    blob = _matching(record["blob"], _DIGEST, f"{where}.blob")
    if blob not in blobs:
        raise ValueError(f"`{name}`: its blob is missing")
    try:
        manifest = manifest_from_json(_with_no_obligations(record["manifest"]) if apart else record["manifest"])
    except RecursionError:
        raise ValueError(f"`{name}`: nested too deep") from None
    except ValueError as error:
        raise ValueError(f"`{name}`: {error}") from None
    if manifest.arch != arch:
        raise ValueError(f"`{name}` is for {manifest.arch}, the bundle for {arch}")
    if manifest.digests.get("cubin") != blob:
        raise ValueError(f"`{name}`: its code differs from its manifest's digest")
    unknown = _symbols(manifest) - {slot.name for slot in manifest.abi if slot.kind not in ("pointer", "tensor_map")}
    if unknown:
        raise ValueError(f"`{name}`: `{min(unknown):.80}` has no value at launch")
    if name.split("-")[0] != manifest.kernel:
        raise ValueError(f"`{name}` is not a name for the kernel `{manifest.kernel}`")
    steps = tuple(_matching(step, STEP, f"{where}.steps") for step in _items(record["steps"], f"{where}.steps"))
    if list(steps) != sorted(set(steps)):
        raise ValueError(f"`{name}`: its steps are unsorted")
    proofs = _matching(record["proofs"], _DIGEST, f"{where}.proofs") if apart else None
    return BundledKernel(name, manifest, steps, blob, proofs)


def _with_no_obligations(data: Any) -> Any:
    """The manifest of an artifact whose obligations are elsewhere, as data of a whole one."""
    if not isinstance(data, dict):
        return data  # refused by the reader of manifests
    record: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
    if "obligations" in record:
        raise ValueError("its obligations are in its manifest and apart from it")
    return {**record, "obligations": []}


def with_proofs(kernels: tuple[BundledKernel, ...], texts: Mapping[str, bytes]) -> tuple[BundledKernel, ...]:
    """Kernels with the obligations that `texts` has by digest; ValueError if those of one are invalid."""
    known: dict[str, tuple[Obligation, ...]] = {}
    found: list[BundledKernel] = []
    for kernel in kernels:
        digest = kernel.proofs
        if digest is None:  # it has them already
            found.append(kernel)
            continue
        if digest not in known:
            try:
                data = parse(texts[digest], limit=MAX_PROOFS, canonical=True, largest=LARGEST_OF_MANIFEST)
                known[digest] = obligations_from_json(data)
            except ValueError as error:
                raise ValueError(f"`{kernel.name}`: its proofs: {error}") from None
        found.append(replace(kernel, manifest=replace(kernel.manifest, obligations=known[digest])))
    return tuple(found)


def _step(syntax: Any, tables: Any, decode: Decode) -> tuple[Declaration, Tuning, list[Any]]:
    items = _items(tables, "tuning")
    try:
        return decode(syntax), read_tuning(items), items
    except StepError as error:
        raise ValueError(f"its step: {error}") from None


def _symbols(manifest: Manifest) -> set[str]:
    """The names in all expressions that a launch evaluates."""
    expressions = [*manifest.grid, *(check.condition for check in manifest.launch_checks)]
    for tensor in manifest.tensors:
        expressions += [*tensor.dims, *(tensor.strides or ())]
    for check in manifest.value_checks:
        expressions += [check.low, check.high]
    return {name for expression in expressions for name in expression.symbols()}


def _config(data: Any) -> dict[str, int | float | bool | str]:
    if not isinstance(data, dict):
        raise ValueError("config: not an object")
    items: dict[Any, Any] = data  # pyright: ignore[reportUnknownVariableType]
    for name, value in items.items():
        if not (isinstance(name, str) and name.isidentifier() and isinstance(value, (int, float, bool, str))):
            raise ValueError("config: not names with numbers, bools or strings")
    return items
