"""Tile IR and PTX in a bundle: stored exactly, damage found by `verify`, and not read by opening."""

from __future__ import annotations

import hashlib
import json
import lzma
import tracemalloc
from pathlib import Path

import pytest

from tests.bundle import mutants, samples
from tilec.artifact.bundle_format import MAX_TEXTS, TRAILER, canonical, compress, encode, expand
from tilec.cli import commands
from tilec.runtime import BundleError, open_bundle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "tiny-1b-sm_90a.bundle"
    file.write_bytes(samples.bundle())
    return file


def test_every_kernel_has_its_texts(path: Path) -> None:
    with open_bundle(path) as bundle:
        texts = bundle.texts()
        for kernel in bundle.kernels:
            digests = kernel.manifest.digests
            assert texts[digests["tir"]].startswith(b"kernel @" + kernel.name.encode())
            assert texts[digests["ptx"]].startswith(b".entry " + kernel.blob.encode())
    assert len(texts) == 3 + 2  # equal PTX is stored once


@pytest.mark.campaign
def test_a_stream_that_expands_to_more_than_it_states(path: Path) -> None:
    """However much a few bytes expand to, no more is decompressed than the manifest states, plus at most one wrong text."""
    bomb = lzma.compress(bytes(64 << 20), format=lzma.FORMAT_XZ, check=lzma.CHECK_NONE)
    assert len(bomb) < 20_000
    digest = hashlib.sha256(bytes(64 << 20)).hexdigest()
    for entries in ([("0" * 64, 10)], [("0" * 64, 1 << 20), ("1" * 64, 63 << 20)], [(digest, (64 << 20) - 1)]):
        tracemalloc.start()
        try:
            with pytest.raises(ValueError, match=r"does not match its digest|not as long"):
                expand(bomb, entries)
            # Blocks and their concatenation, and the 8 MiB dictionary that this stream requires.
            assert tracemalloc.get_traced_memory()[1] < 3 * entries[0][1] + (10 << 20)
        finally:
            tracemalloc.stop()
    assert expand(bomb, [(digest, 64 << 20)]) == {digest: bytes(64 << 20)}
    manifest = json.loads(mutants.split(path.read_bytes())[1])
    manifest["texts"]["entries"][0]["size"] = MAX_TEXTS
    path.write_bytes(mutants.with_manifest(path.read_bytes(), canonical(manifest)))
    with pytest.raises(BundleError, match="their sizes are invalid"):
        open_bundle(path)


def test_texts_are_a_function_of_their_content() -> None:
    texts = {hashlib.sha256(data).hexdigest(): data for data in (b"a" * 5000, b"b", b"")}
    stream = compress(texts)
    assert stream == compress(dict(reversed(texts.items())))
    assert len(stream) < 200
    assert expand(stream, [(digest, len(texts[digest])) for digest in sorted(texts)]) == texts


def test_a_changed_text_is_found_where_it_is_read(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = path.read_bytes()
    _, text, _ = mutants.split(data)
    manifest = json.loads(text)
    manifest["texts"]["entries"][0]["sha256"] = "00" * 32
    forged = tmp_path / "forged.bundle"
    forged.write_bytes(mutants.with_manifest(data, canonical(manifest)))
    with open_bundle(forged) as bundle, pytest.raises(BundleError) as caught:
        bundle.texts()
    assert "text 000000000000 does not match its digest" in caught.value.message
    assert commands.run(["bundle", "verify", str(forged)]) == 1
    assert "error[E0705]" in capsys.readouterr().err


def test_damaged_streams_are_refused(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    manifest = json.loads(mutants.split(data)[1])
    start = len(data) - TRAILER - manifest["texts"]["size"]
    broken = tmp_path / "broken.bundle"
    refused = 0
    for location in range(start, len(data) - TRAILER):
        changed = bytearray(data[:-TRAILER])
        changed[location] ^= 0x10
        broken.write_bytes(mutants.sealed(bytes(changed)))
        with open_bundle(broken) as bundle:
            try:
                assert bundle.texts()  # a byte without effect, such as padding
            except BundleError as error:
                refused += 1
                assert error.code == "E0705"
    assert refused > 0.9 * manifest["texts"]["size"]


def test_a_text_that_no_kernel_names_is_refused(tmp_path: Path) -> None:
    description, blobs = samples.parts()
    stray = tmp_path / "stray.bundle"
    stray.write_bytes(encode(description, blobs, {hashlib.sha256(b"x").hexdigest(): b"x"}))
    with open_bundle(stray) as bundle, pytest.raises(BundleError) as caught:
        bundle.texts()
    assert "no kernel uses" in caught.value.message


def test_sizes_that_cannot_be_are_refused(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    for location, value in ((("entries", 0, "size"), 1 << 40), (("size",), 0), (("entries",), [])):
        manifest = json.loads(mutants.split(data)[1])
        mutants.put(manifest, ("texts", *location), value)
        other = tmp_path / "other.bundle"
        other.write_bytes(mutants.with_manifest(data, canonical(manifest)))
        with pytest.raises(BundleError):
            open_bundle(other)
