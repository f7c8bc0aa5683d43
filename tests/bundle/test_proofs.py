"""Proofs among the texts of a bundle: read whole or not at all, shared by kernels, and every other stream of them refused."""

from __future__ import annotations

import hashlib
import json
import lzma
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bundle import mutants, samples
from tests.fuzz import bundles as fuzzed
from tilec.artifact import bundle_format
from tilec.artifact.bundle_format import FORMAT, HEADER, MAX_PROOFS, TRAILER, WITH_OBLIGATIONS, aligned, canonical, compress
from tilec.cli import commands
from tilec.runtime import BundleError, open_bundle
from tilec.ship.bundle.rebuild import differences

Record = dict[str, Any]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tiny-1b-sm_90a.bundle"
    file.write_bytes(samples.with_proofs_apart())
    return file


def refusal(path: Path, data: bytes, *, proofs: bool = True) -> str:
    """The message about a bundle that is refused."""
    path.write_bytes(data)
    with pytest.raises(BundleError) as caught:
        open_bundle(path, proofs=proofs)
    message = str(caught.value)
    assert caught.value.code in ("E0704", "E0705") and "\n" not in message and len(message) < 700
    return message


def with_texts(data: bytes, change: Callable[[Record], None], stream: bytes | None = None) -> bytes:
    """The bundle with another manifest, and other compressed texts unless `stream` is None; header and trailer fit."""
    fields, text, _ = mutants.split(data)
    manifest = json.loads(text)
    end = fields[5] + max(blob["offset"] + blob["size"] for blob in manifest["blobs"])
    kept = data[aligned(end) : -TRAILER] if stream is None else stream
    manifest["texts"]["size"] = len(kept)
    change(manifest)
    text = canonical(manifest)
    at = aligned(HEADER.size + len(text))
    body = text + bytes(at - HEADER.size - len(text)) + data[fields[5] : end]
    body += bytes(aligned(HEADER.size + len(body)) - HEADER.size - len(body)) + kept
    fields[2], fields[4], fields[5] = HEADER.size + len(body) + TRAILER, len(text), at
    return mutants.joined(fields, b"", body)


def with_proof(data: bytes, text: bytes) -> bytes:
    """The bundle in which every kernel has the proofs `text`, with digests that are right."""
    digest = hashlib.sha256(text).hexdigest()
    description, _ = samples.parts()
    texts = [one for kernel in description["kernels"] for one in samples.source(kernel["name"], kernel["blob"]).values()]

    def change(manifest: Record) -> None:
        manifest["texts"]["proofs"] = [{"sha256": digest, "size": len(text)}]
        for kernel in manifest["kernels"]:
            kernel["proofs"] = digest

    stream = compress({hashlib.sha256(one).hexdigest(): one for one in texts}, {digest: text})
    return with_texts(data, change, stream)


