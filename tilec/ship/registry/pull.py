"""Pulls bundles from a registry into files; every byte is verified to be as pushed.

A bundle is assembled in a temporary file next to its destination, from blobs that were compared with their digests. The whole
file is compared with the digest in the index, then validated by `check` (from the caller: `tilec.runtime.open_bundle` under the
user's policy), and only then renamed. Its sidecar is renamed first, so that a bundle is never without its attestations. Blobs
shared by two bundles are fetched once. A refused bundle does not affect the others in its index: they are pulled, and the
caller is informed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from tilec.artifact.bundle_format import HEADER, MAX_MANIFEST, SUFFIX, TRAILER
from tilec.artifact.bundle_format import MODEL as MODEL_NAME
from tilec.artifact.signature_format import MAX_SIDECAR, sidecar_path
from tilec.ship.registry import oci
from tilec.ship.registry.client import Client
from tilec.ship.registry.errors import RegistryError, foreign
from tilec.ship.registry.oci import Descriptor, Document
from tilec.ship.registry.parts import Frame, frame_of, is_for
from tilec.untrusted.folder import Folder
from tilec.untrusted.strict_json import parse
from tilec.untrusted.temporary_files import locked, temporary_name

MAX_CONFIG: Final = 1 << 14
"""Maximum bytes of a model's numbers in an annotation."""
MAX_REFERRERS: Final = 16
"""Maximum number of sidecars fetched per bundle: those pushed last."""
PIECE: Final = 1 << 20
MAX_NAME: Final = 80
"""Maximum characters of a model's name in a message."""

Check = Callable[[Path, str], None]
"""Validates a complete file for an architecture; it may raise any exception for the caller of `pull`."""
OF_ONE: Final = ("E0732", "E0734")
"""Error codes that concern one bundle of an index, after which the next one can be tried."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A filter for the bundles of an index; empty selects all. `numbers` are a model's configuration (`parts.is_for`)."""

    arch: str = ""
    model: str = ""
    numbers: Mapping[str, Any] | None = None

    def fits(self, one: Descriptor) -> bool:
        """Whether a descriptor in an index matches. `artifactType` may be empty: older tools drop it when they copy indexes."""
        stated = one.annotations
        bundle = one.media_type == oci.MANIFEST and one.artifact_type in ("", *oci.BUNDLES.values())
        kind = bundle and {oci.MODEL, oci.ARCH} <= stated.keys()
        named = self.arch in ("", stated.get(oci.ARCH)) and self.model in ("", stated.get(oci.MODEL))
        return kind and named and (self.numbers is None or _is_for(stated.get(oci.CONFIG, ""), self.numbers))


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pulled bundle: its path, and whether attestations came with it."""

    path: Path
    model: str
    arch: str
    sha256: str
    manifest: str
    attested: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A bundle of an index that was skipped, as described by the index, and the error: from `check`, or a RegistryError."""

    model: str
    arch: str
    manifest: str
    error: Exception


def pull(
    client: Client, wanted: Wanted, folder: Path, check: Check, *, refusals: tuple[type[Exception], ...] = (),
    report_refused: Callable[[Refused], None] | None = None,
) -> list[Pulled]:  # fmt: skip
    """Pull every matching bundle into `folder`, named `MODEL-ARCH.bundle`. Raises RegistryError as `Client`, E0734 if there is
    no match, OSError if a file cannot be written. One deadline, derived from the fetched sizes, covers the whole pull.
    `refusals` are the exception types by which `check` refuses a bundle. `report_refused` receives each refused bundle if
    another one was pulled; if all were refused, the first refusal is raised."""
    with client.together(oci.MAX_DOCUMENT):
        found, refused = _pull(client, wanted, folder, check, refusals)
    if not found:
        raise refused[0].error
    if report_refused is not None:
        for one in refused:
            report_refused(one)
    return found


def _pull(
    client: Client, wanted: Wanted, folder: Path, check: Check, refusals: tuple[type[Exception], ...]
) -> tuple[list[Pulled], list[Refused]]:  # fmt: skip
    reference = client.reference
    top = client.document(reference.digest or reference.tag or "latest")
    listed = top.descriptor.media_type == oci.INDEX
    chosen = _distinct([one for one in (top.layers if listed else (top.descriptor,)) if wanted.fits(one)], str(reference))
    if not chosen:
        raise RegistryError("E0734", f"`{reference}` has no bundle{_wanted_text(wanted)}", _available_bundles(top))
    folder.mkdir(parents=True, exist_ok=True)
    shared: dict[str, tuple[Path, int]] = {}
    found, refused = list[Pulled](), list[Refused]()
    for one in chosen:  # sequentially: each may be large
        try:
            found.append(_pull_one(client, _agreed(client, one) if listed else top, folder, check, shared))
        except (RegistryError, *refusals) as error:
            if isinstance(error, RegistryError) and error.code not in OF_ONE:
                raise
            model, arch = (foreign(one.annotations[name], MAX_NAME) for name in (oci.MODEL, oci.ARCH))
            refused.append(Refused(model, arch, one.digest, error))
    return found, refused


