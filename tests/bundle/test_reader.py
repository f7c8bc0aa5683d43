"""Opening bundles: a sound one reports its contents; every other is refused in one line, quickly and in little memory."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from tests.bundle import mutants, samples
from tests.runtime.fake_driver import FakeDriver
from tilec.artifact.bundle_format import ALIGN, FORMAT, HEADER, canonical, encode
from tilec.runtime import BundleError, Device, LaunchError, open_bundle

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tiny-1b-sm_90a.bundle"
    file.write_bytes(samples.bundle())
    return file


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
        assert bundle.digest == hashlib.sha256(path.read_bytes()).hexdigest()
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
            offset = data.index(
                next(code for code in samples.parts()[1].values() if hashlib.sha256(code).hexdigest() == blob.sha256)
            )
            assert offset % ALIGN == 0
            assert data.count(data[offset : offset + blob.size]) == 1


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
    reads = f"this tilec reads formats {FORMAT - 1} and {FORMAT}; pack it again: `tilec bundle pack`"
    assert refusal(path).message == f"`{path}` has format {FORMAT + 1}; {reads}"


@pytest.mark.parametrize(
    ("code", "sm", "words"),
    [("scale", 100, "is for sm_100, not for sm_90a"), ("other", 90, "has no entry `scale`"), ("", 0, "is not a CUBIN")],
)
def test_code_that_differs_from_the_manifest(path: Path, code: str, sm: int, words: str) -> None:
    image = samples.cubin(code, sm=sm) if code else b"MZ" + bytes(300)
    manifest = samples.manifest("scale", image, {})
    digest = hashlib.sha256(image).hexdigest()
    kernel = {"name": "scale", "blob": digest, "steps": [], "manifest": manifest}
    description = {"model": "m", "arch": "sm_90a", "config": {}, "kernels": [kernel], **samples.STEP}
    path.write_bytes(samples.encode(description, {digest: image}))
    assert words in refusal(path).message


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, code in (("absent", "E0703"), (".", "E0703"), ("pipe", "E0703"), ("empty", "E0704")):
        start = time.process_time()
        assert refusal(tmp_path / name).code == code
        assert time.process_time() - start < 20
    assert refusal(Path("/dev/zero")).code == "E0703"


def test_mutants_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bundle"
    seen: set[str] = set()
    for kind, data in mutants.mutants(samples.bundle(), 520, seed=1):
        path.write_bytes(data)
        start = time.process_time()
        assert refusal(path).code in ("E0704", "E0705"), kind
        assert time.process_time() - start < 20, kind
        seen.add(kind)
    assert seen == mutants.KINDS.keys()


def nested(depth: int) -> Any:
    """A tree of the given depth."""
    return ["Attribute", nested(depth - 1), "a"] if depth else ["Name", "a"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": "def decode(): pass"}, "its step: not the syntax of a step"),
        ({"step": []}, "its step: not the syntax of a step"),
        ({"step": ["Module", []]}, "its step: there is no `def decode()`"),
        ({"step": ["Module", [["Import", "os"]]]}, "its step: `Import` is no part of a step"),
        ({"step": ["Module", [["Pass"]]]}, "its step: not a number, `weights`"),
        ({"step": ["Module", ["x"]]}, "its step: `x` is no part of a step"),
        ({"step": ["Module", [["Assign", [["Name", "x"]], ["Name", ["Pass"]]]]]}, "its step: not the syntax of a step"),
        ({"step": ["Module", [["Assign", [["Name", "x"]], ["Lambda", 1]]]]}, "its step: `Lambda` is no part of a step"),
        ({"step": ["Module", [["Pass"]] * 70_000]}, "its step: a step is too large"),
        ({"step": ["Module", [["Assign", [["Name", "x"]], nested(40)]]]}, "no expression"),
        ({"step": ["Module", [["Assign", [["Name", "x"]], nested(190)]]]}, "nested too deeply"),
        ({"config": {"weight_format": "fp8"}}, "its step has no weights in 'fp8'"),
        ({"config": {"weight_format": 8}}, "its step has no weights in 8"),
        ({"tuning": {}}, "tuning: not a list"),
        ({"tuning": [{"numbers": {"parts": 3}}]}, "its step: `measured` does not say"),
        ({"tuning": [{"measured": "x", "kernel": "k", "cost": "__import__('os')", "choices": [{}]}]}, "no expression"),
        ({"tuning": [{"measured": "x", "numbers": {"parts": "3"}}]}, "not a table of numbers"),
        (
            {
                "tuning": [
                    {"measured": "x", "kernel": "k", "cost": "B * at_once", "choices": [{"B": 1, "at_once": 2}, {"B": 1}]}
                ]
            },
            "its step: `cost` uses `B`, which choice 2 does not set",
        ),
    ],
)
def test_a_step_that_is_none(path: Path, changes: dict[str, Any], words: str) -> None:
    description, blobs = samples.parts()
    path.write_bytes(encode(description | changes, blobs))
    start = time.process_time()
    found = refusal(path)
    assert time.process_time() - start < 20
    assert found.code == "E0705" and words in found.message


BOMBS = {
    "deep": b"[" * (8 << 20),
    "many": b"[" + b"[]," * (4 << 20) + b"0]",
    "long": b"9" * (16 << 20),
    "objects": b'{"a":' * (1 << 20),
    "digits": b'{"arch":' + b"9" * 100_000 + b"}",
    "kernels": b'{"arch":"sm_90a","blobs":[],"config":{},"kernels":[' + b"{}," * 1_000_000 + b"{}]}",
    "surrogate": b'{"arch":"' + b"\\ud800" * 10_000 + b'"}',
    "fraction": b'{"arch":0.' + b"0" * (8 << 20) + b"1}",
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
        assert time.process_time() - start < 50
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
    assert "`UNKNOWN` has no value at launch" in refusal(path).message


def test_what_was_verified_is_what_is_used(path: Path) -> None:
    """Writing or truncating the file after it was verified does not change the open bundle."""
    before = path.read_bytes()
    with open_bundle(path) as bundle:
        kernel = bundle.kernels[0]
        with path.open("r+b") as file:
            file.write(before.replace(samples.cubin("scale", 1), bytes(len(samples.cubin("scale", 1)))))
        assert bundle.cubin(kernel) == samples.cubin("scale", 1)
        os.truncate(path, 100)
        assert bundle.cubin(kernel) == samples.cubin("scale", 1)
        assert len(bundle.texts()) == 5
    with pytest.raises(ValueError, match="is closed"):
        bundle.cubin(kernel)


def test_the_digest_of_the_whole_file_comes_first(path: Path, tmp_path: Path) -> None:
    """A bundle of another digest is not parsed: the refusal is the same whatever else is wrong with it."""
    wanted = hashlib.sha256(path.read_bytes()).hexdigest()
    other = tmp_path / "other.bundle"
    for data in (samples.bundle(salts=(3,)), path.read_bytes()[:-1], path.read_bytes()[:200] + bytes(200)):
        other.write_bytes(data)
        found = hashlib.sha256(data).hexdigest()
        message = f"`{other}` is not the requested bundle: its sha256 is {found}, not {wanted}"
        assert refusal(other, digest=wanted).message == message
    open_bundle(path, digest=wanted).close()
    for wrong in ("", "00", "zz" * 32, wanted + "0", wanted[:-1] + "\n", "\u0661" * 64):
        assert "not 64 hex digits" in refusal(path, digest=wrong).message


@pytest.mark.campaign
def test_thousand_kernels_that_share_a_large_blob(tmp_path: Path) -> None:
    code = samples.cubin("scale", padding=64 << 20)
    digest = hashlib.sha256(code).hexdigest()
    kernels = [
        {"name": f"scale-N={n:04}", "blob": digest, "steps": [], "manifest": samples.manifest("scale", b"", {"N": n})}
        for n in range(1000)
    ]
    for kernel in kernels:
        kernel["manifest"]["digests"]["cubin"] = digest
    path = tmp_path / "large.bundle"
    path.write_bytes(encode({"model": "m", "arch": "sm_90a", "config": {}, "kernels": kernels, **samples.STEP}, {digest: code}))
    start = time.process_time()
    hashlib.sha256(path.read_bytes()).digest()
    hashing = time.process_time() - start
    start = time.process_time()
    with open_bundle(path) as bundle:
        assert len(bundle.kernels) == 1000
    assert time.process_time() - start < 100 * hashing + 10  # verifying each kernel's blob separately would take 1000


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
assert not mine & {"passes", "frontend", "pipeline", "project", "cache", "lowering"}, mine
from tilec.cli.commands import run
for command in (["list"], ["verify"], ["show", "scale-E=bf16-N=1"], ["diff", sys.argv[1]]):
    assert run(["bundle", command[0], sys.argv[1], *command[1:]]) == 0, command
"""


def test_machine_without_a_compiler_trusts_a_bundle(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT_COMPILER, str(path)], capture_output=True, text=True, cwd=ROOT, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert "tiny-1b for sm_90a: 3 kernels" in done.stdout
    assert "the bundles are the same" in done.stdout
