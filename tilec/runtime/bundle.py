"""Opens a bundle: all CUBINs and contracts that one model needs on one architecture, or those of some kernels without a model,
verified whole before any of it is used.

`open_bundle` reads the file once and refuses it (`BundleError`) unless every byte conforms to `bundle_format`: sizes are
compared with the file's before anything is allocated, the digest of the file and of every blob are computed, every value has
its type and bounds, and no name is a path. Nothing in it is executed or unpickled. Checks and later uses share one copy in
memory, so the file cannot be changed in between. Each blob is parsed once, however many kernels refer to it.

A bundle's digest is the sha256 of the whole file, as `sha256sum FILE` prints it. It proves integrity, not origin. For the
origin, get the digest from the packer over a separate channel and pass it to `open_bundle`, which compares it first. Or use a
policy (`tilec.runtime.trust`) that names the keys of the packers you trust: then the signatures in the sidecar file, which
cover that digest, are verified before anything else is parsed (`tilec.runtime.signatures`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tilec.artifact.bundle_format import (
    FORMATS,
    HEADER,
    MAGIC,
    MAX_BLOBS,
    MAX_FILE,
    MAX_MANIFEST,
    TRAILER,
    Header,
    expand,
    model_digest,
)
from tilec.artifact.cubin_image import Image, check_image, read_image
from tilec.ir.aligned import ALIGNED
from tilec.runtime.bundle_manifest import Blob, BundledKernel, Contents, Decode, read_contents, with_proofs
from tilec.runtime.device import Device
from tilec.runtime.errors import BundleError
from tilec.runtime.kernel import Kernel
from tilec.runtime.trust_location import find_trust
from tilec.step.caches import CACHE_FORMAT
from tilec.step.formats import SIXTEEN_BIT, WEIGHT_FORMAT
from tilec.step.ranks import GPUS
from tilec.step.reader import decode_declaration
from tilec.target.chips import running_on
from tilec.untrusted.regular_file import read_regular

if TYPE_CHECKING:
    from tilec.runtime.signatures import Signed, Vouchers
    from tilec.runtime.trust import Trust, TrustSource

TEXTS: Final = ("tir", "ptx")
"""The digests of a manifest whose texts are in the bundle."""

DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)


class Bundle:
    """A verified bundle. `digest` is the hex sha256 of the whole file, `size` its bytes, `config` the model parameters that the
    set of kernels was enumerated from. It keeps a copy of the file in memory; `close` (or the end of a `with`) frees that.
    Loaded kernels stay loaded."""

    def __init__(
        self, path: Path, data: bytes, contents: Contents, offset: int, digest: str, signed: Signed | None
    ) -> None:  # fmt: skip
        self.path = path
        self.signed = signed
        """The keys that signed the bundle; None if no policy applied."""
        self.model = contents.model
        self.arch = contents.arch
        self.config: Mapping[str, int | float | bool | str] = contents.config
        self.declaration = contents.declaration
        """The step declaration of the model's family, from which its graphs are made; see `has_step`."""
        self.tuning, self.tables = contents.tuning, contents.tables
        """Measured tuning of that step, and the raw tables with their provenance."""
        self.kernels: tuple[BundledKernel, ...] = contents.kernels
        self.blobs: Mapping[str, Blob] = contents.blobs
        self.digest = digest
        self.size = len(data)
        self._texts = contents.texts
        self._by_name = {kernel.name: kernel for kernel in contents.kernels}
        self._data: bytes | None = data
        self._offset = offset

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the copy of the file; kernel metadata stays available."""
        self._data = None

    def _open_data(self) -> bytes:
        if self._data is None:
            raise ValueError(f"the bundle `{self.path}` is closed")
        return self._data

    def _bytes(self, offset: int, size: int) -> bytes:
        """`size` bytes at an offset from the first blob; ValueError if the bundle is closed."""
        start = self._offset + offset
        return self._open_data()[start : start + size]

    @property
    def has_step(self) -> bool:
        """Whether its step launches anything. A bundle of kernels without a model has a step whose modes are empty: it can be
        audited, qualified and launched from, but there is nothing in it for an engine to run."""
        return not self.declaration.is_empty

    @property
    def weight_format(self) -> str:
        """The format of the linear weights that its kernels take: `16bit`, or one that its step declares."""
        return str(self.config.get(WEIGHT_FORMAT, SIXTEEN_BIT))

    @property
    def cache_format(self) -> str:
        """The format of the caches that its kernels take: `16bit`, or one that its step declares."""
        return str(self.config.get(CACHE_FORMAT, SIXTEEN_BIT))

    @property
    def gpus(self) -> int:
        """How many GPUs share the step that its kernels are for."""
        return int(self.config.get(GPUS, 1))

    @property
    def model_digest(self) -> str:
        """Hex sha256 of the model's numbers and step, which a trust policy uses to identify the model."""
        return model_digest(self.config, self.declaration.syntax)

    @property
    def format(self) -> int:
        """The format of the file; ValueError if the bundle is closed."""
        return _header(self._open_data()).format

    @property
    def manifest_text(self) -> bytes:
        """The text of the bundle's manifest; ValueError if the bundle is closed."""
        data = self._open_data()
        header = _header(data)
        return data[header.manifest_offset : header.manifest_offset + header.manifest_size]

    def kernel(self, name: str) -> BundledKernel:
        """The kernel with an artifact's name, such as `rms_norm-E=bf16-H=1024`; BundleError E0707 if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise BundleError("E0707", f"`{self.path}` has no kernel `{name:.80}`")
        return found

    def find(self, kernel: str, **constants: int | float | bool | str) -> BundledKernel:
        """The unique specialisation of `kernel` whose constants include these; BundleError E0707 for none or several. The
        aligned version of one is found only if its own constant (`tilec.ir.aligned`) is among these."""
        matches = [
            candidate
            for candidate in self.kernels
            if candidate.manifest.kernel == kernel
            and (ALIGNED in constants or ALIGNED not in candidate.manifest.constants)
            and all(
                name in candidate.manifest.constants and candidate.manifest.constants[name] == constants[name]
                for name in constants
            )
        ]
        if len(matches) != 1:
            requested = ", ".join([f"`{kernel:.80}`", *(f"{name} = {value}" for name, value in constants.items())])
            names = " and ".join(f"`{candidate.name}`" for candidate in matches[:2])
            reason = f"has several for {requested}: {names}" if matches else f"has no kernel for {requested}"
            raise BundleError("E0707", f"`{self.path}` {reason}")
        return matches[0]

    def cubin(self, kernel: BundledKernel | str) -> bytes:
        """A kernel's CUBIN, from the copy that was compared with its digest."""
        bundled = self.kernel(kernel) if isinstance(kernel, str) else kernel
        blob = self.blobs[bundled.blob]
        return self._bytes(blob.offset, blob.size)

    def texts(self) -> dict[str, bytes]:
        """Tile IR and PTX of all kernels by hex sha256, which `manifest.digests` has as `tir` and `ptx`. They are decompressed
        and verified here, not when a bundle is opened; BundleError E0705 if one does not match its digest."""
        stream = self._bytes(self._texts.offset, self._texts.size)
        try:
            everything = expand(stream, (*self._texts.proofs, *self._texts.entries))
        except ValueError as error:
            raise BundleError("E0705", f"`{self.path}` is damaged: {error}") from None
        found = {digest: everything[digest] for digest, _ in self._texts.entries}
        named_digests = {kernel.manifest.digests.get(name, "") for kernel in self.kernels for name in TEXTS}
        if found.keys() - named_digests:
            raise BundleError("E0705", f"`{self.path}` is damaged: no kernel uses one of its texts")
        return found

    def proofs(self) -> dict[str, bytes]:
        """The proofs of all kernels as texts by hex sha256, which a kernel has as `proofs`; empty in a bundle of format 3.
        BundleError E0705 if one does not match its digest."""
        try:
            return expand(self._bytes(self._texts.offset, self._texts.size), self._texts.proofs, whole=False)
        except ValueError as error:
            raise BundleError("E0705", f"`{self.path}` is damaged: {error}") from None

    def load(self, kernel: BundledKernel | str, device: Device) -> Kernel:
        """Load the kernel on a device; LaunchError E0902 if the device has another architecture."""
        bundled = self.kernel(kernel) if isinstance(kernel, str) else kernel
        return Kernel(bundled.manifest, self.cubin(bundled), device)


