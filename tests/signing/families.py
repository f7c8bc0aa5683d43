"""Ways to tamper with a signed bundle, its signatures and its policy; every one must be refused.

The attacker has everything but the two private keys: bundles and signatures that these made of other models and older releases,
keys of their own, and the right to write any byte of bundle and sidecar at any moment. Families named `signed: ...` go further:
there the right keys signed something that says too little, or another thing.
"""

from __future__ import annotations

import base64
import json
import os
import random
import struct
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from tests.bundle import mutants, samples
from tests.signing.campaign import Family
from tests.signing.loading import changed_after_loading, changed_while_loading
from tests.signing.scene import BUILDER, NAME, POLICY, RELEASE, SIDECAR, Scene, payloads_of, signed
from tilec.bundle_format import canonical
from tilec.runtime import BundleError
from tilec.signature_format import MAX_SIDECAR, PAYLOAD_TYPE, Envelope, Signature
from tilec.signing_keys import P256_ORDER

CODES = ("E0703", "E0704", "E0705", "E0714", "E0715")
Change = Callable[[Scene, random.Random], None]


def _flipped(data: bytes, rng: random.Random) -> bytes:
    return mutants.bit_flip(data, rng)


def bundle_bytes(scene: Scene, rng: random.Random) -> None:
    """Damage of the bundle, or a lie in its header, under a digest inside that may fit again."""
    kinds = [kind for name, kind in mutants.KINDS.items() if name != "truncation"]
    scene.bundle.write_bytes(rng.choice(kinds)(scene.sound[NAME], rng))


def bundle_cut(scene: Scene, rng: random.Random) -> None:
    """Less of the bundle, or bytes behind it."""
    data = scene.sound[NAME]
    scene.bundle.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.5 else data + rng.randbytes(rng.randrange(1, 999)))


def bundle_repacked(scene: Scene, rng: random.Random) -> None:
    """A sound bundle that is not the one that was signed: a contract or a resource by a little, other code."""
    if rng.random() < 0.5:
        scene.bundle.write_bytes(samples.bundle(salts=(rng.randrange(10, 99), 2, 1)))
    else:
        field, value = rng.choice((("block", 256), ("grid", [1, 1]), ("launch_checks", []), ("no_alias", [])))
        scene.bundle.write_bytes(samples.bundle(**{field: value}))


def blobs_of_another(scene: Scene, rng: random.Random) -> None:
    """The machine code of a kernel exchanged for that of another bundle, all digests made anew."""
    description, blobs = samples.parts()
    other = samples.cubin("scale", rng.randrange(100, 10_000))
    kernel = rng.choice(description["kernels"])
    digest = sha256(other).hexdigest()
    kernel["blob"] = kernel["manifest"]["digests"]["cubin"] = digest
    blobs[digest] = other
    used = {one["blob"] for one in description["kernels"]}
    scene.bundle.write_bytes(samples.encode(description, {name: code for name, code in blobs.items() if name in used}))


def another_pair(scene: Scene, rng: random.Random) -> None:
    """Bundle and sidecar of something else, each sound: another model by the right keys, an older release, strangers' work."""
    data, sidecar = scene.others[rng.choice(("another model", "older", "strangers", "another of the model"))]
    scene.bundle.write_bytes(data)
    scene.sidecar.write_bytes(sidecar)


def another_sidecar(scene: Scene, rng: random.Random) -> None:
    """The sidecar of another bundle beside this one, or of this one beside another."""
    data, sidecar = rng.choice(list(scene.others.values()))
    if data != scene.sound[NAME] and rng.random() < 0.5:
        scene.bundle.write_bytes(data)
    else:
        scene.sidecar.write_bytes(sidecar)


def sidecar_bits(scene: Scene, rng: random.Random) -> None:
    """One to three bits of the sidecar, anywhere."""
    data = scene.sound[SIDECAR]
    made = data
    while made == data:
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            made = _flipped(made, rng)
    scene.sidecar.write_bytes(made)


