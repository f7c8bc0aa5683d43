"""Opening bundles: a sound one says what it holds; every other is refused in one line, soon and in little memory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

from tests.bundle import mutants, samples
from tests.runtime.fake_driver import FakeDriver
from tilec.bundle_format import ALIGN, FORMAT, HEADER, canonical
from tilec.runtime import BundleError, Device, LaunchError, open_bundle

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    place = tmp_path / "tiny-1b-sm_90a.bundle"
    place.write_bytes(samples.bundle())
    return place


def refusal(path: Path, **options: str) -> BundleError:
    with pytest.raises(BundleError) as caught:
        open_bundle(path, **options)
    text = str(caught.value)
    assert text.startswith(f"error[{caught.value.code}]: `{path}` ")
    assert "\n" not in text and len(text) < 700
    return caught.value


def test_what_was_packed_comes_out(path: Path) -> None:
    description, blobs = samples.parts()
    with open_bundle(path, arch="sm_90a") as bundle:
        assert (bundle.model, bundle.arch, bundle.size) == ("tiny-1b", "sm_90a", path.stat().st_size)
        assert bundle.digest == hashlib.sha256(path.read_bytes()[:-32]).hexdigest()
        assert bundle.config == description["config"]
        for kernel, expected in zip(bundle.kernels, description["kernels"], strict=True):
            assert kernel.name == expected["name"]
            assert kernel.steps == ("norm",)
            assert kernel.manifest.obligations[0].sets == ("{ [T] : T >= 1 }",)
            assert bundle.cubin(kernel) == bundle.cubin(kernel.name) == blobs[expected["blob"]]


def test_equal_code_is_stored_once_and_aligned(path: Path) -> None:
    with open_bundle(path) as bundle:
        assert len(bundle.kernels) == 3
        assert len(bundle.blobs) == 2
        data = path.read_bytes()
        for blob in bundle.blobs.values():
            at = data.index(
                next(code for code in samples.parts()[1].values() if hashlib.sha256(code).hexdigest() == blob.sha256)
            )
            assert at % ALIGN == 0
            assert data.count(data[at : at + blob.size]) == 1


def test_find_takes_as_many_constants_as_it_needs(path: Path) -> None:
    with open_bundle(path) as bundle:
        assert bundle.find("scale", N=1).name == "scale-E=bf16-N=1"
        for arguments, words in (({}, "has several"), ({"N": 7}, "has no kernel"), ({"M": 1}, "has no kernel")):
            with pytest.raises(BundleError, match=words) as caught:
                bundle.find("scale", **arguments)
            assert caught.value.code == "E0707"
        with pytest.raises(BundleError, match="has no kernel `other`"):
            bundle.kernel("other")


def test_kernel_loads_on_its_architecture_only(path: Path, tmp_path: Path) -> None:
    device = Device(FakeDriver())
    with open_bundle(path) as bundle:
        assert bundle.load("scale-E=bf16-N=0", device).manifest.kernel == "scale"
    path.write_bytes(samples.bundle("sm_120a"))
    with open_bundle(path) as bundle, pytest.raises(LaunchError) as caught:
        bundle.load("scale-E=bf16-N=0", device)
    assert caught.value.code == "E0902"


def test_wrong_architecture_format_and_digest(path: Path) -> None:
    assert refusal(path, arch="sm_100a").message == f"`{path}` is for `sm_90a`, not for `sm_100a`"
    assert refusal(path, digest="00" * 32).code == "E0705"
    with open_bundle(path) as bundle:
        digest = bundle.digest
    open_bundle(path, digest=digest.upper()).close()
    data = bytearray(path.read_bytes())
    data[8:12] = (FORMAT + 1).to_bytes(4, "little")
    path.write_bytes(mutants.sealed(bytes(data[:-32])))
    assert refusal(path).message == f"`{path}` has format {FORMAT + 1}; this tilec reads format {FORMAT}"


@pytest.mark.parametrize(
    ("code", "sm", "words"),
    [("scale", 100, "is for sm_100, not for sm_90a"), ("other", 90, "has no entry `scale`"), ("", 0, "is no CUBIN")],
)
def test_code_that_is_not_what_the_manifest_says(path: Path, code: str, sm: int, words: str) -> None:
    image = samples.cubin(code, sm=sm) if code else b"MZ" + bytes(300)
    manifest = samples.manifest("scale", image, {})
    digest = hashlib.sha256(image).hexdigest()
    kernel = {"name": "scale", "blob": digest, "steps": [], "manifest": manifest}
    description = {"model": "m", "arch": "sm_90a", "config": {}, "kernels": [kernel]}
    path.write_bytes(samples.encode(description, {digest: image}))
    assert words in refusal(path).message


def test_places_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, code in (("absent", "E0703"), (".", "E0703"), ("pipe", "E0703"), ("empty", "E0704")):
        start = time.process_time()
        assert refusal(tmp_path / name).code == code
        assert time.process_time() - start < 1
    assert refusal(Path("/dev/zero")).code == "E0703"


def test_mutants_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bundle"
    seen: set[str] = set()
    for kind, data in mutants.mutants(samples.bundle(), 520, seed=1):
        path.write_bytes(data)
        start = time.process_time()
        assert refusal(path).code in ("E0704", "E0705"), kind
        assert time.process_time() - start < 1, kind
        seen.add(kind)
    assert seen == mutants.KINDS.keys()


BOMBS = {
    "deep": b"[" * (8 << 20),
    "many": b"[" + b"[]," * (4 << 20) + b"0]",
    "long": b"9" * (16 << 20),
    "objects": b'{"a":' * (1 << 20),
    "escapes": b'"' + b"\\u0041" * (1 << 21) + b'"',
}


@pytest.mark.parametrize("name", BOMBS)
def test_manifest_that_wants_all_memory_or_time(tmp_path: Path, name: str) -> None:
    text = BOMBS[name]
    path = tmp_path / "m.bundle"
    path.write_bytes(mutants.with_manifest(samples.bundle(), text))
    tracemalloc.start()
    try:
        start = time.process_time()
        assert refusal(path).code == "E0705"
        assert time.process_time() - start < 5
        assert tracemalloc.get_traced_memory()[1] < 8 * len(text)
    finally:
        tracemalloc.stop()


def test_header_that_promises_more_than_the_file_allocates_nothing(path: Path) -> None:
    data = path.read_bytes()
    fields, text, rest = mutants.split(data)
    fields[4] = 1 << 40
    path.write_bytes(mutants.joined(fields, text, rest))
    tracemalloc.start()
    try:
        assert refusal(path).code == "E0705"
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_expression_over_a_name_that_nothing_gives_a_value(path: Path) -> None:
    path.write_bytes(samples.bundle(grid=["UNKNOWN"]))
    assert "nothing at launch gives `UNKNOWN` a value" in refusal(path).message


def test_file_that_changes_while_it_is_open(path: Path) -> None:
    with open_bundle(path) as bundle:
        blob = bundle.blobs[bundle.kernels[0].blob]
        data = bytearray(path.read_bytes())
        data[data.index(samples.cubin("scale", 1)) + 200] ^= 1
        with path.open("r+b") as file:
            file.write(data)
        with pytest.raises(BundleError, match="was changed while it was open"):
            bundle.cubin(bundle.kernels[0])
        assert blob.size == len(samples.cubin("scale", 1))


def test_one_content_has_one_encoding(path: Path) -> None:
    description, blobs = samples.parts()
    assert samples.encode(dict(reversed(description.items())), dict(reversed(blobs.items()))) == path.read_bytes()
    manifest = path.read_bytes()[HEADER.size :]
    assert manifest.startswith(canonical({"arch": "sm_90a"})[:-1])


_WITHOUT_COMPILER = """
import sys
class Forbid:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch_mlir", "mlir", "llvmlite", "islpy", "networkx"):
            raise ImportError(f"{name} is a compiler package")
sys.meta_path.insert(0, Forbid())
from tilec.runtime import open_bundle
with open_bundle(sys.argv[1], arch="sm_90a") as bundle:
    for kernel in bundle.kernels:
        assert bundle.cubin(kernel)[:4] == b"\\x7fELF"
mine = {name.split(".")[1] for name in sys.modules if name.startswith("tilec.")}
assert not mine & {"passes", "frontend", "pipeline", "build", "cache", "lowering"}, mine
from tilec.cli.commands import run
for command in (["list"], ["verify"], ["show", "scale-E=bf16-N=1"], ["diff", sys.argv[1]]):
    assert run(["bundle", command[0], sys.argv[1], *command[1:]]) == 0, command
"""


def test_machine_without_a_compiler_trusts_a_bundle(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_COMPILER, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "tiny-1b for sm_90a: 3 kernels" in done.stdout
    assert "the bundles are the same" in done.stdout
