"""The packages that prove kernels and compile tile IR to a CUBIN: their locations, and a fingerprint of exactly these files.

The fingerprint is part of cache keys: the version of each distribution and the sha256 of its modules and shared libraries,
since any of them can change a verdict or a product, and the version of Python, whose parser reads kernels. `stated` is the part
that a manifest records. Hashing half a gigabyte takes a second, so digests are cached by path, size, modification and change
time, inode and device: a write that restores the old modification time still updates the change time.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Protocol, cast

from tilec.diagnostics.diagnostic import CompileError, Diagnostic

SETTLED_NS = 50_000_000  # a file changed this recently may change again within one tick of the file system's clock


class Memory(Protocol):
    """Stores texts by name across processes, as a store's notes do."""

    def get_text(self, name: str) -> str | None:
        """The text of a name, or None."""
        ...

    def set_texts(self, notes: Mapping[str, str]) -> None:
        """Stores texts by name."""
        ...


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution of the toolchain and its module. The fingerprint covers the files that `binaries` (globs below the module)
    match, each at least once; without `binaries`, every Python module and shared library."""

    distribution: str
    module: str
    binaries: tuple[str, ...] = ()
    extra: str = "compiler"


PROVERS: Final = (
    Package("islpy", "islpy"),
    Package("numpy", "numpy"),
    Package("ml-dtypes", "ml_dtypes"),
)
"""Packages that a verdict depends on, or that are loaded into the process that computes it."""

PTXAS: Final = Package("nvidia-cuda-nvcc", "nvidia.cu13", ("bin/ptxas",))

PACKAGES: Final = (
    *PROVERS,
    Package("torch-mlir", "torch_mlir"),
    Package("llvmlite", "llvmlite"),
    Package("cuda-bindings", "cuda.bindings"),
    Package("cuda-pathfinder", "cuda.pathfinder"),  # selects the library that cuda-bindings loads
    Package("nvidia-nvjitlink", "nvidia.cu13", ("lib/libnvJitLink.so*",)),  # its folder is shared with the other tools
    PTXAS,
)
"""Packages whose code can change a product: CUBINs come from nvJitLink, or from ptxas (`tilec.assemble`). libdevice
(nvidia-nvvm) is not included: kernels call no function of it."""
NVDISASM: Final = Package("nvidia-cuda-nvdisasm", "nvidia.cu13", ("bin/nvdisasm",), extra="test")


def missing_package(distribution: str, extra: str = "compiler") -> CompileError:
    """The error for a toolchain package that is not installed."""
    return CompileError(Diagnostic("E0601", f"`{distribution}` is not installed", hint=f"run `pip install 'tilec[{extra}]'`"))


@cache
def _module_folder(module: str) -> Path | None:
    # Resolving the parts here keeps `find_spec` from importing the parent packages, some of which take half a second.
    head, *rest = module.split(".")
    spec = importlib.util.find_spec(head)
    for location in spec.submodule_search_locations or () if spec else ():
        folder = Path(location, *rest)
        if folder.is_dir():
            return folder
    return None


def is_installed(package: Package) -> bool:
    """Whether a package is installed, without loading it."""
    return _module_folder(package.module) is not None


def find_binaries(package: Package) -> tuple[Path, ...]:
    """The files that a package's `binaries` match; CompileError E0601 if the package or one of them is missing."""
    folder = _module_folder(package.module)
    found: list[Path] = []
    for pattern in package.binaries:
        matches = sorted(folder.glob(pattern)) if folder else []
        if not matches:
            raise missing_package(package.distribution, package.extra)
        found.extend(matches)
    return tuple(found)


def find_ptxas() -> Path:
    """The stand-alone assembler; CompileError E0601 if it is not installed."""
    return find_binaries(PTXAS)[0]


def find_nvdisasm() -> Path:
    """The disassembler; CompileError E0601 if it is not installed."""
    return find_binaries(NVDISASM)[0]


def python_version() -> str:
    """The implementation and minor version of Python, which determine its syntax tree; bug-fix releases do not change it."""
    return f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"


