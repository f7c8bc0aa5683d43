"""Where the trust policy lies: what a caller gave goes in; a policy, its file, or None comes out.

It is apart from `tilec.runtime.trust`, which reads policies, so that a program without one loads nothing for them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tilec.runtime.trust import Trust, TrustSource

VARIABLE: Final = "TILEC_TRUST"
NO_POLICY: Final = "none"


def policy_place(given: TrustSource) -> Trust | Path | None:
    """The policy that is given, or the file of the one that holds: the one given, that of `TILEC_TRUST`, or the user's."""
    if given is None:
        named = os.environ.get(VARIABLE, "")
        if not named:
            path = _of_the_user()
            return path if path is not None and os.path.lexists(path) else None
    elif isinstance(given, (str, os.PathLike)):
        named = os.fspath(given)
    else:
        return given
    return None if named == NO_POLICY else Path(named)


def _of_the_user() -> Path | None:
    """The policy of the configuration folder (XDG Base Directory Specification: a relative one is ignored)."""
    folder = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.expanduser("~/.config")
    return Path(folder, "tilec", "trust.toml") if os.path.isabs(folder) else None
