"""Finds the bundle of a model or of a kernel: takes a model's numbers, or a kernel's name and constants, and an architecture;
returns an open bundle.

It searches installed packages of the entry point group `tilec.kernels`, then the user's bundle folder, then, if
`TILEC_REGISTRY` is set, a registry, from which it pulls into that folder. No code of a package runs: the path of its bundle
follows from its entry point. This module reads only whether a bundle matches; `open_bundle` verifies it under the trust policy
in effect. A rejected bundle does not hide others: it is skipped with a warning in the log of this module.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from tilec.artifact.bundle_format import FORMATS, HEADER, MAGIC, MAX_MANIFEST, MODEL, SUFFIX
from tilec.cache.location import check_private, create, store_root
from tilec.diagnostics.diagnostic import CompileError
from tilec.runtime import Bundle, BundleError, open_bundle
from tilec.runtime.trust_location import NO_POLICY, find_trust
from tilec.ship.registry.parts import is_for
from tilec.target.chips import running_on
from tilec.untrusted.strict_json import parse
from tilec.untrusted.temporary_files import sweep

if TYPE_CHECKING:
    from tilec.runtime.trust import Trust, TrustSource
    from tilec.ship.registry.pull import Refused

GROUP: Final = "tilec.kernels"
REGISTRY: Final = "TILEC_REGISTRY"
MAX_CANDIDATES: Final = 256
_PACKAGE: Final = re.compile(r"[a-z_][a-z0-9_]{0,127}", re.ASCII)


def bundles_folder() -> Path:
    """The user's bundle folder, next to the store; `tilec bundle pull` writes to it."""
    return store_root() / "bundles"


def own_bundles_folder() -> Path:
    """The user's bundle folder, created if it is missing. BundleError E0735 if it cannot be created, or others may write to
    it."""
    folder = bundles_folder()
    try:
        create(folder)
        check_private(folder)
    except OSError as error:
        raise BundleError("E0735", f"`{folder}` cannot be made: {error.strerror}") from None
    except CompileError as error:
        raise BundleError("E0735", error.diagnostics[0].message) from None
    return folder


def find_bundle(
    numbers: Mapping[str, Any],
    arch: str,
    trust: TrustSource = None,
    *,
    digest: str | None = None,
    deciding: Collection[str] = (),
) -> Bundle:
    """The open bundle for a model with these numbers on a chip, given by its own architecture; of several bundles whose code it
    runs, one for exactly that architecture. It must state each of the numbers `deciding`, have the
    sha256 `digest` if one is given, and satisfy the policy `trust`. BundleError E0735 if there is none, or several packages
    have one; if all candidates are rejected, the error of the first."""
    search = _Search(arch, find_trust(trust) or NO_POLICY, digest)
    found = _first(_local(one, numbers, deciding) for one in search.each())
    registry = os.environ.get(REGISTRY)
    if found is None and registry:
        search.report_refused()
        found = _first(
            next(one.opened(path for path in _pulled(registry, numbers, one) if one.is_for(path, numbers, deciding)), None)
            for one in search.each()
        )
    if found is None:
        raise search.refusal() or search.absence("bundle for this model and", arch)
    search.report_refused()
    return found


def _first(found: Iterable[Bundle | None]) -> Bundle | None:
    return next((one for one in found if one is not None), None)


def _local(search: _Search, numbers: Mapping[str, Any], deciding: Collection[str]) -> Bundle | None:
    """The bundle of a package or in the user's folder; E0735 if several packages have one."""
    paths = _packaged(search.arch)
    installed = list(search.opened(path for path in paths if search.is_for(path, numbers, deciding)))
    if len(installed) > 1:
        for one in installed:
            one.close()
        one, other = (bundle.path for bundle in installed[:2])
        raise BundleError("E0735", f"two packages have a bundle for this model and {search.arch}: `{one}`, `{other}`")
    cached = search.opened(path for path in search.cached() if search.is_for(path, numbers, deciding))
    return next(iter(installed), None) or next(cached, None)


def find_kernel(kernel: str, constants: Mapping[str, Any], arch: str) -> Bundle:
    """An open bundle that lists this specialisation; installed bundles are searched first, then pulled ones. BundleError E0735
    if there is none, or two have different code for it; if the trust policy rejects all candidates, the error of the first."""
    search = _Search(arch, find_trust() or NO_POLICY)
    for one_arch, bundle_paths in _locations(search):
        paths = bundle_paths()
        codes = {path: code for path in paths if (code := _code_of(path, kernel, constants, one_arch, search.unusable))}
        with ExitStack() as rest:
            found: dict[str, Bundle] = {}
            for path, code in codes.items():
                bundle = next(replace(search, arch=one_arch).opened([path]), None) if code not in found else None
                if bundle is not None:
                    found[code] = rest.enter_context(bundle)
            if len(found) > 1:
                one, other = (bundle.path for bundle in list(found.values())[:2])
                message = f"`{one}` and `{other}` have different code for `{kernel}`"
                raise BundleError("E0735", message, hint="name one: `prebuilt=`")
            rest.pop_all()
        if found:
            search.report_refused()
            return next(iter(found.values()))
    wanted = ", ".join([f"`{kernel}`", *(f"{name} = {value}" for name, value in constants.items()), arch])
    hint = "install one, or `tilec[compiler]`, or name a folder of artifacts: `prebuilt=`"
    raise search.refusal() or search.absence("bundle with a kernel for", wanted, hint)


