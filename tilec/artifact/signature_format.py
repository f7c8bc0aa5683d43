"""The format of a bundle's signatures: the sidecar file, its envelopes, and the signed statements.

`X.bundle` has the sidecar `X.bundle.intoto.jsonl`, so that the bundle itself stays reproducible. The sidecar is an in-toto
attestation bundle (in-toto Attestation Framework v1, "bundle"): JSON Lines, one envelope per line, each terminated by a line
feed.

    envelope   DSSE v1: {"payload": base64 of a statement, "payloadType": "application/vnd.in-toto+json",
               "signatures": [{"keyid": ..., "sig": base64}, ...]}
    keyid      hex sha256 of the key's SubjectPublicKeyInfo (DER, RFC 5280); one signature of a key in an envelope
    sig        over the bytes `pae(payloadType, payload)`: Ed25519 (RFC 8032, 64 bytes), or ECDSA over P-256 with SHA-256 as DER
               with s in the lower half of the group's order (`tilec.artifact.signing_keys`)
    statement  in-toto Statement v1: JSON with `_type`, `subject`, `predicateType` and `predicate`
    subject    the bundle by name and sha256 of the whole file, and its manifest as `NAME#manifest` by the sha256 of its bytes

A signed bundle has two statements: SLSA provenance v1, whose `buildDefinition` has

    buildType             `BUILD_TYPE`
    externalParameters    `model`, `arch`, and `release`, an increasing number that orders the releases of a bundle
    resolvedDependencies  by sha256: the list of each kernel's sources, the step, the tuning, the files of the project if it
                          was available, and the packages of the toolchain by version, with the digest of their files if the
                          manifests record one

and whose `runDetails.builder` has the `id` that its signer chose and the version of tilec; and a bill of materials (CycloneDX
1.6). Neither depends on the machine or the time, so the same bundle, release and Ed25519 key give the same sidecar.

Each content has exactly one encoding here too: a line is the canonical JSON of `bundle_format`, and base64 uses the standard
alphabet with padding. DSSE and in-toto require readers to accept more; here a line of any other form makes the sidecar invalid,
while conforming readers accept everything written here. The order of lines has no meaning. Envelopes of other payload types,
keys, predicates or subjects are ignored, as in-toto requires, so adding one has no effect.

In: bytes of a sidecar, or the content to sign. Out: envelopes and statements, or ValueError whose text ends a sentence. Nothing
here computes or verifies a signature.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tilec.artifact.bundle_format import canonical
from tilec.untrusted.strict_json import parse

SIDECAR: Final = ".intoto.jsonl"
SIDECAR_MEDIA_TYPE: Final = "application/vnd.in-toto.bundle"
PAYLOAD_TYPE: Final = "application/vnd.in-toto+json"
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PROVENANCE: Final = "https://slsa.dev/provenance/v1"
SBOM: Final = "https://cyclonedx.org/bom"
PREDICATES: Final = {"provenance": PROVENANCE, "sbom": SBOM}
"""Statements that a bundle must have if signatures are required."""
BUILD_TYPE: Final = "urn:tilec:bundle:v1"
LOCAL_BUILDER: Final = "urn:tilec:builder:local"
"""The builder in a statement whose signer named none."""
MANIFEST_SUBJECT: Final = "#manifest"

MAX_SIDECAR: Final = 16 << 20
"""Maximum bytes of a sidecar. That of a 4B model and one key has 37 KB; a bill of materials has some 300 bytes a kernel."""
MAX_LINES: Final = 64
MAX_SIGNATURES: Final = 16
"""Maximum signatures of one envelope, each by a different key."""
MAX_SIGNATURE: Final = 128
"""Maximum bytes of a signature; Ed25519 has 64, ECDSA over P-256 at most 72."""
MAX_STATEMENT: Final = 8 << 20
MAX_RELEASE: Final = (1 << 63) - 1
KEY_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
BUILDER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:[!-~]{1,200}", re.ASCII)
"""A URI, as SLSA requires, of any scheme."""


@dataclass(frozen=True, slots=True)
class Signature:
    """An unverified signature in an envelope; `key_id` is only a hint which key to try."""

    key_id: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Envelope:
    """A payload with its type, and its signatures by different keys."""

    payload: bytes
    payload_type: str
    signatures: tuple[Signature, ...]

    def signed_bytes(self) -> bytes:
        """The bytes that each signature covers."""
        return pae(self.payload_type, self.payload)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement about files: `subjects` maps names to sha256, for subjects that have one."""

    subjects: dict[str, str]
    predicate_type: str
    predicate: dict[str, Any]

    def is_about(self, digest: str) -> bool:
        """Whether a file with this sha256 is a subject; manifest subjects do not count, since a manifest is only part of a
        file."""
        return any(one == digest and not name.endswith(MANIFEST_SUBJECT) for name, one in self.subjects.items())


@dataclass(frozen=True, slots=True)
class Provenance:
    """The fields of a provenance that are compared: what was built, as which release, and by which builder."""

    model: str
    arch: str
    release: int
    builder: str


def sidecar_path(bundle: Path) -> Path:
    """The path of a bundle's signatures, next to it."""
    return bundle.with_name(bundle.name + SIDECAR)


def pae(payload_type: str, payload: bytes) -> bytes:
    """The pre-authentication encoding of DSSE v1: the bytes that are signed."""
    kind = payload_type.encode("utf-8")
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def encode_sidecar(envelopes: Iterable[Envelope]) -> bytes:
    """The bytes of a sidecar; ValueError if it exceeds the limits."""
    lines = [
        canonical(
            {
                "payload": base64.b64encode(one.payload).decode("ascii"),
                "payloadType": one.payload_type,
                "signatures": [
                    {"keyid": sign.key_id, "sig": base64.b64encode(sign.value).decode("ascii")} for sign in one.signatures
                ],
            }
        )
        for one in envelopes
    ]
    data = b"".join(line + b"\n" for line in lines)
    if len(data) > MAX_SIDECAR or len(lines) > MAX_LINES:
        raise ValueError(f"would have {len(data)} bytes in {len(lines)} lines, more than a sidecar may have")
    return data


