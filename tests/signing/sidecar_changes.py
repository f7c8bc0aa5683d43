"""Changes of a sidecar by somebody without a trusted key: form, spelling, signatures, key ids, and resource exhaustion."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from tests.bundle import mutants
from tests.signing.scene import SIDECAR, SignedSetup, signed
from tilec.artifact.bundle_format import canonical
from tilec.artifact.signature_format import MAX_SIDECAR, PAYLOAD_TYPE, Envelope, Signature
from tilec.artifact.signing_keys import P256_ORDER


def sidecar_bits(setup: SignedSetup, rng: random.Random) -> None:
    """Flips one to three bits of the sidecar, anywhere."""
    data = setup.sound[SIDECAR]
    changed = data
    while changed == data:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            changed = mutants.bit_flip(changed, rng)
    setup.sidecar.write_bytes(changed)


def sidecar_cut(setup: SignedSetup, rng: random.Random) -> None:
    """Truncates or empties the sidecar, or appends bytes."""
    data = setup.sound[SIDECAR]
    lines = data.splitlines(keepends=True)
    kind = rng.randrange(7)
    if kind == 0:
        setup.sidecar.unlink()
    else:
        changed = (
            data[: rng.randrange(len(data))], b"", data + rng.choice((b"\n", b"\0", b"{}\n", b"x", lines[0])),
            rng.choice(lines), lines[0] + b"\n" + lines[1], b"\xef\xbb\xbf" + data,
        )  # fmt: skip
        setup.sidecar.write_bytes(changed[kind - 1])


def _with_line(setup: SignedSetup, rng: random.Random, text: Callable[[dict[str, Any]], bytes]) -> None:
    """Formats one line of the sidecar with `text`, and leaves the other unchanged."""
    lines = setup.lines()
    index = rng.randrange(len(lines))
    changed = [canonical(one) for one in lines]
    before, changed[index] = changed[index], text(lines[index])
    assert changed[index] != before
    setup.sidecar.write_bytes(b"".join(line + b"\n" for line in changed))


def json_members(setup: SignedSetup, rng: random.Random) -> None:
    """Members of an envelope reordered, duplicated, missing, too many, of another type."""

    def text(line: dict[str, Any]) -> bytes:
        whole = canonical(line)
        kind = rng.randrange(8)
        if kind == 0:
            return json.dumps(dict(reversed(line.items())), separators=(",", ":")).encode()
        if kind == 1:
            name = rng.choice(list(line))
            return b"{" + canonical({name: line[name]})[1:-1] + b"," + whole[1:]
        if kind == 2:
            return json.dumps(line, sort_keys=True).encode()
        target = rng.choice((line, line["signatures"][rng.randrange(2)]))
        name = rng.choice(list(target))
        if kind == 3:
            del target[name]
        elif kind == 4:
            target[rng.choice(("", "extra", "alg", "payload_type", "__class__"))] = rng.choice((1, None, "x"))
        elif kind == 5:
            target[name] = rng.choice((None, 1, True, [], {}, [target[name]], 1.5))
        elif kind == 6:
            target[name.upper()] = target.pop(name)
        else:
            line["signatures"] = rng.choice(([], None, line["signatures"][0], [line["signatures"]], [None, None]))
        return json.dumps(line, sort_keys=True, separators=(",", ":")).encode()

    _with_line(setup, rng, text)


def base64_spellings(setup: SignedSetup, rng: random.Random) -> None:
    """The same payload or signature in another encoding: URL-safe, without padding, with spaces, with other unused bits."""

    def text(line: dict[str, Any]) -> bytes:
        target, name = rng.choice(((line, "payload"), (line["signatures"][0], "sig"), (line["signatures"][1], "sig")))
        old = target[name]
        data = base64.b64decode(old)
        spellings = (
            old.replace("+", "-").replace("/", "_"), old.rstrip("="), old + "=", old + "====", f" {old}", f"{old}\n",
            old[:8] + "\n" + old[8:],
            base64.b64encode(data + b"\0").decode(), base64.b64encode(data[:-1]).decode(), data.hex(),
            base64.b16encode(data).decode(),
            old.swapcase(), base64.b64encode(old.encode()).decode(), old + "QQ==", f"data:,{old}",
        )  # fmt: skip
        different = [one for one in spellings if one != old]
        if old.endswith("="):
            letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            index = len(old.rstrip("=")) - 1
            different.append(
                old[:index] + letters[letters.index(old[index]) ^ 1] + old[index + 1 :]
            )  # decodes to the same bytes
        target[name] = rng.choice(different)
        return canonical(line)

    _with_line(setup, rng, text)


def other_payload_type(setup: SignedSetup, rng: random.Random) -> None:
    """Another payload type, with the signatures for the right one, or signed as that type, which is not a statement's."""
    envelopes = setup.envelopes()
    index = rng.randrange(len(envelopes))
    kind = rng.choice(
        ("", "application/json", PAYLOAD_TYPE + " ", PAYLOAD_TYPE.upper(), "application/vnd.in-toto+dsse", "x" * 500)
    )
    bare = Envelope(envelopes[index].payload, kind, envelopes[index].signatures)
    if rng.random() < 0.5:
        signatures = tuple(Signature(one.public_key.id, one.sign(bare.signed_bytes())) for one in setup.signers)
        bare = replace(bare, signatures=signatures)
    envelopes[index] = bare
    setup.write_envelopes(envelopes)