def _agreed(client: Client, stated: Descriptor) -> Document:
    """The manifest of a descriptor in an index; E0732 unless both agree."""
    client.expect(stated.size)
    found = client.document(stated.digest, stated)
    if found.descriptor.artifact_type not in oci.BUNDLES.values() or found.descriptor.annotations != stated.annotations:
        raise client.invalid_response(f"its manifest {stated.digest[:19]} differs from its entry in the index")
    return found


def _distinct(chosen: Sequence[Descriptor], where: str) -> Sequence[Descriptor]:
    names = [(one.annotations.get(oci.MODEL), one.annotations.get(oci.ARCH)) for one in chosen]
    if len(set(names)) < len(names):
        raise RegistryError("E0732", f"`{where}` has several bundles for one model and architecture")
    return chosen


def _is_for(text: str, numbers: Mapping[str, Any]) -> bool:
    try:
        config = parse(text.encode(), limit=MAX_CONFIG)
    except ValueError:
        return False
    return isinstance(config, dict) and is_for(cast("dict[str, Any]", config), numbers)


def _wanted_text(wanted: Wanted) -> str:
    conditions = [f"of the model `{wanted.model}`"] if wanted.model else []
    conditions += ["of a model with these numbers"] if wanted.numbers is not None else []
    conditions += [f"for `{wanted.arch}`"] if wanted.arch else []
    return "".join(f" {condition}" for condition in conditions)


def _available_bundles(top: Document) -> str:
    listed = top.layers if top.descriptor.media_type == oci.INDEX else (top.descriptor,)
    stated = [one.annotations for one in listed if Wanted().fits(one)]
    names = [f"{known.get(oci.MODEL, '?')} for {known.get(oci.ARCH, '?')}" for known in stated]
    return foreign(f"it has {', '.join(names[:20])}") if names else ""


def _pull_one(
    client: Client, document: Document, folder: Path, check: Check, shared: dict[str, tuple[Path, int]]
) -> Pulled:  # fmt: skip
    annotations, digest = document.descriptor.annotations, document.descriptor.digest
    model, arch, sha256 = (annotations.get(name, "") for name in (oci.MODEL, oci.ARCH, oci.SHA256))
    name = f"{model}-{arch}{SUFFIX}"
    if not MODEL_NAME.fullmatch(model) or not MODEL_NAME.fullmatch(arch):
        raise client.invalid_response(f"its manifest {digest[:19]} names no model and architecture")
    client.expect(sum(one.size for one in (document.config, *document.layers) if one is not None))
    frame = _frame(client, document)
    path = folder / name
    with _temporary(path) as temporary, contextlib.ExitStack() as locks:
        file = locks.enter_context(locked(temporary))
        offsets = _write(client, document, frame, file.fileno(), shared)
        if _seal(file.fileno(), frame.size) != sha256:
            raise client.invalid_response(
                f"the bundle of its manifest {digest[:19]} has another sha256 than the manifest states"
            )
        os.fsync(file.fileno())
        attestations = _attestations(client, digest)
        if attestations:
            _write_at(locks.enter_context(locked(sidecar_path(temporary))).fileno(), 0, attestations)
        check(temporary, arch)
        if attestations:
            sidecar_path(temporary).replace(sidecar_path(path))
        else:
            sidecar_path(path).unlink(missing_ok=True)  # left over from an earlier bundle of this name
        temporary.replace(path)
    shared.update({blob: (path, offset) for blob, offset in offsets.items()})
    return Pulled(path, model, arch, sha256, digest, bool(attestations))


def _frame(client: Client, document: Document) -> Frame:
    """The frame of the bundle; E0732 if the layers do not match the bundle's own manifest."""
    config = document.config
    assert config is not None  # `document` is a manifest
    if config.media_type not in oci.BUNDLE_MANIFESTS.values() or config.size > MAX_MANIFEST:
        raise client.invalid_response(f"its manifest {document.descriptor.digest[:19]} has no bundle's manifest")
    try:
        frame = frame_of(client.blob(config))
    except ValueError as error:
        raise client.invalid_response(f"the manifest of its bundle: {error}") from None
    if config.media_type != oci.BUNDLE_MANIFESTS[frame.form]:
        raise client.invalid_response(f"its manifest {document.descriptor.digest[:19]} names another format than its bundle's")
    expected = [
        (oci.CUBIN, f"sha256:{one.sha256}", one.size) if one.sha256 else (oci.TEXTS, "", one.size) for one in frame.pieces
    ]
    given = [(one.media_type, one.digest if one.media_type == oci.CUBIN else "", one.size) for one in document.layers]
    if expected != given or document.descriptor.annotations.get(oci.CONFIG) != frame.config:
        raise client.invalid_response(f"its manifest {document.descriptor.digest[:19]} names other blobs than the bundle in it")
    return frame