def _locations(search: _Search) -> Iterator[tuple[str, Callable[[], list[Path]]]]:
    """Where bundles lie, each with the architecture that they are for: its own first, and packages before the user's folder."""
    for one in search.each():
        yield one.arch, partial(_packaged, one.arch)
        yield one.arch, one.cached


def _packaged(arch: str) -> list[Path]:
    return sorted(set(_installed(arch)))


@dataclass(slots=True)
class _Search:
    """Parameters of one search, and its findings: reasons why files could not be read, and rejected bundles. `arch` is a chip's
    own architecture, or in the searches of `each` one whose code it runs."""

    arch: str
    trust: Trust | str
    digest: str | None = None
    unusable: list[str] = field(default_factory=list[str])
    refused: list[BundleError] = field(default_factory=list[BundleError])
    reported: int = 0

    def each(self) -> Iterator[_Search]:
        """A search for each architecture whose code the chip runs, its own first; all have the findings of this one."""
        for arch in running_on(self.arch):
            yield replace(self, arch=arch)

    def opened(self, paths: Iterable[Path]) -> Iterator[Bundle]:
        """The accepted bundles among some files, open; each is verified when the iterator reaches it."""
        for path in paths:
            try:
                yield open_bundle(path, arch=self.arch, digest=self.digest, trust=self.trust, proofs=False)
            except BundleError as error:
                self.refused.append(error)

    def report_refused(self) -> None:
        """Logs the skipped bundles, because whoever installed them expects that they are used."""
        if self.reported < len(self.refused):
            from logging import getLogger  # imported here, because it is rarely needed

            for error in self.refused[self.reported :]:
                getLogger(__name__).warning("warning: skipped a bundle: %s", error.message)
            self.reported = len(self.refused)

    def refusal(self) -> BundleError | None:
        """The first rejection, if any, with the number of others."""
        if not self.refused:
            return None
        first, more = self.refused[0], len(self.refused) - 1
        suffix = f"; {more} other bundles are refused too" if more else ""
        return BundleError(first.code, first.message + suffix, hint=first.hint)

    def absence(self, what: str, wanted: str, hint: str = "") -> BundleError:
        """The error if nothing was found."""
        first_problem = "".join(f"; {text}" for text in self.unusable[:1])
        return BundleError(
            "E0735", f"no {what} {wanted} is installed or in `{bundles_folder()}`{first_problem}"[:1000], hint=hint
        )

    def cached(self) -> list[Path]:
        """The files of the user's bundle folder."""
        folder = bundles_folder()
        try:
            check_private(folder)
            names = sorted(name for name in os.listdir(folder) if name.endswith(f"-{self.arch}{SUFFIX}"))
        except FileNotFoundError:
            return []
        except OSError as error:
            self.unusable.append(f"`{folder}` cannot be read: {error.strerror}")
            return []
        except CompileError as error:
            self.unusable.append(error.diagnostics[0].message)
            return []
        if len(names) > MAX_CANDIDATES:
            self.unusable.append(f"`{folder}` has {len(names)} bundles, of which {MAX_CANDIDATES} were read")
        return [folder / name for name in names[:MAX_CANDIDATES]]

    def is_for(self, path: Path, numbers: Mapping[str, Any], deciding: Collection[str]) -> bool:
        """Whether a bundle states that it is for these numbers, including each of `deciding`; if it cannot be read, the reason
        is recorded."""
        try:
            description = _description(path)
            config = description["config"]
            return description.get("arch") == self.arch and is_for(config, numbers) and all(name in config for name in deciding)
        except OSError as error:
            self.unusable.append(f"`{path}` cannot be read: {error.strerror}")
        except ValueError as error:
            self.unusable.append(f"`{path}` {error}")
        return False


