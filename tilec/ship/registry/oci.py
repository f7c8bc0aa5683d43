"""The documents of a registry: descriptors, image manifests and indexes of the OCI image specification 1.1.

They are written as canonical JSON without times or machine names, so that one bundle has one manifest and one digest. They are
parsed strictly: known fields have known types, bounded counts and sizes. Unknown fields are ignored, as the specification
requires; an invalid document is not used.

A bundle is a manifest with the `artifactType` of its format and our config. The config is the bundle's own manifest; the layers
are its CUBINs in the order of their digests, then its compressed texts. An attestation is a manifest whose `subject` is the
bundle's, with the in-toto bundle as its layer. A second one in cosign's layout has each envelope as a layer, under the tag
`sha256-<hex>.att` (cosign's ATTESTATION_SPEC and SIGNATURE_SPEC; `.sig` is for its other format, which is not written).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, cast

from tilec.artifact.bundle_format import FORMAT, FORMATS, MAX_BLOBS, MAX_FILE, MAX_MANIFEST, canonical
from tilec.artifact.signature_format import MAX_SIDECAR, SIDECAR_MEDIA_TYPE
from tilec.ship.registry.reference import DIGEST
from tilec.untrusted.strict_json import parse

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
BUNDLES: Final = {form: f"application/vnd.tilec.bundle.v{form}" for form in FORMATS}
"""The artifact type of a bundle by its format: a tilec that does not read a format does not see its bundles."""
BUNDLE: Final = BUNDLES[FORMAT]
"""The artifact type of an index of bundles, of whatever formats."""
BUNDLE_MANIFESTS: Final = {form: f"application/vnd.tilec.bundle.manifest.v{form}+json" for form in FORMATS}
CUBIN: Final = "application/vnd.tilec.cubin"
TEXTS: Final = "application/vnd.tilec.texts+xz"
ATTESTATIONS: Final = SIDECAR_MEDIA_TYPE
ENVELOPE: Final = "application/vnd.dsse.envelope.v1+json"
EMPTY: Final = "application/vnd.oci.empty.v1+json"
IMAGE_CONFIG: Final = "application/vnd.oci.image.config.v1+json"
MODEL: Final = "vnd.tilec.model"
ARCH: Final = "vnd.tilec.arch"
SHA256: Final = "vnd.tilec.bundle.sha256"
CONFIG: Final = "vnd.tilec.config"
COSIGN_SIGNATURE: Final = "dev.cosignproject.cosign/signature"
"""cosign ignores layers without it; it is empty if the signature is inside the envelope."""
COSIGN_PREDICATE: Final = "predicateType"

MAX_DOCUMENT: Final = 4 << 20
"""Maximum bytes of a manifest or index: what the distribution specification requires registries to accept at least."""
MAX_DESCRIPTORS: Final = 256
"""Maximum number in an index; a manifest may have as many as a bundle has blobs."""
MAX_ANNOTATIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Descriptor:
    """A reference to content: type, digest and size in bytes."""

    media_type: str
    digest: str
    size: int
    artifact_type: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict[str, str])

    def encode(self) -> dict[str, Any]:
        """The descriptor as JSON data; empty fields are omitted."""
        optional = {"artifactType": self.artifact_type, "annotations": dict(self.annotations)}
        known = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return known | {name: value for name, value in optional.items() if value}


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed manifest or index: its own descriptor, and the descriptors that it lists."""

    descriptor: Descriptor
    config: Descriptor | None
    layers: tuple[Descriptor, ...]
    """The layers of a manifest; the manifests of an index."""


def describe(media_type: str, data: bytes | memoryview, **annotations: str) -> Descriptor:
    """The descriptor of some bytes."""
    return Descriptor(media_type, f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), annotations=annotations)


EMPTY_BYTES: Final = b"{}"


def manifest(
    artifact_type: str, config: Descriptor, layers: Sequence[Descriptor], annotations: Mapping[str, str] | None = None,
    subject: Descriptor | None = None,
) -> bytes:  # fmt: skip
    """The JSON of an image manifest."""
    data: dict[str, Any] = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config.encode()}
    data["layers"] = [layer.encode() for layer in layers]
    optional = {"artifactType": artifact_type, "annotations": dict(annotations or {})}
    data |= {name: value for name, value in optional.items() if value}
    if subject is not None:
        data["subject"] = {"mediaType": subject.media_type, "digest": subject.digest, "size": subject.size}
    return canonical(data)


