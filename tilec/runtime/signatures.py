"""Holds the signatures beside a bundle against a policy: its digest and the policy go in, who signed comes out, or a refusal.

The sidecar (`tilec.signature_format`) is read once, as one copy, like the bundle. In this order, and each before the next:

1. The sidecar is bounded, whole, and in its one form.
2. Every signature by a key of the policy is right. A wrong one refuses the bundle, also where others would suffice; those of
   keys that the policy does not have count for nothing.
3. What such a key signed is a statement, and about the sha256 of the whole file. Only now is anything read that was signed, and
   only after `threshold` keys stand behind it is the bundle itself read (`authenticate`).
4. What the bundle runs, its model's numbers and its step, is what its name stands for in the policy. Of provenance and of bill
   of materials, `threshold` different keys remain each that the policy lets sign for the model. For provenance they must
   besides name the bundle's model and architecture, a builder that the policy lets them sign for, and a release that it takes;
   a bill of materials names none of these (`Vouchers.admit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilec.regular_file import read_regular
from tilec.runtime.errors import BundleError, shown
from tilec.runtime.trust import Trust, TrustedKey, signing_keys
from tilec.signature_format import (
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


@dataclass(frozen=True, slots=True)
class Signed:
    """Who vouches for a bundle under a policy: id and name of each key, the release and the builder that they name."""

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
    """Verified statements about a file whose contents were not looked at yet."""

    path: Path
    trust: Trust
    found: tuple[_Voucher, ...]

    def admit(self, model: str, arch: str, digest: str) -> Signed:
        """Who signed the bundle of this model and architecture, which runs the numbers and step of a digest; BundleError E0714
        where that is not enough."""
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
    """What trusted keys say of the file of a digest, read from `path`; BundleError E0714 where they say too little."""
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
    """One for each trusted key that signed an envelope about the file; keys that signed one about another go to `others`."""
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
    """Why a statement that is right does not count, or nothing."""
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
