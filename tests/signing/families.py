"""Ways to tamper with a signed bundle, its signatures and its policy; every one must be refused.

The attacker has everything except the two private keys: bundles and signatures by these keys of other models and older
releases, keys of their own, and write access to any byte of bundle and sidecar at any moment. Families named `signed: ...` go
further: there the right keys signed too little, or something else.
"""

from __future__ import annotations

import base64
import json
import os
import random
import struct
from collections.abc import Callable
from hashlib import sha256

from tests.bundle import mutants, samples
from tests.signing import identity_changes, sidecar_changes, statement_changes
from tests.signing.campaign import Family
from tests.signing.loading import changed_after_loading, changed_while_loading
from tests.signing.scene import DIGEST, NAME, POLICY, SignedSetup
from tilec.runtime import BundleError

CODES = ("E0703", "E0704", "E0705", "E0714", "E0715", "E0735")
Change = Callable[[SignedSetup, random.Random], Callable[[], None] | None]


def bundle_bytes(setup: SignedSetup, rng: random.Random) -> None:
    """Damage of the bundle, or a false header, under an inner digest that may match again."""
    kinds = [kind for name, kind in mutants.KINDS.items() if name != "truncation"]
    setup.bundle.write_bytes(rng.choice(kinds)(setup.sound[NAME], rng))


def bundle_cut(setup: SignedSetup, rng: random.Random) -> None:
    """The bundle truncated, or extended."""
    data = setup.sound[NAME]
    setup.bundle.write_bytes(
        data[: rng.randrange(len(data))] if rng.random() < 0.5 else data + rng.randbytes(rng.randrange(1, 999))
    )


def bundle_repacked(setup: SignedSetup, rng: random.Random) -> None:
    """A sound bundle that is not the signed one: a slightly different contract or resource, or other code."""
    if rng.random() < 0.5:
        setup.bundle.write_bytes(samples.bundle(salts=(rng.randrange(10, 99), 2, 1)))
    else:
        field, value = rng.choice((("block", 256), ("grid", [1, 1]), ("launch_checks", []), ("no_alias", [])))
        setup.bundle.write_bytes(samples.bundle(**{field: value}))


def blobs_of_another(setup: SignedSetup, rng: random.Random) -> None:
    """The machine code of a kernel replaced by that of another bundle, all digests recomputed."""
    description, blobs = samples.parts()
    other = samples.cubin("scale", rng.randrange(100, 10_000))
    kernel = rng.choice(description["kernels"])
    digest = sha256(other).hexdigest()
    kernel["blob"] = kernel["manifest"]["digests"]["cubin"] = digest
    blobs[digest] = other
    used = {one["blob"] for one in description["kernels"]}
    setup.bundle.write_bytes(samples.encode(description, {name: code for name, code in blobs.items() if name in used}))


def another_pair(setup: SignedSetup, rng: random.Random) -> None:
    """Bundle and sidecar of something else, each sound: another model by the right keys, an older release, a stranger's."""
    data, sidecar = setup.others[rng.choice(("another model", "older", "strangers", "another of the model"))]
    setup.bundle.write_bytes(data)
    setup.sidecar.write_bytes(sidecar)


def another_sidecar(setup: SignedSetup, rng: random.Random) -> None:
    """The sidecar of another bundle next to this one, or of this one next to another."""
    data, sidecar = rng.choice(list(setup.others.values()))
    if data != setup.sound[NAME] and rng.random() < 0.5:
        setup.bundle.write_bytes(data)
    else:
        setup.sidecar.write_bytes(sidecar)


def special_files(setup: SignedSetup, rng: random.Random) -> None:
    """Links, pipes, folders, devices and sparse files instead of bundle, sidecar or policy."""
    path = rng.choice((setup.bundle, setup.sidecar))
    real = setup.folder / f"{path.name}.real"
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


THRESHOLD, MINIMUM = "threshold = 2", "minimum = 7"
ANOTHER = f'[[trust.models]]\nname = "large-1b"\ndigests = ["{"1" * 64}"]\n\n'
EDITS = (
    ("threshold", "treshold"), ("minimum", "minimun"), ("models", "model"), ("builders", "builder"), ("[trust]", "[Trust]"),
    (THRESHOLD, "threshold = 0"), (THRESHOLD, "threshold = 3"), (THRESHOLD, "threshold = -2"), (THRESHOLD, "threshold = true"),
    (THRESHOLD, 'threshold = "1"'), (THRESHOLD, "threshold = 1e0"), (THRESHOLD, "threshold = " + "1" * 5000),
    ("format = 2", ""), ("format = 2", "format = 1"), ("format = 2", "format = 3"), ("format = 2", "format = true"),
    ("format = 2", "format = 2.0"),
    (MINIMUM, "minimum = 8"), (MINIMUM, 'minimum = "0"'), (MINIMUM, "minimum = []"), (MINIMUM, "minimum = -1"),
    (MINIMUM, "minimum = true"), (MINIMUM, 'minimum = { "tiny-1b" = 7 }'),
    (DIGEST, "0" * 64), (DIGEST, DIGEST.upper()), (DIGEST, DIGEST[1:]), (DIGEST, "*"), (f'["{DIGEST}"]', "[]"),
    (f'["{DIGEST}"]', f'"{DIGEST}"'), ('"tiny-1b"', '"tiny-2b"'), ('"tiny-1b"', '"tiny-*"'), ('"tiny-1b"', "1"),
    ("second.pub", "first.pub"), ("second.pub", "absent.pub"), ("second.pub", ""), ("second.pub", "."), ('"second.pub"', "2"),
    ("tiny-*", "tiny"), ("urn:example:*", "urn:example"), ('["tiny-*"]', "[]"), ('["tiny-*"]', '"tiny-1b"'),
    ('[[trust.keys]]\nkey = "first.pub"\nmodels = ["tiny-*"]', f'{ANOTHER}[[trust.keys]]\nkey = "first.pub"\nmodels = ["l*"]'),
    ("name = ", 'name = "\\u001b[2J" #'), ('name = "the', 'name = "\\u001b[2J"#'), ("the second", ""),
)  # fmt: skip
"""Replacements in the text of the policy."""
TEXTS = (
    "", "[trust]\n", "[trust]\nformat = 2\nkeys = []\n", 'trust = "first.pub"\n', "\0" + POLICY,
    POLICY + "[other]\n", POLICY + "[trust]\n",
    "a = " + "[" * 50_000, "a." * 20_000 + "b = 1\n", POLICY + "#" * (1 << 17),
)  # fmt: skip


