"""Cached verdicts: reused if everything they depend on is the same, and never if anything is different or damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.check_layers import uses
from tests.audit import samples
from tests.audit.test_attacks import edited
from tilec.audit import sources, verdicts
from tilec.audit.report import seal
from tilec.audit.run import audit
from tilec.audit.sources import ARGUMENTS, ASSEMBLY, EMULATION, PROOF, SOURCES, rests_on
from tilec.audit.tasks import key, unfinished_result
from tilec.audit.verdicts import Verdicts, final
from tilec.audit.work import Options
from tilec.cache import Store
from tilec.cli import commands
from tilec.runtime import open_bundle

pytestmark = pytest.mark.usefixtures("kept_workers")
TILEC = Path(sources.__file__).parents[1]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    found = Store(tmp_path / "store")
    yield found
    found.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    bundle_path = tmp_path / "a.bundle"
    bundle_path.write_bytes(samples.bundle({name: samples.text(name) for name in ("add", "kv_update")}))
    return bundle_path


def report(path: Path, store: Store | None, **options: Any) -> dict[str, Any]:
    with open_bundle(path) as bundle:
        return audit(bundle, Options(launches=0, **options), Verdicts(store) if store is not None else None)


def test_the_second_audit_reaches_no_verdict_and_says_the_same(path: Path, store: Store) -> None:
    first, second = report(path, store), report(path, store)
    assert first["run"]["judged"][PROOF] == first["run"]["judged"][ARGUMENTS] == 2
    assert second["run"]["reused"] == first["run"]["judged"]
    assert not any(second["run"]["judged"].values())
    assert seal(first) == seal(second) == seal(report(path, None))


def test_another_bundle_reuses_what_it_shares(path: Path, store: Store, tmp_path: Path) -> None:
    report(path, store)
    other = tmp_path / "b.bundle"
    other.write_bytes(samples.bundle({name: samples.text(name) for name in ("add", "rms_norm")}))
    found = report(other, store)["run"]
    assert found["reused"][PROOF] == found["judged"][PROOF] == 1


def test_another_manifest_is_checked_again(path: Path, store: Store, tmp_path: Path) -> None:
    """The texts, and so the digests, are those of a kernel with known verdicts."""
    assert report(path, store)["summary"]["status"] == 0

    def swap(data: dict[str, Any]) -> None:
        data["abi"][0], data["abi"][1] = data["abi"][1], data["abi"][0]

    for edit in (swap, lambda data: data.update(value_checks=[])):
        other = tmp_path / "b.bundle"
        other.write_bytes(samples.bundle({"kv_update": samples.text("kv_update")}, change=edited("kv_update", edit)))
        assert report(other, store)["summary"]["status"] == 1


def test_another_source_of_a_checker_renews_its_verdicts(path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    report(path, store)
    digest = sources.source_digest
    monkeypatch.setattr(sources, "source_digest", lambda parts: "another" if parts == SOURCES[PROOF] else digest(parts))
    found = report(path, store)["run"]
    assert found["judged"][PROOF] == found["reused"][ARGUMENTS] == 2


def test_a_damaged_verdict_is_checked_again(path: Path, store: Store) -> None:
    first = report(path, store)
    for file in (store.base / "blobs").iterdir():
        file.write_bytes(file.read_bytes().replace(b"confirmed", b"refutedxx"))
    found = report(path, store)
    assert seal(found) == seal(first)
    assert not any(found["run"]["reused"].values())
    assert not any(report(path, store)["run"]["judged"].values())  # written anew


@pytest.mark.parametrize(
    "data",
    [b"[]", b"{}", b"null", b"[{}]", b"not JSON", b'[{"verdict":"confirmed"}]', b"[" * 5000,
     b'[{"model":{},"property":"bounds","reason":"","subject":"x","verdict":"fine"}]'],
)  # fmt: skip
def test_data_that_is_no_verdict_is_ignored(path: Path, store: Store, data: bytes) -> None:
    """Well-formed store entries that are not verdicts: whoever can write the store may have written them."""
    with open_bundle(path) as bundle:
        texts = bundle.texts()
        for kernel in bundle.kernels:
            own_texts = {name: texts[kernel.manifest.digests[name]] for name in ("tir", "ptx")}
            for kind in (PROOF, ARGUMENTS):
                digest = key(kind, own_texts, kernel.manifest)
                store.put(verdicts.key_in_store(kind, digest), {verdicts.OUTPUT: data})
    found = report(path, store)
    assert found["summary"]["status"] == 0
    assert not any(found["run"]["reused"].values())


def test_unfinished_verdicts_are_not_stored(path: Path, store: Store) -> None:
    assert report(path, store, time_limit=0.0)["summary"]["status"] == 3
    found = report(path, store)
    assert found["summary"]["status"] == 0
    assert not any(found["run"]["reused"].values())
    none = {"status": "none", "reason": "no emulator: ml_dtypes is not installed", "launches": []}
    assert not final(EMULATION, none)
    assert not final(ASSEMBLY, {"missing": "nvidia-nvjitlink"})
    assert not final(ASSEMBLY, unfinished_result(ASSEMBLY, "stopped"))


def test_the_command_reuses_and_with_no_cache_does_not(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "mine"))
    arguments = ["audit", str(path), "--launches", "0", "--no-rebuild", "-j", "1"]
    counts: list[str] = []
    for options in ([], [], ["--no-cache"]):
        assert commands.run([*arguments, *options]) == 0
        counts.append(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("verdicts: ")))
    assert counts == [
        "verdicts: 4 reached now, 0 reused",
        "verdicts: 0 reached now, 4 reused",
        "verdicts: 4 reached now, 0 reused",
    ]


def test_every_file_that_a_verdict_depends_on_is_in_its_digest() -> None:
    """Every file imported, at any depth, for a verdict of each kind."""
    files = {
        ".".join(("tilec", *path.relative_to(TILEC).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in TILEC.rglob("*.py")
    }
    graph = uses(files)
    starts = {
        PROOF: ("tilec.audit.prove", "tilec.audit.contract"),
        EMULATION: ("tilec.audit.emulation", "tilec.emulator", "tilec.interpreter"),
        ARGUMENTS: ("tilec.audit.maps", "tilec.emulator"),
        ASSEMBLY: ("tilec.assemble", "tilec.audit.cubins"),
    }
    empty = {name for name, path in files.items() if not path.read_text().strip()} | {"tilec", "tilec.audit"}
    for kind, wanted in starts.items():
        pending, seen = [*wanted, "tilec.artifact.manifest_reader" if kind != ASSEMBLY else wanted[0]], set[str]()
        while pending:
            name = pending.pop()
            if name not in seen:
                seen.add(name)
                pending += graph[name]
        listed = {
            path
            for part in SOURCES[kind]
            for path in ([TILEC / part] if part.endswith(".py") else (TILEC / part).rglob("*.py"))
        }
        assert all(path.is_file() for path in listed)
        left_out = sorted(name for name in seen - empty if files[name] not in listed)
        assert left_out == [], kind


def test_a_digest_is_of_names_and_contents() -> None:
    assert rests_on(PROOF)["source"] != rests_on(EMULATION)["source"]
    assert set(rests_on(PROOF)) == {"source", "z3-solver"}


WITHOUT = """
import sys
class Without:
    '''The finder of modules, for a machine that lacks some.'''
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        missing = name.partition(".")[0] in ("torch_mlir", "llvmlite", "islpy", "networkx", "nvidia", "cuda")
        return None if missing else self.finder.find_spec(name, path, target)
sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from tilec.cli.commands import run
sys.exit(run(sys.argv[1:]))
"""


def test_audit_needs_no_compiler_and_says_what_it_then_does_not_check(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {"TILEC_CACHE_DIR": str(tmp_path / "mine")}
    command = [sys.executable, "-c", WITHOUT, "audit", str(path), "--launches", "0", "-j", "1"]
    completed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 3, completed.stderr
    assert completed.stdout.count("CUBIN not checked: `cuda-bindings` is not installed; run `pip install 'tilec[audit]'`") == 2
    assert "CUBINs: 2 not checked" in completed.stdout
    assert " 0 reused" in completed.stdout
    completed = subprocess.run([*command, "--no-rebuild"], env=environment, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "verdicts: 0 reached now, 4 reused" in completed.stdout
