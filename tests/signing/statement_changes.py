"""Statements with valid signatures of the trusted keys that are incomplete, different, or too expensive for a reader."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from hashlib import sha256
from typing import Any

from tests.signing.scene import BUILDER, NAME, RELEASE, SignedSetup, payloads_of, signed
from tilec.artifact.bundle_format import canonical


def _resigned(
    setup: SignedSetup, rng: random.Random, change: Callable[[dict[str, Any]], None], statement_name: str | None = None
) -> None:
    """Both statements signed by both trusted keys, after changing one of them (`statement_name`)."""
    chosen = statement_name or rng.choice(list(setup.payloads))
    payloads = dict(setup.payloads)
    data = json.loads(payloads[chosen])
    change(data)
    payloads[chosen] = canonical(data)
    setup.write_envelopes(signed(payloads.values(), setup.signers))


def signed_subject(setup: SignedSetup, rng: random.Random) -> None:
    """The right keys signed a statement about something else."""
    right = sha256(setup.sound[NAME]).hexdigest()
    digests = (
        {"sha256": "0" * 64},
        {"sha512": right * 2},
        {},
        {"sha256": right.upper()},
        {"sha256": right[:-1]},
        {"sha256": [right]},
        None,
    )
    subject = rng.choice(digests)
    as_manifest = {"name": f"{NAME}#manifest", "digest": {"sha256": right}}
    others = ([{"name": NAME, "digest": subject}], [], [subject], [{"name": right}], {"sha256": right}, None, [as_manifest])

    def change(data: dict[str, Any]) -> None:
        data["subject"] = rng.choice(others)

    _resigned(setup, rng, change)


def signed_kind(setup: SignedSetup, rng: random.Random) -> None:
    """The right keys signed another kind of statement."""
    kinds = ("", "https://slsa.dev/provenance/v0.2", "https://spdx.dev/Document", "https://in-toto.io/Statement/v0.1", 1, None)

    def change(data: dict[str, Any]) -> None:
        data[rng.choice(("_type", "predicateType"))] = rng.choice(kinds)

    _resigned(setup, rng, change)


def signed_provenance(setup: SignedSetup, rng: random.Random) -> None:
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
    _resigned(
        setup, rng, lambda data: change(data["predicate"]["buildDefinition"], data["predicate"]["runDetails"]), "provenance"
    )


def signed_by_parts(setup: SignedSetup, rng: random.Random) -> None:
    """The right keys signed, but one of them an older release or only one of the two statements."""
    first, second = setup.signers
    older = list(payloads_of(setup.bundle, setup.sound[NAME], RELEASE - 1).values())
    now = list(setup.payloads.values())
    setup.write_envelopes(
        rng.choice(
            (
                [*signed(now, [first]), *signed(older, [second])],
                [*signed(now, [second]), *signed(older[:1], [first]), *signed(now[1:], [first])],
                [*signed(now[:1], [first, second]), *signed(now[1:], [first])],
                [*signed(now[:1], [first, second]), *signed(now[:1], setup.strangers)],
                [*signed(now[:1], [first]), *signed(now[1:], [second])],
            )
        )
    )


def signed_bombs(setup: SignedSetup, rng: random.Random) -> None:
    """The right keys signed statements that are too expensive for a reader."""
    payload = rng.choice(
        (
            b"[" * 100_000, b'{"a":' * 50_000, b"{" + b'"a":1,' * 500_000 + b'"b":1}', b"9" * 1_000_000, b"\x80" * 100, b"x",
            b'{"_type":NaN}', b'{"subject":1e999}', b'"' + b"\\u0041" * 200_000 + b'"', b"null", b"[]", b"{}",
        )
    )  # fmt: skip
    payloads = dict(setup.payloads)
    payloads[rng.choice(list(payloads))] = payload
    setup.write_envelopes(signed(payloads.values(), setup.signers))