def sidecar_cut(scene: Scene, rng: random.Random) -> None:
    """Less of the sidecar, none of it, or bytes behind it."""
    data = scene.sound[SIDECAR]
    lines = data.splitlines(keepends=True)
    kind = rng.randrange(7)
    if kind == 0:
        scene.sidecar.unlink()
    else:
        made = (
            data[: rng.randrange(len(data))], b"", data + rng.choice((b"\n", b"\0", b"{}\n", b"x", lines[0])), rng.choice(lines),
            lines[0] + b"\n" + lines[1], b"\xef\xbb\xbf" + data,
        )  # fmt: skip
        scene.sidecar.write_bytes(made[kind - 1])


def _with_line(scene: Scene, rng: random.Random, text: Callable[[dict[str, Any]], bytes]) -> None:
    """One line of the sidecar written by `text`, the other as it is."""
    lines = scene.lines()
    at = rng.randrange(len(lines))
    made = [canonical(one) for one in lines]
    before, made[at] = made[at], text(lines[at])
    assert made[at] != before
    scene.sidecar.write_bytes(b"".join(line + b"\n" for line in made))


def json_members(scene: Scene, rng: random.Random) -> None:
    """Members of an envelope in another order, twice, missing, too many, of another type."""

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

    _with_line(scene, rng, text)


def base64_spellings(scene: Scene, rng: random.Random) -> None:
    """The same payload or signature in other letters: URL-safe, without padding, with spaces, with other unused bits."""

    def text(line: dict[str, Any]) -> bytes:
        target, name = rng.choice(((line, "payload"), (line["signatures"][0], "sig"), (line["signatures"][1], "sig")))
        old = target[name]
        data = base64.b64decode(old)
        spellings = (
            old.replace("+", "-").replace("/", "_"), old.rstrip("="), old + "=", old + "====", f" {old}", f"{old}\n", old[:8] + "\n" + old[8:],
            base64.b64encode(data + b"\0").decode(), base64.b64encode(data[:-1]).decode(), data.hex(), base64.b16encode(data).decode(),
            old.swapcase(), base64.b64encode(old.encode()).decode(), old + "QQ==", f"data:,{old}",
        )  # fmt: skip
        different = [one for one in spellings if one != old]
        if old.endswith("="):
            letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
            at = len(old.rstrip("=")) - 1
            different.append(old[:at] + letters[letters.index(old[at]) ^ 1] + old[at + 1 :])  # decodes to the same bytes
        target[name] = rng.choice(different)
        return canonical(line)

    _with_line(scene, rng, text)


def other_payload_type(scene: Scene, rng: random.Random) -> None:
    """Another payload type, with the signatures of the right one, or signed as that: not what a statement is signed as."""
    envelopes = scene.envelopes()
    at = rng.randrange(len(envelopes))
    kind = rng.choice(("", "application/json", PAYLOAD_TYPE + " ", PAYLOAD_TYPE.upper(), "application/vnd.in-toto+dsse", "x" * 500))
    bare = Envelope(envelopes[at].payload, kind, envelopes[at].signatures)
    if rng.random() < 0.5:
        marks = tuple(Signature(one.public_key.id, one.sign(bare.signed_bytes())) for one in scene.signers)
        bare = replace(bare, signatures=marks)
    envelopes[at] = bare
    scene.write_envelopes(envelopes)


def payload_changed(scene: Scene, rng: random.Random) -> None:
    """A statement in another text, or that says another thing, under the signatures of the right one."""
    envelopes = scene.envelopes()
    at = rng.randrange(len(envelopes))
    payload = envelopes[at].payload
    data = json.loads(payload)
    made = rng.choice(
        (
            json.dumps(data).encode(), json.dumps(data, sort_keys=True, indent=1).encode(), payload + b"\n", b" " + payload,
            payload.replace(b'"release":7', b'"release":8').replace(b"CycloneDX", b"cycloneDX"), canonical(dict(data, extra=1)),
            canonical(dict(data, subject=[])), _flipped(payload, rng),
        )
    )  # fmt: skip
    envelopes[at] = replace(envelopes[at], payload=made)
    scene.write_envelopes(envelopes)


