"""Entries with another entry's products: each way to swap them is refused by the build and by `tilec cache verify`."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bundle import samples
from tests.campaign import first
from tests.project import project
from tilec.cache import Store, key_of, products, store_root
from tilec.cache.agreement import disagreement, typed
from tilec.cache.products import ProductError, decode, encode
from tilec.cli import commands

pytestmark = pytest.mark.usefixtures("kept_workers")

FIELDS = {"option path": "kernels_src/scale.py", "option target": "sm_90a", "constant N": "int 3", "source scale.py": "aa",
          "compiler link": "bb", "toolchain islpy": "2026.2"}  # fmt: skip
KEY = key_of("artifact", FIELDS)
TILEC_DIGEST = hashlib.sha256(json.dumps({"link": "bb"}).encode()).hexdigest()
TOOLCHAIN = {"islpy": "2026.2", "tilec": f"0.1.0 sha256:{TILEC_DIGEST}"}


def parts(salt: int = 1, sm: int = 90, entry: str = "scale", **changes: object) -> dict[str, bytes]:
    """The products of an artifact after a build; `changes` replace fields of the manifest."""
    arch = f"sm_{sm}a"
    cubin = samples.cubin(entry, salt, sm)
    ptx = f"//\n.target {arch}\n.visible .entry {entry}(\n{salt}".encode()
    tir = f"kernel @{entry}(%x) {{ {salt} }}".encode()
    manifest = samples.manifest(entry, cubin, {"N": 3}, arch) | {"toolchain": TOOLCHAIN}
    source = json.dumps({"scale.py": "aa"}, sort_keys=True).encode()
    named = {"cubin": cubin, "ptx": ptx, "tir": tir, "source": source}
    manifest["digests"] = {name: hashlib.sha256(data).hexdigest() for name, data in named.items()}
    manifest |= changes
    summary = {"resources": manifest["resources"], "proofs": {"set": 1, "static": 1}, "unsafe": 0}
    return {
        "cubin": cubin, "ptx": ptx, "tir": tir, "json": json.dumps(manifest).encode(), "summary": json.dumps(summary).encode()
    }  # fmt: skip


def digests(outputs: dict[str, bytes]) -> dict[str, str]:
    return {name: hashlib.sha256(data).hexdigest() for name, data in outputs.items()}


def refused(outputs: dict[str, bytes], key: str = KEY) -> str:
    with pytest.raises(ProductError) as caught:
        decode(key, outputs, digests(outputs))
    if key == KEY:
        with pytest.raises(ProductError):
            decode(key, outputs, digests(outputs), stage="artifact", fields=FIELDS)
    return str(caught.value)


def test_what_was_sealed_is_opened() -> None:
    outputs = encode("artifact", FIELDS, parts())
    assert decode(KEY, outputs, digests(outputs)) == parts()
    assert decode(KEY, outputs, digests(outputs), stage="artifact", fields=FIELDS) == parts()


@pytest.mark.parametrize("name", ["cubin", "ptx", "tir", "json", "summary"])
def test_one_product_of_another_entry(name: str) -> None:
    outputs = encode("artifact", FIELDS, parts()) | {name: parts(2)[name] + b" "}
    assert refused(outputs) == "its products come from different builds"


def test_products_that_are_gone_or_too_many() -> None:
    outputs = encode("artifact", FIELDS, parts())
    assert "different builds" in refused(outputs | {"more": b""})
    del outputs["ptx"]
    assert "different builds" in refused(outputs)
    del outputs["seal"]
    assert refused(outputs) == "it has no seal"


@pytest.mark.parametrize(
    "seal",
    [b"", b"[" * 100_000, b"null", b"{}", b'{"fields":1,"format":1,"products":{},"stage":"artifact"}', b"9" * 10_000, b"\xff"],
)
def test_seals_that_are_none(seal: bytes) -> None:
    assert refused(encode("artifact", FIELDS, parts()) | {"seal": seal}) in ("it has no seal", "its seal has another format")


def test_all_products_of_another_entry() -> None:
    other = FIELDS | {"constant N": "int 4"}
    outputs = encode("artifact", other, parts())
    assert refused(outputs) == "its products were made for another entry"
    assert refused(encode("ptx", FIELDS, parts())) == "its products were made for another entry"


FORGED: dict[str, tuple[Callable[[], dict[str, bytes]], str]] = {
    "cubin": (lambda: parts() | {"cubin": parts(2)["cubin"]}, "its cubin differs from its manifest's digest"),
    "ptx": (lambda: parts() | {"ptx": parts(2)["ptx"]}, "its ptx differs"),
    "tir": (lambda: parts() | {"tir": parts(2)["tir"]}, "its tir differs"),
    "manifest": (lambda: parts() | {"json": parts(2)["json"]}, "its cubin differs"),
    "constants": (lambda: parts(constants={"N": 4}), "other constants"),
    "a constant's type": (lambda: parts(constants={"N": 3.0}), "other constants"),
    "kernel": (lambda: parts(entry="other"), "is of the kernel `other`, not of `scale`"),
    "architecture": (lambda: parts(sm=100), "is for sm_100a, not for sm_90a"),
    "code for another architecture": (
        lambda: parts() | code(100), "its CUBIN is for sm_100, not for sm_90a"
    ),
    "toolchain": (lambda: parts(toolchain={"python": "4"}), "another toolchain"),
    "summary": (lambda: parts() | {"summary": b'{"resources": {}, "proofs": {}, "unsafe": 0}'}, "its summary differs"),
    "deep manifest": (lambda: parts() | {"json": b"[" * 100_000}, "cannot be read"),
    "manifest that is none": (lambda: parts() | {"json": b"[]"}, "cannot be read"),
}  # fmt: skip


def code(sm: int) -> dict[str, bytes]:
    """A CUBIN for `sm` under a manifest that has its digest but declares sm_90a."""
    cubin = samples.cubin("scale", 1, sm)
    manifest = json.loads(parts()["json"])
    manifest["digests"]["cubin"] = hashlib.sha256(cubin).hexdigest()
    return {"cubin": cubin, "json": json.dumps(manifest).encode()}


@pytest.mark.parametrize("name", FORGED)
def test_products_that_do_not_agree_under_a_seal_that_fits(name: str) -> None:
    make, message = FORGED[name]
    assert message in refused(encode("artifact", FIELDS, make()))


def test_stages_agree_with_their_keys() -> None:
    fields = {"path": "k/scale.py", "target": "sm_90a", "constant N": "int 3"}
    tir = {"tir": b"kernel @scale(", "interface": b'{"constants": {"N": 3}}'}
    assert disagreement("tir", fields, tir, {}) == ""
    assert "constants" in disagreement("tir", fields, tir | {"interface": b'{"constants": {"N": true}}'}, {})
    assert "another kernel" in disagreement("tir", fields, tir | {"tir": b"kernel @scale2("}, {})
    assert disagreement("ptx", fields, {"ptx": b"\n.target sm_90a\n.entry scale("}, {}) == ""
    assert "is not for" in disagreement("ptx", fields, {"ptx": b"\n.target sm_100a\n.entry scale("}, {})
    assert disagreement("cubin", fields, {"cubin": samples.cubin("scale")}, {}) == ""
    assert "for sm_120" in disagreement("cubin", fields, {"cubin": samples.cubin("scale", sm=120)}, {})
    assert "cannot be read" in disagreement("cubin", fields, {"cubin": b"\x7fELF"}, {})
    assert (typed(True), typed(1), typed(1.0)) == ("bool True", "int 1", "float 0x1.0000000000000p+0")


def built(root: Path) -> dict[str, bytes]:
    folder = root / "artifacts" / "build"
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.*"))}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TILEC_CACHE_DIR", str(tmp_path / "store"))
    folder = project.make(tmp_path / "p", ("copy_a",))
    assert project.statuses(project.build(folder)) == ["built"] * 4
    return folder


def swap_products(root: Path, names: tuple[str, ...]) -> int:
    """Gives every artifact the products `names` of its twin, as anybody with write access to the store can; returns the number
    of changed entries."""
    with contextlib.closing(Store(store_root())) as store:
        labels = sorted((record["label"], key) for key, record in store.records() if record["label"].startswith("artifact "))
        found = [(key, store.lookup(key)) for _, key in labels]
        for (key, entry), (_, other) in zip(found, found[2:] + found[:2], strict=True):  # the other constant, the same GPU
            assert entry is not None and other is not None
            store.put(key, entry.outputs | {name: other.outputs[name] for name in names or other.outputs})
    return len(found)


@pytest.mark.parametrize("exchanged", first(3, ["", "cubin", "json cubin summary", "ptx", "tir", "json", "seal"]))
def test_a_build_serves_nothing_that_was_exchanged(root: Path, exchanged: str) -> None:
    names = tuple(exchanged.split())
    right = built(root)
    assert swap_products(root, names) == 4
    again = project.build(root)
    assert project.statuses(again) == ["built"] * 4
    assert len(again.problems) == 4 and all("it will be rebuilt" in line for line in again.problems)
    assert built(root) == right
    assert project.statuses(project.build(root)) == ["hit"] * 4


def test_cache_verify_names_swapped_products(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["cache", "verify"]) == 0
    swap_products(root, ("cubin",))
    capsys.readouterr()
    assert commands.run(["cache", "verify"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all("come from different builds" in line for line in lines)
    assert commands.run(["cache", "verify"]) == 0


def test_swapped_stages_are_run_again(root: Path) -> None:
    """The CUBIN, PTX or tile IR of one stage under the key of another specialisation."""
    right = built(root)
    for stage in ("tir", "proofs", "mlir", "ptx", "cubin"):
        with contextlib.closing(Store(store_root())) as store:
            records = list(store.records())
            found = [(key, store.lookup(key)) for key, record in records if record["label"].startswith(f"{stage} of")]
            for (key, _), (_, other) in zip(found, found[1:] + found[:1], strict=True):
                assert other is not None
                store.put(key, other.outputs)
            store.forget([key for key, record in records if record["label"].startswith("artifact ")])
        again = project.build(root)
        assert project.statuses(again) == ["built"] * 4
        assert built(root) == right, stage


def test_a_store_with_forged_entries_changes_nothing() -> None:
    class Liar:
        remote = None

        def __init__(self) -> None:
            self.made: list[str] = []
            self.problems: list[str] = []
            self.forgotten = 0

        def lookup(self, key: str, label: str) -> None:
            return None

        def make(self, key: str, run: Callable[[], dict[str, bytes]], label: str) -> products.Entry:
            wrong = encode("artifact", FIELDS | {"constant N": "int 9"}, parts())
            return products.Entry(wrong, digests(wrong), True)

        def forget(self, keys: list[str]) -> None:
            self.forgotten += 1

        def put(self, key: str, outputs: dict[str, bytes], label: str, cost: int) -> products.Entry:
            return products.Entry(outputs, digests(outputs), False)

    store = Liar()
    entry = products.make(store, "artifact", FIELDS, parts, "x")  # pyright: ignore[reportArgumentType]
    assert entry.outputs == parts() and store.forgotten == 1