def test_the_same_as_with_obligations_in_the_manifests(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    before = tmp_path / "before.bundle"
    before.write_bytes(samples.bundle())
    with open_bundle(path) as bundle, open_bundle(before) as older, open_bundle(path, proofs=False) as launched:
        assert [HEADER.unpack(one.read_bytes()[: HEADER.size])[1] for one in (path, before)] == [FORMAT, WITH_OBLIGATIONS]
        assert bundle.texts() == older.texts() == launched.texts() and len(bundle.texts()) == 5
        assert (older.proofs(), len(bundle.proofs())) == ({}, 1)  # the kernels have the same obligations
        for new, old, bare in zip(bundle.kernels, older.kernels, launched.kernels, strict=True):
            assert new.manifest == old.manifest and new.manifest.obligations
            assert (bare.manifest.obligations, bare.steps, bare.blob) == ((), old.steps, old.blob)
            assert bundle.cubin(new) == older.cubin(old) == launched.cubin(bare)
            assert new.proofs is not None and old.proofs is None
            assert json.loads(bundle.proofs()[new.proofs]) == samples.parts()[0]["kernels"][0]["manifest"]["obligations"]
    for command in (["list"], ["verify"], ["show", "scale-E=bf16-N=1"]):
        assert commands.run(["bundle", command[0], str(path), *command[1:]]) == 0
    commands.run(["bundle", "diff", str(before), str(path)])
    assert ": 0 changes, 0 for the worse" in capsys.readouterr().out.replace("; ", ": ")


def test_a_rebuild_sees_another_format_and_other_proofs(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.bundle"
    text = canonical(samples.parts()[0]["kernels"][0]["manifest"]["obligations"][:1])
    for data, expected in (
        (samples.bundle(), [f"the format of the file is {WITH_OBLIGATIONS}, built again it is {FORMAT}"]),
        (with_proof(path.read_bytes(), text), [f"scale-E=bf16-N={n}: `obligations` of its manifest differs" for n in range(3)]),
        (samples.with_proofs_apart(), []),
    ):
        other.write_bytes(data)
        with open_bundle(other) as found, open_bundle(path) as rebuilt:
            assert differences(found, rebuilt) == expected


def test_one_content_has_one_encoding(path: Path) -> None:
    description, blobs, proofs = samples.apart(*samples.parts())
    again = samples.encode(dict(reversed(description.items())), dict(reversed(blobs.items())), dict(reversed(proofs.items())))
    assert again == path.read_bytes()


def test_mutants_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.bundle"
    seen: set[str] = set()
    for kind, data in mutants.mutants(samples.with_proofs_apart(), 520, seed=1):
        start = time.process_time()
        refusal(path, data)
        assert time.process_time() - start < 20, kind
        seen.add(kind)
    assert seen == mutants.KINDS.keys()


def test_fuzzed_bundles_are_refused_or_right(tmp_path: Path) -> None:
    path, rng = tmp_path / "m.bundle", random.Random(5)
    base = fuzzed.bases()[0]
    data = samples.with_proofs_apart()
    base = fuzzed.Base(data, json.loads(mutants.split(data)[1]), base.blobs, base.texts)
    found: dict[str, int] = {}
    for number in range(300):
        kind = sorted(set(fuzzed.KINDS) - {"machine code"})[number % 4]  # machine code is packed in the older format there
        mutant = fuzzed.KINDS[kind](base, rng)
        path.write_bytes(mutant)
        code = fuzzed.attempt(path, mutant, base)
        found[code] = found.get(code, 0) + 1
    assert found["E0705"] > 200 and found.keys() <= {"", *fuzzed.CODES}


def test_every_byte_of_the_stream_is_covered(path: Path) -> None:
    """By the digest of the file; and under a repaired one, by the digest of each of the proofs and texts."""
    data = path.read_bytes()
    manifest = json.loads(mutants.split(data)[1])
    start = len(data) - TRAILER - manifest["texts"]["size"]
    unchanged = 0
    for at in range(start, len(data) - TRAILER):
        changed = bytearray(data)
        changed[at] ^= 0x20
        assert "its digest does not match its bytes" in refusal(path, bytes(changed), proofs=False)
        path.write_bytes(mutants.sealed(bytes(changed[:-TRAILER])))
        try:
            with open_bundle(path) as bundle:
                bundle.texts()
            unchanged += 1  # a byte without effect, such as padding
        except BundleError as error:
            assert error.code == "E0705"
    assert unchanged < 0.1 * manifest["texts"]["size"]


def test_launching_reads_no_proofs_and_nothing_else_does_without(path: Path) -> None:
    data = path.read_bytes()
    text = canonical([{"property": "bounds"}])
    path.write_bytes(with_proof(data, text))
    with open_bundle(path, proofs=False) as bundle:
        assert [bundle.cubin(kernel)[:4] for kernel in bundle.kernels] == [b"\x7fELF"] * 3
    assert "`scale-E=bf16-N=0`: its proofs: obligations[0]: `subject` is missing" in refusal(path, with_proof(data, text))
    for command in (["list"], ["verify"], ["show", "scale-E=bf16-N=1"], ["diff", str(path)]):
        assert commands.run(["bundle", command[0], str(path), *command[1:]]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "its proofs: "), (b"{}", "obligations: not a list"), (b"[ ]", "not in canonical form"), (b"[NaN]", "NaN"),
        (b"[" * 5000, "nested too deep"), (b"[" + b"1," * (1 << 20) + b"1]", "too many values"), (b"\xff", "not ASCII"),
        (b'["\\u001b[2J"]', "control characters"), (b"[1]", "obligations[0]: not an object"),
        (b"[" + b"9" * 50 + b"]", "too large"), (b'["' + b"x" * (1 << 17) + b'"]', "too long"),
    ],
)  # fmt: skip
def test_proofs_that_are_none(path: Path, text: bytes, words: str) -> None:
    assert words in refusal(path, with_proof(path.read_bytes(), text))


def without_its_size(manifest: Record) -> None:
    manifest["texts"]["size"] = 0


def set_to(*location: str | int, value: Any) -> Callable[[Record], None]:
    return lambda manifest: mutants.put(manifest, location, value)