def signatures_missing(scene: Scene, rng: random.Random) -> None:
    """One key's signature gone, a key there twice, or the threshold met by one key under two names."""
    lines = scene.lines()
    line = rng.choice(lines)
    first, second = line["signatures"]
    alone, at = rng.choice(((first, second), (second, first)))
    line["signatures"] = rng.choice(
        (
            [alone], [alone, alone], [alone, dict(at, sig=alone["sig"])], [dict(at, sig=alone["sig"])],
            [alone, dict(alone, keyid=alone["keyid"].upper())], [alone, dict(alone, keyid="0" * 64)],
        )
    )  # fmt: skip
    if len(line["signatures"]) == 1 and rng.random() < 0.3:
        lines.append(dict(line, signatures=[dict(alone)]))  # the same key, in an envelope of its own
    scene.sidecar.write_bytes(b"".join(canonical(one) + b"\n" for one in lines))


def lying_key_ids(scene: Scene, rng: random.Random) -> None:
    """Key ids exchanged, unknown, cut, in other letters; a stranger's signature under a trusted id."""
    envelopes = scene.envelopes()
    at = rng.randrange(len(envelopes))
    marks = list(envelopes[at].signatures)
    where = rng.randrange(2)
    ids = [one.public_key.id for one in (*scene.signers, *scene.strangers)]
    kind = rng.randrange(4)
    if kind == 0:
        marks = [Signature(marks[1].key_id, marks[0].value), Signature(marks[0].key_id, marks[1].value)]
    elif kind == 1:
        marks[where] = replace(marks[where], key_id=rng.choice((ids[2], ids[3], "f" * 64, marks[where].key_id[:-1] + "g", "")))
    elif kind == 2:
        stranger = rng.choice(scene.strangers)
        marks[where] = Signature(marks[where].key_id, stranger.sign(envelopes[at].signed_bytes()))
    else:
        marks[where] = replace(marks[where], key_id=marks[where].key_id.upper() + rng.choice(("", " ", "\n")))
    envelopes[at] = replace(envelopes[at], signatures=tuple(marks))
    scene.write_envelopes(envelopes)


def ecdsa_forms(scene: Scene, rng: random.Random) -> None:
    """The ECDSA signature in other forms: r and s as they are, s in the upper half, DER that is not strict, numbers out of range."""
    envelopes = scene.envelopes()
    at = rng.randrange(len(envelopes))
    one, two = envelopes[at].signatures
    r, s = decode_dss_signature(two.value)
    strict = two.value
    forms = (
        r.to_bytes(32, "big") + s.to_bytes(32, "big"), encode_dss_signature(r, P256_ORDER - s), encode_dss_signature(r, s + P256_ORDER),
        encode_dss_signature(r + P256_ORDER, s), strict + b"\0", b"\x30\x81" + strict[1:], b"\x30\x80" + strict[2:] + b"\0\0",
        b"\x30" + bytes([strict[1] + 1]) + b"\x02" + bytes([strict[3] + 1]) + b"\0" + strict[4:], encode_dss_signature(0, 0),
        encode_dss_signature(1, 1), encode_dss_signature(r, P256_ORDER), encode_dss_signature(s, r), strict[:-1], bytes(64), b"\x30\x00",
    )  # fmt: skip
    envelopes[at] = replace(envelopes[at], signatures=(one, replace(two, value=rng.choice(forms))))
    scene.write_envelopes(envelopes)


def algorithm_confusion(scene: Scene, rng: random.Random) -> None:
    """A signature of one algorithm for a key of the other, or a public key of another kind under a trusted one's name."""
    envelopes = scene.envelopes()
    kind = rng.randrange(3)
    if kind == 2:
        name = rng.choice(("first.pub", "second.pub"))
        other = "second.pub" if name == "first.pub" else "first.pub"
        key = scene.sound[other] if rng.random() < 0.5 else rng.choice(scene.strangers).public_key.pem()
        (scene.folder / name).write_bytes(key)
        return
    at = rng.randrange(len(envelopes))
    one, two = envelopes[at].signatures
    marks = (one, replace(two, value=one.value)) if kind else (replace(one, value=two.value), two)
    envelopes[at] = replace(envelopes[at], signatures=marks)
    scene.write_envelopes(envelopes)


