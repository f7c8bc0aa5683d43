"""Verifies the signatures of a bundle against a policy: returns who signed the digest, or refuses.

The sidecar (`tilec.artifact.signature_format`) is read once, into one copy, like the bundle. Checks run in this order:

1. The sidecar is bounded, complete and canonical.
2. Every signature by a key of the policy is valid. An invalid one refuses the bundle even if others would suffice; signatures
   by keys outside the policy do not count.
3. What such a key signed is a statement about the sha256 of the whole file. Only now is signed content parsed, and the bundle
   itself only after `threshold` keys signed (`authenticate`).
4. The bundle's model digest (model numbers and step) is one that the policy lists for its name. For provenance, and for the
   bill of materials, there are `threshold` different keys that the policy permits for the model. Provenance must also name the
   bundle's model and architecture, a builder permitted for the key, and an accepted release; a bill of materials names none of
   these (`Vouchers.admit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilec.artifact.signature_format import (
    MAX_SIDECAR,
    PAYLOAD_TYPE,
    PREDICATES,
    PROVENANCE,
    Envelope,
    Provenance,
    decode_sidecar,
    decode_statement,
    read_provenance,
    sidecar_path,
)
from tilec.runtime.errors import BundleError, shown
from tilec.runtime.trust import Trust, TrustedKey, signing_keys
from tilec.untrusted.regular_file import read_regular


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed a bundle under a policy: id and name of each key, and the release and builder in the provenance."""

    keys: tuple[tuple[str, str], ...]
    release: int
    builder: str


@dataclass(frozen=True, slots=True)
class _Voucher:
    key: TrustedKey
    predicate_type: str
    provenance: Provenance | None


@dataclass(frozen=True, slots=True)
class Vouchers:
    """Verified statements about a file whose contents have not been parsed yet."""

    path: Path
    trust: Trust
    found: tuple[_Voucher, ...]

    def admit(self, model: str, arch: str, digest: str) -> Signed:
        """Who signed the bundle of this model, architecture and model digest; BundleError E0714 if the signatures do not
        suffice."""
        try:
            oldest = self.trust.oldest(model, digest)
        except ValueError as error:
            reason = f"`{self.path}` calls itself `{model}` and runs the model digest {digest}; `{self.trust.source}` {error}"
            hint = "if you trust this model, add its digest to the policy: `tilec explain E0714`"
            raise BundleError("E0714", reason[:900], hint=hint) from None
        objections = list[str]()
        accepted: dict[str, dict[str, _Voucher]] = {kind: {} for kind in PREDICATES.values()}
        for voucher in self.found:
            objection = _objection(voucher, model, arch, oldest)
            if objection:
                objections.append(objection)
            elif voucher.predicate_type in accepted:
                accepted[voucher.predicate_type][voucher.key.key.id] = voucher
        for name, kind in PREDICATES.items():
            if len(accepted[kind]) < self.trust.threshold:
                raise _too_few(self.path, self.trust, name, list(accepted[kind].values()), objections)
        newest = max(
            (voucher.provenance for voucher in accepted[PROVENANCE].values() if voucher.provenance),
            key=lambda verified: verified.release,
        )
        keys = tuple(sorted((voucher.key.key.id, voucher.key.name) for voucher in accepted[PROVENANCE].values()))
        return Signed(keys, newest.release, newest.builder)


def authenticate(path: Path, digest: str, trust: Trust) -> Vouchers:
    """The statements of trusted keys about the file with a digest, read from `path`; BundleError E0714 if there are too few."""
    signing_keys()
    envelopes = _envelopes(path, trust)
    vouchers, others = list[_Voucher](), set[str]()
    for envelope in envelopes:
        if envelope.payload_type == PAYLOAD_TYPE:
            vouchers += _vouchers(path, envelope, digest, trust, others)
    if not vouchers and others:
        mismatch = f"`{path}` is not the file that was signed: its sha256 is {digest}"
        raise BundleError(
            "E0714", f"{mismatch}; key {min(others)} signed another", hint="download the bundle and its signatures again"
        )
    for name, kind in PREDICATES.items():
        keys = {voucher.key.key.id: voucher for voucher in vouchers if voucher.predicate_type == kind}
        if len(keys) < trust.threshold:
            raise _too_few(path, trust, name, list(keys.values()), _untrusted_keys(envelopes, trust) if not vouchers else [])
    return Vouchers(path, trust, tuple(vouchers))


