"""Signs bundles: creates the bytes of a sidecar for a verified bundle and a signer.

A key has one statement per bundle and predicate: a new one, with another release or builder, replaces its old one. Statements
of other keys about this bundle are kept; statements about other bundles are dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tilec.artifact.signature_format import (
    PAYLOAD_TYPE,
    PREDICATES,
    Envelope,
    Signature,
    decode_statement,
    encode_statement,
)
from tilec.runtime import Bundle
from tilec.ship.signing.provenance import provenance
from tilec.ship.signing.sbom import bill_of_materials

if TYPE_CHECKING:
    from tilec.artifact.signing_keys import Signer


def statements(bundle: Bundle, release: int, builder: str, files: Mapping[str, str]) -> dict[str, bytes]:
    """The statements to sign for a bundle, by the name of the predicate."""
    name = bundle.path.name
    predicates = {
        "provenance": provenance(bundle, release, builder, files),
        "sbom": bill_of_materials(bundle, name),
    }
    manifest = hashlib.sha256(bundle.manifest_text).hexdigest()
    return {
        kind: encode_statement(name, bundle.digest, manifest, PREDICATES[kind], predicate)
        for kind, predicate in predicates.items()
    }


def signed_envelopes(
    digest: str, payloads: Iterable[bytes], signer: Signer, before: Iterable[Envelope] = ()
) -> list[Envelope]:  # fmt: skip
    """The envelopes of a bundle's sidecar: `before` are the existing ones, `payloads` the statements to sign."""
    key = signer.public_key.id
    kept: dict[bytes, Envelope] = {}
    for envelope in before:
        others = tuple(one for one in envelope.signatures if one.key_id != key)
        if others and _is_about(envelope, digest):
            kept[envelope.signed_bytes()] = replace(envelope, signatures=others)
    for payload in payloads:
        envelope = Envelope(payload, PAYLOAD_TYPE, ())
        message = envelope.signed_bytes()
        envelope = kept.get(message, envelope)
        own_signature = Signature(key, signer.sign(message))
        kept[message] = replace(envelope, signatures=(*envelope.signatures, own_signature))
    return list(kept.values())


def _is_about(envelope: Envelope, digest: str) -> bool:
    """Whether an envelope is about the bundle, as far as that can be determined without its keys. Envelopes that are not
    in-toto statements are kept."""
    if envelope.payload_type != PAYLOAD_TYPE:
        return True
    try:
        return decode_statement(envelope.payload).is_about(digest)
    except ValueError:
        return False