def moved_back(manifest: Record) -> None:
    for kernel in manifest["kernels"]:
        kernel["manifest"]["obligations"] = []


def repeated(manifest: Record) -> None:
    manifest["texts"]["proofs"] *= 2


def unused(manifest: Record) -> None:
    manifest["texts"]["proofs"].append({"sha256": "f" * 64, "size": 0})


def left_out(manifest: Record) -> None:
    del manifest["kernels"][0]["proofs"]


def of_the_older_format(manifest: Record) -> None:
    del manifest["texts"]["proofs"]
    for kernel in manifest["kernels"]:
        del kernel["proofs"]
    moved_back(manifest)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (moved_back, "its obligations are in its manifest and apart from it"),
        (repeated, "texts.proofs: unsorted, or one is repeated"),
        (unused, "its proofs are not those of its kernels"),
        (left_out, "kernels[0]: not an object with"),
        (of_the_older_format, "texts: not an object with entries, proofs, size"),
        (without_its_size, "texts: their sizes are invalid"),
        (set_to("texts", "proofs", value={}), "texts.proofs: not a list"),
        (set_to("texts", "proofs", 0, "size", value=-1), "texts.proofs[0].size: not a size"),
        (set_to("texts", "proofs", 0, "size", value=MAX_PROOFS + 1), "texts: their sizes are invalid"),
        (set_to("texts", "proofs", 0, "size", value=MAX_PROOFS), "its texts are not as long as its manifest says"),
        (set_to("texts", "proofs", 0, "size", value=1), "does not match its digest"),
        (set_to("kernels", 0, "proofs", value="0" * 64), "its proofs are not those of its kernels"),
        (set_to("kernels", 0, "proofs", value="../x"), "kernels[0].proofs: '../x' is not allowed"),
        (set_to("kernels", 0, "proofs", value=None), "kernels[0].proofs: None is not allowed"),
    ],
)
def test_references_that_do_not_fit(path: Path, change: Callable[[Record], None], words: str) -> None:
    assert words in refusal(path, with_texts(path.read_bytes(), change))


def test_the_format_of_the_header_decides(path: Path) -> None:
    """What one format has is not read as the other."""
    for data, other in ((samples.with_proofs_apart(), WITH_OBLIGATIONS), (samples.bundle(), FORMAT)):
        changed = data[:8] + other.to_bytes(4, "little") + data[12:-TRAILER]
        assert "texts: not an object with" in refusal(path, mutants.sealed(changed))


def test_a_stream_that_expands_to_more_than_it_states(path: Path) -> None:
    """However much a few bytes expand to, no more is decompressed than the manifest states, nor a dictionary of more than the
    limit allocated."""
    bomb = lzma.compress(bytes(64 << 20), format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE)
    huge = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 29}]
    with_dictionary = lzma.compress(b"[]", format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE, filters=huge)
    size = 1 << 20
    digest = hashlib.sha256(bytes(size)).hexdigest()

    def change(manifest: Record) -> None:
        manifest["texts"]["proofs"] = [{"sha256": digest, "size": size}]
        for kernel in manifest["kernels"]:
            kernel["proofs"] = digest

    for stream in (bomb, with_dictionary):
        data = with_texts(path.read_bytes(), change, stream)
        tracemalloc.start()
        try:
            start = time.process_time()
            refusal(path, data)
            assert time.process_time() - start < 20
            assert tracemalloc.get_traced_memory()[1] < 16 << 20  # what is stated several times, and the 8 MiB dictionary
        finally:
            tracemalloc.stop()
        path.write_bytes(samples.with_proofs_apart())


def test_proofs_leave_the_rest_of_the_stream_compressed() -> None:
    proofs = {hashlib.sha256(text).hexdigest(): text for text in (b"[1]", b"[2]")}
    texts = {hashlib.sha256(text).hexdigest(): text for text in (bytes(1 << 20), b"x")}
    stream = compress(texts, proofs)
    assert stream == compress(dict(reversed(texts.items())), dict(reversed(proofs.items())))
    first = [(digest, len(proofs[digest])) for digest in sorted(proofs)]
    rest = [(digest, len(texts[digest])) for digest in sorted(texts)]
    assert bundle_format.expand(stream, first, whole=False) == proofs
    assert bundle_format.expand(stream, first + rest) == proofs | texts
    for entries in (first, rest + first, first[:1] + rest):
        with pytest.raises(ValueError, match=r"not as long|does not match"):
            bundle_format.expand(stream, entries)