def _write(
    client: Client, document: Document, frame: Frame, file: int, shared: dict[str, tuple[Path, int]]
) -> dict[str, int]:  # fmt: skip
    """Write everything except the trailer; returns the offset of each blob by digest."""
    os.ftruncate(file, frame.size)
    _write_at(file, 0, frame.front)
    offsets: dict[str, int] = {}
    for piece, layer in zip(frame.pieces, document.layers, strict=True):
        known = shared.get(layer.digest)
        data = _kept(known, layer) if known is not None else None
        if data is not None:
            _write_at(file, piece.offset, data)
        else:
            client.fetch(layer, lambda offset, data, start=piece.offset: _write_at(file, start + offset, data))
        offsets[layer.digest] = piece.offset
    return offsets


def _write_at(file: int, offset: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


def _kept(source: tuple[Path, int], wanted: Descriptor) -> bytes | None:
    """A blob from an earlier bundle of this pull; None if that file was replaced or changed in the meantime."""
    path, offset = source
    with contextlib.suppress(OSError), contextlib.closing(Folder.open(path.parent)) as folder:
        handle, _ = folder.open_plain(path.name)
        with open(handle, "rb", buffering=0) as other:
            data = os.pread(other.fileno(), wanted.size, offset)
            if f"sha256:{hashlib.sha256(data).hexdigest()}" == wanted.digest:
                return data
    return None


def _seal(file: int, size: int) -> str:
    """Write the trailer; returns the sha256 of the file."""
    total, offset, end = hashlib.sha256(), 0, size - TRAILER
    assert end >= HEADER.size
    while offset < end:
        part = os.pread(file, min(PIECE, end - offset), offset)
        if not part:
            break
        total.update(part)
        offset += len(part)
    trailer = total.digest()
    _write_at(file, end, trailer)
    total.update(trailer)
    return total.hexdigest()


def _attestations(client: Client, subject: str) -> bytes:
    """All distinct lines of the sidecars that refer to a manifest. They are not verified here: a policy does that, and refuses
    a bundle with an invalid signature by a key it trusts. Each sidecar is fetched once, and their total size is limited to that
    of one sidecar."""
    stated = {one.digest: one for one in client.referrers(subject) if one.artifact_type in ("", oci.ATTESTATIONS)}
    last = list(stated.values())[-MAX_REFERRERS:]
    remaining = _left(client, MAX_SIDECAR, last, subject)
    client.expect(oci.MAX_DOCUMENT + sum(one.size for one in last))
    layers: dict[str, Descriptor] = {}
    for document in [client.document(one.digest, one) for one in last]:
        if document.descriptor.artifact_type == oci.ATTESTATIONS:
            layers |= {one.digest: one for one in document.layers if one.media_type == oci.ATTESTATIONS}
    _left(client, remaining, layers.values(), subject)
    client.expect(sum(one.size for one in layers.values()))
    lines: dict[bytes, None] = {}
    single = b""
    for layer in layers.values():
        data = client.blob(layer)
        single = data if not lines else b""
        lines.update(dict.fromkeys(line for line in data.split(b"\n") if line.strip()))
    return single or b"".join(line + b"\n" for line in lines)  # a single sidecar is returned unchanged


def _left(client: Client, room: int, wanted: Collection[Descriptor], subject: str) -> int:
    """The remaining byte budget after these attestations; E0732 if they exceed it, or are too many."""
    remaining = room - sum(one.size for one in wanted)
    if remaining < 0 or len(wanted) > MAX_REFERRERS:
        raise client.invalid_response(
            f"it has more than {MAX_SIDECAR} bytes of attestations for {subject[:19]}, or more than {MAX_REFERRERS} of them",
        )
    return remaining


@contextlib.contextmanager
def _temporary(path: Path) -> Generator[Path]:
    """A temporary name; a file of that name, and its sidecar, are removed at the end if they still exist."""
    name = temporary_name(path)
    try:
        yield name
    finally:
        name.unlink(missing_ok=True)
        sidecar_path(name).unlink(missing_ok=True)
