"""Bundles to push: from `tests/bundle/samples.py`, with a sidecar."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from tests.bundle import samples
from tilec.artifact.bundle_format import FORMAT, WITH_OBLIGATIONS
from tilec.artifact.signature_format import PAYLOAD_TYPE
from tilec.ship.registry.push import Shipment

STATEMENT = "eyJwcmVkaWNhdGVUeXBlIjoiaHR0cHM6Ly9zbHNhLmRldi9wcm92ZW5hbmNlL3YxIn0="
"""`{"predicateType":"https://slsa.dev/provenance/v1"}` in base64."""


def sidecar(*names: str) -> bytes:
    """Unsigned envelopes, a line each."""
    statement = {"payload": STATEMENT, "payloadType": PAYLOAD_TYPE}
    lines = [json.dumps({**statement, "signatures": [{"keyid": name, "sig": "AA=="}]}) for name in names]
    return "".join(f"{line}\n" for line in lines).encode()


def shipment(
    arch: str = "sm_90a", salts: Sequence[int] = (1, 2, 1), attestations: bytes = b"", model: str = "tiny-1b", *,
    form: int = WITH_OBLIGATIONS,
) -> Shipment:  # fmt: skip
    """The bundle of a model with the dimensions of `tiny-1b`, for an architecture, in a format."""
    description, blobs = samples.parts(arch, salts)
    description |= {"model": model}
    data = samples.encode(*samples.apart(description, blobs)) if form == FORMAT else samples.encode(description, blobs)
    return Shipment(data, model, arch, hashlib.sha256(data).hexdigest(), attestations)
