"""Verdicts cached in the user's store, so that nothing is checked twice.

A key is the digest of everything that a verdict depends on (`tilec.audit.tasks`): texts, fields of the manifest, and the
sources and versions of the checkers. The store is trusted as it is for the products of a build: it is private to the user or
sealed by the user's key, and no remote is used. Damaged or malformed entries are ignored. Only final verdicts are kept, none
of a task that was cut off, killed, or lacked a package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, cast

from tilec.artifact.bundle_format import canonical
from tilec.audit.findings import CONFIRMED, REFUTED, TRUSTED, UNKNOWN
from tilec.audit.sources import ARGUMENTS, ASSEMBLY, EMULATION, PROOF
from tilec.cache import Store, key_of
from tilec.untrusted.strict_json import parse

OUTPUT: Final = "verdict"
LARGEST: Final = 1 << 24
"""Maximum bytes of a verdict."""
VERDICTS: Final = (CONFIRMED, REFUTED, TRUSTED, UNKNOWN)
_FINDING: Final = {"property": str, "subject": str, "verdict": str, "reason": str, "model": dict}
_LAUNCH: Final = {"case": str, "values": dict, "seed": int}


class Verdicts:
    """Verdicts by kind and digest."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, kind: str, digest: str) -> Any | None:
        """The cached verdict, or None."""
        found = self._store.lookup(key_in_store(kind, digest))
        data = found.outputs.get(OUTPUT) if found is not None else None
        if data is None:
            return None
        try:
            verdict: Any = parse(data, limit=LARGEST, canonical=True, printable=False)
        except ValueError:
            return None
        return verdict if final(kind, verdict) else None

    def keep(self, kind: str, digest: str, verdict: Any, label: str) -> None:
        """Stores a verdict if it is final."""
        if final(kind, verdict):
            self._store.put(key_in_store(kind, digest), {OUTPUT: canonical(verdict)}, f"audit: {kind} of {label}")


def key_in_store(kind: str, digest: str) -> str:
    """The key of a store entry."""
    return key_of(f"audit {kind}", {"digest": digest})


def final(kind: str, verdict: Any) -> bool:
    """Whether this is a verdict of its kind that another run would reproduce."""
    return _SHAPES[kind](verdict)


def _is_proof(verdict: Any) -> bool:
    if not isinstance(verdict, list) or not verdict:
        return False
    items = cast("list[Any]", verdict)
    return all(_has(one, _FINDING) and len(one) == len(_FINDING) and one["verdict"] in VERDICTS for one in items)


def _is_emulation(verdict: Any) -> bool:
    """A result without the emulator package is not final."""
    if not _has(verdict, {"status": str, "reason": str, "launches": list}) or verdict["status"] == "none":
        return False
    if verdict["status"] == "clean" and not _has(verdict, {"instructions": int, "coverage": float, "never_executed": list}):
        return False
    return verdict["status"] in ("clean", "faulty", "unknown") and all(_has(one, _LAUNCH) for one in verdict["launches"])


def _is_arguments(verdict: Any) -> bool:
    return (
        _has(verdict, {"status": str, "reason": str})
        and len(verdict) == 2
        and verdict["status"] in (CONFIRMED, REFUTED, UNKNOWN)
    )


def _is_assembly(verdict: Any) -> bool:
    return (_has(verdict, {"sha256": str}) or _has(verdict, {"refused": str})) and len(verdict) == 1


def _has(data: Any, fields: dict[str, type]) -> bool:
    return isinstance(data, dict) and all(
        isinstance(cast("dict[Any, Any]", data).get(name), kind) for name, kind in fields.items()
    )


_SHAPES: Final[dict[str, Callable[[Any], bool]]] = {
    PROOF: _is_proof, EMULATION: _is_emulation, ARGUMENTS: _is_arguments, ASSEMBLY: _is_assembly,
}  # fmt: skip