def decode_sidecar(data: bytes) -> list[Envelope]:
    """The envelopes of a sidecar; ValueError that names the first invalid line."""
    if len(data) > MAX_SIDECAR:
        raise ValueError(f"has {len(data)} bytes, more than the {MAX_SIDECAR} that it may have")
    if data.count(b"\n") > MAX_LINES:
        raise ValueError(f"has more than {MAX_LINES} lines")
    if not data.endswith(b"\n"):
        raise ValueError("does not end with its last line")
    envelopes: list[Envelope] = []
    for number, line in enumerate(data[:-1].split(b"\n"), 1):
        try:
            envelopes.append(_envelope(parse(line, limit=MAX_SIDECAR, canonical=True, longest=MAX_SIDECAR)))
        except ValueError as error:
            raise ValueError(f"is damaged: line {number}: {error}") from None
    if len(set(envelopes)) != len(envelopes):
        raise ValueError("is damaged: two of its lines are the same")
    return envelopes


def _envelope(data: Any) -> Envelope:
    record = _fields(data, ("payload", "payloadType", "signatures"), "it")
    signatures = record["signatures"]
    if not isinstance(signatures, list) or not 1 <= len(signatures) <= MAX_SIGNATURES:  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"it must have 1 to {MAX_SIGNATURES} signatures")
    found = tuple(_signature(item) for item in signatures)  # pyright: ignore[reportUnknownVariableType]
    if len({one.key_id for one in found}) != len(found):
        raise ValueError("it is signed twice by one key")
    if not isinstance(record["payloadType"], str):
        raise ValueError("its payload type is not a text")
    return Envelope(_bytes(record["payload"], "payload"), record["payloadType"], found)


def _signature(data: Any) -> Signature:
    record = _fields(data, ("keyid", "sig"), "a signature")
    if not isinstance(record["keyid"], str) or not KEY_ID.fullmatch(record["keyid"]):
        raise ValueError("the key id of a signature is not a sha256 of 64 hex digits")
    value = _bytes(record["sig"], "signature")
    if len(value) > MAX_SIGNATURE:
        raise ValueError(f"a signature has {len(value)} bytes")
    return Signature(record["keyid"], value)


def _fields(data: Any, names: tuple[str, ...], name: str) -> dict[str, Any]:
    if not isinstance(data, dict) or set(data) != set(names):  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(f"{name} is not an object with {', '.join(names)}")
    return data  # pyright: ignore[reportUnknownVariableType]


def _bytes(text: Any, name: str) -> bytes:
    try:
        value = base64.b64decode(text.encode("ascii"), validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        value = b""
    if not value or base64.b64encode(value).decode("ascii") != text:
        raise ValueError(f"the {name} is not in base64, or not in its one spelling")
    return value


def encode_statement(name: str, bundle: str, manifest: str, predicate_type: str, predicate: Mapping[str, Any]) -> bytes:
    """The statement about a bundle with this file name; `bundle` and `manifest` are hex sha256."""
    subject = [
        {"name": name, "digest": {"sha256": bundle}},
        {"name": name + MANIFEST_SUBJECT, "digest": {"sha256": manifest}},
    ]
    return canonical({"_type": STATEMENT, "predicate": predicate, "predicateType": predicate_type, "subject": subject})


def decode_statement(payload: bytes) -> Statement:
    """The statement in a payload; call it only after the signature was verified. ValueError if it is not a statement."""
    data = parse(payload, limit=MAX_STATEMENT, printable=False)
    if not isinstance(data, dict) or data.get("_type") != STATEMENT:  # pyright: ignore[reportUnknownMemberType]
        raise ValueError("it is not a statement of in-toto, version 1")
    record: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType]
    kind, predicate, subject = record.get("predicateType"), record.get("predicate"), record.get("subject")
    if not isinstance(kind, str) or not isinstance(predicate, dict) or not isinstance(subject, list):
        raise ValueError("it lacks a predicate, its type, or a subject")
    subjects: dict[str, str] = {}
    for item in subject:  # pyright: ignore[reportUnknownVariableType]
        name, digest = _get(item, "name"), _get(item, "digest", "sha256")
        if isinstance(name, str) and isinstance(digest, str):
            if name in subjects:
                raise ValueError("it has two subjects of one name")
            subjects[name] = digest
    return Statement(subjects, kind, predicate)  # pyright: ignore[reportUnknownArgumentType]


def read_provenance(statement: Statement) -> Provenance:
    """The compared fields of a provenance; ValueError if it is not the provenance of a bundle."""
    predicate = statement.predicate
    model, arch, release = (
        _get(predicate, "buildDefinition", "externalParameters", name) for name in ("model", "arch", "release")
    )
    builder = _get(predicate, "runDetails", "builder", "id")
    if _get(predicate, "buildDefinition", "buildType") != BUILD_TYPE:
        raise ValueError("it is not the provenance of a bundle")
    if not (isinstance(model, str) and isinstance(arch, str) and isinstance(builder, str)):
        raise ValueError("it does not say the model, the architecture and the builder")
    if not isinstance(release, int) or isinstance(release, bool) or not 0 <= release <= MAX_RELEASE:
        raise ValueError("it does not say the release")
    return Provenance(model, arch, release, builder)


def _get(data: Any, *path: str) -> Any:
    """The value at a path of keys, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return data  # pyright: ignore[reportUnknownVariableType]