def policies(setup: SignedSetup, rng: random.Random) -> None:
    """A policy that is incomplete or not understood: it must not silently become weaker."""
    key_as_text = ('"second.pub"', json.dumps(setup.signers[0].public_key.pem().decode()))  # the first key once more
    texts = [POLICY.replace(old, new, 1) for old, new in (*EDITS, key_as_text)] + list(TEXTS)
    kind = rng.randrange(len(texts) + 6)
    if kind < len(texts):
        setup.policy.write_bytes(texts[kind].encode())
    elif kind == len(texts):
        setup.policy.chmod(rng.choice((0o666, 0o664, 0o646)))
    elif kind == len(texts) + 1:
        (setup.folder / rng.choice(("first.pub", "second.pub"))).chmod(0o666)
    elif kind == len(texts) + 2:
        setup.policy.unlink()
    elif kind == len(texts) + 3:
        setup.policy.unlink()
        os.mkfifo(setup.policy)
    elif kind == len(texts) + 4:
        setup.policy.write_bytes(b"\xff\xfe" + rng.randbytes(100))
    else:
        _public_key(setup, rng)


def _public_key(setup: SignedSetup, rng: random.Random) -> None:
    """The bytes of a trusted key changed, or the key replaced by another file."""
    path = setup.folder / rng.choice(("first.pub", "second.pub"))
    body = bytearray(base64.b64decode(b"".join(path.read_bytes().splitlines()[1:-1])))
    body[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
    pem = b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(bytes(body)) + b"-----END PUBLIC KEY-----\n"
    private = setup.signers[0].pem()
    path.write_bytes(rng.choice((pem, pem, pem, b"", b"x" * (1 << 17), private, struct.pack("<Q", 5), path.read_bytes()[:40])))


def _families() -> dict[str, Family]:
    changes: dict[str, Change] = {
        "bundle: bytes and structure": bundle_bytes,
        "bundle: cut or longer": bundle_cut,
        "bundle: packed anew": bundle_repacked,
        "bundle: code of another": blobs_of_another,
        "pair: another model, older, strangers": another_pair,
        "sidecar: of another bundle": another_sidecar,
        "sidecar: bits": sidecar_changes.sidecar_bits,
        "sidecar: cut, longer, missing": sidecar_changes.sidecar_cut,
        "sidecar: JSON members": sidecar_changes.json_members,
        "sidecar: base64": sidecar_changes.base64_spellings,
        "sidecar: payload type": sidecar_changes.other_payload_type,
        "sidecar: payload": sidecar_changes.payload_changed,
        "sidecar: signatures missing or twice": sidecar_changes.signatures_missing,
        "sidecar: key ids": sidecar_changes.lying_key_ids,
        "sidecar: forms of ECDSA": sidecar_changes.ecdsa_forms,
        "sidecar: algorithm confusion": sidecar_changes.algorithm_confusion,
        "sidecar: strangers": sidecar_changes.sidecar_of_strangers,
        "sidecar: bombs": sidecar_changes.bombs,
        "signed: another subject": statement_changes.signed_subject,
        "signed: another kind": statement_changes.signed_kind,
        "signed: another provenance": statement_changes.signed_provenance,
        "signed: in parts": statement_changes.signed_by_parts,
        "signed: bombs": statement_changes.signed_bombs,
        "places: links, pipes, holes": special_files,
        "policy": policies,
        "policy: of before": identity_changes.policy_of_before,
        "model: a toy's key signs other numbers": identity_changes.toy_key,
        "model: older releases by another name": identity_changes.older_release,
        "prebuilt: a folder, under a policy": identity_changes.prebuilt_folder,
    }
    found = {name: Family(change, BundleError, CODES) for name, change in changes.items()}
    found["search: unsigned next to signed"] = Family(identity_changes.unsigned_next_to_it, BundleError, CODES, harmless=True)
    found["changed while loading"] = Family(changed_while_loading, BundleError, CODES, harmless=True)
    found["changed after loading"] = Family(changed_after_loading, BundleError, CODES, harmless=True)
    return found


FAMILIES = _families()