def open_bundle(
    path: str | Path, *, arch: str | None = None, chip: str | None = None, digest: str | None = None, trust: TrustSource = None,
    proofs: bool = True, decode: Decode = decode_declaration,
) -> Bundle:  # fmt: skip
    """Read and verify a bundle. `arch` is the exact architecture that it must be built for, `chip` the own architecture of a
    device that must run its code (`Device.architecture`), `digest` the hex sha256 that the whole file must have. `trust` is the
    policy that names who must have signed it: a `Trust`, a policy file, `none`, or None for the policy of the environment and
    the user's configuration (`find_trust`).

    Without `proofs`, the record of the proofs is not read: manifests have no obligations, which no launch needs, and opening
    takes less time. The digest of the file covers them either way.

    `decode` makes a declaration of the step's syntax, or raises StepError, as `tilec.step.reader.decode_declaration` does: a
    caller that has read the same step need not read it again.

    BundleError: E0703 cannot be read, E0704 not a bundle or another format, E0705 damaged or wrong digest, E0706 another
    architecture, E0714 not signed as the policy requires, E0715 no valid policy, E0717 no package that verifies signatures.
    """
    file_path = Path(path)
    policy = find_trust(trust)
    data = _read(file_path)
    try:
        file_digest = hashlib.sha256(memoryview(data)[:-TRAILER])
        trailer_matches = file_digest.digest() == data[-TRAILER:]
        file_digest.update(data[-TRAILER:])
        if digest is not None:
            _check_digest(file_digest.hexdigest(), digest)
        vouchers = _authenticate(file_path, file_digest.hexdigest(), policy)
        header = _header(data)
        if not trailer_matches:
            raise ValueError("its digest does not match its bytes")
        contents = read_contents(data[header.manifest_offset : header.manifest_offset + header.manifest_size], header, decode)
        _check_blobs(memoryview(data)[header.blobs_offset :], contents)
        if not _gaps_are_zero(data, header, contents):
            raise ValueError("there are bytes between its blobs")
        if proofs:
            contents = _with_proofs(contents, data, header)
    except _Refused as error:
        raise BundleError(error.code, f"`{path}` {error.message}") from None
    except ValueError as error:
        raise BundleError("E0705", f"`{path}` is damaged: {error}"[:500]) from None
    if arch is not None and contents.arch != arch:
        raise BundleError("E0706", f"`{path}` is for `{contents.arch}`, not for `{arch:.20}`")
    if chip is not None and contents.arch not in running_on(chip):
        raise BundleError("E0706", f"`{path}` is for `{contents.arch}`, which `{chip:.20}` does not run")
    model_parts = (contents.config, contents.declaration.syntax)
    signed = None if vouchers is None else vouchers.admit(contents.model, contents.arch, model_digest(*model_parts))
    return Bundle(file_path, data, contents, header.blobs_offset, file_digest.hexdigest(), signed)


