"""Texts that name registries, and bundles as blobs: valid forms, and refused ones."""

from __future__ import annotations

import hashlib
import json
import random
import urllib.parse
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bundle import samples
from tilec.ship.registry import challenges
from tilec.ship.registry.authorization import may_know
from tilec.ship.registry.challenges import MAX_CHALLENGE, SCHEMES, read_challenges
from tilec.ship.registry.credentials import Credentials, docker_credentials
from tilec.ship.registry.errors import RegistryError
from tilec.ship.registry.parts import is_for, join, split
from tilec.ship.registry.reference import Reference, is_loopback, read_reference

DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("oci://ghcr.io/team/kernels", Reference("ghcr.io", "team/kernels")),
        ("oci://ghcr.io/team/kernels:v1.2", Reference("ghcr.io", "team/kernels", "v1.2")),
        (f"oci://localhost:5000/a__b/c-d@{DIGEST}", Reference("localhost:5000", "a__b/c-d", "", DIGEST)),
        ("oci://[::1]:5000/a:t", Reference("[::1]:5000", "a", "t")),
        ("oci://docker.io/kernels", Reference("docker.io", "library/kernels")),
    ],
)
def test_references(text: str, found: Reference) -> None:
    assert read_reference(text) == found
    assert read_reference(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "ghcr.io/a", "https://ghcr.io/a", "oci://ghcr.io", "oci:///a", "oci://ghcr.io/", "oci://ghcr.io/A", "oci://ghcr.io/a/../b",
        "oci://ghcr.io/a//b", "oci://ghcr.io/a:", "oci://ghcr.io/a:t g", "oci://user@ghcr.io/a", "oci://ghcr.io:0/a",
        "oci://ghcr.io:99999/a", "oci://ghcr.io/a@sha256:ab", f"oci://ghcr.io/a@{DIGEST}0", "oci://ghcr.io/a?b", "oci://ghcr.io/a#b",
        "oci://ghcr.io/a:t:t", "oci://gh\ncr.io/a", f"oci://ghcr.io/{'a' * 300}", "oci://ghcr.io/" + "a-" * 100,
        "oci://[1:2]/x:y", "oci://[127.0.0.1]/a", "oci://[:::]:5/a",
    ],
)  # fmt: skip
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(ValueError):
        read_reference(text)


@settings(max_examples=25)
@given(st.from_regex(r"oci://[a-z.:@/\-_0-9\[\]]{1,60}", fullmatch=True))
def test_a_reference_names_the_host_that_its_url_leads_to(text: str) -> None:
    try:
        found = read_reference(text)
    except ValueError:
        return
    url = urllib.parse.urlsplit(f"https://{found.host}/v2/{found.repository}/manifests/{found.tag or found.digest or 'latest'}")
    assert url.netloc == found.host and not url.query and not url.fragment and url.username is None
    assert ".." not in url.path.split("/")


def test_who_may_know_a_password() -> None:
    right = [
        ("ghcr.io", "ghcr.io"), ("registry.gitlab.com", "gitlab.com"), ("registry-1.docker.io", "auth.docker.io"),
        ("registry.a.example.com", "auth.a.example.com"), ("registry.example.co.uk", "auth.example.co.uk"),
    ]  # fmt: skip
    wrong = [
        ("ghcr.io", "evil.io"), ("ghcr.io", "io"), ("registry.gitlab.com", "evil-gitlab.com"), ("10.0.0.1", "2.0.0.1"),
        ("127.0.0.1", "128.0.0.1"), ("localhost", "evil.localhost"), ("registry.gitlab.com", "gitlab.com.evil.org"),
        ("example.co.uk", "attacker.co.uk"), ("mine.github.io", "yours.github.io"),
    ]  # fmt: skip
    assert all(may_know(*pair) for pair in right)
    assert not any(may_know(*pair) for pair in wrong)


def test_challenges() -> None:
    both = ['Basic realm="a b", Bearer realm="https://x/t",service="s"', 'Bearer realm="later"']
    assert read_challenges(both) == {"basic": {"realm": "a b"}, "bearer": {"realm": "https://x/t", "service": "s"}}
    assert read_challenges(["Negotiate", "", "Bearer " + 'a="b",' * 2000]) == {}


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("Bearer realm=https://x/t, service=s", {"bearer": {"realm": "https://x/t", "service": "s"}}),
        ("bearer Realm = token , SERVICE=s", {"bearer": {"realm": "token", "service": "s"}}),
        ("Negotiate abc==, Basic realm=x", {"basic": {"realm": "x"}}),
        ("Basic", {"basic": {}}),
        ('Basic realm="a, Bearer realm=evil"', {"basic": {"realm": "a, Bearer realm=evil"}}),  # no challenge in a quoted text
        ('Basic realm="a\\"b", charset="UTF-8"', {"basic": {"realm": 'a"b', "charset": "UTF-8"}}),
        ('Basic realm="open', {"basic": {}}),
        (',, ,Bearer realm="x",,realm="y"', {"bearer": {"realm": "x"}}),
        ('XBearer realm="x"', {}),
        ('realm="x"', {}),
        ("", {}),
    ],
)
def test_forms_of_challenges(header: str, found: dict[str, dict[str, str]]) -> None:
    assert read_challenges([header]) == found