def sidecar_of_strangers(scene: Scene, rng: random.Random) -> None:
    """The right statements, signed by keys that nobody trusts, as themselves or in the name of the trusted."""
    envelopes = signed(scene.payloads.values(), scene.strangers)
    if rng.random() < 0.5:
        names = [one.public_key.id for one in scene.signers]
        envelopes = [
            replace(one, signatures=tuple(replace(mark, key_id=name) for mark, name in zip(one.signatures, names, strict=True)))
            for one in envelopes
        ]
    scene.write_envelopes(envelopes)


def _resigned(scene: Scene, rng: random.Random, change: Callable[[dict[str, Any]], None], which: str | None = None) -> None:
    """Both statements signed by both trusted keys, one of them (`which`) changed before."""
    chosen = which or rng.choice(list(scene.payloads))
    payloads = dict(scene.payloads)
    data = json.loads(payloads[chosen])
    change(data)
    payloads[chosen] = canonical(data)
    scene.write_envelopes(signed(payloads.values(), scene.signers))


def signed_subject(scene: Scene, rng: random.Random) -> None:
    """The right keys signed a statement about something else."""
    right = sha256(scene.sound[NAME]).hexdigest()
    digests = ({"sha256": "0" * 64}, {"sha512": right * 2}, {}, {"sha256": right.upper()}, {"sha256": right[:-1]}, {"sha256": [right]}, None)
    subject = rng.choice(digests)

    def change(data: dict[str, Any]) -> None:
        data["subject"] = rng.choice(([{"name": NAME, "digest": subject}], [], [subject], [{"name": right}], {"sha256": right}, None))

    _resigned(scene, rng, change)


def signed_kind(scene: Scene, rng: random.Random) -> None:
    """The right keys signed another kind of statement."""
    kinds = ("", "https://slsa.dev/provenance/v0.2", "https://spdx.dev/Document", "https://in-toto.io/Statement/v0.1", 1, None)

    def change(data: dict[str, Any]) -> None:
        data[rng.choice(("_type", "predicateType"))] = rng.choice(kinds)

    _resigned(scene, rng, change)


def signed_provenance(scene: Scene, rng: random.Random) -> None:
    """The right keys signed it as another model, for another architecture, by another builder, as an older release."""
    release = rng.choice((0, RELEASE - 1, -1, True, str(RELEASE), None, float(RELEASE) + 0.5, 1 << 63))
    changes: tuple[Callable[[dict[str, Any], dict[str, Any]], None], ...] = (
        lambda definition, _: definition["externalParameters"].update(release=release),
        lambda definition, _: definition["externalParameters"].pop("release"),
        lambda definition, _: definition["externalParameters"].update(model=rng.choice(("tiny-2b", "", None, ["tiny-1b"]))),
        lambda definition, _: definition["externalParameters"].update(arch=rng.choice(("sm_120a", "sm_90", None))),
        lambda definition, _: definition.update(buildType=rng.choice(("urn:tilec:bundle:v2", "", None))),
        lambda _, details: details["builder"].update(id=rng.choice(("urn:evil", "", None, f" {BUILDER}"))),
        lambda _, details: details.pop("builder"),
    )
    change = rng.choice(changes)
    _resigned(scene, rng, lambda data: change(data["predicate"]["buildDefinition"], data["predicate"]["runDetails"]), "provenance")


