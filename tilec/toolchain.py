"""The packages that turn tile IR into a CUBIN: where they are, and a fingerprint of exactly these binaries.

The fingerprint is part of every cache key and every manifest, so it holds versions and the sha256 of the shared libraries
and tools. Hashing 400 MB takes a second, so digests are remembered by (path, size, mtime) in a small file.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tilec.diagnostics import CompileError, Diagnostic


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution of the toolchain, the module that holds it, and the binaries (globs below that module) that matter."""

    distribution: str
    module: str
    binaries: tuple[str, ...]
    extra: str = "compiler"


PACKAGES: Final = (
    Package("torch-mlir", "torch_mlir", ("_mlir_libs/libTorchMLIRAggregateCAPI.so", "_mlir_libs/_mlir.*.so")),
    Package("llvmlite", "llvmlite", ("binding/libllvmlite.so",)),
    Package("cuda-bindings", "cuda.bindings", ()),
    Package("nvidia-nvjitlink", "nvidia.cu13", ("lib/libnvJitLink.so.13",)),
)
PTXAS: Final = Package("nvidia-cuda-nvcc", "nvidia.cu13", ("bin/ptxas",))
NVDISASM: Final = Package("nvidia-cuda-nvdisasm", "nvidia.cu13", ("bin/nvdisasm",), extra="test")


def missing_package(distribution: str, extra: str = "compiler") -> CompileError:
    """The error for a package of the toolchain that is not installed."""
    return CompileError(Diagnostic("E0601", f"`{distribution}` is not installed", hint=f"run `pip install 'tilec[{extra}]'`"))


@cache
def _module_folder(module: str) -> Path | None:
    # Walking the parts by hand keeps `find_spec` from importing the parent packages, some of which take half a second.
    head, *rest = module.split(".")
    spec = importlib.util.find_spec(head)
    for location in spec.submodule_search_locations or () if spec else ():
        folder = Path(location, *rest)
        if folder.is_dir():
            return folder
    return None


def find_binaries(package: Package) -> tuple[Path, ...]:
    """The binaries of a package; CompileError E0601 where the package or one of them is missing."""
    folder = _module_folder(package.module)
    found: list[Path] = []
    for pattern in package.binaries:
        matches = sorted(folder.glob(pattern)) if folder else []
        if not matches:
            raise missing_package(package.distribution, package.extra)
        found.extend(matches)
    return tuple(found)


def find_ptxas() -> Path:
    """The stand-alone assembler; CompileError E0601 where it is not installed."""
    return find_binaries(PTXAS)[0]


def find_nvdisasm() -> Path:
    """The disassembler; CompileError E0601 where it is not installed."""
    return find_binaries(NVDISASM)[0]


def default_memo() -> Path:
    """Where digests are remembered: `TILEC_CACHE_DIR`, else the user's cache folder."""
    root = os.environ.get("TILEC_CACHE_DIR")
    base = Path(root) if root else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilec"
    return base / "toolchain.json"


def fingerprint(memo: Path | None = None) -> dict[str, str]:
    """Version and sha256 of every package of the toolchain by distribution name, the same on any path.

    `memo` is the file that remembers digests; an unreadable one is ignored, an unwritable one costs only time.
    Raises CompileError E0601, one diagnostic per missing package.
    """
    memo = memo or default_memo()
    known = _read_memo(memo)
    seen: dict[str, str] = {}
    result: dict[str, str] = {}
    missing: list[Diagnostic] = []
    for package in PACKAGES:
        try:
            version = importlib.metadata.version(package.distribution)
            digests = [_digest(path, known, seen) for path in find_binaries(package)]
        except importlib.metadata.PackageNotFoundError:
            missing.extend(missing_package(package.distribution, package.extra).diagnostics)
        except CompileError as error:
            missing.extend(error.diagnostics)
        else:
            result[package.distribution] = " ".join([version, *(f"sha256:{digest}" for digest in digests)])
    if missing:
        raise CompileError(missing)
    if seen:
        _write_memo(memo, known | seen)
    return result


def _digest(path: Path, known: dict[str, str], seen: dict[str, str]) -> str:
    status = path.stat()
    key = f"{path}|{status.st_size}|{status.st_mtime_ns}"
    if key not in known:
        with path.open("rb") as file:
            known[key] = hashlib.file_digest(file, "sha256").hexdigest()
        seen[key] = known[key]
    return known[key]


def _read_memo(memo: Path) -> dict[str, str]:
    try:
        data = json.loads(memo.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return dict(_entries(data))


def _entries(data: object) -> Iterator[tuple[str, str]]:
    if isinstance(data, dict):
        for key, value in data.items():  # pyright: ignore[reportUnknownVariableType]
            if isinstance(key, str) and isinstance(value, str) and len(value) == 64:
                yield key, value


def _write_memo(memo: Path, entries: dict[str, str]) -> None:
    try:
        memo.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=memo.parent, prefix=memo.name)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(entries, file, indent=0, sort_keys=True)
        Path(name).replace(memo)
    except OSError:
        return