class _Refused(BundleError):
    """A refusal whose message does not name the file yet."""


def _authenticate(path: Path, digest: str, policy: Trust | None) -> Vouchers | None:
    if policy is None:
        return None
    from tilec.runtime.signatures import authenticate

    return authenticate(path, digest, policy)


def _check_digest(actual: str, expected: str) -> None:
    if not DIGEST.fullmatch(expected):
        raise _Refused("E0705", f"has sha256 {actual}; the requested digest is not 64 hex digits: {expected!r:.80}")
    if actual != expected.lower():
        raise _Refused("E0705", f"is not the requested bundle: its sha256 is {actual}, not {expected.lower()}")


def _read(path: Path) -> bytes:
    """A copy of the file; BundleError E0703 or E0704."""

    def check(size: int, head: bytes) -> None:
        if not HEADER.size + TRAILER <= size <= MAX_FILE:
            raise BundleError("E0704", f"`{path}` is not a bundle: {size} bytes")
        if head[: len(MAGIC)] != MAGIC:  # checked first, so that no memory is allocated for another file
            raise BundleError("E0704", f"`{path}` is not a bundle")

    try:
        return read_regular(path, MAX_FILE, check)
    except OSError as error:
        raise BundleError("E0703", f"`{path}` cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise BundleError("E0703", f"`{path}` {error}") from None


def _header(data: bytes) -> Header:
    magic, *fields = HEADER.unpack(data[: HEADER.size])
    if magic != MAGIC:
        raise _Refused("E0704", "is not a bundle")
    header = Header(*fields)
    if header.format not in FORMATS:
        reads = f"this tilec reads formats {' and '.join(map(str, FORMATS))}"
        raise _Refused("E0704", f"has format {header.format}; {reads}; pack it again: `tilec bundle pack`")
    if header.file_size != len(data):
        raise ValueError(f"{len(data)} bytes where its header says {header.file_size}")
    if header.manifest_size > min(MAX_MANIFEST, len(data) - HEADER.size - TRAILER) or header.blobs > MAX_BLOBS:
        raise ValueError("its header exceeds the size limits of a bundle")
    if header.manifest_offset != HEADER.size or data[: HEADER.size] != header.encode():
        raise ValueError("its header does not follow the format")
    return header


def _check_blobs(blobs: memoryview, contents: Contents) -> None:
    """Hash each blob and parse its headers once; then check every kernel against the headers of its blob."""
    images: dict[str, Image] = {}
    kernel_of_blob = {kernel.blob: kernel.name for kernel in reversed(contents.kernels)}
    for digest, blob in contents.blobs.items():
        data = blobs[blob.offset : blob.offset + blob.size]
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"blob {digest[:12]} does not match its digest")
        try:
            images[digest] = read_image(data)
        except ValueError as error:
            raise ValueError(f"the code of `{kernel_of_blob[digest]}` {error}") from None
    for kernel in contents.kernels:
        try:
            check_image(images[kernel.blob], kernel.manifest.arch, kernel.manifest.entry)
        except ValueError as error:
            raise ValueError(f"the code of `{kernel.name}` {error}") from None


def _with_proofs(contents: Contents, data: bytes, header: Header) -> Contents:
    """The contents with the obligations of every kernel; ValueError if those are damaged or invalid."""
    texts = contents.texts
    start = header.blobs_offset + texts.offset
    found = expand(data[start : start + texts.size], texts.proofs, whole=False) if texts.proofs else {}
    return replace(contents, kernels=with_proofs(contents.kernels, found))


def _gaps_are_zero(data: bytes, header: Header, contents: Contents) -> bool:
    end = header.manifest_offset + header.manifest_size
    for blob in contents.blobs.values():
        start = header.blobs_offset + blob.offset
        if any(data[end:start]):
            return False
        end = start + blob.size
    if contents.texts.size:
        start = header.blobs_offset + contents.texts.offset
        if any(data[end:start]):
            return False
        end = start + contents.texts.size
    return end == header.file_size - TRAILER
