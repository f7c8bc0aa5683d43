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
            why = f"`{self.path}` calls itself `{model}` and runs the model digest {digest}; `{self.trust.source}` {error}"
            hint = "where you trust this to be the model, put that digest into the policy: `tilec explain E0714`"
            raise BundleError("E0714", why[:900], hint=hint) from None
        objections = list[str]()
        accepted: dict[str, dict[str, _Voucher]] = {kind: {} for kind in PREDICATES.values()}
        for one in self.found:
            objection = _objection(one, model, arch, oldest)
            if objection:
                objections.append(objection)
            elif one.predicate_type in accepted:
                accepted[one.predicate_type][one.key.key.id] = one
        for name, kind in PREDICATES.items():
            if len(accepted[kind]) < self.trust.threshold:
                raise _too_few(self.path, self.trust, name, list(accepted[kind].values()), objections)
        newest = max((one.provenance for one in accepted[PROVENANCE].values() if one.provenance), key=lambda one: one.release)
        keys = tuple(sorted((one.key.key.id, one.key.name) for one in accepted[PROVENANCE].values()))
        return Signed(keys, newest.release, newest.builder)


def authenticate(path: Path, digest: str, trust: Trust) -> Vouchers:
    """The statements of trusted keys about the file with a digest, read from `path`; BundleError E0714 if there are too few."""
    signing_keys()
    envelopes = _envelopes(path, trust)
    found, others = list[_Voucher](), set[str]()
    for envelope in envelopes:
        if envelope.payload_type == PAYLOAD_TYPE:
            found += _vouchers(path, envelope, digest, trust, others)
    if not found and others:
        known = f"`{path}` is not the file that its signatures are of: its sha256 is {digest}"
        raise BundleError("E0714", f"{known}; key {min(others)} signed another", hint="get the bundle and its signatures anew")
    for name, kind in PREDICATES.items():
        keys = {one.key.key.id: one for one in found if one.predicate_type == kind}
        if len(keys) < trust.threshold:
            raise _too_few(path, trust, name, list(keys.values()), _strangers(envelopes, trust) if not found else [])
    return Vouchers(path, trust, tuple(found))


def _envelopes(path: Path, trust: Trust) -> list[Envelope]:
    place = sidecar_path(path)
    hint = f"get `{place.name}` from who packed it, sign it with `tilec bundle sign`, or leave the policy out (`--trust none`)"
    try:
        return decode_sidecar(read_regular(place, MAX_SIDECAR))
    except FileNotFoundError:
        why = f"`{path}` is not signed (there is no `{place.name}` beside it), and `{trust.source}` asks for a signature"
        raise BundleError("E0714", f"{why} by {_names(trust)}", hint=hint) from None
    except OSError as error:
        raise BundleError("E0714", f"the signatures `{place}` cannot be read: {error.strerror or error}", hint=hint) from None
    except ValueError as error:
        raise BundleError("E0714", f"the file of signatures `{place}` {error}"[:500], hint=hint) from None


def _vouchers(path: Path, envelope: Envelope, digest: str, trust: Trust, others: set[str]) -> Iterator[_Voucher]:
    """One voucher per trusted key that signed an envelope about this file; keys that signed for another file go to `others`."""
    known = [(trust.keys[one.key_id], one.value) for one in envelope.signatures if one.key_id in trust.keys]
    if not known:
        return
    message = envelope.signed_bytes()
    for key, value in known:
        if not key.key.accepts(value, message):
            why = f"`{path}`: a signature that names the key {key} is not that key's"
            raise BundleError("E0714", why, hint="get the bundle's signatures anew from who made them")
    try:
        statement = decode_statement(envelope.payload)
        about = statement.is_about(digest)
        provenance = read_provenance(statement) if about and statement.predicate_type == PROVENANCE else None
    except ValueError as error:
        why = f"`{path}`: what the key {known[0][0]} signed cannot be read: {error}"
        raise BundleError("E0714", why, hint="sign the bundle with `tilec bundle sign`") from None
    if not about:
        others.update(str(key) for key, _ in known)
        return
    yield from (_Voucher(key, statement.predicate_type, provenance) for key, _ in known)


def _objection(one: _Voucher, model: str, arch: str, oldest: int) -> str:
    """Why a valid statement does not count; empty if it does."""
    made = one.provenance
    if not one.key.signs_for(model):
        return f"the key {one.key} may not sign for `{model}`"
    if made is None:
        return ""
    if (made.model, made.arch) != (model, arch):
        return f"the key {one.key} signed it as `{shown(made.model)}` for {shown(made.arch)}"
    if not one.key.signs_of(made.builder):
        return f"the key {one.key} may not sign for the builder {shown(made.builder)}"
    if made.release < oldest:
        return f"the key {one.key} signed it as release {made.release}, and {oldest} is the oldest that is taken"
    return ""


def _too_few(path: Path, trust: Trust, name: str, found: list[_Voucher], why: list[str]) -> BundleError:
    what = f"`{path}`: its {name} is signed by {len(found)} of the {trust.threshold} keys that `{trust.source}` asks for"
    said = "; ".join(dict.fromkeys(why)) or f"trusted are {_names(trust)}"
    hint = "have it signed by a key that may, or change the policy if you trust who signed"
    return BundleError("E0714", f"{what}: {said}"[:900], hint=hint)


def _strangers(envelopes: list[Envelope], trust: Trust) -> list[str]:
    ids = sorted({one.key_id for envelope in envelopes for one in envelope.signatures} - trust.keys.keys())
    return [f"the key {one} is not trusted" for one in ids[:2]] + ([f"nor {len(ids) - 2} more"] if len(ids) > 2 else [])


def _names(trust: Trust) -> str:
    known = [str(key) for key in trust.keys.values()]
    return " or ".join(known[:2]) + (f" or {len(known) - 2} more" if len(known) > 2 else "")