def fingerprint(memory: Memory | None = None, packages: Sequence[Package] | None = None) -> dict[str, str]:
    """Version and sha256 of toolchain packages (None: all) by distribution name, independent of their paths, and the version of
    `python`. A distribution built for one version of Python has that version's tag before the digest. `memory` caches digests;
    malformed entries are ignored. Raises CompileError E0601, one diagnostic per missing package."""
    import importlib.metadata  # a quarter of the load time of this module's importers, few of which need a fingerprint

    note = f"toolchain:{sys.prefix}"
    known = _remembered(memory, note)
    fresh = dict(known)
    result = {"python": python_version()}
    missing: list[Diagnostic] = []
    for package in PACKAGES if packages is None else packages:
        try:
            distribution = importlib.metadata.distribution(package.distribution)
            digest = _digest(package, known, fresh)
        except importlib.metadata.PackageNotFoundError:
            missing.extend(missing_package(package.distribution, package.extra).diagnostics)
        except CompileError as error:
            missing.extend(error.diagnostics)
        else:
            words = (distribution.version, _python_tag(distribution.read_text("WHEEL")), f"sha256:{digest}")
            result[package.distribution] = " ".join(word for word in words if word)
    if missing:
        raise CompileError(missing)
    if memory is not None and fresh != known:
        memory.set_texts({note: json.dumps(fresh)})
    return result


def stated(toolchain: Mapping[str, str]) -> dict[str, str]:
    """The part of a fingerprint that a manifest records: what is the same on every version of Python.

    The same kernels give the same bundle on every version of Python. Python's own version is therefore only in the keys, and so
    are the digests of packages that are compiled for each version (`cp311`): their version represents them, and
    `requirements.lock` ties it to the digest of each wheel. Distributions that serve every version are recorded with the digest
    of their files.
    """
    return {name: text.split()[0] if len(text.split()) > 2 else text for name, text in toolchain.items() if name != "python"}


def _python_tag(wheel: str | None) -> str:
    """`cp311` for a wheel for CPython 3.11 only, empty for a wheel for every Python 3."""
    tags = {line.partition(":")[2].strip().split("-")[0] for line in (wheel or "").splitlines() if line.startswith("Tag:")}
    return "" if all(tag.startswith("py3") for tag in tags) else ".".join(sorted(tags))


def _digest(package: Package, known: Mapping[str, Sequence[str]], fresh: dict[str, list[str]]) -> str:
    """One digest of all covered files of a package and of their names; cached under the stamps of all of them."""
    folder = _module_folder(package.module)
    if folder is None:
        raise missing_package(package.distribution, package.extra)
    if package.binaries:
        files = [(str(path), path.stat()) for path in find_binaries(package)]
    else:
        files = sorted(_modules(folder), key=lambda entry: entry[0])
    stamps = hashlib.sha256("\n".join(f"{path}|{_stamp(status)}" for path, status in files).encode()).hexdigest()
    before = known.get(package.distribution)
    if before is not None and before[0] == stamps:
        return before[1]
    total = hashlib.sha256()
    for path, _ in files:
        total.update(f"{Path(path).relative_to(folder.parent).as_posix()}\0{_sha256(Path(path))}\n".encode())
    changed = max((max(status.st_mtime_ns, status.st_ctime_ns) for _, status in files), default=0)
    if time.time_ns() - changed > SETTLED_NS:
        fresh[package.distribution] = [stamps, total.hexdigest()]
    return total.hexdigest()


def _modules(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Python modules and shared libraries below a package and in the adjacent `<package>.libs`, where wheels put bundled
    libraries; tests are skipped, because no verdict depends on them."""
    pending = [str(folder), f"{folder}.libs"]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except FileNotFoundError:
            continue
        for entry in entries:
            if entry.is_dir():
                if entry.name not in ("__pycache__", "tests"):
                    pending.append(entry.path)
            elif entry.name.endswith(".py") or ".so" in entry.name:
                yield entry.path, entry.stat()


def _stamp(status: os.stat_result) -> str:
    return f"{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}|{status.st_ino}|{status.st_dev}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(memory: Memory | None, note: str) -> dict[str, list[str]]:
    try:
        data: Any = json.loads((memory.get_text(note) if memory is not None else None) or "{}")
    except (ValueError, RecursionError):
        return {}
    return dict(_entries(data))


def _entries(data: Any) -> Iterator[tuple[str, list[str]]]:
    items = cast("dict[Any, Any]", data if isinstance(data, dict) else {})
    for name, pair in items.items():
        if isinstance(pair, list) and len(pair) == 2 and all(isinstance(item, str) and len(item) == 64 for item in pair):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            yield name, pair  # pyright: ignore[reportUnknownMemberType]
