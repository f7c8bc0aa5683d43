"""Opens a bundle: every CUBIN and contract that one model needs on one architecture, checked whole before any of it is used.

`open_bundle` maps the file and refuses it (`BundleError`) unless every byte is what `bundle_format` says: sizes are compared
with the file's before anything is allocated, the digest over all and the digest of every blob are computed, every value is of
its type and within its bounds, and no name can be taken for a path. Nothing of it is executed or unpickled. A digest shows
that a bundle is whole, not who made it: compare `Bundle.digest` with one that came another way, or pass it to `open_bundle`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
import struct
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tilec.artifact import Manifest
from tilec.bundle_format import FORMAT, HEADER, MAGIC, MAX_BLOBS, MAX_FILE, MAX_MANIFEST, TRAILER, Header, expand
from tilec.runtime.bundle_manifest import Blob, BundledKernel, Contents, read_contents
from tilec.runtime.device import Device
from tilec.runtime.errors import BundleError
from tilec.runtime.kernel import Kernel

ELF_CUDA: Final = 190
"""`e_machine` of a CUBIN, and below where `e_flags` holds the architecture (LLVM, include/llvm/BinaryFormat/ELF.h)."""
ELF_ABI_SM_IN_BYTE_1: Final = 8

TEXTS: Final = ("tir", "ptx")
"""The digests of a manifest whose texts a bundle carries."""


class Bundle:
    """A verified bundle. `digest` is the hex sha256 over all, `size` the file's bytes, `config` the model's numbers that the
    closed world was enumerated from. Close it, or use it in a `with`; kernels that were loaded stay loaded. Replace a bundle
    that may be open by renaming another over it, as `pack` does: cutting off a file that is mapped ends its readers."""

    def __init__(self, path: Path, data: mmap.mmap, contents: Contents, offset: int, digest: str) -> None:
        self.path = path
        self.model = contents.model
        self.arch = contents.arch
        self.config: Mapping[str, int | float | bool | str] = contents.config
        self.kernels: tuple[BundledKernel, ...] = contents.kernels
        self.blobs: Mapping[str, Blob] = contents.blobs
        self.digest = digest
        self.size = len(data)
        self._texts = contents.texts
        self._by_name = {kernel.name: kernel for kernel in contents.kernels}
        self._data = data
        self._offset = offset

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap the file."""
        self._data.close()

    def kernel(self, name: str) -> BundledKernel:
        """The kernel of an artifact's name, such as `rms_norm-E=bf16-H=1024`; BundleError E0707."""
        found = self._by_name.get(name)
        if found is None:
            raise BundleError("E0707", f"`{self.path}` has no kernel `{name:.80}`")
        return found

    def find(self, kernel: str, **constants: int | float | bool | str) -> BundledKernel:
        """The only specialisation of `kernel` that has these constants among its own; BundleError E0707 for none or several."""
        found = [
            one
            for one in self.kernels
            if one.manifest.kernel == kernel
            and all(name in one.manifest.constants and one.manifest.constants[name] == constants[name] for name in constants)
        ]
        if len(found) != 1:
            wanted = ", ".join([f"`{kernel:.80}`", *(f"{name} = {value}" for name, value in constants.items())])
            names = " and ".join(f"`{one.name}`" for one in found[:2])
            reason = f"has several for {wanted}: {names}" if found else f"has no kernel for {wanted}"
            raise BundleError("E0707", f"`{self.path}` {reason}")
        return found[0]

    def cubin(self, kernel: BundledKernel | str) -> bytes:
        """A copy of a kernel's CUBIN, compared with its digest again: the file may have changed since it was opened."""
        one = self.kernel(kernel) if isinstance(kernel, str) else kernel
        blob = self.blobs[one.blob]
        data = self._data[self._offset + blob.offset : self._offset + blob.offset + blob.size]
        if hashlib.sha256(data).hexdigest() != one.blob:
            raise BundleError("E0705", f"`{self.path}` was changed while it was open")
        return data

    def texts(self) -> dict[str, bytes]:
        """Tile IR and PTX of all kernels by hex sha256, which `manifest.digests` has as `tir` and `ptx`. They are expanded and
        compared with their digests here, not when a bundle is opened; BundleError E0705 where one is not what it must be."""
        start = self._offset + self._texts.offset
        try:
            found = expand(self._data[start : start + self._texts.size], self._texts.entries)
        except ValueError as error:
            raise BundleError("E0705", f"`{self.path}` is damaged: {error}") from None
        named = {kernel.manifest.digests.get(name, "") for kernel in self.kernels for name in TEXTS}
        if found.keys() - named:
            raise BundleError("E0705", f"`{self.path}` is damaged: it has a text that no kernel names")
        return found

    def load(self, kernel: BundledKernel | str, device: Device) -> Kernel:
        """The kernel on a device; LaunchError E0902 where the device is of another architecture."""
        one = self.kernel(kernel) if isinstance(kernel, str) else kernel
        return Kernel(one.manifest, self.cubin(one), device)