def payload_changed(setup: SignedSetup, rng: random.Random) -> None:
    """A statement in another text, or with other content, under the signatures for the right one."""
    envelopes = setup.envelopes()
    index = rng.randrange(len(envelopes))
    payload = envelopes[index].payload
    data = json.loads(payload)
    changed = rng.choice(
        (
            json.dumps(data).encode(), json.dumps(data, sort_keys=True, indent=1).encode(), payload + b"\n", b" " + payload,
            payload.replace(b'"release":7', b'"release":8').replace(b"CycloneDX", b"cycloneDX"), canonical(dict(data, extra=1)),
            canonical(dict(data, subject=[])), mutants.bit_flip(payload, rng),
        )
    )  # fmt: skip
    envelopes[index] = replace(envelopes[index], payload=changed)
    setup.write_envelopes(envelopes)


def signatures_missing(setup: SignedSetup, rng: random.Random) -> None:
    """One key's signature missing or duplicated, or the threshold met by one key under two names."""
    lines = setup.lines()
    line = rng.choice(lines)
    first, second = line["signatures"]
    alone, index = rng.choice(((first, second), (second, first)))
    line["signatures"] = rng.choice(
        (
            [alone], [alone, alone], [alone, dict(index, sig=alone["sig"])], [dict(index, sig=alone["sig"])],
            [alone, dict(alone, keyid=alone["keyid"].upper())], [alone, dict(alone, keyid="0" * 64)],
        )
    )  # fmt: skip
    if len(line["signatures"]) == 1 and rng.random() < 0.3:
        lines.append(dict(line, signatures=[dict(alone)]))  # the same key, in an envelope of its own
    setup.sidecar.write_bytes(b"".join(canonical(one) + b"\n" for one in lines))


def lying_key_ids(setup: SignedSetup, rng: random.Random) -> None:
    """Key ids swapped, unknown, truncated, re-encoded; a stranger's signature under a trusted id."""
    envelopes = setup.envelopes()
    index = rng.randrange(len(envelopes))
    signatures = list(envelopes[index].signatures)
    signature_index = rng.randrange(2)
    ids = [one.public_key.id for one in (*setup.signers, *setup.strangers)]
    kind = rng.randrange(4)
    if kind == 0:
        signatures = [
            Signature(signatures[1].key_id, signatures[0].value),
            Signature(signatures[0].key_id, signatures[1].value),
        ]
    elif kind == 1:
        signatures[signature_index] = replace(
            signatures[signature_index],
            key_id=rng.choice((ids[2], ids[3], "f" * 64, signatures[signature_index].key_id[:-1] + "g", "")),
        )
    elif kind == 2:
        stranger = rng.choice(setup.strangers)
        signatures[signature_index] = Signature(
            signatures[signature_index].key_id, stranger.sign(envelopes[index].signed_bytes())
        )
    else:
        signatures[signature_index] = replace(
            signatures[signature_index], key_id=signatures[signature_index].key_id.upper() + rng.choice(("", " ", "\n"))
        )
    envelopes[index] = replace(envelopes[index], signatures=tuple(signatures))
    setup.write_envelopes(envelopes)