def _code_of(path: Path, kernel: str, constants: Mapping[str, Any], arch: str, unusable: list[str]) -> str:
    """Digest of the code that a bundle lists for a specialisation; empty if it has none."""
    try:
        bundle_manifest = _description(path)
        for item in bundle_manifest["kernels"] if bundle_manifest.get("arch") == arch else ():
            manifest = item["manifest"]
            if manifest["kernel"] == kernel and manifest["constants"] == constants:
                return str(item["blob"])
    except OSError as error:
        unusable.append(f"`{path}` cannot be read: {error.strerror}")
    except ValueError as error:
        unusable.append(f"`{path}` {error}")
    except (KeyError, TypeError):
        unusable.append(f"`{path}` is damaged: its manifest is invalid")
    return ""


def _installed(arch: str) -> Iterator[Path]:
    """The bundles of packages; an entry point has the name of its bundle."""
    for number, entry in enumerate(_entry_points()):
        named = MODEL.fullmatch(entry.name) and _PACKAGE.fullmatch(entry.value) and entry.name.endswith(f"-{arch}")
        if named and entry.dist is not None and number < MAX_CANDIDATES:
            yield Path(str(entry.dist.locate_file(f"{entry.value}/{entry.name}{SUFFIX}")))


def _entry_points() -> list[importlib.metadata.EntryPoint]:
    """Entry points of the group, from every package with readable metadata: an unreadable package does not hide others."""
    try:
        return list(importlib.metadata.entry_points(group=GROUP))
    except Exception:  # metadata of any package may fail to parse with any exception
        found: dict[str, list[importlib.metadata.EntryPoint]] = {}
        for package in importlib.metadata.distributions():
            with contextlib.suppress(Exception):
                found.setdefault(package.name, list(package.entry_points.select(group=GROUP)))  # the first on the path wins
        return [entry for entries in found.values() for entry in entries]


def _description(path: Path) -> dict[str, Any]:
    """The manifest of a bundle, checked only for its form; ValueError, whose text ends a sentence, if it has none."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise ValueError("is not a file")
        front = file.read(HEADER.size)
        magic, *fields = HEADER.unpack(front) if len(front) == HEADER.size else (b"", 0)
        if magic != MAGIC or fields[0] not in FORMATS:
            raise ValueError(f"is not a bundle of format {' or '.join(map(str, FORMATS))}, which this tilec reads")
        size: int = fields[4]
        if size > MAX_MANIFEST:
            raise ValueError("asks for more than a bundle may hold")
        try:
            data = parse(file.read(size), limit=MAX_MANIFEST)
        except ValueError as error:
            raise ValueError(f"is damaged: {error}") from None
    if not isinstance(data, dict) or not isinstance(cast("dict[str, Any]", data).get("config"), dict):
        raise ValueError("is damaged: its manifest is invalid")
    return cast("dict[str, Any]", data)


def _pulled(registry: str, numbers: Mapping[str, Any], search: _Search) -> list[Path]:
    """The bundles of a registry, pulled into the user's folder; rejected ones are added to the search. BundleError if the
    registry cannot be read."""
    from tilec.ship.registry.client import Client  # imported here, so that a local search does not load HTTP and TLS
    from tilec.ship.registry.errors import RegistryError
    from tilec.ship.registry.pull import Wanted, pull
    from tilec.ship.registry.reference import read_reference

    try:
        reference = read_reference(registry)
    except ValueError as error:
        raise BundleError("E0735", f"`{REGISTRY}` is `{registry:.200}`, which {error}") from None
    folder = own_bundles_folder()
    sweep(folder)  # leftovers of killed pulls
    refused: list[Refused] = []
    try:
        with Client(reference) as client:
            wanted, check = Wanted(arch=search.arch, numbers=numbers), partial(checked, trust=search.trust)
            found = pull(client, wanted, folder, check, refusals=(BundleError,), report_refused=refused.append)
    except RegistryError as error:
        raise BundleError(error.code, error.message, hint=error.hint) from None
    except OSError as error:
        raise BundleError("E0735", f"`{folder}` cannot be written: {error.strerror}") from None
    search.refused += [refusal_of(one, registry) for one in refused]
    return [one.path for one in found]


def refusal_of(one: Refused, reference: str) -> BundleError:
    """The error for a skipped bundle of a registry."""
    code, message, hint = (str(getattr(one.error, name)) for name in ("code", "message", "hint"))
    return BundleError(code, f"`{one.model}` for `{one.arch}` of `{reference:.200}`: {message}", hint=hint)


def checked(path: Path, arch: str, trust: TrustSource = None) -> None:
    """Verifies a pulled file under a policy, as every loader does; BundleError if it is rejected."""
    try:
        open_bundle(path, arch=arch, trust=trust).close()
    except BundleError as error:
        texts = (error.message, error.hint)  # hide its temporary name
        message, hint = (text.replace(str(path), "what was pulled").replace(path.name, "BUNDLE") for text in texts)
        raise BundleError(error.code, message, hint=hint) from None
