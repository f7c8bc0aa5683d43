"""A part of the campaign of `ci/bench/judges.py tampering`, and tests that the campaign detects a lax verifier."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.signing.campaign import Family, run
from tests.signing.families import CODES, FAMILIES
from tests.signing.scene import SignedSetup
from tilec.runtime import BundleError, open_bundle

LIMIT_MIB = 128.0


def test_no_change_is_used(signed_setup: SignedSetup) -> None:
    found = run(signed_setup, FAMILIES, 3 * len(FAMILIES), seed=20261122)
    assert not [line for one in found.values() for line in one.wrong]
    assert all(one.tried == 3 for one in found.values())
    assert all(sum(one.refused.values()) == 3 for name, one in found.items() if not FAMILIES[name].harmless)
    assert found["changed after loading"].used == 3 and found["search: unsigned next to signed"].used == 3
    assert max(one.worst_mib for one in found.values()) < LIMIT_MIB


def unpoliced(change: Callable[[SignedSetup, random.Random], object]) -> Family:
    """The family, against a loader that checks no signature."""

    def changed(setup: SignedSetup, rng: random.Random) -> Callable[[], None]:
        change(setup, rng)
        return lambda: open_bundle(setup.bundle, trust="none").close()

    return Family(changed, BundleError, CODES)


def test_the_campaign_sees_a_loader_that_checks_no_signature(signed_setup: SignedSetup) -> None:
    weak = {
        name: unpoliced(family.change) for name, family in FAMILIES.items() if name.startswith(("sidecar", "signed", "pair"))
    }
    found = run(signed_setup, weak, len(weak), seed=1, memory=False)
    assert all(len(one.wrong) == 1 and "it was used" in one.wrong[0] for one in found.values())


@pytest.mark.parametrize("dropped", ["the wrong one", "high s", "the key", "the numbers", "the search", "the folder"])
def test_the_campaign_sees_a_verifier_that_is_lax(
    signed_setup: SignedSetup, monkeypatch: pytest.MonkeyPatch, dropped: str
) -> None:
    """Known mistakes of verifiers: any signature is accepted, ECDSA with s in either half, any key that is named; names that
    match any dimensions, a search that ends at the first refusal, a folder without a policy check."""
    from tilec.artifact import signing_keys
    from tilec.ops.kernels import Kernels
    from tilec.runtime.trust import Trust, TrustedKey
    from tilec.ship import finder

    if dropped == "the wrong one":
        monkeypatch.setattr(signing_keys.PublicKey, "accepts", lambda *_: True)
        names = ("sidecar: key ids", "sidecar: forms of ECDSA", "sidecar: payload")
    elif dropped == "high s":
        monkeypatch.setattr(signing_keys, "_normal", lambda signature: signature)
        names = ("sidecar: forms of ECDSA",)
    elif dropped == "the numbers":
        monkeypatch.setattr(Trust, "oldest", lambda self, model, _: self.models[model].minimum if model in self.models else 0)
        names = ("model: a toy's key signs other numbers", "model: older releases by another name")
    elif dropped == "the search":
        monkeypatch.setattr(
            finder._Search, "opened", lambda self, paths: (finder.open_bundle(one, trust=self.trust) for one in paths)
        )
        names = ("search: unsigned next to signed",)
    elif dropped == "the folder":
        monkeypatch.setattr(Kernels, "_from_folder", lambda *_: SimpleNamespace(manifest=None))
        monkeypatch.setattr(Kernels, "_compared", lambda _, kernel: kernel)
        names = ("prebuilt: a folder, under a policy",)
    else:
        monkeypatch.setattr(TrustedKey, "signs_for", lambda *_: True)
        monkeypatch.setattr(TrustedKey, "signs_of", lambda *_: True)
        names = ("signed: another provenance", "policy")
    found = run(signed_setup, {name: FAMILIES[name] for name in names}, 100 * len(names), seed=3, memory=False)
    assert all(one.wrong for one in found.values())