class Counted(str):
    """A text that counts accesses to its characters."""

    request = 0

    def __getitem__(self, at: Any) -> str:
        Counted.request += 1
        return super().__getitem__(at)


HOSTILE: Final = (
    "a", "Bearer ", 'Bearer a="', ",", ", ", "=", '"', "\\", 'a="b",', "Bearer a=b,", "Basic  ", "a ", 'x="\\',
    ",Bearer\t", " ",
)  # fmt: skip


@pytest.mark.parametrize("unit", HOSTILE)
@pytest.mark.parametrize("start", ["", "Bearer ", 'Bearer realm="'])
def test_challenges_are_read_in_linear_time(unit: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(challenges, "MAX_CHALLENGE", 1 << 30)
    for size in (1 << 10, 1 << 13):
        Counted.request = 0
        text = Counted((start + unit * size)[:size])
        read_challenges([text])
        assert 0 < Counted.request <= 6 * size


def test_a_challenge_of_a_million_characters_is_not_read() -> None:
    for unit in HOSTILE:
        Counted.request = 0
        assert read_challenges([Counted((unit * 1_000_000)[:1_000_000])] * 3) == {} and Counted.request == 0
    rng = random.Random(1)
    for _ in range(300):  # many headers, in total within the limit
        headers = [Counted("".join(rng.choices(HOSTILE, k=rng.randrange(200)))) for _ in range(rng.randrange(60))]
        Counted.request = 0
        assert read_challenges([*headers, Counted("Basic")]).keys() <= set(SCHEMES)
        assert Counted.request <= 6 * MAX_CHALLENGE


def test_this_machine() -> None:
    assert all(map(is_loopback, ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["localhost.evil.org", "10.0.0.1", "::", "0.0.0.0", "example.com"]))


@pytest.mark.parametrize(
    ("config", "host", "found"),
    [
        ({"auths": {"https://index.docker.io/v1/": {"auth": "dTpw"}}}, "docker.io", Credentials("u", "p")),
        ({"auths": {"https://reg.example": {"auth": "dTpw"}}}, "reg.example", Credentials("u", "p")),
        ({"auths": {"reg.example": {"identitytoken": "t", "auth": "dTpw"}}}, "reg.example", Credentials(identity_token="t")),
        ({"auths": {"reg.example": {}}}, "reg.example", None),
        ({"auths": {"other.example": {"auth": "dTpw"}}}, "reg.example", None),
    ],
)
def test_docker_keeps_credentials(
    config: object,
    host: str,
    found: Credentials | None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path_factory.mktemp("docker")
    (folder / "config.json").write_text(json.dumps(config))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    assert docker_credentials(host) == found
    assert "dTpw" not in repr(found) and "'p'" not in repr(found)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"auths": {"h": {"auth": "?"}}}',
        '{"auths": {"h": {"auth": "dTpé"}}}',
        '{"auths": {"h": {"identitytoken": "\\ud800"}}}',
        '{"credsStore": "../x"}',
        '{"credHelpers": {"h": "no"}}',
    ],
)
def test_what_is_not_dockers_configuration(
    text: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("docker")
    (folder / "config.json").write_text(text)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    with pytest.raises(RegistryError) as caught:
        docker_credentials("h")
    assert caught.value.code == "E0733"


@settings(max_examples=15)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.sampled_from([samples.bundle, samples.with_proofs_apart]))
def test_a_bundle_is_its_parts(salts: list[int], made: Callable[..., bytes]) -> None:
    """Split and joined again it has the same bytes; no CUBIN is among the parts twice."""
    data = made(salts=salts)
    parts = split(data)
    assert join(parts.frame, parts.blobs) == data
    assert [hashlib.sha256(blob).hexdigest() for blob in parts.blobs[:-1]] == [
        piece.sha256 for piece in parts.frame.pieces[:-1]
    ]
    assert len(parts.blobs) == len(set(salts)) + 1


def test_what_is_not_a_bundle_is_not_taken_apart() -> None:
    data = samples.bundle()
    wrong = [b"", data[:-1], data + b"\0", data[:100], bytes(len(data)), data[:-1] + bytes([data[-1] ^ 1]), b"\0" * 96]
    for one in wrong:
        with pytest.raises(ValueError):
            split(one)


def test_which_model_a_bundle_is_for() -> None:
    numbers = {"hidden_size": 128, "head_dim": 64, "tied": True}
    assert is_for({"hidden_size": 128}, numbers) and is_for({"hidden_size": 128, "tied": True}, numbers)
    for config in ({}, {"hidden_size": 129}, {"layers": 1}, {"tied": 1}, {"hidden_size": 128, "other": 1}):
        assert not is_for(config, numbers)