def signed_by_parts(scene: Scene, rng: random.Random) -> None:
    """The right keys, but one of them for an older release or for one of the two statements only."""
    first, second = scene.signers
    older = list(payloads_of(scene.bundle, scene.sound[NAME], RELEASE - 1).values())
    now = list(scene.payloads.values())
    scene.write_envelopes(
        rng.choice(
            (
                [*signed(now, [first]), *signed(older, [second])],
                [*signed(now, [second]), *signed(older[:1], [first]), *signed(now[1:], [first])],
                [*signed(now[:1], [first, second]), *signed(now[1:], [first])],
                [*signed(now[:1], [first, second]), *signed(now[:1], scene.strangers)],
                [*signed(now[:1], [first]), *signed(now[1:], [second])],
            )
        )
    )


def bombs(scene: Scene, rng: random.Random) -> None:
    """A sidecar that asks for time or memory: huge or many lines, signatures or digits, nesting, a hole of a terabyte."""
    line = canonical(scene.lines()[0])
    many = canonical(dict(scene.lines()[0], signatures=[{"keyid": f"{n:064x}", "sig": "AA=="} for n in range(5000)]))
    kind = rng.randrange(9)
    if kind == 8:
        with scene.sidecar.open("wb") as file:
            file.truncate(rng.choice((1 << 40, MAX_SIDECAR + 1, MAX_SIDECAR)))
        return
    depth = rng.choice((300, 3000, 1_000_000))
    scene.sidecar.write_bytes(
        (
            line[:-1] + b" " * (4 << 20) + b"}\n", line.replace(b'"payload":"', b'"payload":"' + b"A" * (8 << 20), 1) + b"\n",
            b"[" * depth + b"\n", b'{"a":' * depth + b"\n", b"\n" * (1 << 20), (line + b"\n") * 60, many + b"\n",
            b'{"payload":' + b"9" * (1 << 20) + b"}\n",
        )[kind]
    )  # fmt: skip


def signed_bombs(scene: Scene, rng: random.Random) -> None:
    """The right keys signed what no reader should have to read."""
    payload = rng.choice(
        (
            b"[" * 100_000, b'{"a":' * 50_000, b"{" + b'"a":1,' * 500_000 + b'"b":1}', b"9" * 1_000_000, b"\x80" * 100, b"x",
            b'{"_type":NaN}', b'{"subject":1e999}', b'"' + b"\\u0041" * 200_000 + b'"', b"null", b"[]", b"{}",
        )
    )  # fmt: skip
    payloads = dict(scene.payloads)
    payloads[rng.choice(list(payloads))] = payload
    scene.write_envelopes(signed(payloads.values(), scene.signers))


def places(scene: Scene, rng: random.Random) -> None:
    """Links, pipes, folders, devices and holes where bundle, sidecar or policy should be."""
    path = rng.choice((scene.bundle, scene.sidecar))
    real = scene.folder / f"{path.name}.real"
    path.rename(real)
    kind = rng.randrange(6)
    if kind == 0:
        path.symlink_to(real)
    elif kind == 1:
        os.mkfifo(path)
    elif kind == 2:
        path.mkdir()
    elif kind == 3:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "absent", path.name)))
    elif kind == 4:
        with path.open("wb") as file:
            file.write(real.read_bytes()[:64])
            file.truncate(1 << 38)


