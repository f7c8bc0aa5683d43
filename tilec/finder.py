"""Finds the bundle of a model, or of a kernel: the numbers of a configuration, or a kernel's name and constants, and an
architecture go in, a path comes out.

It looks into installed packages of the entry point group `tilec.kernels`, then into the user's folder of bundles, then, where
`TILEC_REGISTRY` names one, into a registry, from which it pulls into that folder. No code of a package runs: its bundle is a
file at a place that its name tells. What is found is looked at here, to see what it is for; `open_bundle` judges it.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tilec.bundle_format import FORMAT, HEADER, MAGIC, MAX_MANIFEST, MODEL, SUFFIX
from tilec.cache.location import check_private, create, store_root
from tilec.diagnostics import CompileError
from tilec.registry.parts import is_for
from tilec.runtime import BundleError, open_bundle
from tilec.strict_json import parse
from tilec.temporary_files import sweep

if TYPE_CHECKING:
    from tilec.runtime.trust import TrustSource

GROUP: Final = "tilec.kernels"
REGISTRY: Final = "TILEC_REGISTRY"
MAX_CANDIDATES: Final = 256
_PACKAGE: Final = re.compile(r"[a-z_][a-z0-9_]{0,127}", re.ASCII)


def bundles_folder() -> Path:
    """Where `tilec bundle pull` puts bundles: the user's own folder, beside the store."""
    return store_root() / "bundles"


def own_bundles_folder() -> Path:
    """The same, made where it is missing. BundleError E0735 where it cannot be, or where others may write to it."""
    folder = bundles_folder()
    try:
        create(folder)
        check_private(folder)
    except OSError as error:
        raise BundleError("E0735", f"`{folder}` cannot be made: {error.strerror}") from None
    except CompileError as error:
        raise BundleError("E0735", error.diagnostics[0].message) from None
    return folder


def find_bundle(numbers: Mapping[str, Any], arch: str, trust: TrustSource = None) -> Path:
    """The bundle for a model of these numbers on an architecture; what is pulled must be signed as the policy `trust` asks.
    BundleError E0735 where there is none, or several packages have one."""
    unusable: list[str] = []
    installed = sorted({path for path in _installed(arch) if _is_for(path, numbers, arch, unusable)})
    if len(installed) > 1:
        raise BundleError("E0735", f"two packages have a bundle for this model and {arch}: `{installed[0]}`, `{installed[1]}`")
    if installed:
        return installed[0]
    for path in _cached(arch, unusable):
        if _is_for(path, numbers, arch, unusable):
            return path
    registry = os.environ.get(REGISTRY)
    if registry:
        return _pulled(registry, numbers, arch, trust)
    found = "".join(f"; {text}" for text in unusable[:1])
    raise BundleError("E0735", f"no bundle for this model and {arch} is installed or in `{bundles_folder()}`{found}"[:1000])


def find_kernel(kernel: str, constants: Mapping[str, Any], arch: str) -> Path:
    """A bundle that says that it has this specialisation, among those that are installed, then those that were pulled.
    BundleError E0735 where there is none, or two have different code for it."""
    unusable: list[str] = []
    for places in (sorted(set(_installed(arch))), _cached(arch, unusable)):
        found = {path: code for path in places if (code := _code_of(path, kernel, constants, arch, unusable))}
        if len(set(found.values())) > 1:
            one, other = list(found)[:2]
            raise BundleError(
                "E0735", f"`{one}` and `{other}` have different code for `{kernel}`", hint="name one: `prebuilt=`"
            )
        if found:
            return next(iter(found))
    wanted = ", ".join([f"`{kernel}`", *(f"{name} = {value}" for name, value in constants.items()), arch])
    told = "".join(f"; {text}" for text in unusable[:1])
    hint = "install one, or `tilec[compiler]`, or name a folder of artifacts: `prebuilt=`"
    raise BundleError(
        "E0735", f"no bundle with a kernel for {wanted} is installed or in `{bundles_folder()}`{told}"[:1000], hint=hint
    )


def _code_of(path: Path, kernel: str, constants: Mapping[str, Any], arch: str, unusable: list[str]) -> str:
    """Digest of the code that a bundle says it has for a specialisation, empty where it has none."""
    try:
        said = _said(path)
        for item in said["kernels"] if said.get("arch") == arch else ():
            manifest = item["manifest"]
            if manifest["kernel"] == kernel and manifest["constants"] == constants:
                return str(item["blob"])
    except OSError as error:
        unusable.append(f"`{path}` cannot be read: {error.strerror}")
    except ValueError as error:
        unusable.append(f"`{path}` {error}")
    except (KeyError, TypeError):
        unusable.append(f"`{path}` is damaged: its manifest is none")
    return ""


