"""The packages that prove kernels and turn tile IR into a CUBIN: where they are, and a fingerprint of exactly these files.

The fingerprint is part of cache keys and of every manifest, so it holds versions and the sha256 of the shared libraries, tools
and modules that can change a verdict or a product, and the version of Python, whose parser reads kernels. Hashing 400 MB takes
a second, so digests are remembered in a small file by path, size, times of modification and of change, and inode: what writes
to a file and sets its old time of modification again still moves its time of change.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from tilec.diagnostics import CompileError, Diagnostic


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution of the toolchain, the module that holds it, and the files that matter: binaries (globs below that module),
    or with `whole` every Python module and shared library of it, as one digest."""

    distribution: str
    module: str
    binaries: tuple[str, ...]
    extra: str = "compiler"
    whole: bool = False


PROVERS: Final = (
    Package("islpy", "islpy", (), whole=True),
    Package("networkx", "networkx", (), whole=True),
    Package("numpy", "numpy", (), whole=True),
    Package("ml-dtypes", "ml_dtypes", (), whole=True),
)
"""What a verdict rests on, or is loaded into the process that gives it."""

PACKAGES: Final = (
    *PROVERS,
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


def fingerprint(memo: Path | None = None, packages: Sequence[Package] | None = None) -> dict[str, str]:
    """Version and sha256 of packages of the toolchain (None: of all) by distribution name, the same on any path, and the
    version of `python`.

    `memo` is the file that remembers digests; an unreadable one is ignored, an unwritable one costs only time.
    Raises CompileError E0601, one diagnostic per missing package.
    """
    memo = memo or default_memo()
    known = _read_memo(memo)
    seen: dict[str, str] = {}
    result = {"python": f"{platform.python_implementation()} {platform.python_version()}"}
    missing: list[Diagnostic] = []
    for package in PACKAGES if packages is None else packages:
        try:
            version = importlib.metadata.version(package.distribution)
            digests = _whole(package, known, seen) if package.whole else _each(package, known, seen)
        except importlib.metadata.PackageNotFoundError:
            missing.extend(missing_package(package.distribution, package.extra).diagnostics)
        except CompileError as error:
            missing.extend(error.diagnostics)
        else:
            result[package.distribution] = " ".join([version, *(f"sha256:{digest}" for digest in digests)])
    if missing:
        raise CompileError(missing)
    if seen.keys() - known.keys():
        _write_memo(memo, known | seen)
    return result


def _each(package: Package, known: dict[str, str], seen: dict[str, str]) -> list[str]:
    """The digest of every binary."""
    found: list[str] = []
    for path in find_binaries(package):
        key = f"{path}|{_stamp(path.stat())}"
        seen[key] = known[key] if key in known else _sha256(path)
        found.append(seen[key])
    return found


def _whole(package: Package, known: dict[str, str], seen: dict[str, str]) -> list[str]:
    """One digest of all modules and shared libraries of a package and of their names; remembered as a whole."""
    folder = _module_folder(package.module)
    if folder is None:
        raise missing_package(package.distribution, package.extra)
    files = sorted(_modules(folder), key=lambda entry: entry[0])
    stamps = hashlib.sha256("\n".join(f"{path}|{_stamp(status)}" for path, status in files).encode()).hexdigest()
    key = f"{package.distribution}|{stamps}"
    if key not in known:
        total = hashlib.sha256()
        for path, _ in files:
            total.update(f"{Path(path).relative_to(folder.parent).as_posix()}\0{_sha256(Path(path))}\n".encode())
        seen[key] = total.hexdigest()
        return [seen[key]]
    seen[key] = known[key]
    return [known[key]]


def _modules(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Python modules and shared libraries below a package and beside it in `<package>.libs`, where wheels put the libraries
    that they bring; tests are nobody's verdict."""
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
    return f"{status.st_size}|{status.st_mtime_ns}|{status.st_ctime_ns}|{status.st_ino}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