def policies(scene: Scene, rng: random.Random) -> None:
    """A policy that says too little, or what is not understood: it must not come to mean less than it did."""
    first = scene.signers[0].public_key
    lines = POLICY.splitlines()
    texts = (
        POLICY.replace("threshold", "treshold"), POLICY.replace("threshold = 2", "threshold = 0"),
        POLICY.replace("threshold = 2", "threshold = 3"), POLICY.replace("threshold = 2", "threshold = -2"),
        POLICY.replace("threshold = 2", "threshold = true"), POLICY.replace("threshold = 2", 'threshold = "1"'),
        POLICY.replace("threshold = 2", "threshold = 1e0"), POLICY.replace("threshold = 2", f"threshold = {'1' * 5000}"),
        POLICY.replace("second.pub", "first.pub"), POLICY.replace("second.pub", "absent.pub"), POLICY.replace("second.pub", ""),
        POLICY.replace('"second.pub"', json.dumps(first.pem().decode())), POLICY.replace("[trust]", "[Trust]"),
        POLICY.replace("models", "model"), POLICY.replace("builders", "builder"), POLICY.replace("tiny-*", "tiny"),
        POLICY.replace("urn:example:*", "urn:example"), POLICY.replace('["tiny-*"]', "[]"), POLICY.replace('["tiny-*"]', '"tiny-1b"'),
        POLICY.replace('= { "tiny-1b" = 7 }', "= 8"), POLICY.replace('= { "tiny-1b" = 7 }', '= { "tiny-1b" = "0" }'),
        POLICY.replace('= { "tiny-1b" = 7 }', "= []"), POLICY.replace("minimum", "minimun"), "", "[trust]\n", "[trust]\nkeys = []\n",
        'trust = "first.pub"\n', "\0" + POLICY, POLICY + "[other]\n", POLICY + lines[0] + "\n", "a = " + "[" * 50_000,
        "a." * 20_000 + "b = 1\n", POLICY + "#" * (1 << 17), POLICY.replace("name = ", 'name = "\\u001b[2J" #'),
    )  # fmt: skip
    kind = rng.randrange(len(texts) + 6)
    if kind < len(texts):
        scene.policy.write_bytes(texts[kind].encode())
    elif kind == len(texts):
        scene.policy.chmod(rng.choice((0o666, 0o664, 0o646)))
    elif kind == len(texts) + 1:
        (scene.folder / rng.choice(("first.pub", "second.pub"))).chmod(0o666)
    elif kind == len(texts) + 2:
        scene.policy.unlink()
    elif kind == len(texts) + 3:
        scene.policy.unlink()
        os.mkfifo(scene.policy)
    elif kind == len(texts) + 4:
        scene.policy.write_bytes(b"\xff\xfe" + rng.randbytes(100))
    else:
        _public_key(scene, rng)


def _public_key(scene: Scene, rng: random.Random) -> None:
    """The bytes of a trusted key changed, or another file in its place."""
    path = scene.folder / rng.choice(("first.pub", "second.pub"))
    body = bytearray(base64.b64decode(b"".join(path.read_bytes().splitlines()[1:-1])))
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    pem = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(bytes(body)) + b"-----END PUBLIC KEY-----\n"
    private = scene.signers[0].pem()
    path.write_bytes(rng.choice((pem, pem, pem, b"", b"x" * (1 << 17), private, struct.pack("<Q", 5), path.read_bytes()[:40])))


def _families() -> dict[str, Family]:
    changes: dict[str, Change] = {
        "bundle: bytes and structure": bundle_bytes,
        "bundle: cut or longer": bundle_cut,
        "bundle: packed anew": bundle_repacked,
        "bundle: code of another": blobs_of_another,
        "pair: another model, older, strangers": another_pair,
        "sidecar: of another bundle": another_sidecar,
        "sidecar: bits": sidecar_bits,
        "sidecar: cut, longer, missing": sidecar_cut,
        "sidecar: JSON members": json_members,
        "sidecar: base64": base64_spellings,
        "sidecar: payload type": other_payload_type,
        "sidecar: payload": payload_changed,
        "sidecar: signatures missing or twice": signatures_missing,
        "sidecar: key ids": lying_key_ids,
        "sidecar: forms of ECDSA": ecdsa_forms,
        "sidecar: algorithm confusion": algorithm_confusion,
        "sidecar: strangers": sidecar_of_strangers,
        "sidecar: bombs": bombs,
        "signed: another subject": signed_subject,
        "signed: another kind": signed_kind,
        "signed: another provenance": signed_provenance,
        "signed: in parts": signed_by_parts,
        "signed: bombs": signed_bombs,
        "places: links, pipes, holes": places,
        "policy": policies,
    }
    found = {name: Family(change, BundleError, CODES) for name, change in changes.items()}
    found["changed while loading"] = Family(changed_while_loading, BundleError, CODES, harmless=True)
    found["changed after loading"] = Family(changed_after_loading, BundleError, CODES, harmless=True)
    return found


FAMILIES = _families()