def ecdsa_forms(setup: SignedSetup, rng: random.Random) -> None:
    """The ECDSA signature in other forms: raw r and s, s in the upper half, lax DER, numbers out of range."""
    envelopes = setup.envelopes()
    index = rng.randrange(len(envelopes))
    one, two = envelopes[index].signatures
    r, s = decode_dss_signature(two.value)
    strict = two.value
    forms = (
        r.to_bytes(32, "big") + s.to_bytes(32, "big"), encode_dss_signature(r, P256_ORDER - s),
        encode_dss_signature(r, s + P256_ORDER),
        encode_dss_signature(r + P256_ORDER, s), strict + b"\0", b"\x30\x81" + strict[1:], b"\x30\x80" + strict[2:] + b"\0\0",
        b"\x30" + bytes([strict[1] + 1]) + b"\x02" + bytes([strict[3] + 1]) + b"\0" + strict[4:], encode_dss_signature(0, 0),
        encode_dss_signature(1, 1), encode_dss_signature(r, P256_ORDER), encode_dss_signature(s, r),
        strict[:-1], bytes(64), b"\x30\x00",
    )  # fmt: skip
    envelopes[index] = replace(envelopes[index], signatures=(one, replace(two, value=rng.choice(forms))))
    setup.write_envelopes(envelopes)


def algorithm_confusion(setup: SignedSetup, rng: random.Random) -> None:
    """A signature of one algorithm for a key of the other, or a public key of another kind under a trusted one's name."""
    envelopes = setup.envelopes()
    kind = rng.randrange(3)
    if kind == 2:
        name = rng.choice(("first.pub", "second.pub"))
        other = "second.pub" if name == "first.pub" else "first.pub"
        key = setup.sound[other] if rng.random() < 0.5 else rng.choice(setup.strangers).public_key.pem()
        (setup.folder / name).write_bytes(key)
        return
    index = rng.randrange(len(envelopes))
    one, two = envelopes[index].signatures
    signatures = (one, replace(two, value=one.value)) if kind else (replace(one, value=two.value), two)
    envelopes[index] = replace(envelopes[index], signatures=signatures)
    setup.write_envelopes(envelopes)


def sidecar_of_strangers(setup: SignedSetup, rng: random.Random) -> None:
    """The right statements, signed by untrusted keys, under their own ids or those of the trusted ones."""
    envelopes = signed(setup.payloads.values(), setup.strangers)
    if rng.random() < 0.5:
        names = [one.public_key.id for one in setup.signers]
        envelopes = [
            replace(
                one,
                signatures=tuple(
                    replace(signature, key_id=name) for signature, name in zip(one.signatures, names, strict=True)
                ),
            )
            for one in envelopes
        ]
    setup.write_envelopes(envelopes)


def bombs(setup: SignedSetup, rng: random.Random) -> None:
    """A sidecar that exhausts time or memory: huge or many lines, signatures or digits, nesting, a sparse file of a
    terabyte."""
    line = canonical(setup.lines()[0])
    many = canonical(dict(setup.lines()[0], signatures=[{"keyid": f"{n:064x}", "sig": "AA=="} for n in range(5000)]))
    kind = rng.randrange(9)
    if kind == 8:
        with setup.sidecar.open("wb") as file:
            file.truncate(rng.choice((1 << 40, MAX_SIDECAR + 1, MAX_SIDECAR)))
        return
    depth = rng.choice((300, 3000, 1_000_000))
    setup.sidecar.write_bytes(
        (
            line[:-1] + b" " * (4 << 20) + b"}\n", line.replace(b'"payload":"', b'"payload":"' + b"A" * (8 << 20), 1) + b"\n",
            b"[" * depth + b"\n", b'{"a":' * depth + b"\n", b"\n" * (1 << 20), (line + b"\n") * 60, many + b"\n",
            b'{"payload":' + b"9" * (1 << 20) + b"}\n",
        )[kind]
    )  # fmt: skip
