"""A team's cache: two stores and one remote, on real servers; failing, slow and forged remotes, and write permissions."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import servers
from tests.cache import remote_mutants
from tests.project import project
from tilec.cache import Store, products
from tilec.cache.remote import guard as guard_module
from tilec.cache.remote.address import Address, allowed, chosen, fault, parse
from tilec.cache.remote.envelope import Refused, pack, unpack
from tilec.cache.remote.guard import Guard, Unavailable
from tilec.cache.remote.layer import Layer
from tilec.cache.remote.lease import Leases
from tilec.cache.remote.opening import open_layer
from tilec.cache.remote.remote import Remote, Settings
from tilec.cache.remote.signer import Secret, Signer, Unsigned, read_key, signer_of
from tilec.cache.statistics import Statistics, decoded, encoded
from tilec.cli.commands import run
from tilec.cli.project import attach_remote
from tilec.diagnostics.diagnostic import CompileError
from tilec.project.build import job
from tilec.project.build.driver import BuildResult
from tilec.project.read.buildfile import read_build_file

pytestmark = pytest.mark.usefixtures("kept_workers")

KEY, OTHER = "a" * 64, "b" * 64
OUTPUTS = {"ptx": b"text " * 100, "empty": b""}


@pytest.fixture(scope="module", params=["redis", "webdav", pytest.param("s3", marks=pytest.mark.campaign), "file"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """A server of each kind."""
    folder = tmp_path_factory.mktemp("server")
    with contextlib.ExitStack() as stack:
        if request.param == "redis":
            yield stack.enter_context(servers.redis_server(folder))
        elif request.param == "webdav":
            yield stack.enter_context(servers.webdav_server(folder))
        elif request.param == "s3":
            found, names = stack.enter_context(servers.s3_server(folder))
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            for name, value in names.items():
                patch.setenv(name, value)
            yield found
        else:
            yield f"file://{folder}/shared"


def attach(store: Store, *urls: str, key: bytes = b"", seconds: float = 20.0) -> Remote:
    """Attaches remotes to a store, with generous time limits, since the machine may be busy."""

    def load(key: str) -> tuple[dict[str, bytes], int] | None:
        found = store.lookup(key)
        return None if found is None else (found.outputs, found.cost)

    store.remote = Remote(Settings(tuple(Address(url, False, seconds) for url in urls), key), load)
    return store.remote


def small(root: Path) -> Path:
    """A project of four artifacts."""
    return project.make(root, ("copy_a",))


def build(root: Path, folder: Path, *urls: str, key: bytes = b"", seconds: float = 20.0) -> BuildResult:
    """Builds a project with a store and remotes of its own."""
    with contextlib.closing(Store(folder)) as store:
        attach(store, *urls, key=key, seconds=seconds)
        return project.build_with(root, store)


def entry(folder: Path, *urls: str, key: bytes = b"", value: int = 1, seconds: float = 20.0) -> tuple[bool, Remote]:
    """Makes one entry with a store and remotes of its own; returns whether it was found, and the remote."""
    with contextlib.closing(Store(folder)) as store:
        remote = attach(store, *urls, key=key, seconds=seconds)
        fields = {"input": value}
        found = products.make(store, "any", fields, lambda: {"out": b"%d" % value}, "out", shared=True)
        assert found.outputs == {"out": b"%d" % value}
        remote.publish(store.made)
        remote.close()
        return found.hit, remote


def test_a_layer_keeps_finds_and_lends(url: str) -> None:
    layer = open_layer(Address(url, False, 20.0))
    key = os.urandom(32).hex()
    assert layer.get(key, 100) is None
    assert layer.put(key, b"first", replace=False) and not layer.put(key, b"second", replace=False)
    assert layer.get(key, 100) == b"first"
    assert layer.put(key, b"third", replace=True) and layer.get(key, 100) == b"third"
    with pytest.raises(ValueError):
        layer.get(key, 4)
    lent = layer.claim(key, "me", 60.0)
    if lent is not None:
        assert lent and layer.claim(key, "me", 60.0) and layer.claim(key, "you", 60.0) is False
        layer.release(key, "you")
        assert layer.claim(key, "you", 60.0) is False
        layer.release(key, "me")
        assert layer.claim(key, "you", 60.0) is True
    assert (lent is None) == url.startswith("http")
    layer.close()


def test_second_clone_makes_nothing(url: str, tmp_path: Path) -> None:
    first, second = small(tmp_path / "one"), small(tmp_path / "two")
    for root in (first, second):  # unlike those of other tests
        for path in (root / "kernels_src").iterdir():
            path.write_text(path.read_text().replace("Copy.", f"Copy to {url}."))
    result = build(first, tmp_path / "store1", url)
    assert project.statuses(result) == ["built"] * 4
    found = build(second, tmp_path / "store2", url)
    assert project.statuses(found) == ["hit"] * 4 and not found.problems and not found.troubles
    assert found.counts.get(Address(url).shown, "hits") == 4 and found.counts.get("local", "made") == 0
    for path in (first / "artifacts").rglob("*.*"):
        assert path.read_bytes() == (second / path.relative_to(first)).read_bytes()
    with contextlib.closing(Store(tmp_path / "store2")) as store:
        assert store.statistics().get(Address(url).shown, "hits") == 4  # counts are accumulated in the store
    assert project.statuses(build(second, tmp_path / "store2")) == ["hit"] * 4  # and are now local, without the remote


def test_a_later_layer_fills_an_earlier_one(tmp_path: Path) -> None:
    first, second = f"file://{tmp_path}/near", f"file://{tmp_path}/far"
    assert not entry(tmp_path / "store1", second)[0]
    hit, remote = entry(tmp_path / "store2", first, second)
    assert hit and (remote.statistics.get(second, "hits"), remote.statistics.get(first, "stored")) == (1, 1)
    assert entry(tmp_path / "store3", first)[0]


def test_stages_are_shared_across_edits(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    build(small(tmp_path / "one"), tmp_path / "store1", url)
    second = small(tmp_path / "two")
    for path in (second / "kernels_src").iterdir():
        path.write_text(path.read_text() + "# a comment\n")
    found = build(second, tmp_path / "store2", url)
    assert project.statuses(found) == ["built"] * 4
    assert all(result.hits["ptx"] and result.hits["cubin"] for result in found.results)
    assert {result.hits["tir"] for result in found.results} == {True, False}  # made by this build, for the first target


def test_a_dead_and_a_silent_server_cost_time_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "REST", 1e6)
    with servers.silent_server() as silent:
        dead = servers.free_port()
        urls = [f"{scheme}://127.0.0.1:{port}/x" for port in (silent, dead) for scheme in ("http", "redis")]
        found = build(small(tmp_path / "one"), tmp_path / "store", *[u.replace("/x", "/0") for u in urls], seconds=0.3)
    assert project.statuses(found) == ["built"] * 4 and len(found.troubles) == 4
    assert found.counts.total("failures") <= 4 * 8 * guard_module.FAILURES  # readers ask concurrently, and then no more


def test_a_guard_gives_up_rests_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "PAUSE", 0.0)
    monkeypatch.setattr(guard_module, "REST", 1e6)
    calls: list[int] = []
    broken = True

    class Flaky:
        def get(self, key: str, limit: int) -> bytes | None:
            calls.append(1)
            if broken:
                raise OSError("no")
            return b"here"

        def close(self) -> None:
            pass

    def read(layer: Layer) -> bytes | None:
        return layer.get(KEY, 9)

    guarded = Guard(Address("redis://x"), lambda address: Flaky())  # pyright: ignore[reportArgumentType, reportReturnType]
    for _ in range(guard_module.FAILURES + 2):
        with pytest.raises(Unavailable):
            guarded.call(read)
    assert len(calls) == guard_module.FAILURES * guard_module.ATTEMPTS and guarded.resting
    broken = False
    guarded._until = 0.0  # the pause is over  # pyright: ignore[reportPrivateUsage]
    assert guarded.call(read) == b"here" and not guarded.resting and "OSError: no" in guarded.trouble


@pytest.mark.parametrize("signed", [True, False])
def test_no_mutant_of_an_entry_is_used(signed: bool) -> None:
    signer: Signer = Secret(b"s" * 32) if signed else Unsigned()
    data = pack(KEY, OUTPUTS, 7, signer)
    assert data is not None and unpack(KEY, data, signer).outputs == OUTPUTS and unpack(KEY, data, signer).cost == 7
    others = [pack(OTHER, OUTPUTS, 7, signer), pack(KEY, OUTPUTS, 7, Secret(b"t" * 32))]
    for name, mutant in remote_mutants.mutants(data, [other for other in others if other is not None], 150):
        try:
            found = unpack(KEY, mutant, signer)
        except Refused:
            continue
        # Without a signature a record may have lost a line; `tilec.cache.products` knows the products of a key.
        assert found.outputs.items() <= OUTPUTS.items(), name
        assert not signed or mutant.partition(b"\n\n")[0] == data.partition(b"\n\n")[0], name


def test_a_poisoned_remote_is_not_used_and_is_repaired(tmp_path: Path) -> None:
    url, shared = f"file://{tmp_path}/shared", tmp_path / "shared"
    for value in (1, 2):
        entry(tmp_path / "store1", url, value=value)
    first, second = sorted(shared.iterdir())
    bodies = first.read_bytes(), second.read_bytes()
    first.write_bytes(bodies[1])
    second.write_bytes(bodies[0])  # each under the other's key
    for value in (1, 2):
        hit, remote = entry(tmp_path / "store2", url, value=value)
        assert not hit and remote.statistics.get(url, "refused") == 1 and "another key" in remote.problems[0]
        assert entry(tmp_path / "store3", url, value=value)[0]
    assert (first.read_bytes(), second.read_bytes()) == bodies


def test_with_a_key_only_its_entries_are_used(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    assert not entry(tmp_path / "store1", url)[0]
    hit, remote = entry(tmp_path / "store2", url, key=b"k" * 32)
    assert not hit and "not signed" in remote.problems[0]
    assert entry(tmp_path / "store3", url, key=b"k" * 32)[0]
    assert not entry(tmp_path / "store4", url, key=b"j" * 32)[0]


def test_a_public_key_reads_and_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    (tmp_path / "private").write_bytes(private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public = private.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    other = Ed25519PrivateKey.generate().public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "public").write_bytes(other + b"\n" + public)
    keys: dict[str, bytes] = {}
    for name, mode in (("private", 0o600), ("public", 0o644)):
        (tmp_path / name).chmod(mode)
        monkeypatch.setenv("TILEC_REMOTE_KEY_FILE", str(tmp_path / name))
        keys[name] = read_key()
    url = f"file://{tmp_path}/shared"
    entry(tmp_path / "store0", url, key=keys["public"])
    assert not (tmp_path / "shared").exists()
    entry(tmp_path / "store1", url, key=keys["private"])
    assert entry(tmp_path / "store2", url, key=keys["public"])[0]
    data = pack(KEY, OUTPUTS, 0, signer_of(keys["private"]))
    assert data is not None
    with pytest.raises(Refused, match="not signed by a trusted key"):
        unpack(KEY, data, signer_of(other))
    monkeypatch.setenv("TILEC_REMOTE_KEY_FILE", str(tmp_path / "private"))
    (tmp_path / "private").chmod(0o640)
    with pytest.raises(CompileError, match="E0752"):
        read_key()
    (tmp_path / "private").write_bytes(b"# of the team\n" + public)  # not a publicly known secret
    (tmp_path / "private").chmod(0o600)
    with pytest.raises(CompileError, match="a PEM file begins with its first block"):
        read_key()
    both = private.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption())
    (tmp_path / "private").write_bytes(public + both)
    assert signer_of(read_key()).writes
    (tmp_path / "private").chmod(0o644)
    with pytest.raises(CompileError, match="may be read"):
        read_key()


def test_builders_that_start_together_make_each_artifact_once(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    own_leases, other_leases = Leases([Guard(Address(url))]), Leases([Guard(Address(url))])
    assert own_leases.claim(KEY) and own_leases.claim(KEY) and not other_leases.claim(KEY) and other_leases.claim(OTHER)
    own_leases.release(KEY)
    assert other_leases.claim(KEY)
    other_leases.close(time.monotonic() + 10)
    assert not list((tmp_path / "shared").iterdir())


def test_two_builders_at_once_share_the_work(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/shared"
    roots = [small(tmp_path / name) for name in ("one", "two")]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda root: build(root, tmp_path / f"store-{root.name}", url), roots))
    assert sum(project.statuses(result).count("built") for result in found) == 4
    assert all(set(project.statuses(result)) <= {"hit", "built"} for result in found)


def test_who_never_delivers_is_waited_for_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "PATIENCE", 0.1)
    monkeypatch.setattr(Leases, "claim", lambda self, key: False)  # pyright: ignore[reportUnknownLambdaType]
    found = build(small(tmp_path / "one"), tmp_path / "store", f"file://{tmp_path}/shared")
    assert project.statuses(found) == ["built"] * 4 and found.counts.get("local", "waited") == 4


@pytest.mark.parametrize(
    "text", ["redis://u:secret@", "simplecache::s3://x/y", "python://x", "http://h/../..", "http://h?q", "file://", "x",
             "http://h/a/%2e%2e/b", "http://h/a/..%2fb", "http://h/a\\..\\b", "http://h/a/./b",
             "s3://b|options=1", "redis://h:port/0", "redis://h|timeout=0"],
)  # fmt: skip
def test_what_is_no_remote_is_refused_and_no_password_shown(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEC_REMOTE_CACHE", text)
    with pytest.raises(CompileError, match="E0751") as caught:
        chosen((), ())
    assert "secret" not in str(caught.value)


def test_a_remote_of_a_build_file_needs_the_users_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = (Address("https://cache.example/tilec/team"),)
    assert chosen((), wanted) == ((), wanted)
    assert chosen(("project",), wanted) == (wanted, ()) and chosen(("off", "project"), wanted) == ((), ())
    for prefix in ("https://cache.example", "https://cache.example/tilec/"):
        monkeypatch.setenv("TILEC_REMOTE_ALLOW", f"s3://x {prefix}")
        assert chosen((), wanted) == (wanted, ())
    for prefix in (
        "http://cache.example",
        "https://cache.example:444",
        "https://cache.example/til",
        "https://cache.example.org",
    ):
        monkeypatch.setenv("TILEC_REMOTE_ALLOW", prefix)
        assert chosen((), wanted) == ((), wanted)
    for url in ("https://cache.example/tilec/%2e%2e/other", "https://cache.example/tilec/..%5cother"):
        assert fault(url)
    assert not allowed("https://cache.example@evil.example/", ["https://cache.example"])
    monkeypatch.setenv("TILEC_REMOTE_CACHE", "redis://h:1/2|read_only|timeout=2.5 http://h/x")
    assert chosen((), ())[0] == (Address("redis://h:1/2", True, 2.5), Address("http://h/x"))
    assert parse("redis://u:pw@h/0").shown == "redis://h/0" and fault("s3://bucket/x") == ""


def test_statistics_add_up_and_believe_no_file(tmp_path: Path) -> None:
    with contextlib.closing(Store(tmp_path)) as store:
        for _ in range(3):
            store.count(Statistics({"local": {"hits": 2}, "redis://h/0": {"bytes_in": 10}}))
        assert store.statistics().counts == {"local": {"hits": 6}, "redis://h/0": {"bytes_in": 30}}
        for text in (b"[", b"[1]", b'{"a": 1}', b'{"a": {"hits": -1, "x": 1, "misses": "2", "made": 1e3}}', b"[" * 50000):
            assert decoded(text).total("hits") == 0
        (store.base / "statistics").write_bytes(b"\xff")
        store.count(Statistics({"local": {"hits": 1}}))
        assert json.loads(encoded(store.statistics())) == {"local": {"hits": 1}}


def test_a_build_file_alone_attaches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = small(tmp_path / "one")
    text = (
        (root / "build.toml")
        .read_text()
        .replace("[build]\n", '[build]\nremote = [{ url = "redis://h/0", read_only = true }]\n')
    )
    (root / "build.toml").write_text(text)
    file = read_build_file(root / "build.toml")
    with contextlib.closing(Store(tmp_path / "store")) as store:
        assert attach_remote(store, file, ()) == (Address("redis://h/0", True),) and store.remote is None
        monkeypatch.setenv("TILEC_REMOTE_ALLOW", "redis://h")
        assert attach_remote(store, file, ()) == () and store.remote is not None
        assert [guard.address for guard in store.remote.guards] == [Address("redis://h/0", True)]


def test_stats_are_printed_as_table_and_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", "")  # which `--cache-dir` sets
    folder = str(tmp_path / "store")
    assert run(["--cache-dir", folder, "cache", "stats"]) == 0 and "nothing was counted" in capsys.readouterr().out
    with contextlib.closing(Store(Path(folder))) as store:
        store.count(Statistics({"local": {"hits": 2, "saved_ms": 3_600_000}, "redis://h/0": {"twice": 1}}))
    assert run(["--cache-dir", folder, "cache", "stats"]) == 0
    table = capsys.readouterr().out
    assert "1.00 hours of CPU saved" in table and "redis://h/0" in table.split("\n")[0]
    assert run(["--cache-dir", folder, "cache", "stats", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layers"]["redis://h/0"] == {"twice": 1}