def index(manifests: Sequence[Descriptor], artifact_type: str = "") -> bytes:
    """The JSON of an image index."""
    data: dict[str, Any] = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [one.encode() for one in manifests]}
    return canonical(data | ({"artifactType": artifact_type} if artifact_type else {}))


def cosign_manifest(envelopes: Sequence[Descriptor]) -> tuple[bytes, bytes]:
    """The manifest of attestations in cosign's layout, and its config: an image config with the same layers."""
    config: dict[str, Any] = {"architecture": "", "os": "", "config": {}, "created": "0001-01-01T00:00:00Z"}
    rootfs = {"type": "layers", "diff_ids": [one.digest for one in envelopes]}
    text = canonical({**config, "rootfs": rootfs})
    return manifest("", describe(IMAGE_CONFIG, text), envelopes), text


def envelope_layer(line: bytes) -> Descriptor:
    """The descriptor of an envelope as cosign expects it: annotated with the type of its predicate, if it has one."""
    predicate = ""
    try:
        envelope = parse(line, limit=MAX_SIDECAR, printable=False)
        statement = json.loads(base64.b64decode(cast("dict[str, Any]", envelope)["payload"]))
        predicate = statement["predicateType"]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error):
        pass
    found = {COSIGN_SIGNATURE: ""} | ({COSIGN_PREDICATE: predicate} if isinstance(predicate, str) and predicate else {})
    return describe(ENVELOPE, line, **found)


def read_document(data: bytes, descriptor: Descriptor) -> Document:
    """Parse a manifest or index; ValueError with the reason if it is invalid or not of the descriptor's type."""
    known = _object(parse(data, limit=MAX_DOCUMENT), "it")
    if known.get("schemaVersion") != 2 or known.get("mediaType") != descriptor.media_type:
        _refuse(f"it is not a `{descriptor.media_type}`")
    kind = known.get("artifactType", "")
    if not isinstance(kind, str):
        _refuse("artifactType: not a text")
    named = Descriptor(descriptor.media_type, descriptor.digest, descriptor.size, kind, _annotations(known, "annotations"))
    if descriptor.media_type == INDEX:
        return Document(named, None, _descriptors(known.get("manifests"), "manifests", MAX_DESCRIPTORS, MAX_DOCUMENT))
    layers = _descriptors(known.get("layers"), "layers", MAX_BLOBS + 1, MAX_FILE)
    config = _descriptor(known.get("config"), "config", MAX_MANIFEST)
    if config.size + sum(layer.size for layer in layers) > MAX_FILE:
        _refuse("its layers are more than a bundle may hold")
    return Document(named, config, layers)


def _refuse(reason: str) -> NoReturn:
    raise ValueError(reason)


def _object(data: Any, location: str) -> dict[str, Any]:
    if not isinstance(data, dict):
        _refuse(f"{location}: not an object")
    return cast("dict[str, Any]", data)


def _descriptors(data: Any, location: str, most: int, largest: int) -> tuple[Descriptor, ...]:
    if not isinstance(data, list):
        _refuse(f"{location}: not a list")
    items = cast("list[Any]", data)
    if len(items) > most:
        _refuse(f"{location}: {len(items)} of them, more than {most}")
    return tuple(_descriptor(item, f"{location}[{i}]", largest) for i, item in enumerate(items))


def _descriptor(data: Any, location: str, largest: int) -> Descriptor:
    known = _object(data, location)
    media_type, digest, size = known.get("mediaType"), known.get("digest"), known.get("size")
    kind = known.get("artifactType", "")
    if not isinstance(media_type, str) or not isinstance(kind, str):
        _refuse(f"{location}: its types are not texts")
    if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
        _refuse(f"{location}: its digest is not `sha256:` and 64 hex digits")
    if type(size) is not int or not 0 <= size <= largest:
        _refuse(f"{location}: its size is not from 0 to {largest}")
    return Descriptor(media_type, digest, size, kind, _annotations(known, location))


def _annotations(known: dict[str, Any], location: str) -> dict[str, str]:
    found = _object(known.get("annotations", {}), f"{location}: annotations")
    if len(found) > MAX_ANNOTATIONS or not all(isinstance(value, str) for value in found.values()):
        _refuse(f"{location}: its annotations are not texts, or too many")
    return found