def _envelopes(path: Path, trust: Trust) -> list[Envelope]:
    sidecar = sidecar_path(path)
    hint = f"get `{sidecar.name}` from whoever packed it, sign it with `tilec bundle sign`, or pass `--trust none`"
    try:
        return decode_sidecar(read_regular(sidecar, MAX_SIDECAR))
    except FileNotFoundError:
        reason = f"`{path}` is not signed (there is no `{sidecar.name}` next to it), and `{trust.source}` requires a signature"
        raise BundleError("E0714", f"{reason} by {_names(trust)}", hint=hint) from None
    except OSError as error:
        raise BundleError("E0714", f"the signatures `{sidecar}` cannot be read: {error.strerror or error}", hint=hint) from None
    except ValueError as error:
        raise BundleError("E0714", f"the file of signatures `{sidecar}` {error}"[:500], hint=hint) from None


def _vouchers(path: Path, envelope: Envelope, digest: str, trust: Trust, others: set[str]) -> Iterator[_Voucher]:
    """One voucher per trusted key that signed an envelope about this file; keys that signed for another file go to `others`."""
    signing = [
        (trust.keys[signature.key_id], signature.value) for signature in envelope.signatures if signature.key_id in trust.keys
    ]
    if not signing:
        return
    message = envelope.signed_bytes()
    for key, value in signing:
        if not key.key.accepts(value, message):
            reason = f"`{path}`: the signature of the key {key} is invalid"
            raise BundleError("E0714", reason, hint="get new signatures of the bundle from its signer")
    try:
        statement = decode_statement(envelope.payload)
        about = statement.is_about(digest)
        provenance = read_provenance(statement) if about and statement.predicate_type == PROVENANCE else None
    except ValueError as error:
        reason = f"`{path}`: what the key {signing[0][0]} signed cannot be read: {error}"
        raise BundleError("E0714", reason, hint="sign the bundle with `tilec bundle sign`") from None
    if not about:
        others.update(str(key) for key, _ in signing)
        return
    yield from (_Voucher(key, statement.predicate_type, provenance) for key, _ in signing)


def _objection(verified: _Voucher, model: str, arch: str, oldest: int) -> str:
    """Why a valid statement does not count; empty if it does."""
    provenance = verified.provenance
    if not verified.key.signs_for(model):
        return f"the key {verified.key} may not sign for `{model}`"
    if provenance is None:
        return ""
    if (provenance.model, provenance.arch) != (model, arch):
        return f"the key {verified.key} signed it as `{shown(provenance.model)}` for {shown(provenance.arch)}"
    if not verified.key.signs_of(provenance.builder):
        return f"the key {verified.key} may not sign for the builder {shown(provenance.builder)}"
    if provenance.release < oldest:
        return f"the key {verified.key} signed it as release {provenance.release}; the oldest accepted is {oldest}"
    return ""


def _too_few(path: Path, trust: Trust, name: str, found: list[_Voucher], reasons: list[str]) -> BundleError:
    summary = f"`{path}`: its {name} is signed by {len(found)} of the {trust.threshold} keys that `{trust.source}` requires"
    details = "; ".join(dict.fromkeys(reasons)) or f"trusted are {_names(trust)}"
    hint = "have it signed by a permitted key, or change the policy if you trust the signer"
    return BundleError("E0714", f"{summary}: {details}"[:900], hint=hint)


def _untrusted_keys(envelopes: list[Envelope], trust: Trust) -> list[str]:
    ids = sorted({signature.key_id for envelope in envelopes for signature in envelope.signatures} - trust.keys.keys())
    return [f"the key {key_id} is not trusted" for key_id in ids[:2]] + ([f"nor {len(ids) - 2} more"] if len(ids) > 2 else [])


def _names(trust: Trust) -> str:
    names = [str(key) for key in trust.keys.values()]
    return " or ".join(names[:2]) + (f" or {len(names) - 2} more" if len(names) > 2 else "")