def _installed(arch: str) -> Iterator[Path]:
    """The bundles of packages, whose entry points are named after them."""
    for number, entry in enumerate(_entry_points()):
        named = MODEL.fullmatch(entry.name) and _PACKAGE.fullmatch(entry.value) and entry.name.endswith(f"-{arch}")
        if named and entry.dist is not None and number < MAX_CANDIDATES:
            yield Path(str(entry.dist.locate_file(f"{entry.value}/{entry.name}{SUFFIX}")))


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """Of the group, from every package whose list of them can be read: one that cannot hides no other."""
    try:
        return list(importlib.metadata.entry_points(group=GROUP))
    except Exception:  # of whatever kind the reader of lists that anybody wrote has
        found: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for package in importlib.metadata.distributions():
            with contextlib.suppress(Exception):
                found.setdefault(package.name, list(package.entry_points.select(group=GROUP)))  # the first on the path counts
        return [entry for entries in found.values() for entry in entries]


def _cached(arch: str, unusable: list[str]) -> list[Path]:
    folder = bundles_folder()
    try:
        check_private(folder)
        names = sorted(name for name in os.listdir(folder) if name.endswith(f"-{arch}{SUFFIX}"))
    except FileNotFoundError:
        return []
    except OSError as error:
        unusable.append(f"`{folder}` cannot be read: {error.strerror}")
        return []
    except CompileError as error:
        unusable.append(error.diagnostics[0].message)
        return []
    return [folder / name for name in names[:MAX_CANDIDATES]]


def _is_for(path: Path, numbers: Mapping[str, Any], arch: str, unusable: list[str]) -> bool:
    """Whether a bundle says that it is for this; why it cannot be read goes to `unusable`."""
    try:
        said = _said(path)
        return said.get("arch") == arch and is_for(said["config"], numbers)
    except OSError as error:
        unusable.append(f"`{path}` cannot be read: {error.strerror}")
    except ValueError as error:
        unusable.append(f"`{path}` {error}")
    return False


def _said(path: Path) -> dict[str, Any]:
    """The manifest of a bundle, unjudged but for its form; ValueError, as the end of a sentence, where it has none."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("is not a file")
        front = file.read(HEADER.size)
        magic, *fields = HEADER.unpack(front) if len(front) == HEADER.size else (b"", 0)
        if magic != MAGIC or fields[0] != FORMAT:
            raise ValueError(f"is not a bundle of format {FORMAT}, which this tilec reads")
        size: int = fields[4]
        if size > MAX_MANIFEST:
            raise ValueError("asks for more than a bundle may hold")
        try:
            data = parse(file.read(size), limit=MAX_MANIFEST)
        except ValueError as error:
            raise ValueError(f"is damaged: {error}") from None
    if not isinstance(data, dict) or not isinstance(cast("dict[str, Any]", data).get("config"), dict):
        raise ValueError("is damaged: its manifest is none")
    return cast("dict[str, Any]", data)


def _pulled(registry: str, numbers: Mapping[str, Any], arch: str, trust: TrustSource) -> Path:
    """The bundle of a registry, in the user's folder; BundleError as of what went wrong."""
    from tilec.registry.client import Client  # here, so that what is found on this machine does not wait for HTTP and TLS
    from tilec.registry.errors import RegistryError
    from tilec.registry.pull import Wanted, pull
    from tilec.registry.reference import read_reference

    try:
        reference = read_reference(registry)
    except ValueError as error:
        raise BundleError("E0735", f"`{REGISTRY}` is `{registry:.200}`, which {error}") from None
    folder = own_bundles_folder()
    sweep(folder)  # of pulls that were killed
    try:
        with Client(reference) as client:
            return pull(client, Wanted(arch=arch, numbers=numbers), folder, partial(checked, trust=trust))[0].path
    except RegistryError as error:
        raise BundleError(error.code, error.message, hint=error.hint) from None
    except OSError as error:
        raise BundleError("E0735", f"`{folder}` cannot be written: {error.strerror}") from None


def checked(path: Path, arch: str, trust: TrustSource = None) -> None:
    """Judge a file that was pulled as every loader would, under a policy; BundleError where it is refused."""
    try:
        open_bundle(path, arch=arch, trust=trust).close()
    except BundleError as error:
        said = (error.message, error.hint)  # by the name that it has for a moment
        message, hint = (text.replace(str(path), "what was pulled").replace(path.name, "BUNDLE") for text in said)
        raise BundleError(error.code, message, hint=hint) from None
