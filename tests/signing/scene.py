"""A signed bundle, its policy, and an attacker's material: other bundles, other keys, older signatures.

The policy requires two keys, one of each kind, lets them sign models `tiny-*` of one builder, defines the identity of
`tiny-1b`, and accepts release 7 and later. So each part of the sidecar is needed: removing or changing any leaves a requirement
unmet.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.bundle import samples
from tilec.artifact.bundle_format import model_digest
from tilec.artifact.signature_format import PAYLOAD_TYPE, Envelope, Signature, encode_sidecar, sidecar_path
from tilec.artifact.signing_keys import FileSigner, generate
from tilec.runtime import Bundle, open_bundle
from tilec.ship.signing.sign import signed_envelopes, statements

RELEASE = 7
BUILDER = "urn:example:builder"
NAME = "tiny-1b-sm_90a.bundle"
SIDECAR = f"{NAME}.intoto.jsonl"
DIGEST = model_digest(samples.parts()[0]["config"], samples.STEP["step"])
POLICY = f"""[trust]
format = 2
threshold = 2

[[trust.models]]
name = "tiny-1b"
digests = ["{DIGEST}"]
minimum = 7

[[trust.keys]]
key = "first.pub"
models = ["tiny-*"]
builders = ["urn:example:*"]

[[trust.keys]]
key = "second.pub"
name = "the second"
models = ["tiny-*"]
builders = ["urn:example:*"]
"""


def bundle_bytes(model: str = "tiny-1b", salts: Sequence[int] = (1, 2, 1)) -> bytes:
    """A sound bundle of a model."""
    description, blobs = samples.parts("sm_90a", salts)
    return samples.encode(description | {"model": model}, blobs)


def payloads_of(path: Path, data: bytes, release: int = RELEASE, builder: str = BUILDER) -> dict[str, bytes]:
    """The signed statements of a bundle; writes the bundle to `path`."""
    path.write_bytes(data)
    with open_bundle(path, trust="none") as bundle:
        return statements(bundle, release, builder, {})


def signed(payloads: Iterable[bytes], signers: Iterable[FileSigner]) -> list[Envelope]:
    """The envelopes of statements with the signatures of all signers."""
    found: list[Envelope] = []
    for payload in payloads:
        bare = Envelope(payload, PAYLOAD_TYPE, ())
        signatures = tuple(Signature(one.public_key.id, one.sign(bare.signed_bytes())) for one in signers)
        found.append(Envelope(payload, PAYLOAD_TYPE, signatures))
    return found


@dataclass
class SignedSetup:
    """The right files by name, below `folder`; the signed statements and their signers; and the same of strangers."""

    folder: Path
    sound: dict[str, bytes]
    signers: tuple[FileSigner, FileSigner]
    strangers: tuple[FileSigner, FileSigner]
    payloads: dict[str, bytes]
    others: dict[str, tuple[bytes, bytes]]
    """Bundle and sidecar, each sound: another model by the same keys, an older release, the same by strangers."""
    opened: list[Bundle] = field(default_factory=list[Bundle])

    @property
    def bundle(self) -> Path:
        """The signed bundle."""
        return self.folder / NAME

    @property
    def sidecar(self) -> Path:
        """Its signatures."""
        return self.folder / SIDECAR

    @property
    def policy(self) -> Path:
        """The policy with the trusted keys."""
        return self.folder / "trust.toml"

    def restore(self) -> None:
        """Restores every file, and removes all others."""
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.is_symlink() or not path.is_file() or path.name not in self.sound:
                path.unlink()
        for name, data in self.sound.items():
            path = self.folder / name
            if not path.is_file() or path.stat().st_size != len(data) or path.read_bytes() != data:
                path.write_bytes(data)
            path.chmod(0o644)

    def use(self) -> None:
        """Opens the bundle under the policy and reads everything; BundleError if it is refused, AssertionError if anything but
        the sound bundle is read."""
        with open_bundle(self.bundle, trust=self.policy) as bundle:
            self.check(bundle)

    def check(self, bundle: Bundle) -> None:
        """AssertionError unless a bundle is the sound one."""
        sound = self.sound[NAME]
        assert bundle.digest == _sha256(sound), "another bundle was opened"
        assert bundle.signed is not None and len(bundle.signed.keys) == 2, "a bundle was opened without its signatures"
        for kernel in bundle.kernels:
            assert bundle.cubin(kernel) in sound, "another CUBIN was served"
        bundle.texts()

    def write_envelopes(self, envelopes: Iterable[Envelope]) -> None:
        """Writes another sidecar."""
        self.sidecar.write_bytes(encode_sidecar(envelopes))

    def envelopes(self) -> list[Envelope]:
        """Those of the sound sidecar."""
        return signed(self.payloads.values(), self.signers)

    def lines(self) -> list[dict[str, Any]]:
        """The sound sidecar as data."""
        return [json.loads(line) for line in self.sound[SIDECAR].splitlines()]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@functools.cache
def keys() -> tuple[FileSigner, FileSigner, FileSigner, FileSigner]:
    """Two trusted ones, Ed25519 and ECDSA, and two of strangers. Generated anew in each run, because nothing may depend on
    them."""
    return generate("ed25519"), generate("ecdsa-p256"), generate("ed25519"), generate("ecdsa-p256")


def make(folder: Path) -> SignedSetup:
    """A scene in an empty folder."""
    first, second, *rest = keys()
    trusted, strangers = (first, second), (rest[0], rest[1])
    path = folder / NAME
    others: dict[str, tuple[bytes, bytes]] = {}
    for name, data, release, signers in (
        ("another model", bundle_bytes("other-1b", (7, 8)), RELEASE, trusted),
        ("another of the model", bundle_bytes(salts=(4, 5, 6)), RELEASE, strangers),
        ("older", bundle_bytes(salts=(3, 9)), RELEASE - 1, trusted),
        ("strangers", bundle_bytes(), RELEASE, strangers),
    ):
        others[name] = data, encode_sidecar(signed(payloads_of(path, data, release).values(), signers))
    payloads = payloads_of(path, bundle_bytes())
    envelopes: list[Envelope] = []
    with open_bundle(path, trust="none") as bundle:
        for signer in trusted:
            envelopes = signed_envelopes(bundle.digest, payloads.values(), signer, envelopes)
    assert sidecar_path(path).name == SIDECAR
    sound = {
        NAME: bundle_bytes(), SIDECAR: encode_sidecar(envelopes), "trust.toml": POLICY.encode(),
        "first.pub": first.public_key.pem(), "second.pub": second.public_key.pem(),
    }  # fmt: skip
    setup = SignedSetup(folder, sound, trusted, strangers, payloads, others)
    setup.restore()
    return setup
