"""Pushes verified bundles and their sidecars to a registry, as one index under a tag.

The order is: the blobs, each once; a manifest for each bundle; its attestations; and last the index under the tag. So a tag
never refers to missing content. The manifest of a bundle depends only on its bytes, and has the same digest in every registry.
Attestations are added to those in the registry; none is removed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tilec.ship.registry import oci
from tilec.ship.registry.client import Client, referrers_tag
from tilec.ship.registry.oci import Descriptor, describe
from tilec.ship.registry.parts import Parts, split
from tilec.ship.registry.upload import upload

COSIGN_SUFFIX: Final = ".att"
MAX_ENVELOPES: Final = 256
"""Maximum number of existing envelopes kept under cosign's tag, in addition to the pushed ones."""

_Upload = Callable[[Descriptor, bytes | memoryview], None]


@dataclass(frozen=True, slots=True)
class Shipment:
    """A verified bundle to push: its bytes and metadata, and the bytes of its sidecar, empty if there is none."""

    data: bytes
    model: str
    arch: str
    sha256: str
    attestations: bytes = b""


@dataclass(frozen=True, slots=True)
class Pushed:
    """The result of a push; sizes in bytes."""

    index: str
    manifests: tuple[str, ...]
    """In the order of the bundles."""
    sent: int
    """Bytes of blobs that the registry did not have."""
    blobs: int
    """Bytes of all blobs, each counted once."""


def push(client: Client, shipments: Sequence[Shipment], tag: str) -> Pushed:
    """Push bundles as the index `tag`; no two may have the same model and architecture. RegistryError as `Client`."""
    seen: dict[str, bool] = {}
    sent = total = 0

    def put(descriptor: Descriptor, data: bytes | memoryview) -> None:
        nonlocal sent, total
        if descriptor.digest not in seen:
            seen[descriptor.digest] = upload(client, descriptor, data)
            sent += descriptor.size * seen[descriptor.digest]
            total += descriptor.size

    named: list[Descriptor] = []
    for one in shipments:
        parts = split(one.data)
        layers = _layers(parts)
        put(describe(oci.BUNDLE_MANIFESTS[parts.frame.form], parts.manifest), parts.manifest)
        for layer, blob in zip(layers, parts.blobs, strict=True):
            put(layer, blob)
        descriptor, text = _manifest(one, parts, layers)
        client.put_manifest(descriptor.digest, descriptor, text)
        if one.attestations:
            put(describe(oci.EMPTY, oci.EMPTY_BYTES), oci.EMPTY_BYTES)
            _attach(client, descriptor, one, put)
        named.append(descriptor)
    ordered = sorted(named, key=lambda descriptor: (descriptor.annotations[oci.MODEL], descriptor.annotations[oci.ARCH]))
    text = oci.index(ordered, oci.BUNDLE)
    top = describe(oci.INDEX, text)
    client.put_manifest(tag, top, text)
    return Pushed(top.digest, tuple(descriptor.digest for descriptor in named), sent, total)


def _layers(parts: Parts) -> list[Descriptor]:
    pairs = zip(parts.frame.pieces, parts.blobs, strict=True)
    return [describe(oci.CUBIN if piece.sha256 else oci.TEXTS, blob) for piece, blob in pairs]


def _manifest(one: Shipment, parts: Parts, layers: Sequence[Descriptor]) -> tuple[Descriptor, bytes]:
    """The manifest of a bundle, and the descriptor for the index."""
    known = {oci.MODEL: one.model, oci.ARCH: one.arch, oci.SHA256: one.sha256, oci.CONFIG: parts.frame.config}
    form = parts.frame.form
    text = oci.manifest(oci.BUNDLES[form], describe(oci.BUNDLE_MANIFESTS[form], parts.manifest), layers, known)
    return replace(describe(oci.MANIFEST, text), artifact_type=oci.BUNDLES[form], annotations=known), text


def _attach(client: Client, subject: Descriptor, one: Shipment, put: _Upload) -> None:
    """Push the sidecar as a referrer of the bundle's manifest, and its envelopes under cosign's tag."""
    layer = describe(oci.ATTESTATIONS, one.attestations)
    put(layer, one.attestations)
    text = oci.manifest(oci.ATTESTATIONS, describe(oci.EMPTY, oci.EMPTY_BYTES), [layer], subject=subject)
    descriptor = replace(describe(oci.MANIFEST, text), artifact_type=oci.ATTESTATIONS)
    if not client.put_manifest(descriptor.digest, descriptor, text):
        tag = referrers_tag(subject.digest)
        known = client.tagged(tag)
        others = [one for one in known.layers if one.digest != descriptor.digest] if known is not None else []
        listed = oci.index([*others[: oci.MAX_DESCRIPTORS - 1], descriptor])
        client.put_manifest(tag, describe(oci.INDEX, listed), listed)
    _attach_for_cosign(client, subject, one.attestations, put)


def _attach_for_cosign(client: Client, subject: Descriptor, attestations: bytes, put: _Upload) -> None:
    envelopes: dict[str, Descriptor] = {}
    tag = referrers_tag(subject.digest) + COSIGN_SUFFIX
    known = client.tagged(tag)
    if known is not None:
        others = [layer for layer in known.layers if layer.media_type == oci.ENVELOPE]
        envelopes = {layer.digest: layer for layer in others[-MAX_ENVELOPES:]}
    for line in attestations.splitlines():
        if line.strip():
            layer = oci.envelope_layer(line)
            put(layer, line)
            envelopes.setdefault(layer.digest, layer)
    text, config = oci.cosign_manifest(tuple(envelopes.values()))
    put(describe(oci.IMAGE_CONFIG, config), config)
    client.put_manifest(tag, describe(oci.MANIFEST, text), text)