def open_bundle(path: str | Path, *, arch: str | None = None, digest: str | None = None) -> Bundle:
    """Map and verify a bundle. `arch` is the exact architecture it must be for, `digest` the hex sha256 it must have.

    BundleError: E0703 cannot be read, E0704 no bundle or another format, E0705 damaged, E0706 another architecture.
    """
    place = Path(path)
    with ExitStack() as stack:
        data = _mapped(place)
        stack.callback(data.close)
        try:
            header = _header(data)
            found = hashlib.sha256(memoryview(data)[:-TRAILER]).digest()
            if found != data[-TRAILER:]:
                raise ValueError("its digest is not that of its bytes")
            manifest = data[header.manifest_offset : header.manifest_offset + header.manifest_size]
            contents = read_contents(manifest, header)
            for blob in contents.blobs.values():
                start = header.blobs_offset + blob.offset
                if hashlib.sha256(memoryview(data)[start : start + blob.size]).hexdigest() != blob.sha256:
                    raise ValueError(f"blob {blob.sha256[:12]} is not the one of its digest")
            for kernel in contents.kernels:
                blob = contents.blobs[kernel.blob]
                start = header.blobs_offset + blob.offset
                _check_image(data[start : start + blob.size], kernel.name, kernel.manifest)
            if not _gaps_are_zero(data, header, contents):
                raise ValueError("there are bytes between its blobs")
        except BundleError as error:
            raise BundleError(error.code, f"`{path}` {error.message}") from None
        except ValueError as error:
            raise BundleError("E0705", f"`{path}` is damaged: {error}"[:500]) from None
        if digest is not None and found.hex() != digest.lower():
            raise BundleError("E0705", f"`{path}` is not the bundle asked for: its sha256 is {found.hex()}, not {digest:.64}")
        if arch is not None and contents.arch != arch:
            raise BundleError("E0706", f"`{path}` is for `{contents.arch}`, not for `{arch:.20}`")
        bundle = Bundle(place, data, contents, header.blobs_offset, found.hex())
        stack.pop_all()
    return bundle


def _mapped(path: Path) -> mmap.mmap:
    """The file as read-only memory."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe must not make us wait
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise BundleError("E0703", f"`{path}` is not a file")
            if not HEADER.size + TRAILER <= status.st_size <= MAX_FILE:
                raise BundleError("E0704", f"`{path}` is not a bundle: {status.st_size} bytes")
            return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise BundleError("E0703", f"`{path}` cannot be read: {reason}") from None


def _header(data: mmap.mmap) -> Header:
    magic, *fields = HEADER.unpack(data[: HEADER.size])
    if magic != MAGIC:
        raise BundleError("E0704", "is not a bundle")
    header = Header(*fields)
    if header.format != FORMAT:
        raise BundleError("E0704", f"has format {header.format}; this tilec reads format {FORMAT}")
    if header.file_size != len(data):
        raise ValueError(f"{len(data)} bytes where its header says {header.file_size}")
    if header.manifest_size > min(MAX_MANIFEST, len(data) - HEADER.size - TRAILER) or header.blobs > MAX_BLOBS:
        raise ValueError("its header asks for more than a bundle may hold")
    if header.manifest_offset != HEADER.size or data[: HEADER.size] != header.encode():
        raise ValueError("its header is not the one of this format")
    return header


def _gaps_are_zero(data: mmap.mmap, header: Header, contents: Contents) -> bool:
    at = header.manifest_offset + header.manifest_size
    for blob in contents.blobs.values():
        start = header.blobs_offset + blob.offset
        if any(data[at:start]):
            return False
        at = start + blob.size
    if contents.texts.size:
        start = header.blobs_offset + contents.texts.offset
        if any(data[at:start]):
            return False
        at = start + contents.texts.size
    return at == header.file_size - TRAILER


def _check_image(image: bytes, name: str, manifest: Manifest) -> None:
    """Refuse an image that is no CUBIN of the manifest's architecture with its entry."""
    if len(image) < 64 or image[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<H", image, 18)[0] != ELF_CUDA:
        raise ValueError(f"the code of `{name}` is no CUBIN")
    flags: int = struct.unpack_from("<I", image, 48)[0]
    built_for = flags >> 8 & 0xFF if image[8] >= ELF_ABI_SM_IN_BYTE_1 else flags & 0xFF
    if f"sm_{built_for}a" != manifest.arch:
        raise ValueError(f"the code of `{name}` is for sm_{built_for}, not for {manifest.arch}")
    if f"\0.text.{manifest.entry}\0".encode() not in image:
        raise ValueError(f"the code of `{name}` has no entry `{manifest.entry}`")
